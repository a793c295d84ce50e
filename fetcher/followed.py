"""One partition that is followed in the ISR of the source (in_sync.py), and what that asks of both clusters."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.source_log import MAX_OFFSET
from wire.client.connection import Connection
from wire.errors import LocalProtocolError
from wire.frames.types import Node, TopicPartition


class SourceLeader(NamedTuple):
    """The leader of a partition that lists this sidecar among its replicas, by the source's metadata log."""

    node: Node
    leader_epoch: int
    in_sync: bool
    """Whether we are in the ISR."""


class InSyncPorts(Protocol):
    """The source's cluster, of which we are a broker, and the target's replicas."""

    def leader_of(self, tp: TopicPartition) -> SourceLeader | None:
        """The leader of a partition (by its name at the source). None if no other broker leads it, or if this sidecar
        is no replica of it."""

    def led_by_us(self, tp: TopicPartition) -> bool:
        """Whether we lead it there."""

    def identity(self) -> tuple[int, int] | None:
        """Our broker id and epoch there; None while we are not registered."""

    async def open_connection(self, node: Node) -> Connection: ...

    def must_hold(self, copy: PartitionCopy) -> Collection[int]:
        """The replicas at the target without which nothing is acknowledged."""
        ...

    def must_tell(self, copy: PartitionCopy) -> Collection[int]:
        """The replicas that have to be heard of before it is known where a log ends that a new process leads."""
        ...


class InSyncState(NamedTuple):
    """How far one partition is followed. `told`: the offset that the source's leader was told last; `end`: where what
    was read ends."""

    fed: bool
    in_sync: bool
    told: int
    end: int
    reason: str
    """Why it is not in the ISR; empty if it is."""


class Followed:
    """One partition that is to be followed."""

    __slots__ = ("copy", "cursor", "end", "held_since", "not_before", "reason", "stopped", "told")

    def __init__(self) -> None:
        self.copy: PartitionCopy | None = None
        self.cursor: PartitionCursor | None = None
        self.reason = "it has just begun"
        self.told = -1
        #: Where the log ends for good, from `stop` on or while we lead it.
        self.end: int | None = None
        self.stopped = False
        self.held_since = 0.0
        self.not_before = 0.0

    def freeze(self, reason: str) -> int:
        """Stop reading. Returns the end of the log."""
        if self.end is None:
            if self.cursor is None:
                raise LocalProtocolError("a partition that is not fed has no end")
            if self.cursor.fetcher is not None:
                self.cursor.fetcher.remove(self.cursor)
            self.end = self.cursor.position
        if self.copy is not None:
            self.copy.fetch_until = self.end
        self.reason = reason
        return self.end

    def thaw(self) -> None:
        self.end = None
        if self.copy is not None and self.copy.fetch_until != MAX_OFFSET:
            self.copy.fetch_until = MAX_OFFSET
            # Those that stand at the end were not asked for, and nothing else would have them looked at again.
            for cursor in self.copy.cursors:
                if cursor.fetcher is not None:
                    cursor.fetcher.touch(cursor)


def replicas_end(copy: PartitionCopy, replicas: Collection[int]) -> int | None:
    """Where the log of a partition ends that a new process leads at the source; None as long as a replica has not told.

    The source was never told an offset beyond the longest replica at the target. All records of that replica came from the
    leader before, so they belong to this log, whether or not the source was told of them."""
    found = [copy.followers[replica] for replica in replicas if replica in copy.followers]
    owing = any(replica in copy.untruncated for replica in replicas)
    if not replicas or owing or len(found) < len(replicas) or any(one.copied_to < 0 for one in found):
        return None
    return max(one.copied_to for one in found)
