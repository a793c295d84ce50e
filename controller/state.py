"""The durable entities. Frozen: a change is a new value, written as a record and replayed (`image`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controller.access.acls import Resource
from controller.json_fields import ADDED_LATER, WRITTEN_IF_SET
from controller.mirror_group import MirrorGroup
from controller.phases import Phase
from controller.proof import PartitionValidation, PromoteEvidence, ValidationPolicy
from wire.frames.types import TopicId, TopicPartition

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A source cluster whose topics are mirrored here."""

    name: str
    source_cluster_id: str
    properties: Mapping[str, str]  # of the source client; secrets only as ${env:..} / ${file:..} references
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    created_at: int = 0  # wall clock, ms
    # The link that this one runs against: its source is that link's target, and its mirrors lie in that link's source
    reverse_of: str | None = field(default=None, metadata=WRITTEN_IF_SET)

    @property
    def at(self) -> str:
        """The cluster that its mirrors lie in: "" the target, else the source of the link of this name."""
        return self.reverse_of or ""

    @property
    def prefix(self) -> str:
        """Of its mirrors' names: each is called this and the source topic's name."""
        return str(self.options.get("prefix", ""))


class SwitchEnd(StrEnum):
    """The end of a topic in the cluster that was left, once its switch is final."""

    CLOSED = "CLOSED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsPutBack:
    """Overrides of a topic that its cluster's own brokers lead again after a take-over."""

    at: int  # wall clock, ms
    configs: Mapping[str, str | None]
    #: The take-over was given up, so a request of it may be on its way still.
    given_up: bool = field(default=False, metadata=WRITTEN_IF_SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopic:
    """One topic of a link, as it was set up."""

    link: str
    topic: str  # the name at the target, by which all of the linker knows it
    topic_id: TopicId  # the target's; all zeros until the topic was created there
    source_topic_id: TopicId | None  # None: the source is too old to have ids
    partitions: int
    paused: bool = False  # the operator's intent
    start: str = "earliest"  # earliest | latest | a timestamp in ms
    target_replicas: tuple[tuple[int, ...], ...] = ()  # per partition, preferred leader first
    # The topic's overrides at the target while it is mirrored: those of the source, and those that mirroring forces.
    copied_configs: Mapping[str, str] = field(default_factory=dict)
    # Overrides that promote has to change: name -> value, None meaning "no override".
    restore_configs: Mapping[str, str | None] = field(default_factory=dict)
    # Configs that keep the target's own value, as the operator asked
    configs_from_target: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    # Ids of the clusters that its records came through, the source's last; empty: not known yet (an older version's state)
    upstream: tuple[str, ...] = field(default=(), metadata=WRITTEN_IF_SET)
    created_at: int = 0
    # The name at the source where it is another one; `source_topic` has it in any case
    source_name: str | None = field(default=None, metadata=WRITTEN_IF_SET)
    # How many partitions the mirror was made with, once the source has added some; None: none were added
    grown_from: int | None = field(default=None, metadata=WRITTEN_IF_SET)
    # Link brokers of the source are to follow its partitions as in-sync replicas (linker mirror sync)
    sync: bool = field(default=False, metadata=WRITTEN_IF_SET)
    # It was taken over, or was about to be, and its cluster's own brokers are to lead it again
    given_back: bool = field(default=False, metadata=WRITTEN_IF_SET)
    # It was failed over or promoted, and its source is to follow the target (decide/restores)
    restoring: bool = field(default=False, metadata=WRITTEN_IF_SET)
    # Its switch is to be final, as the operator said: done step by step, until the mirror is removed
    ending: SwitchEnd | None = field(default=None, metadata=WRITTEN_IF_SET)
    # The other cluster keeps the topic: nobody can write to it in this one, and brokers that lack records may lead it
    finished: bool = field(default=False, metadata=WRITTEN_IF_SET)
    # At its source, after the last take-over there: a request of that may come late, and change them again
    put_back: ConfigsPutBack | None = field(default=None, metadata=WRITTEN_IF_SET)

    @property
    def source_topic(self) -> str:
        """The name at the source: for people, and for what knows the source's own names (its ACLs). The link's client of
        the source exchanges names by itself."""
        return self.topic if self.source_name is None else self.source_name

    def added(self, partition: int) -> bool:
        """Whether the source has added the partition while the topic was mirrored."""
        return self.grown_from is not None and partition >= self.grown_from

    def start_of(self, partition: int) -> str:
        """`start` was chosen for what was there; a partition that was added since is copied from its first record."""
        return "earliest" if self.added(partition) else self.start

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.topic, index) for index in range(self.partitions))

    def replicas_of(self, partition: int) -> tuple[int, ...]:
        """The real brokers that are to hold it; none, if the state does not say."""
        return self.target_replicas[partition] if partition < len(self.target_replicas) else ()

    @property
    def replication_factor(self) -> int | None:
        """None, if the state does not say."""
        return max(map(len, self.target_replicas)) if self.target_replicas else None


