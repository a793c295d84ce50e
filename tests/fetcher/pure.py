"""A mirror partition without manager, source or follower: whoever tests it plays all three."""

from __future__ import annotations

from typing import Any

from fetcher.budget import Charge, MemoryBudget
from fetcher.partition_copy import PartitionCopy, PartitionLane
from fetcher.spec import MirrorSpec
from fetcher.window import WindowChunk
from tests.fetcher.rig import Events


class Host:
    """Records what a mirror partition says of its lanes."""

    def __init__(self) -> None:
        self.closed: list[PartitionLane] = []
        self.changed: list[PartitionLane] = []
        self.watched = 0

    def lane_opened(self, lane: PartitionLane) -> None: ...

    def lane_changed(self, lane: PartitionLane) -> None:
        self.changed.append(lane)

    def lane_closed(self, lane: PartitionLane) -> None:
        self.closed.append(lane)

    def watch(self, mirror: PartitionCopy) -> None:
        self.watched += 1


def pure_mirror(**changes: Any) -> tuple[PartitionCopy, Events, Host]:
    """A partition with two replicas, not loaded yet; `changes` of its MirrorSpec."""
    values: dict[str, Any] = {
        "link": "l",
        "topic": "t",
        "partition": 0,
        "topic_id": b"i" * 16,
        "source_topic_id": b"s" * 16,
        "session_epoch": 3,
        "start_offset": 0,
        "target_replicas": (1, 2),
    }
    events, host = Events(), Host()
    return PartitionCopy(MirrorSpec(**(values | changes)), events, host), events, host


def append(mirror: PartitionCopy, lane: PartitionLane, size: int, *, offsets: int = 10) -> None:
    """The source's next answer for that lane: one chunk of `size` bytes."""
    base = lane.position
    charge = Charge(MemoryBudget(size), size)
    chunk = WindowChunk(base, base + offsets, memoryview(bytes(size)), size, charge)
    mirror.add_chunks(lane, [chunk], [], mirror.high_watermark)
    charge.drop()
