"""Results of the validator, and the evidence of a promote: parts of the durable state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.json_fields import ADDED_LATER, WRITTEN_IF_SET
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """Of the source's records in [start, end) a replica has none: its log starts at `end`. Counted by reading the source."""

    start: int
    end: int
    batches: int
    records: int
    exact: bool = True  # False: at most so many
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaValidation:
    """How far one target replica is proved equal to the source: its watermark, and what lies below it."""

    broker_id: int
    start: int  # the first offset that was compared
    through: int  # everything below is proved; the next run begins here
    batches: int
    records: int
    bytes: int
    digest: str  # of the replica's batches of [start, through), independent of their order
    source_digest: str  # of the source's; the two differ only by what `lawful` counts
    lawful: Mapping[str, int] = field(default_factory=dict)  # what differs and may (compaction, say), by kind
    # What the source has before the replica's log start
    missing: MissingRecords | None = field(default=None, metadata=WRITTEN_IF_SET)
    at: int  # wall clock, ms: when it was compared last


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationMismatch:
    """The first offset at which a replica was found to differ."""

    broker_id: int
    offset: int
    kind: str
    detail: str
    source: str | None  # the batch's facts on either side, for people
    replica: str | None
    at: int  # wall clock, ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionValidation:
    """The validator's proof of one partition, replica by replica (ascending broker ids)."""

    link: str
    topic: str
    partition: int
    replicas: tuple[ReplicaValidation, ...] = ()
    mismatch: ValidationMismatch | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def of(self, broker_id: int) -> ReplicaValidation | None:
        return next((replica for replica in self.replicas if replica.broker_id == broker_id), None)


class ValidationPolicy(StrEnum):
    """How far a promote depends on the validator."""

    REQUIRE = "require"  # no fence before every replica is proved almost to its end
    WARN = "warn"  # the same, but what is in the way is only shown
    SKIP = "skip"


class EvidenceStatus(StrEnum):
    PENDING = "PENDING"  # the last run, with exact ends, is still to come or under way
    CLOSED = "CLOSED"
    INCOMPLETE = "INCOMPLETE"  # it could not be finished; `trouble` says why


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteEvidence:
    """The proof of a promote's partitions after their hand-over."""

    status: EvidenceStatus = EvidenceStatus.PENDING
    replicas: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    mismatches: int = 0
    missing_records: int = field(default=0, metadata=ADDED_LATER)  # the source's, before replicas' log starts
    trouble: str | None = None
    html: str | None = None  # paths on the sidecar that wrote them
    json: str | None = None
    parquet: str | None = None
    ended_at: int | None = None
    # Of a switch: the means of proof, one line each, and the replicas and ranges that each was used for
    proved_by: tuple[str, ...] = field(default=(), metadata=WRITTEN_IF_SET)
