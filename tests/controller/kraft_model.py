"""KRaft's rules for partitions, as far as link brokers can meet them, written after the Java of 4.3:
`ReplicationControlManager` (changePartitionReassignment, cancelPartitionReassignment, alterPartition,
electLeader, generateLeaderAndIsrUpdates), `PartitionChangeBuilder`, `PartitionReassignmentReplicas`,
`PartitionReassignmentRevert`. Epochs are counted as `PartitionRegistration.merge` does.

Left out: directories, last known leaders, the recovery state after an unclean election. Nothing here is shared with the
code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.alter_partition import AlterPartitionItem
from wire.frames.types import TopicPartition

NONE, UNKNOWN, NOT_CONTROLLER, INVALID_REQUEST = 0, 3, 41, 42
STALE_BROKER_EPOCH, FENCED_LEADER_EPOCH, INVALID_ASSIGNMENT = 77, 74, 39
NO_REASSIGNMENT, NOT_NEEDED, INVALID_UPDATE_VERSION, PREFERRED_NOT_AVAILABLE = 85, 84, 95, 80
INELIGIBLE_REPLICA, NEW_LEADER_ELECTED, NOT_REGISTERED, UNKNOWN_TOPIC_ID = 107, 108, 102, 100
NO_LEADER = -1


@dataclass(frozen=True)
class Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True)
class Broker:
    id: int
    epoch: int
    rack: str | None = None
    fenced: bool = False
    in_controlled_shutdown: bool = False


@dataclass(frozen=True)
class Topic:
    id: bytes
    name: str
    partitions: Mapping[int, Partition]


@dataclass(frozen=True)
class Image:
    topics_by_name: Mapping[str, Topic]
    brokers: Mapping[int, Broker]
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    offset: int = 0
    changes: int = 0

    @property
    def topics_by_id(self) -> Mapping[bytes, Topic]:
        return {topic.id: topic for topic in self.topics_by_name.values()}

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(index)


@dataclass
class Kraft:
    """The active controller. Every change is one record and calls `changed`."""

    min_isr: int = 1
    elr_enabled: bool = True  # eligible.leader.replicas.version 1, the default of new clusters from 4.1
    bump_on_shrink: bool = False  # metadata.version before 3.6
    #: min.insync.replicas, of a partition as it is, where topics differ
    min_isr_of: Callable[[Partition], int] | None = None
    #: unclean.leader.election.enable, of a partition as it is
    unclean: Callable[[Partition], bool] = lambda _: False
    brokers: dict[int, Broker] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None
    records: int = 0

    # Brokers.

    def register(self, broker_id: int, rack: str | None = None, *, fenced: bool = False) -> int:
        """A registration and, unless `fenced`, the heartbeat that unfences; the broker epoch."""
        self.records += 1
        self.brokers[broker_id] = Broker(broker_id, self.records + 1000, rack, fenced=True)
        if not fenced:
            self.unfence(broker_id)
        self.changed()
        return self.brokers[broker_id].epoch

    def unfence(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if not broker.fenced:
            return
        # handleBrokerUnfenced: partitions without a leader may get this one.
        for tp, partition in self.partitions.items():
            if partition.leader == NO_LEADER:
                self._put(tp, self._build(partition, lambda b: b == broker_id or self.active(b)))
        self.brokers[broker_id] = replace(broker, fenced=False)
        self.changed()

    def fence(self, broker_id: int, broker_epoch: int | None = None) -> int:
        """WantFence=true, or the end of the session. The code of the heartbeat."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            return NOT_REGISTERED
        if broker_epoch not in (None, broker.epoch):
            return STALE_BROKER_EPOCH
        if not broker.fenced:
            self._remove_from_isr(broker_id)
            self.brokers[broker_id] = replace(broker, fenced=True)
            self.changed()
        return NONE

    def unregister(self, broker_id: int) -> int:
        """Does not look whether partitions list the broker."""
        if broker_id not in self.brokers:
            return NOT_REGISTERED
        self._remove_from_isr(broker_id)
        del self.brokers[broker_id]
        self.changed()
        return NONE

    def active(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def _remove_from_isr(self, broker_id: int) -> None:
        """generateLeaderAndIsrUpdates with brokerToRemove."""
        for tp, partition in self.partitions.items():
            if broker_id in partition.isr:
                isr = tuple(b for b in partition.isr if b != broker_id)
                self._put(
                    tp, self._build(partition, lambda b: b != broker_id and self.active(b), target_isr=isr)
                )

    # Topics and replicas.

    def create(self, topic: str, topic_id: bytes, assignments: Mapping[int, Sequence[int]]) -> None:
        """Manual assignment: the ISR is whoever is active, the first of it leads."""
        self.topic_ids[topic] = topic_id
        for index, replicas in assignments.items():
            isr = tuple(b for b in replicas if self.active(b))
            if not isr:
                raise ValueError("INVALID_REPLICA_ASSIGNMENT: all brokers are fenced")
            self.partitions[TopicPartition(topic, index)] = Partition(tuple(replicas), isr, leader=isr[0])
        self.changed()

    def reassign(self, tp: TopicPartition, replicas: Sequence[int] | None) -> int:
        partition = self.partitions.get(tp)
        if partition is None:
            return UNKNOWN
        if replicas is None:
            return self._cancel(tp, partition)
        if not replicas or len(set(replicas)) != len(replicas):
            return INVALID_ASSIGNMENT
        if any(b not in self.brokers for b in replicas):
            return INVALID_ASSIGNMENT
        removing = tuple(sorted(set(partition.replicas) - set(replicas)))
        adding = tuple(sorted(set(replicas) - set(partition.replicas)))
        changes: dict[str, tuple[int, ...]] = {"target_replicas": (*replicas, *removing)}
        if removing:
            changes["target_removing"] = removing
        if adding:
            changes["target_adding"] = adding
        self._put(tp, self._build(partition, self.active, **changes))
        self.changed()
        return NONE

    def _cancel(self, tp: TopicPartition, partition: Partition) -> int:
        if not partition.adding and not partition.removing:
            return NO_REASSIGNMENT
        isr = tuple(b for b in partition.isr if b not in partition.adding)
        if not isr:
            return INVALID_ASSIGNMENT  # it would be an unclean election
        built = self._build(
            partition,
            self.active,
            target_isr=isr,
            target_replicas=tuple(b for b in partition.replicas if b not in partition.adding),
            target_removing=(),
            target_adding=(),
        )
        self._put(tp, built)
        self.changed()
        return NONE

    def alter_partition(
        self, leader: tuple[int, int], items: Iterable[AlterPartitionItem]
    ) -> dict[TopicPartition, int] | int:
        """The code per partition, or the one code for all. The request (v3) names one leader; a broker epoch of -1 is not
        checked."""
        broker_id, broker_epoch = leader
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            return STALE_BROKER_EPOCH
        codes = {item.tp: self._alter(broker_id, item) for item in items}
        self.changed()
        return codes

    def _alter(self, broker_id: int, item: AlterPartitionItem) -> int:
        partition = self.partitions.get(item.tp)
        if self.topic_ids.get(item.tp.topic) != item.topic_id:
            return UNKNOWN_TOPIC_ID
        if partition is None:
            return UNKNOWN
        if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
            return NOT_CONTROLLER
        if item.leader_epoch < partition.leader_epoch:
            return FENCED_LEADER_EPOCH
        if broker_id != partition.leader:
            return INVALID_REQUEST
        if item.partition_epoch < partition.partition_epoch:
            return INVALID_UPDATE_VERSION
        isr = tuple(b for b, _ in item.new_isr)
        if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
            return INVALID_REQUEST
        if partition.leader not in isr:
            return INVALID_REQUEST
        for member, epoch in item.new_isr:
            if not self.active(member) or epoch not in (-1, self.brokers[member].epoch):
                return INELIGIBLE_REPLICA
        built = self._build(partition, self.active, target_isr=isr)
        self._put(item.tp, built)
        # Any record that names a leader other than the requester (NEW_LEADER_ELECTED).
        if built is not None and built.leader_epoch != partition.leader_epoch and built.leader != broker_id:
            return NEW_LEADER_ELECTED
        return NONE

    def elect_preferred(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        codes: dict[TopicPartition, int] = {}
        for tp in tps:
            partition = self.partitions.get(tp)
            if partition is None:
                codes[tp] = UNKNOWN
            elif partition.leader == partition.replicas[0]:
                codes[tp] = NOT_NEEDED
            else:
                built = self._build(partition, self.active, preferred=True)
                codes[tp] = PREFERRED_NOT_AVAILABLE if built is None else NONE
                self._put(tp, built)
        self.changed()
        return codes

    def rebalance(self) -> None:
        """auto.leader.rebalance.enable, each leader.imbalance.check.interval.seconds."""
        for tp, partition in self.partitions.items():
            if partition.leader != partition.replicas[0]:
                self._put(tp, self._build(partition, self.active, preferred=True))
        self.changed()

    # PartitionChangeBuilder.

    def _put(self, tp: TopicPartition, built: Partition | None) -> None:
        if built is not None:
            self.records += 1
            self.partitions[tp] = built

    def _build(
        self,
        partition: Partition,
        acceptable: Callable[[int], bool],
        *,
        target_isr: tuple[int, ...] | None = None,
        target_replicas: tuple[int, ...] | None = None,
        target_removing: tuple[int, ...] | None = None,
        target_adding: tuple[int, ...] | None = None,
        preferred: bool = False,
    ) -> Partition | None:
        """The partition after the record, None if the record would be a no-op."""
        isr = list(partition.isr if target_isr is None else target_isr)
        replicas = list(partition.replicas if target_replicas is None else target_replicas)
        removing = list(partition.removing if target_removing is None else target_removing)
        adding = list(partition.adding if target_adding is None else target_adding)
        elr = list(partition.elr)

        # completeReassignmentIfNeeded
        if removing or adding:
            left_isr = [b for b in isr if b not in removing]
            left = [b for b in replicas if b not in removing]
            complete = bool(left_isr) and bool(left) and all(b in left_isr for b in adding)
            if len(adding) < len(removing) and not all(b in left_isr for b in left):
                complete = False
            if complete:
                isr, replicas, removing, adding = left_isr, left, [], []

        # maybePopulateTargetElr
        if self.elr_enabled:
            if len(isr) >= (self.min_isr if self.min_isr_of is None else self.min_isr_of(partition)):
                elr = []
            else:
                elr = [b for b in {*elr, *partition.isr} if b not in isr]

        # tryElection
        def valid(broker: int) -> bool:
            return (broker in isr or (not isr and broker in elr)) and acceptable(broker)

        if preferred and valid(replicas[0]):
            leader = replicas[0]
        elif valid(partition.leader):
            leader = partition.leader
        else:
            leader = next((b for b in replicas if valid(b)), NO_LEADER)
        if leader == NO_LEADER and self.unclean(partition):
            leader = next((b for b in replicas if acceptable(b)), NO_LEADER)
            isr, elr = ([leader], []) if leader != NO_LEADER else (isr, elr)
        new_leader = leader != partition.leader
        if new_leader and leader in elr:
            isr, elr = [leader], [b for b in elr if b != leader]
        # triggerLeaderEpochBumpForReplicaReassignmentIfNeeded
        if not set(partition.replicas) <= set(replicas):
            new_leader = True
        if not self.elr_enabled:
            elr = []
        if not isr and not self.elr_enabled:
            isr = list(partition.isr)  # the sole member stays
        if self.bump_on_shrink and not set(partition.isr) <= set(isr):
            new_leader = True

        built = Partition(
            tuple(replicas),
            tuple(isr),
            tuple(adding),
            tuple(removing),
            leader,
            partition.leader_epoch + new_leader,
            partition.partition_epoch,
            tuple(sorted(elr)),
        )
        if built == replace(partition, elr=tuple(sorted(partition.elr))):
            return None
        return replace(built, partition_epoch=partition.partition_epoch + 1)

    # Reading.

    def image(self) -> Image:
        topics: dict[str, dict[int, Partition]] = {name: {} for name in self.topic_ids}
        for tp, partition in self.partitions.items():
            topics[tp.topic][tp.partition] = partition
        return Image(
            {name: Topic(self.topic_ids[name], name, parts) for name, parts in topics.items()},
            dict(self.brokers),
        )
