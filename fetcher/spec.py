"""The settings of a mirror partition that the fetcher is given, and its reports.

Only values and protocols live here; the behaviour is in partition_copy.py and link_fetcher.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import TopicId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSpec:
    """One mirror partition as the link controller's state has it."""

    link: str
    topic: str
    partition: int
    topic_id: TopicId
    """The target's topic id: what followers ask for."""
    source_topic_id: TopicId | None
    """None when the source has no topic ids (before 2.8); then only names protect against a re-created
    topic.
    """
    session_epoch: int
    """E0: the target leader epoch stamped on every batch, constant for the whole mirror session."""
    start_offset: int
    source_epochs: tuple[tuple[int, int], ...] = ()
    """The source's leader epochs as (epoch, start offset), as far as they were seen and persisted."""
    segment_bytes: int = 1 << 30
    """The target topic's segment.bytes: one answer must never carry more for this partition."""
    target_replicas: tuple[int, ...] = ()
    """The real brokers that copy the partition."""
    fetch_offset: int | None = None
    """Resume point; None leaves it to the first follower's fetch offset."""
    source_name: str | None = None
    """The topic's name at the source, if it is another one than at the target."""
    untruncated: tuple[tuple[int, int], ...] = ()
    """(replica, offset): followers that have not yet acknowledged a truncation of the source."""
    taken: LeaderEpochs | None = None
    """Of a partition that the target's own brokers led before: its epochs until then, and where it was taken over. The
    source has the same log up to there, under epochs of its own."""
    held: bool = False
    """The source has nothing behind that place yet, and is not to be asked: the partition is being switched."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class FetcherEvents(Protocol):
    """Called synchronously from the event loop; an implementation must not block and must not raise."""

    def failed(self, tp: TopicPartition, reason: str) -> None:
        """The mirror stopped for good; only an operator brings it back."""

    def source_damaged(self, tp: TopicPartition, reason: str) -> None:
        """Records were damaged on their way from the source; they are read again."""

    def source_epoch(self, tp: TopicPartition, epoch: int, start_offset: int) -> bool:
        """A new leader epoch of the source was seen; to be persisted for MirrorSpec.source_epochs. Whether it will be, and
        `PartitionCopy.epochs_written` is called then: replicas wait for that."""
        ...

    def source_truncated(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        """The source lost everything from `offset`; `replicas` still have to truncate
        (MirrorSpec.untruncated).
        """

    def truncation_seen(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        """A replica that had to truncate, or might have had to, was seen at `offset` or below; `replicas` have not been."""

    def source_unavailable(self, tp: TopicPartition, since: float) -> None:
        """The source cannot be read; `since` is time.monotonic() of the first failure."""

    def source_available(self, tp: TopicPartition) -> None:
        """It can be read again."""
