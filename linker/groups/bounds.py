"""What the target has of each partition, for keeping commits inside it.

Before a topic's promote a consumer at the target reads the source's log through the link broker, so the target's end is the
source's high watermark. Afterwards it is the target's own.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

from controller.group_sync import Bounds
from controller.image import ControllerImage
from controller.manager import LinkController
from controller.phases import ENDED
from wire.cluster import Cluster
from wire.errors import BrokerError
from wire.types import TopicPartition

_EARLIEST, _LATEST = -2, -1
_REFRESH = 5.0  # seconds: ends of promoted partitions only grow, starts follow retention


class Copy(Protocol):
    @property
    def loaded(self) -> bool: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...


class Copies(Protocol):
    def get(self, tp: TopicPartition) -> Copy | None: ...


class TargetBounds:
    """Bounds of the partitions of one link."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        copies: Copies,
        source: Cluster,
        target: Cluster,
    ) -> None:
        self._link = link
        self._controller = controller
        self._copies = copies
        self._source = source
        self._target = target
        self._promoted: dict[TopicPartition, Bounds] = {}
        self._asked_at = float("-inf")

    @property
    def _image(self) -> ControllerImage:
        return self._controller.image

    def _ended(self, tp: TopicPartition) -> bool:
        state = self._image.partitions.get((self._link, tp))
        return state is not None and state.phase in ENDED

    def _start(self, tp: TopicPartition) -> int:
        """Where the mirror begins; below it the target has nothing."""
        state = self._image.partitions.get((self._link, tp))
        return 0 if state is None or state.start_offset is None else state.start_offset

    def known(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Without asking anybody; partitions of which nothing is known are left out."""
        found: dict[TopicPartition, Bounds] = {}
        for tp in tps:
            if self._ended(tp):
                if tp in self._promoted:
                    found[tp] = self._promoted[tp]
                continue
            copy = self._copies.get(tp)
            if copy is not None and copy.loaded:
                found[tp] = Bounds(max(copy.log_start_offset, self._start(tp)), copy.high_watermark)
        return found

    async def refresh(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Ask for the promoted ones among them, now and then. Raises LinkerError."""
        promoted = [tp for tp in tps if self._ended(tp)]
        now = time.monotonic()
        if promoted and (
            now - self._asked_at >= _REFRESH or any(tp not in self._promoted for tp in promoted)
        ):
            self._asked_at = now
            self._promoted.update(await _asked(self._target, promoted, timeout))

    async def exact(
        self, tps: Collection[TopicPartition], *, timeout: float, ask_source: bool = True
    ) -> dict[TopicPartition, Bounds]:
        """Asked now, at the cluster that has the log. Raises LinkerError.

        A source that is not to be asked leaves what is known of its partitions, which may be nothing.
        """
        promoted = [tp for tp in tps if self._ended(tp)]
        mirrored = [tp for tp in tps if not self._ended(tp)]
        found = await _asked(self._target, promoted, timeout)
        if not ask_source:
            return found | self.known(mirrored)
        for tp, bounds in (await _asked(self._source, mirrored, timeout)).items():
            found[tp] = Bounds(max(bounds.start, self._start(tp)), bounds.end)
        return found


async def _asked(
    cluster: Cluster, tps: Collection[TopicPartition], timeout: float
) -> dict[TopicPartition, Bounds]:
    if not tps:
        return {}
    starts = await cluster.list_offsets(dict.fromkeys(tps, _EARLIEST), timeout=timeout)
    ends = await cluster.list_offsets(dict.fromkeys(tps, _LATEST), timeout=timeout)
    found: dict[TopicPartition, Bounds] = {}
    for tp in tps:
        for answer in (starts[tp], ends[tp]):
            if answer.error:
                raise BrokerError(answer.error, api="list_offsets", topic_partition=tp)
        found[tp] = Bounds(starts[tp].offset, ends[tp].offset)
    return found
