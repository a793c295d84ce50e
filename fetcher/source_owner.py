"""The interface of the owner of a source fetcher: the fetcher notices, the owner decides."""

from __future__ import annotations

from typing import Protocol, TypeVar

from fetcher.partition_copy import PartitionCursor
from wire.errors import MalformedFrame, WireError

FetcherT = TypeVar("FetcherT")


class FetcherOwner(Protocol[FetcherT]):
    """Decides what a fetcher only notices."""

    def partition_error(self, cursor: PartitionCursor, fetcher: FetcherT, code: int) -> None: ...

    def partition_malformed(
        self, cursor: PartitionCursor, fetcher: FetcherT, error: MalformedFrame
    ) -> None: ...

    def diverged(self, cursor: PartitionCursor, fetcher: FetcherT, epoch: int, end_offset: int) -> None: ...

    def preferred_replica(self, cursor: PartitionCursor, fetcher: FetcherT, node_id: int) -> None: ...

    def connection_failed(self, fetcher: FetcherT, error: WireError) -> None: ...

    def request_bytes(self) -> int:
        """How much one fetch may bring just now, so that all fetchers fit into the budget."""

    def memory_short(self, size: int) -> bool:
        """Try to make room; True if it is worth asking the budget again."""

    def sibling(self, fetcher: FetcherT) -> FetcherT | None:
        """The quiet fetcher of a busy one and the other way round; None when nothing is begun any more."""
