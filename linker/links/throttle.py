"""A link's limit on what it reads from its source, as the state has it: this sidecar's part of it, changed while it runs.

Behind a fence there is none: producers wait there for the last bytes, which are few.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from controller.manager import LinkController
from controller.phases import HELD
from controller.state import Link, Record, RemoveSidecar, SidecarIdentity
from controller.state import MirrorPartition as PartitionState
from fetcher.throttle import Throttle
from wire.types import TopicPartition

OPTION = "replication_bytes_per_second"


class LinkThrottle:
    """Of one link, shared by its fetchers."""

    def __init__(self, link: str, controller: LinkController) -> None:
        self._link = link
        self._controller = controller
        self._held: set[TopicPartition] = set()
        self.bucket = Throttle(time.monotonic)

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        if not records:
            self._held = {s.tp for s in self._controller.image.link_partitions(self._link) if s.phase in HELD}
            self._set_rate()
        for record in records:
            if isinstance(record, PartitionState) and record.link == self._link:
                (self._held.add if record.phase in HELD else self._held.discard)(record.tp)
            elif isinstance(record, Link | SidecarIdentity | RemoveSidecar):
                self._set_rate()
        self.bucket.lifted = bool(self._held)

    def _set_rate(self) -> None:
        """Each sidecar of a fleet takes an equal part: less than all of it while one of them leads nothing, never more."""
        image = self._controller.image
        link = image.links.get(self._link)
        wanted = 0 if link is None else link.options.get(OPTION, 0)
        number = wanted if isinstance(wanted, int) else 0
        self.bucket.set_rate(number / max(1, len(image.identities)) if number > 0 else None)
