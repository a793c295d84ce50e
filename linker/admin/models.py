"""What the admin API takes and gives: the one vocabulary of service, HTTP API, client and CLI.

Only data lives here. No decision, no I/O; secrets never get into these models (properties are redacted by the
service with :func:`linker.secrets.redact_properties` before they are put into a description).
Numbers that are not known yet are ``None``, never 0: a lag of 0 is a promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from linker.admin.base import LINK_NAME_PATTERN as LINK_NAME_PATTERN
from linker.admin.base import TOPIC_NAME_PATTERN as TOPIC_NAME_PATTERN
from linker.admin.base import LinkName, TopicName
from linker.admin.validation_models import LinkValidation, Policy, PromoteValidation

GroupName = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Millis = Annotated[int, Field(ge=0)]


def patterns(text: str) -> list[str]:
    """Comma-separated regular expressions, as Kafka's tools take them."""
    return [one for part in text.split(",") if (one := part.strip())]


def _check_patterns(text: str) -> str:
    for one in patterns(text):
        try:
            re.compile(one)
        except re.error as error:
            raise ValueError(f"{one!r} is no regular expression: {error}") from None
    return text


Patterns = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(_check_patterns)]
GroupPromotePolicy = Literal["manual", "auto"]
GateChoice = Literal[
    "auto", "consumer", "classic", "transaction", "consumer+transaction", "classic+transaction"
]
ReadsPolicy = Literal["allow", "hold"]


class Model(BaseModel):
    """Base of everything below: unknown keys are refused, a misspelt field is an error and not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- states


class MirrorState(StrEnum):
    """State of a mirror partition, of a mirror topic (its worst partition), of a link (its worst mirror)."""

    LINKING = "LINKING"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    PROMOTING = "PROMOTING"
    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    FAILED = "FAILED"


#: Best first. A state further right hides those to its left.
SEVERITY: tuple[MirrorState, ...] = (
    MirrorState.PROMOTED,
    MirrorState.FAILED_OVER,
    MirrorState.ACTIVE,
    MirrorState.PROMOTING,
    MirrorState.PAUSED,
    MirrorState.LINKING,
    MirrorState.SOURCE_UNAVAILABLE,
    MirrorState.FAILED,
)


def worst_state(states: Iterable[MirrorState], *, default: MirrorState = MirrorState.ACTIVE) -> MirrorState:
    """The worst state wins; `default` is for a link without mirrors or a topic without partitions."""
    return max(states, key=SEVERITY.index, default=default)


class PromotePhase(StrEnum):
    """Phases of a promote, in their order; a fail-over begins with FENCED and ends in FAILED_OVER. ABANDONED is the back
    edge of all phases before HANDED_OVER."""

    CATCHING_UP = "CATCHING_UP"
    FENCED = "FENCED"
    ALIGNED = "ALIGNED"
    VALIDATED = "VALIDATED"
    HANDED_OVER = "HANDED_OVER"
    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    ABANDONED = "ABANDONED"

    @property
    def final(self) -> bool:
        return self in (PromotePhase.PROMOTED, PromotePhase.FAILED_OVER, PromotePhase.ABANDONED)


class CheckResult(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


# --- requests


class LinkOptions(Model):
    """Settings of a link which are the linker's own and not Kafka client properties of its source."""

    fetchers_per_node: int = Field(default=2, ge=1, le=64, description="Source fetchers per source broker.")
    partition_fetch_bytes: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=64 << 20,
        description="Most bytes asked for one partition in one source fetch.",
    )
    request_fetch_bytes: int = Field(
        default=8 << 20, ge=1 << 10, le=256 << 20, description="Most bytes asked for in one source fetch."
    )
    replication_bytes_per_second: int = Field(
        default=0,
        ge=0,
        le=1 << 40,
        description="Most bytes read from the source per second, by all sidecars together; 0: no limit. Forwarded writes "
        "are never slowed. It may be changed at any time, without an interruption.",
    )
    validation_interval_ms: int | None = Field(
        default=None,
        ge=1000,
        description="Between two runs of its continuous validation; null: there is none.",
    )

    groups_include: Patterns = Field(
        default=".*",
        description="Source groups that are held on the target: regular expressions, comma-separated, each of a whole "
        "group id. Empty: none.",
    )
    groups_exclude: Patterns = Field(
        default="connect-.*,console-consumer-.*,_.*",
        description="Of those, the ones that are not; they are on their own on the target.",
    )
    groups_sync_interval_ms: int = Field(
        default=1000, ge=100, le=3_600_000, description="How often offsets of held groups are brought over."
    )
    groups_promote: GroupPromotePolicy = Field(
        default="manual",
        description="auto: a group is promoted by itself when it has left the source and waits on the target.",
    )
    groups_gate: GateChoice = Field(
        default="auto", description="By what groups are held; auto: chosen for each group."
    )
    unpromoted_reads: ReadsPolicy = Field(
        default="allow",
        description="Whether consumers may read topics through the link before they are promoted: allow or hold. For "
        "clients that neither of the next two names.",
    )
    unpromoted_reads_hold: Patterns = Field(
        default="consumer-spark-kafka-.*,consumer-null-.*",
        description="Client ids whose reads are held: those of consumers that keep their offsets themselves.",
    )
    unpromoted_reads_allow: Patterns = Field(
        default="", description="Client ids whose reads are never held; stronger than unpromoted_reads_hold."
    )