def same_source_topic(mirrored: TopicId | None, found: TopicId | None) -> bool:
    """Whether the source's topic may be the one that was mirrored: an upgrade gives ids to topics that had none, and a
    broker that is not upgraded yet tells none."""
    return mirrored is None or found is None or mirrored == found


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The epochs an AlterPartition carried. It can succeed only while the partition has exactly these."""

    leader_epoch: int
    partition_epoch: int


class AbortedTransaction(NamedTuple):
    """One that was open in what was copied of a dead source, and was ended by a marker after the failover."""

    producer_id: int
    producer_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """A partition whose source is given up. Offsets are ends: one more than the last offset below."""

    before: Phase  # where it returns to if the failover is abandoned
    source_end: int | None = None  # the source's high watermark as it was seen last; None: not known
    # Of the newest forwarded write that the source acknowledged; None: not known.
    acked_end: int | None = None
    # Where the target takes over: every replica stops there, and this one had everything below. None: not chosen yet
    end: int | None = None
    replica: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    # Sidecars that were away when the end was chosen: what the source acknowledged through them last nobody could tell
    unasked: tuple[int, ...] = ()


class Exported(NamedTuple):
    """Records that a restored partition had beyond the failover, from `start` up to `end`: in files of the sidecar."""

    start: int
    end: int
    records: int
    path: str  # of the batches; empty: there were none


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A partition that was taken over from the brokers of the cluster that the mirror lies in."""

    end: int  # where the link broker began to lead: what these brokers have behind it nobody was acknowledged
    epochs: tuple[
        tuple[int, int], ...
    ] = ()  # the cluster's own leader epochs below: (epoch, start offset), ascending
    # Of a source that is restored after a failover: durable in files before anything of it is truncated
    exported: Exported | None = field(default=None, metadata=WRITTEN_IF_SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPartition:
    """One partition's durable state. The store's own version of the node is kept beside it, in the image."""

    link: str
    topic: str
    partition: int
    phase: Phase = Phase.LINKING
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    controller_epoch: int = 0
    session_epoch: int = -1  # E0: constant for the mirror's life, the epoch all copied batches carry
    start_offset: int | None = None  # None until resolved at the source
    source_epochs: tuple[tuple[int, int], ...] = ()  # (source leader epoch, start offset), ascending
    # (replica, offset): after the source lost data, replicas that must be seen at or below the offset first
    untruncated: tuple[tuple[int, int], ...] = ()
    reason: str | None = None  # why it is where it is (failed, promote abandoned)
    failure: str | None = None  # broke while a promote owned it; becomes FAILED if the promote is abandoned
    aligned_end: int | None = None  # from ALIGNED on: where source and every replica ended
    # From VALIDATED on: the newest hand-over that may have been sent. While SWITCHING: the newest AlterPartition
    attempt: Attempt | None = None
    failover: Failover | None = None  # while a failover owns it, and for good after one
    since: int = 0  # wall clock ms of the last phase change
    # Written before the request that takes its cluster's own brokers out of the ISR
    taken: Taken | None = field(default=None, metadata=WRITTEN_IF_SET)

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdFloor:
    """The target's allocator is known to hand out only ids >= floor; the source's was last seen at
    source_seen.
    """

    link: str
    floor: int
    source_seen: int
    sampled_at: int
    # (first, end): ids that the target's allocator gave to nobody but this link's sidecar, which threw them away
    unused: tuple[tuple[int, int], ...] = field(default=(), metadata=WRITTEN_IF_SET)
    # The source hands out ids from here on only, since a link in the other direction moved it past the target's
    ceiling: int | None = field(default=None, metadata=WRITTEN_IF_SET)


UNBOUND: TopicId = bytes(16)


class JobStatus(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteJob:
    """One promote as the operator asked for it, or one failover. Where it stands is in its partitions' phases."""

    id: int
    link: str
    partitions: tuple[TopicPartition, ...]
    failover: bool = False
    status: JobStatus = JobStatus.RUNNING
    started_at: int = 0
    ended_at: int | None = None
    reason: str | None = None
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    validation: ValidationPolicy = ValidationPolicy.SKIP
    # Its source is taken over by link brokers, and follows the target from the hand-over on
    switch: bool = field(default=False, metadata=WRITTEN_IF_SET)
    # Records that replicas may lack before their log start, all partitions together
    accept_missing: int = field(default=0, metadata=WRITTEN_IF_SET)
    requested_by: str | None = field(default=None, metadata=WRITTEN_IF_SET)
    warnings: tuple[str, ...] = ()  # what did not keep it from happening, and somebody should know
    evidence: PromoteEvidence | None = None  # None: nothing was promoted yet, or nothing is to be proved
    # Topics whose source refuses writes because of this job, or may: noted before it is asked to, and taken out when it
    # certainly accepts them again. A topic that has ended stays in the list for good.
    source_fenced: tuple[str, ...] = ()
    # Of these, topics that had ended when their mirror was deleted: closed for good, which nothing else tells any more.
    closed_for_good: tuple[str, ...] = field(default=(), metadata=WRITTEN_IF_SET)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tp.topic for tp in self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarIdentity:
    """The identity that a link broker must reuse after a restart, or its mirrors become leaderless for good."""

    broker_id: int
    incarnation_id: bytes
    log_dir_id: bytes
    broker_epoch: int = -1
    cluster_id: str = ""  # of the target this identity belongs to
    # The process that was given a lease last: the next link controller has to wait for it, or for its lease to end.
    session: str = ""
    lease: float = 0.0  # seconds that it was given; the next link controller may be configured otherwise
    # What an operator wants of this process; a new process begins without.
    draining: bool = False  # it leads nothing
    leaving: bool = False  # it gives up everything, and is forgotten when it has
    # Its broker ids in the sources that its configuration has a section for, by link
    sources: tuple[tuple[str, int], ...] = field(default=(), metadata=WRITTEN_IF_SET)


class Grant(NamedTuple):
    """An ACL without its resource, in the words of Kafka's enums."""

    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedAcls:
    """The ACLs of one resource of the target that a link has made, or is about to make. No other ACL is ever removed."""

    link: str
    resource: Resource
    grants: tuple[Grant, ...] = ()  # sorted


# Records: what a decision emits and replay applies. An entity as a record means "this is its value now".


@dataclass(frozen=True, slots=True)
class RemoveLink:
    link: str


@dataclass(frozen=True, slots=True)
class RemoveMirror:
    """The topic with all its partitions."""

    link: str
    topic: str


@dataclass(frozen=True, slots=True)
class RemovePromoteJob:
    link: str
    id: int


@dataclass(frozen=True, slots=True)
class RemoveSidecar:
    """It has left the fleet."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """It is no longer mirrored."""

    link: str
    group: str


@dataclass(frozen=True, slots=True)
class RemoveCarriedAcls:
    """None is left of the resource, or they are the link's no more."""

    link: str
    resource: Resource


Entity = (
    Link
    | MirrorTopic
    | MirrorPartition
    | PartitionValidation
    | ProducerIdFloor
    | PromoteJob
    | SidecarIdentity
    | MirrorGroup
    | CarriedAcls
)
Removal = RemoveLink | RemoveMirror | RemovePromoteJob | RemoveSidecar | RemoveGroup | RemoveCarriedAcls
Record = Entity | Removal
