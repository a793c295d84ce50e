"""A mirror partition without manager, source or follower: whoever tests it plays all three."""

from __future__ import annotations

from typing import Any

from fetcher.budget import Charge, MemoryBudget
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.spec import MirrorSpec
from fetcher.window import WindowChunk
from tests.fetcher.rig import Events


class Host:
    """Records what a mirror partition says of its cursors."""

    def __init__(self) -> None:
        self.closed: list[PartitionCursor] = []
        self.changed: list[PartitionCursor] = []
        self.watched = 0

    def cursor_opened(self, cursor: PartitionCursor) -> None: ...

    def cursor_changed(self, cursor: PartitionCursor) -> None:
        self.changed.append(cursor)

    def cursor_closed(self, cursor: PartitionCursor) -> None:
        self.closed.append(cursor)

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


def append(mirror: PartitionCopy, cursor: PartitionCursor, size: int, *, offsets: int = 10) -> None:
    """The source's next answer for that cursor: one chunk of `size` bytes."""
    base = cursor.position
    charge = Charge(MemoryBudget(size), size)
    chunk = WindowChunk(base, base + offsets, memoryview(bytes(size)), size, charge)
    mirror.add_chunks(cursor, [chunk], [], mirror.high_watermark)
    charge.drop()
