"""Evidence as data. Times are ms since 1970, sizes in bytes, durations in seconds unless a name says ms.

Offsets follow Kafka: a `start` is the first offset that counts, an *end* and a `through` the first that does not.
A number that nobody knows is None, never 0. Names and texts come from clusters and brokers and are hostile: whoever renders
them escapes them. No secrets in here: no client properties, only bootstrap addresses.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from validator.compare.facts import MAX_FINDINGS, Count, Digest, Facts, Finding, Missing, Offset
from validator.mode import Mode

MAX_SAMPLES = 500
"""Looks at one partition that are kept; `samples.thin` picks them."""

Rate = Annotated[float, Field(ge=0)]


class ClusterFacts(Facts):
    """One of the two clusters. `version` is Kafka's, if it was found out."""

    name: str
    bootstrap: tuple[str, ...] = ()
    cluster_id: str | None = None
    version: str | None = None


class PhaseTime(Facts):
    """One phase of the promote: when it began and how long it took."""

    name: str
    at_ms: Count
    ms: Count


class TopicEvidence(Facts):
    """A mirror topic. Ids are hex, as both clusters gave them. `configs`: its overrides at the target from the promote on,
    None where the target's default counts again. `source_topic`: its name at the source, if that is another one."""

    topic: str
    source_topic: str | None = None
    source_topic_id: str | None = None
    target_topic_id: str | None = None
    source_partitions: int | None = None
    compacted: bool = False
    configs: dict[str, str | None] = Field(default={})


class Sample(Facts):
    """One look at a partition. `validated`: broker id -> through. `lag` in offsets, of the slowest replica behind the
    source's end; `bytes_per_second` is what was mirrored (not validated) since the look before."""

    at_ms: Count
    source_end: Offset | None = None
    lag: Count | None = None
    bytes_per_second: Rate | None = None
    validated: dict[int, Offset] = Field(default={})


class ReplicaEvidence(Facts):
    """One replica of the target against the source.

    `through`: everything in [start, through) was compared; None if nothing was. `end` is the replica's own end when it
    was read last. `batches`, `records`, `bytes` and the digests cover [start, through). Equal digests mean the same batches
    (the same records in mode `records`); they may differ where `lawful` says why.
    `findings` are the first MAX_FINDINGS of `findings_count`; `lawful` counts, by kind, what differs and may differ.
    `tail_equal`: whether the last batch was equal inside the fence; None if it was not looked at. `log_start`: where the
    replica began when it was read last; `missing`: what the source has before that, and the replica has not.
    """

    broker_id: int
    start: Offset
    through: Offset | None = None
    end: Offset | None = None
    batches: Count = 0
    records: Count = 0
    bytes: Count = 0
    source_digest: Digest | None = None
    digest: Digest | None = None
    validated_ms: Count | None = None  # when `through` was reached
    tail_equal: bool | None = None
    findings: tuple[Finding, ...] = Field(default=(), max_length=MAX_FINDINGS)
    findings_count: Count = 0
    lawful: dict[str, Count] = Field(default={})
    log_start: Offset | None = None
    missing: Missing | None = None

    @property
    def proved_from(self) -> int:
        """The first offset that was compared and is still there."""
        return max(self.start, 0 if self.missing is None else self.missing.end)


class PartitionEvidence(Facts):
    """A mirror partition. `start` is where the mirror began, `source_start` where the source began when it was
    read last; `end` the exact end at the hand-over, which every replica
    must have; None if there was no hand-over."""

    topic: str
    partition: Count
    start: Offset
    source_start: Offset | None = None
    end: Offset | None = None
    handed_over_ms: Count | None = None  # when
    replicas: tuple[ReplicaEvidence, ...] = ()
    samples: tuple[Sample, ...] = Field(default=(), max_length=MAX_SAMPLES)


class RunFacts(Facts):
    """One Spark run that went into the evidence. `failed` is its reason in one line, None if it finished."""

    id: str
    mode: Mode
    at_ms: Count
    seconds: Rate
    partitions: Count = 0
    replicas: Count = 0
    batches: Count = 0
    records: Count = 0
    bytes: Count = 0
    mismatches: Count = 0
    failed: str | None = None


class Evidence(Facts):
    """All that is known of one promote.

    `promote` is its id; None: written for no promote. `outcome` is the promote's, in its own words (PROMOTED, ABANDONED),
    with the `reason` if there is one. `requested_by` is who asked for it, as they said it, `sidecar` who did it.
    `accepted_missing`: records that replicas were allowed to lack before their start.
    `versions`: component -> version (linker, spark, python, java).
    """

    schema_version: Literal[1] = 1
    link: str
    promote: str | None = None
    mode: Mode = Mode.BATCHES
    policy: Literal["require", "warn", "skip"] = "require"
    outcome: str | None = None
    reason: str | None = None
    source: ClusterFacts
    target: ClusterFacts
    accepted_missing: Count = 0
    requested_by: str | None = None
    sidecar: str | None = None
    started_ms: Count
    finished_ms: Count | None = None
    phases: tuple[PhaseTime, ...] = ()
    versions: dict[str, str] = Field(default={})
    spark_master: str | None = None
    topics: tuple[TopicEvidence, ...] = ()
    partitions: tuple[PartitionEvidence, ...] = ()
    runs: tuple[RunFacts, ...] = ()
    notes: tuple[str, ...] = ()
