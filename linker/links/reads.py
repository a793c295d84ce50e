"""Which consumers may read a link's mirrors before their promote: the link's options, decided per client id.

A fetch names no group, so this is about client ids. Groups are held by their gates and are read through the link once they
are promoted, and anybody may look at a mirror: so reads are allowed unless the client id says that its consumer keeps
its offsets itself, and would therefore go on where no gate stops it. By default these are Spark's (Java names a
client after its group, and Spark's groups are all called alike). Java consumers without a group (`consumer-null-1`) may
read: they are tools far more often than programs with offsets of their own, and to a tool a held topic is an empty one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from admin.models import HeldReader, LinkOptions, patterns
from router.produce.forwarding import ForwardingHub

_REMEMBERED = 10_000  # client ids: whoever sends ever new ones costs time, not memory


class ReadPolicy:
    """Of one link."""

    def __init__(self, options: LinkOptions) -> None:
        self._hold = _compiled(options.unpromoted_reads_hold)
        self._allow = _compiled(options.unpromoted_reads_allow)
        self._else = options.unpromoted_reads == "hold"
        self._known: dict[str, bool] = {}

    def holds(self, client_id: str | None) -> bool:
        """Whether the client gets no records before the promote."""
        name = client_id or ""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[name] = self._decide(name)
        return known

    def _decide(self, name: str) -> bool:
        if any(pattern.fullmatch(name) for pattern in self._allow):
            return False
        if any(pattern.fullmatch(name) for pattern in self._hold):
            return True
        return self._else


def _compiled(text: str) -> tuple[re.Pattern[str], ...]:
    """Each by itself, as they were checked: joined, one with flags or a named group would be another pattern or none."""
    return tuple(re.compile(part) for part in patterns(text))


def held_readers(hub: ForwardingHub, link: str, topic: str | None = None) -> list[HeldReader]:
    """Who gets no records of a mirror at the moment, by this sidecar."""
    now = datetime.now(UTC)
    return [
        HeldReader(
            topic=reader.topic,
            client_id=reader.client_id,
            host=reader.host,
            since=now - timedelta(seconds=age),
        )
        for reader, age in hub.held_readers.held(link, hub.loop.time(), topic)
    ]
