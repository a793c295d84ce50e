"""Mirror topics, their partitions and replicas."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from admin.base import Model, TopicName, TopicsRequest
from admin.models.common import BrokerId, Patterns, known_configs
from admin.models.states import MirrorState


class CreateMirrorsRequest(Model):
    topics: list[TopicName] = Field(default=[], max_length=10_000, description="All of them, or none.")
    include: Patterns = Field(
        default="",
        description="Instead of topics: those that the source has now and that one of these regular expressions takes, as "
        "topics_include of a link. One that cannot be mirrored is a warning, and the others are mirrored.",
    )
    exclude: Patterns = Field(default="", description="Topics that include takes, and that are not mirrored.")
    start: str = Field(
        default="earliest", description="earliest, latest or a timestamp in epoch milliseconds."
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=32767,
        description="Replicas of the target topic; default: as at the source, limited by the brokers.",
    )
    configs_from_target: list[str] = Field(
        default=[],
        max_length=100,
        description="Topic configs whose value is the target's own instead of the source's.",
    )

    @field_validator("configs_from_target")
    @classmethod
    def _known_configs(cls, names: list[str]) -> list[str]:
        return known_configs(names)

    @field_validator("start")
    @classmethod
    def _known_start(cls, start: str) -> str:
        if start in ("earliest", "latest") or (start.isascii() and start.isdigit() and len(start) <= 18):
            return start
        raise ValueError(f"start is {start!r}: give earliest, latest or epoch milliseconds")

    @model_validator(mode="after")
    def _one_or_the_other(self) -> CreateMirrorsRequest:
        if bool(self.topics) == bool(self.include):
            raise ValueError("name topics, or give a pattern to include: one of the two")
        if self.exclude and not self.include:
            raise ValueError("exclude leaves topics out of include: give include, too")
        return self

    @field_validator("topics")
    @classmethod
    def _distinct(cls, topics: list[str]) -> list[str]:
        if len(set(topics)) != len(topics):
            twice = sorted({topic for topic in topics if topics.count(topic) > 1})
            raise ValueError(f"topics named twice: {', '.join(twice)}")
        return topics


class ReassignRequest(TopicsRequest):
    """Either topics or all, and brokers to leave, brokers to take, or both."""

    topics: list[TopicName] = Field(default=[], max_length=10_000)
    all: bool = Field(default=False, description="All mirrors of the link that are not over.")
    away_from: list[BrokerId] = Field(
        default=[], max_length=1000, description="Brokers of the target that are to hold no replica of them."
    )
    to: list[BrokerId] = Field(
        default=[],
        max_length=1000,
        description="Brokers that may take new replicas; default: all. Without away_from, replicas leave all others.",
    )
    fewer_replicas: bool = Field(
        default=False,
        description="Where no other broker can take a replica, the partition has one less from now on.",
    )
    afresh: bool = Field(
        default=False,
        description="Drop all copies of the partitions first, those on other brokers too, and begin from nothing. Else "
        "copies on the brokers that are left stay until the promote, which does not wait for them.",
    )

    @model_validator(mode="after")
    def _some_brokers(self) -> ReassignRequest:
        if not self.away_from and not self.to:
            raise ValueError("name brokers to leave (away_from), brokers to take (to), or both")
        if both := sorted(set(self.away_from) & set(self.to)):
            raise ValueError(f"broker {both[0]} is to be left and taken")
        return self


class SyncRequest(TopicsRequest):
    """Either topics or all."""

    topics: list[TopicName] = Field(default=[], max_length=10_000)
    all: bool = Field(default=False, description="All mirrors of the link that are not over.")
    off: bool = Field(default=False, description="End it: the link brokers leave the replicas at the source.")


class FinishRequest(TopicsRequest):
    """Either topics or all that were switched."""

    topics: list[TopicName] = Field(default=[], max_length=10_000)
    all: bool = Field(default=False, description="All topics of the link that were switched.")
    delete_source_topics: bool = Field(
        default=False,
        description="Delete them at the source. Else they stay there as they are, and no producer can write to them "
        "(max.message.bytes=0).",
    )


class Direction(StrEnum):
    """Of a mirrored topic: where its leaders are."""

    FORWARD = "FORWARD"
    REVERSED = "REVERSED"


class SyncState(StrEnum):
    """Of a link broker among the replicas of a partition in the cluster that is mirrored."""

    WAITING = "WAITING"
    FOLLOWING = "FOLLOWING"
    IN_SYNC = "IN_SYNC"


class ReplicaStatus(Model):
    """One of the target's real brokers that copies the partition."""

    broker: int
    leaving: bool = Field(
        default=False,
        description="It was reassigned away; it keeps its copy until the promote, which does not wait for it.",
    )
    start_offset: int | None = Field(
        default=None,
        description="Its log start offset if that is later than the source's and the mirror's; null: it is not.",
    )
    missing_records: int | None = Field(
        default=None,
        description="Records that the source has before start_offset and the replica has not; an upper bound until "
        "the validator has counted them (missing_counted).",
    )
    missing_counted: bool = Field(
        default=False,
        description="missing_records was counted by reading the source; else it is the offsets between.",
    )
    missing_reason: str | None = Field(
        default=None, description="Why the replica lacks them, as far as it can be told."
    )
    end_offset: int | None = Field(default=None, description="Its log end offset as shown by its fetches.")
    lag: int | None = Field(default=None, description="Source end offset minus end_offset.")
    validated_from: int | None = Field(
        default=None, description="Where what is proved begins: the source's or the mirror's start, or later."
    )
    validated_offset: int | None = Field(
        default=None, description="Everything below is proved equal to the source; null: nothing is."
    )
    validated_age_ms: int | None = Field(
        default=None, description="Time since that was proved, if the source has gone on since; else 0."
    )


