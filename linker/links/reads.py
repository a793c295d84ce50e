"""Decides per client id whether a consumer may read a mirror before its promote.

A fetch names no group, so the rule is about client ids. Reads are allowed by default: gates hold the groups until they
are promoted, and reading a mirror does no harm. A client id is refused if it belongs to a consumer that keeps its
offsets itself, because no gate stops such a consumer from going on at the target. By default these are Spark's (Java
names a client after its group, and all of Spark's groups have names of one form). Java consumers without a group
(`consumer-null-1`) may read: most are tools, few keep offsets of their own, and a tool would see a held topic as empty.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from admin.models import ClientLeft, HeldReader, LinkOptions, compiled
from router.produce.forwarding import ForwardingHub

_REMEMBERED = 10_000  # client ids: whoever sends ever new ones costs time, not memory


class ReadPolicy:
    """Of one link."""

    def __init__(self, options: LinkOptions) -> None:
        self._hold = compiled(options.unpromoted_reads_hold)
        self._allow = compiled(options.unpromoted_reads_allow)
        self._else = options.unpromoted_reads == "hold"
        self._never = bool(options.prefix)  # nobody moves to such a mirror: who reads it means to
        self._known: dict[str, bool] = {}

    def holds(self, client_id: str | None) -> bool:
        """Whether the client gets no records before the promote."""
        if self._never:
            return False
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


def held_readers(hub: ForwardingHub, link: str, topic: str | None = None) -> list[HeldReader]:
    """Clients to which this sidecar gives no records of a mirror at the moment."""
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


def clients_left(hub: ForwardingHub, topics: Collection[str]) -> list[ClientLeft]:
    """Clients that still use the cluster from which these topics were switched."""
    now, clock = datetime.now(UTC), hub.loop.time()
    return [
        ClientLeft(
            topic=one.topic,
            client_id=one.client_id,
            host=one.host,
            does=one.does,
            last_request=now - timedelta(seconds=clock - one.last),
        )
        for one in hub.clients_seen(topics)
    ]
