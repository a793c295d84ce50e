"""Limits the rate at which this sidecar reads a link's source.

The rate is the sidecar's part of the link's limit as the state has it now, and lower while clients' writes are forwarded.
Behind a fence there is no limit: producers wait there for the last bytes, which are few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from admin.models import LinkOptions
from controller.phases import HELD
from controller.state import Link, MirrorPartition, Record, RemoveSidecar, SidecarIdentity
from fetcher.source_rate import SourceRate
from fleet.link_controller import LinkController
from wire.frames.types import TopicPartition

OPTION = "replication_bytes_per_second"
BESIDE_WRITES = "replication_bytes_per_second_beside_writes"


class LinkThrottle:
    """Of one link, shared by its fetchers."""

    def __init__(self, link: str, controller: LinkController, writes: Callable[[], int]) -> None:
        """`writes`: how many writes of clients this process has forwarded so far, of whatever link."""
        self._link = link
        self._controller = controller
        self._held: set[TopicPartition] = set()
        self.rate = SourceRate(time.monotonic, writes)

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        if not records:
            self._held = {s.tp for s in self._controller.image.link_partitions(self._link) if s.phase in HELD}
            self._set_rates()
        for record in records:
            if isinstance(record, MirrorPartition) and record.link == self._link:
                (self._held.add if record.phase in HELD else self._held.discard)(record.tp)
            elif isinstance(record, Link | SidecarIdentity | RemoveSidecar):
                self._set_rates()
        self.rate.lift(lifted=bool(self._held))

    def _set_rates(self) -> None:
        """Each sidecar of a fleet takes an equal part of the limit: less than all of it while one of them leads nothing,
        never more. To its own clients each gives way by itself.
        """
        image = self._controller.image
        link = image.links.get(self._link)
        limit = _number(link, OPTION)
        self.rate.limit.set_rate(limit / max(1, len(image.identities)) if limit > 0 else None)
        self.rate.set_beside_writes(_number(link, BESIDE_WRITES) or None)


def _number(link: Link | None, option: str) -> int:
    """The value of an option; a link that was created before the option existed has its default."""
    value = None if link is None else link.options.get(option)
    return value if isinstance(value, int) else getattr(LinkOptions(), option)