class PartitionLag(Model):
    """Lag of one partition: of the slowest target replica against the source's end (its high watermark)."""

    topic: str
    partition: int
    state: MirrorState
    reason: str | None = None
    source_start_offset: int | None = None
    source_end_offset: int | None = None
    target_end_offset: int | None = Field(
        default=None, description="Smallest log end offset of the target replicas."
    )
    lag: int | None = None
    lag_ms: int | None = Field(
        default=None, description="For how long the slowest replica has not been at the end."
    )


class PartitionStatus(PartitionLag):
    leader: int | None = None
    leader_epoch: int | None = None
    session_epoch: int | None = Field(
        default=None, description="The one leader epoch of all mirrored batches (E0)."
    )
    isr: list[int] = []
    controller_epoch: int | None = Field(
        default=None, description="Epoch of the link controller that wrote the partition's state last."
    )
    version: int | None = Field(default=None, description="Version of the partition's state in the store.")
    source_leader: int | None = None
    read_from: list[int] = Field(
        default=[],
        description="The source's brokers that the answering sidecar copies it from: with client.rack in the link's "
        "properties, an in-sync replica of that rack.",
    )
    replicas: list[ReplicaStatus] = []
    mismatch: str | None = Field(default=None, description="The first difference that the validator found.")


class RemainingCopy(Model):
    """A copy that is well behind its source."""

    offsets_per_second: float | None = Field(
        description="How fast the lag went down in the last half minute; null: it did not."
    )
    eta_ms: int | None = Field(description="How long the copy will still take at that rate; null: not known.")


class MirrorSummary(Model):
    link: str
    topic: str
    source_topic: str | None = Field(
        default=None, description="Its name at the source, if that is another one."
    )
    direction: Direction = Field(
        default=Direction.FORWARD,
        description="REVERSED: it was switched. The target owns it, and its mirror lies at the source.",
    )
    sync: SyncState | None = Field(
        default=None,
        description="With mirror sync: how far its link brokers are as in-sync replicas, of the partition that is least "
        "far.",
    )
    state: MirrorState
    reason: str | None = None
    partitions: int
    lag: int | None = Field(default=None, description="Sum over the partitions.")
    max_lag: int | None = Field(default=None, description="Lag of the partition that lags most.")
    lag_ms: int | None = Field(default=None, description="Time lag of the partition that lags longest.")
    copying: RemainingCopy | None = Field(
        default=None, description="While it is LINKING, or has been behind for five seconds."
    )


class HeldReader(Model):
    """A consumer that finds a mirrored topic empty until its promote (unpromoted_reads), on the sidecar that was asked."""

    topic: str
    client_id: str = Field(description="At most 200 characters of it.")
    host: str
    since: datetime


class ClientLeft(Model):
    """A client that comes in at the cluster that a topic was switched from, on the sidecar that was asked."""

    topic: str
    client_id: str = Field(description="At most 200 characters of it.")
    host: str
    does: str = Field(
        description="produce, fetch, or transaction: it writes in transactions, and is told to try again until it moves."
    )
    last_request: datetime


class MirrorDescription(MirrorSummary):
    topic_id: str
    source_topic_id: str | None = None
    start: str
    replication_factor: int
    created_at: datetime
    configs: dict[str, str] = Field(
        default={}, description="The overrides of the topic at the target while it is mirrored."
    )
    configs_at_promote: dict[str, str | None] = Field(
        default={}, description="Overrides that a promote or a failover sets; null: it deletes the override."
    )
    configs_from_target: list[str] = Field(
        default=[], description="Configs whose value is the target's own, as asked for at the creation."
    )
    configs_put_back: dict[str, int] = Field(
        default={},
        description="Configs that somebody changed at the target, and how often they were put back.",
    )
    upstream: list[str] = Field(
        default=[],
        description="Ids of the clusters that its records came through, the source's last; empty: not known yet.",
    )
    held_readers: list[HeldReader] = Field(
        default=[], description="Consumers that get no records of it before the promote."
    )
    clients_left: list[ClientLeft] = Field(
        default=[], description="Of a topic that was switched: clients that have not moved to the target."
    )
    partition_status: list[PartitionStatus]


class LagReport(Model):
    link: str
    at: datetime
    partitions: list[PartitionLag]