class LinkOptionsUpdate(Model):
    """Only what is given changes."""

    fetchers_per_node: int | None = Field(default=None, ge=1, le=64)
    partition_fetch_bytes: int | None = Field(default=None, ge=1 << 10, le=64 << 20)
    request_fetch_bytes: int | None = Field(default=None, ge=1 << 10, le=256 << 20)
    replication_bytes_per_second: int | None = Field(default=None, ge=0, le=1 << 40)
    groups_include: Patterns | None = None
    groups_exclude: Patterns | None = None
    groups_sync_interval_ms: int | None = Field(default=None, ge=100, le=3_600_000)
    groups_promote: GroupPromotePolicy | None = None
    groups_gate: GateChoice | None = None
    unpromoted_reads: ReadsPolicy | None = None
    unpromoted_reads_hold: Patterns | None = None
    unpromoted_reads_allow: Patterns | None = None

    def named(self) -> dict[str, Any]:
        """What is to be changed. A field that is null is not named: clients may send all of them."""
        return self.model_dump(exclude_none=True)

    def applied_to(self, options: LinkOptions) -> LinkOptions:
        return options.model_copy(update=self.named())


class CreateLinkRequest(Model):
    name: LinkName
    properties: dict[str, str] = Field(
        description="Kafka client properties of the source: bootstrap.servers, security.protocol, sasl.*, "
        "ssl.*. Secrets by reference: ${env:NAME} or ${file:/path}."
    )
    options: LinkOptions = LinkOptions()
    source_cluster_id: str | None = Field(
        default=None, description="Refuse the link if the source has another id."
    )


class UpdateLinkRequest(Model):
    """Changes are merged: a property given as null is removed, one that is not named stays."""

    properties: dict[str, str | None] = {}
    options: LinkOptionsUpdate = LinkOptionsUpdate()

    @model_validator(mode="after")
    def _not_empty(self) -> UpdateLinkRequest:
        if not self.properties and not self.options.model_dump(exclude_none=True):
            raise ValueError("nothing to change: give properties or options")
        return self


class CreateMirrorsRequest(Model):
    topics: list[TopicName] = Field(min_length=1, max_length=10_000)
    start: str = Field(
        default="earliest", description="earliest, latest or a timestamp in epoch milliseconds."
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=32767,
        description="Of the target topic; default: as at the source, limited by the brokers.",
    )

    @field_validator("start")
    @classmethod
    def _known_start(cls, start: str) -> str:
        if start in ("earliest", "latest") or (start.isascii() and start.isdigit() and len(start) <= 18):
            return start
        raise ValueError(f"start is {start!r}: give earliest, latest or epoch milliseconds")

    @field_validator("topics")
    @classmethod
    def _distinct(cls, topics: list[str]) -> list[str]:
        if len(set(topics)) != len(topics):
            twice = sorted({topic for topic in topics if topics.count(topic) > 1})
            raise ValueError(f"topics named twice: {', '.join(twice)}")
        return topics


