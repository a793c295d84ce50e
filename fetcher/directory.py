"""The mirror partitions of this process by what a follower or client asks with: topic id or name, and index.

Several links share one directory, because the target cluster has one name space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fetcher.partition_copy import PartitionCopy
from wire.errors import LinkerError
from wire.frames.fetch import TopicKey
from wire.frames.types import TopicPartition


class MirrorDirectory:
    def __init__(self) -> None:
        self._by_id: dict[tuple[TopicKey, int], PartitionCopy] = {}
        self._by_name: dict[TopicPartition, PartitionCopy] = {}
        #: Called with each one that is added.
        self.listeners: list[Callable[[PartitionCopy], None]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[PartitionCopy]:
        return iter(list(self._by_name.values()))

    def __call__(self, key: TopicKey, index: int) -> PartitionCopy | None:
        """By topic id (16 bytes) or name."""
        if isinstance(key, str):
            return self._by_name.get(TopicPartition(key, index))
        return self._by_id.get((key, index))

    def add(self, mirror: PartitionCopy) -> None:
        other = self._by_name.get(mirror.tp)
        if other is not None:
            raise LinkerError(
                f"link {mirror.spec.link!r} cannot have {mirror.tp}: it is {other.spec.link!r}'s already"
            )
        self._by_name[mirror.tp] = mirror
        self._by_id[mirror.spec.topic_id, mirror.spec.partition] = mirror
        for listener in self.listeners:
            listener(mirror)

    def remove(self, mirror: PartitionCopy) -> None:
        if self._by_name.get(mirror.tp) is mirror:
            del self._by_name[mirror.tp]
        key = (mirror.spec.topic_id, mirror.spec.partition)
        if self._by_id.get(key) is mirror:
            del self._by_id[key]