class PromoteOptions(Model):
    """Limits of one promote. Each wait ends by one of them; running out abandons it and forwards again."""

    max_lag: int = Field(
        default=10_000, ge=0, description="Fence when no partition lags by more offsets than this."
    )
    catch_up_timeout_ms: Millis = Field(default=600_000, description="Longest time spent in CATCHING_UP.")
    fence_timeout_ms: Millis = Field(
        default=10_000,
        description="Longest time that writes are held before hand-over; then the promote is abandoned.",
    )
    transaction_timeout_ms: Millis = Field(
        default=600_000,
        description="Longest time that one transaction that is open at the source is waited for; then the promote is "
        "abandoned.",
    )
    abort_open_transactions: bool = Field(
        default=False, description="Abort it at the source instead, which fences its producer."
    )
    fence_source: bool = Field(
        default=False,
        description="From the fence on the source refuses writes, by an ACL (DENY WRITE for User:*) of each topic, which is "
        "taken away if the promote is abandoned, and stays if it is done.",
    )
    validation: Policy | None = Field(
        default=None,
        description="require: no writes are held before every replica is proved equal almost to its end; warn: what is "
        "not proved is only shown; skip. Default: validation.policy of the configuration.",
    )


class PromoteRequest(Model):
    """Either topics or all: an empty list never means everything."""

    topics: list[TopicName] = []
    all: bool = False
    options: PromoteOptions = PromoteOptions()

    @model_validator(mode="after")
    def _one_of(self) -> PromoteRequest:
        if bool(self.topics) == self.all:
            raise ValueError("give either topics or all")
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("a topic is named twice")
        return self


class GroupsRequest(Model):
    """Either groups or all: an empty list never means everything."""

    groups: list[GroupName] = Field(default=[], max_length=10_000)
    all: bool = False
    timeout_ms: Millis | None = Field(
        default=None,
        description="Longest wait for the members that are still there; then it is given up and nothing has moved. "
        "null: no limit.",
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if bool(self.groups) == self.all:
            raise ValueError("give either groups or all")
        if len(set(self.groups)) != len(self.groups):
            raise ValueError("a group is named twice")
        return self


class PromoteGroupsRequest(GroupsRequest):
    force: bool = Field(
        default=False,
        description="Do not wait for members at the source: what they read after this is read once more on the target. A "
        "group that is refused or failed is taken for promoted, with the offsets that it has on the target.",
    )
    partial: bool = Field(
        default=False, description="Also groups that read topics which the link does not mirror."
    )


class DemoteGroupsRequest(GroupsRequest):
    pass


# --- answers


class Action(Model):
    """One thing that a change did, or with dry_run would do."""

    action: str = Field(description="What is done, e.g. 'create topic'.")
    resource: str = Field(description="To what, e.g. 'orders'.")
    detail: str = ""


class ChangeResult(Model):
    """Answer to every change except a promote."""

    dry_run: bool
    actions: list[Action]
    warnings: list[str] = []
    pending: bool = Field(
        default=False,
        description="It is durable and goes on after this answer; describe the sidecar to follow it.",
    )


class Forwarding(Model):
    """Whether produces that arrive at the target are forwarded to this link's source."""

    enabled: bool
    reason: str | None = Field(default=None, description="Why not, if not.")
    target_next_producer_id: int | None = None
    source_highest_producer_id: int | None = None


class Traffic(Model):
    """Counters since the sidecar's start; rates are the reader's business (two readings, `at` apart)."""

    fetched_bytes: int = 0
    served_bytes: int = 0
    forwarded_produces: int = 0
    forwarded_bytes: int = 0
    forward_errors: int = 0


class LinkSummary(Model):
    name: str
    state: MirrorState
    reason: str | None = None
    source_cluster_id: str
    bootstrap_servers: str
    mirrors: int
    mirror_states: dict[MirrorState, int] = {}


class GroupState(StrEnum):
    """Where a mirrored group stands. REFUSED: it cannot be held on the target. FAILED: it was let in by accident."""

    DISCOVERED = "DISCOVERED"
    GATED = "GATED"
    DRAINING = "DRAINING"
    FINAL_SYNC = "FINAL_SYNC"
    OPENING = "OPENING"
    PROMOTED = "PROMOTED"
    DEMOTING = "DEMOTING"
    DEMOTED = "DEMOTED"
    REFUSED = "REFUSED"
    FAILED = "FAILED"

    @property
    def at_rest(self) -> bool:
        """Nothing is under way: a promote or demote that was asked for has ended."""
        return self in (GroupState.GATED, GroupState.PROMOTED, GroupState.REFUSED, GroupState.FAILED)


class GroupMemberStatus(Model):
    """Somebody in a group, as a person would look for it."""

    client_id: str
    host: str
    member_id: str
    instance_id: str | None = None
    partitions: list[str] = []


class GroupSummary(Model):
    """A consumer group of the source that is held on the target until its promote."""

    link: str
    group: str
    state: GroupState
    reason: str | None = Field(default=None, description="Why it is there, or what it waits for.")
    protocol: str = Field(description="classic or consumer (KIP-848), at the source.")
    gate: str = Field(description="What holds it on the target.")
    policy: str
    topics: list[str]
    unmirrored: list[str] = Field(default=[], description="Topics it reads that the link does not mirror.")
    source_members: int | None = Field(default=None, description="In the group at the source.")
    sync_age_ms: int | None = Field(
        default=None,
        description="Since the target had all offsets of the source; null: not yet, or not held.",
    )
    difference: int | None = Field(
        default=None, description="Offsets that the target's commits are behind, of all partitions."
    )


class GroupPartition(Model):
    """Committed offsets of one partition."""

    topic: str
    partition: int
    source_offset: int | None = None
    target_offset: int | None = None
    difference: int | None = Field(
        default=None, description="What the target should have, minus what it has."
    )
    metadata: str = Field(default="", description="The text that the consumer attached.")


class GroupDescription(GroupSummary):
    since: datetime
    asked_at: datetime | None = Field(default=None, description="When the move under way was asked for.")
    until: datetime | None = None
    force: bool = False
    automatic: bool = False
    members_at_source: list[GroupMemberStatus] = []
    members_at_target: list[GroupMemberStatus] = Field(
        default=[], description="Those who wait or run there; the gate is not among them."
    )
    waiting_for: list[GroupMemberStatus] = Field(default=[], description="Whom the move under way waits for.")
    unheld: list[str] = Field(
        default=[], description="Partitions that the gate does not keep clients from, as far as it knows."
    )
    partition_status: list[GroupPartition] = []


class GroupsStatus(Model):
    """The groups of a link in one line."""

    groups: int = 0
    states: dict[GroupState, int] = {}
    gated: int = Field(default=0, description="Whose gate is closed, by this process.")
    sync_age_ms: int | None = Field(default=None, description="Of the held group that is oldest.")
    sync_ms: int | None = Field(default=None, description="How long the newest round of the sync took.")
    reason: str | None = Field(default=None, description="Why not all groups of the source are known.")


class LinkDescription(LinkSummary):
    target_cluster_id: str
    properties: dict[str, str] = Field(
        description="Secrets are replaced; references to secrets are shown as they are."
    )
    options: LinkOptions
    forwarding: Forwarding
    traffic: Traffic
    created_at: datetime
    source_unavailable_since: datetime | None = None


class ReplicaStatus(Model):
    """One of the target's real brokers that copies the partition."""

    broker: int
    end_offset: int | None = Field(default=None, description="Its log end offset as shown by its fetches.")
    lag: int | None = Field(default=None, description="Source end offset minus end_offset.")
    validated_offset: int | None = Field(
        default=None, description="Everything below is proved equal to the source; null: nothing is."
    )
    validated_age_ms: int | None = Field(
        default=None, description="Since that was proved, if the source has gone on since; else 0."
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
        default=None, description="Of the link controller that wrote the partition's state last."
    )
    version: int | None = Field(default=None, description="Of the partition's state in the store.")
    source_leader: int | None = None
    replicas: list[ReplicaStatus] = []
    mismatch: str | None = Field(default=None, description="The first difference that the validator found.")


class MirrorSummary(Model):
    link: str
    topic: str
    state: MirrorState
    reason: str | None = None
    partitions: int
    lag: int | None = Field(default=None, description="Sum over the partitions.")
    max_lag: int | None = Field(default=None, description="Of the partition that lags most.")
    lag_ms: int | None = Field(default=None, description="Of the partition that lags longest.")


class MirrorDescription(MirrorSummary):
    topic_id: str
    source_topic_id: str | None = None
    start: str
    replication_factor: int
    created_at: datetime
    configs: dict[str, str] = Field(
        default={}, description="Topic configs that were copied or that mirroring forces."
    )
    partition_status: list[PartitionStatus]


class PromoteTopic(Model):
    topic: str
    partitions: int
    phase: PromotePhase
    lag: int | None = None
    reason: str | None = None


class OpenTransaction(Model):
    """A transaction that had not ended."""

    producer_id: int
    producer_epoch: int
    start_offset: int


class FailoverPartition(Model):
    """What a fail-over takes over of one partition. Offsets are ends: one more than the last offset below."""

    topic: str
    partition: int
    state: MirrorState
    end: int | None = Field(
        default=None, description="Where the target takes over: the end of the longest replica."
    )
    shortest_replica_end: int | None = Field(default=None, description="In a dry run: of the shortest.")
    source_end: int | None = Field(
        default=None, description="The source's end as it was seen last; null: not since the sidecar began."
    )
    acked_end: int | None = Field(
        default=None, description="Of the newest forwarded write that the source acknowledged, likewise."
    )
    missing: int | None = Field(
        default=None,
        description="How many offsets the source had beyond `end`, as far as its end was seen; null: nothing was seen of "
        "it, or a sidecar that may have seen more was away (`reason` names it).",
    )
    aborted: list[OpenTransaction] = Field(
        default=[], description="Transactions that were open, ended by an abort marker at the new leader."
    )
    reason: str | None = None


class FailoverRequest(Model):
    """Either topics or all: an empty list never means everything."""

    topics: list[TopicName] = []
    all: bool = False
    force: bool = Field(default=False, description="Although the source still answers.")
    timeout_ms: Millis = Field(
        default=120_000,
        description="Longest time that writes are held before hand-over; then the fail-over is abandoned.",
    )

    @model_validator(mode="after")
    def _one_of(self) -> FailoverRequest:
        if bool(self.topics) == self.all:
            raise ValueError("give either topics or all")
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("a topic is named twice")
        return self


class FailoverPlan(Model):
    """Answer to a fail-over with dry_run: nothing was changed."""

    dry_run: bool = True
    link: str
    partitions: list[FailoverPartition]
    blockers: list[str] = Field(default=[], description="Why a fail-over would be refused now.")
    warnings: list[str] = []


class SourceProducer(Model):
    """A producer of a partition as the source's leader knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None = Field(
        default=None, description="null: it has none, or the link's principal may not see it."
    )
    last_write_ms: int | None = Field(default=None, description="How long ago it wrote last.")
    open_since_offset: int | None = Field(default=None, description="Where its open transaction begins.")
    direct: bool = Field(description="It writes to the source itself: it was not moved.")


class PromotePlan(Model):
    """Answer to a promote with dry_run: nothing was changed."""

    dry_run: bool = True
    link: str
    topics: list[PromoteTopic]
    blockers: list[str] = Field(default=[], description="Why a promote would be refused now.")
    warnings: list[str] = []
    producers: list[SourceProducer] = Field(
        default=[],
        description="At the source: those that were not moved, and those with an open transaction.",
    )
    validation: Policy = Field(default="skip", description="What it would make of the validator.")
    unproved: list[str] = Field(
        default=[], description="What the validator has to prove first; the promote itself has it do so."
    )


class PromoteJob(Model):
    """A promote or a fail-over that was started. It goes on by itself; reading it never changes it."""

    id: str
    link: str
    phase: PromotePhase
    reason: str | None = Field(default=None, description="Why it was abandoned, or what it is waiting for.")
    topics: list[PromoteTopic]
    started_at: datetime
    finished_at: datetime | None = None
    phases_ms: dict[PromotePhase, int] = Field(default={}, description="Time spent in each phase so far.")
    validation: PromoteValidation | None = Field(default=None, description="null: it was skipped.")
    failover: list[FailoverPartition] | None = Field(
        default=None, description="Of a fail-over: what was taken over and what was not; null for a promote."
    )
    source_fenced: list[str] = Field(
        default=[],
        description="Topics that the source refuses writes to, or may, because of this promote: DENY WRITE for User:*.",
    )

    @property
    def over(self) -> bool:
        """Nothing is under way any more, its evidence included."""
        proving = self.validation is not None and self.validation.state == "PENDING"
        return self.phase.final and not proving


class SidecarState(StrEnum):
    """State of a sidecar. AWAY: the link controller does not hear of it. FENCED: the target's controller gives it no
    leadership. DRAINING and LEAVING were asked for."""

    RUNNING = "RUNNING"
    STARTING = "STARTING"
    DRAINING = "DRAINING"
    LEAVING = "LEAVING"
    FENCED = "FENCED"
    AWAY = "AWAY"


class SidecarStatus(Model):
    """A sidecar, which is a broker of the target cluster."""

    id: int
    state: SidecarState
    version: str | None = Field(default=None, description="Of the program; null if it is away.")
    advertised_listeners: list[str]
    rack: str | None = None
    controller: bool = Field(description="Whether it is the one that decides (the link controller).")
    leading_partitions: int
    isr_partitions: int = Field(default=0, description="In whose ISR it is, those included that it leads.")
    draining: bool = False
    leaving: bool = False
    lease_ms: int | None = Field(
        default=None,
        description="For how long it may still acknowledge writes if it is not heard of any more, as the link controller "
        "counts; null: for ever (the store has one user).",
    )
    last_heard_ms: int | None = Field(
        default=None, description="Since the link controller last heard of it; null: not yet."
    )
    heartbeat_age_ms: int | None = Field(
        default=None, description="Since the target's controller took its heartbeat, as it says itself."
    )
    reason: str | None = None


class StayingPartition(Model):
    """A partition that a sidecar leads or hosts, and why that has not ended."""

    topic: str
    partition: int
    leads: bool
    reason: str | None = Field(default=None, description="null: it goes with one of the next rounds.")


class SidecarDescription(SidecarStatus):
    """A sidecar with what still keeps it from being drained, or from leaving."""

    staying_partitions: int = Field(
        default=0, description="Led ones; while it leaves, also those that list it."
    )
    staying: list[StayingPartition] = Field(default=[], description="The first of them, stuck ones first.")


class FleetMember(Model):
    """A sidecar as the link controller has it connected."""

    id: int
    session: str
    address: str
    version: str
    connected_ms: int
    last_heard_ms: int
    lease_ms: int | None = None


class LeaseHolder(Model):
    """A process that is not connected, but may still acknowledge writes: a promote waits for it."""

    id: int
    session: str
    lease_ms: int


class MovingPartition(Model):
    topic: str
    partition: int
    change: str


class Trouble(Model):
    what: str
    reason: str


class WaitingCommand(Model):
    """A command of the link controller that not every sidecar has carried out yet."""

    command: str
    link: str
    partitions: int
    sidecars: list[int]


class ControllerDescription(Model):
    """The link controller: the one sidecar of a fleet that decides."""

    id: int
    controller_epoch: int
    since: datetime
    store: str
    lease_ms: int | None = Field(default=None, description="Length of a lease; null: leases never end.")
    control: str | None = Field(default=None, description="Where the other sidecars connect.")
    admin: str
    sidecars_alive: int
    sidecars: int
    members: list[FleetMember]
    away: list[LeaseHolder] = []
    moving: list[MovingPartition] = []
    trouble: list[Trouble] = []
    promotes: list[str] = Field(default=[], description="Those that run.")
    waiting: list[WaitingCommand] = []


class FleetStatus(Model):
    """The fleet in one line."""

    sidecars_alive: int
    sidecars: int
    controller: int
    controller_epoch: int
    moving_partitions: int = 0
    trouble: int = 0
    draining: list[int] = []
    away: list[int] = []


class LinkStatus(LinkSummary):
    mirror_list: list[MirrorSummary]
    partitions: int
    lag: int | None = None
    lag_ms: int | None = None
    forwarding: Forwarding
    traffic: Traffic
    groups: GroupsStatus = GroupsStatus()
    validation: LinkValidation | None = None


class Status(Model):
    at: datetime
    version: str
    sidecar: SidecarStatus
    fleet: FleetStatus | None = Field(default=None, description="null: the sidecar has no others beside it.")
    target_cluster_id: str
    state: MirrorState = Field(description="The worst link's.")
    links: list[LinkStatus]
    promotes: list[PromoteJob] = Field(default=[], description="Those that run.")
    window_bytes: int = Field(default=0, description="Memory held by read-ahead windows.")
    window_limit_bytes: int = 0


class LagReport(Model):
    link: str
    at: datetime
    partitions: list[PartitionLag]


class Check(Model):
    name: str
    result: CheckResult
    detail: str
    remedy: str | None = None


class DoctorReport(Model):
    link: str
    checks: list[Check]

    @property
    def failed(self) -> bool:
        return any(check.result is CheckResult.FAIL for check in self.checks)


class Health(Model):
    status: str
    reason: str | None = None


class ErrorBody(Model):
    """Body of every answer that is not 2xx."""

    error_code: int
    message: str
