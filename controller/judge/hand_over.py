"""The hand-over, judged: what to put into the AlterPartition, what its answer means, what the metadata log
proves.

Pure. Facts of the target's controller these rest on:
- AlterPartition is accepted only with the partition's current leader epoch and partition epoch, and every
  record for a partition raises its partition epoch. So once the log shows a higher partition epoch than an
  AlterPartition carried, that AlterPartition either is what raised it (the ISR then holds real brokers) or
  can never be carried out.
- With *all* target replicas in the new ISR the same record completes the reassignment, if it is open
  (`controller.plan.replicas.is_open`): the link brokers leave the replicas and the first live replica leads. The leader
  is then told NEW_LEADER_ELECTED, an error code for a success.
- The requester is the partition's leader, whichever link broker that is; who sends the request for it does
  not matter, its broker epoch does. Every member of the new ISR has to be unfenced.
- A code per partition is an answer after the log's commit: definite, for that request. NOT_CONTROLLER and
  timeouts are not: a controller that lost its leadership may have appended records that still become
  committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from controller.alter_partition import AlterPartitionItem, alter_partition_item
from controller.cluster_view import ImageView, PartitionView
from controller.plan.replicas import copies_asked_for, is_open
from controller.state import Attempt
from wire.errors import error_name
from wire.frames import error_codes
from wire.frames.types import TopicId, TopicPartition


class Obstacle(NamedTuple):
    reason: str
    may_pass: bool  # by itself, soon: a broker that returns. Else waiting inside the fence is pointless


@dataclass(frozen=True, slots=True)
class HandOverPlan:
    """The hand-overs that can be sent now, and why the rest cannot."""

    items: Mapping[TopicPartition, AlterPartitionItem]
    obstacles: Mapping[TopicPartition, Obstacle]
    # Target replicas with the broker epoch they have now: a position counts only if it is of that
    # incarnation.
    replicas: Mapping[TopicPartition, Mapping[int, int]]
    # The leader epoch they copy under: brokers that are dropped and asked for again begin from nothing under a
    # higher one.
    leader_epochs: Mapping[TopicPartition, int]
    # Targets of the partitions that copy, but whose reassignment has to be opened first.
    closed: Mapping[TopicPartition, tuple[int, ...]]

    def only(self, tps: Collection[TopicPartition]) -> HandOverPlan:
        """As if these were all."""
        return HandOverPlan(
            {tp: item for tp, item in self.items.items() if tp in tps},
            {tp: obstacle for tp, obstacle in self.obstacles.items() if tp in tps},
            {tp: replicas for tp, replicas in self.replicas.items() if tp in tps},
            {tp: epoch for tp, epoch in self.leader_epochs.items() if tp in tps},
            {tp: targets for tp, targets in self.closed.items() if tp in tps},
        )


def find(image: ImageView, tp: TopicPartition) -> PartitionView | None:
    topic = image.topics_by_name.get(tp.topic)
    return None if topic is None else topic.partitions.get(tp.partition)


def plan_hand_over(
    image: ImageView,
    topic_ids: Mapping[TopicPartition, TopicId],
    link_brokers: Collection[int],
    targets: Mapping[TopicPartition, Sequence[int]] | None = None,
) -> HandOverPlan:
    """Items for what may be handed over as the image stands; every other partition gets a reason.

    `targets` are the real brokers in their order; where it has none, those that the partition lists are.
    """
    items: dict[TopicPartition, AlterPartitionItem] = {}
    obstacles: dict[TopicPartition, Obstacle] = {}
    replicas: dict[TopicPartition, Mapping[int, int]] = {}
    leader_epochs: dict[TopicPartition, int] = {}
    closed: dict[TopicPartition, tuple[int, ...]] = {}
    for tp, topic_id in topic_ids.items():
        partition = find(image, tp)
        if partition is None or bytes(image.topics_by_name[tp.topic].id) != topic_id:
            obstacles[tp] = Obstacle("the mirror topic was deleted or re-created at the target", False)
            continue
        wanted = tuple((targets or {}).get(tp, ())) or listed_targets(partition, link_brokers)
        replicas[tp] = {b: image.brokers[b].epoch for b in wanted if b in image.brokers}
        leader_epochs[tp] = partition.leader_epoch
        others = [b for b in partition.isr if b != partition.leader and b in link_brokers]
        obstacle = _obstacle(image, partition, wanted, others, link_brokers)
        if obstacle is not None:
            obstacles[tp] = obstacle
            if copies_asked_for(partition, wanted) and not is_open(partition, wanted, link_brokers):
                closed[tp] = wanted
            continue
        items[tp] = alter_partition_item(image, tp, (partition.leader, *others, *wanted))
    return HandOverPlan(items, obstacles, replicas, leader_epochs, closed)


def listed_targets(partition: PartitionView, link_brokers: Collection[int]) -> tuple[int, ...]:
    """The real brokers that stay, as the partition lists them."""
    return tuple(b for b in partition.replicas if b not in partition.removing and b not in link_brokers)


def _obstacle(
    image: ImageView,
    partition: PartitionView,
    targets: Sequence[int],
    others: Sequence[int],
    link_brokers: Collection[int],
) -> Obstacle | None:
    """`others` are the link brokers that would stay in the ISR beside the leader."""
    if partition.leader not in link_brokers:
        return Obstacle(f"its leader at the target is {partition.leader}, no link broker", True)
    lists = (
        f"(replicas {list(partition.replicas)}, adding {list(partition.adding)}, "
        f"removing {list(partition.removing)})"
    )
    if not copies_asked_for(partition, targets):
        return Obstacle(f"its reassignment to the real brokers is not open {lists}: was it cancelled?", False)
    if not is_open(partition, targets, link_brokers):
        return Obstacle(f"its reassignment to the real brokers has to be opened first {lists}", True)
    for broker_id in (*targets, partition.leader, *others):
        trouble = broker_trouble(image, broker_id)
        if trouble is not None:
            if broker_id in targets:
                trouble += f"; if it does not return: linker mirror reassign ... --away-from {broker_id}"
            return Obstacle(trouble, broker_id in image.brokers)
    return None


def broker_trouble(image: ImageView, broker_id: int) -> str | None:
    """Why a broker cannot be in an ISR now; None if it can."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return f"broker {broker_id} is not registered at the target"
    if broker.fenced:
        return f"broker {broker_id} is down (fenced by the target's controller)"
    if broker.in_controlled_shutdown:
        return f"broker {broker_id} is shutting down"
    return None


def unregistered(image: ImageView, replicas: Sequence[int]) -> str | None:
    """Why a partition cannot be reassigned to these replicas: the controller takes a list of registered brokers only."""
    gone = next((broker for broker in replicas if broker not in image.brokers), None)
    if gone is None:
        return None
    return f"broker {gone} among its replicas is not registered any more: reassign the partition to others"


class Settlement(Enum):
    """The metadata log's word on a partition for which hand-overs may be under way."""

    HANDED_OVER = auto()  # a real broker leads, or will as soon as one is alive
    IMPOSSIBLE = auto()  # no hand-over happened, and none of those sent can still happen
    PARTIAL = auto()  # a real broker is in the ISR but the link broker leads yet: only forward is safe
    OPEN = auto()  # nothing is proven: keep the fence


def settle(
    image: ImageView,
    tp: TopicPartition,
    topic_id: TopicId,
    link_brokers: Collection[int],
    unknown: Attempt | None,
) -> Settlement:
    """`unknown` is the newest hand-over whose outcome is unknown; None when every one sent was refused
    for certain.
    """
    partition = find(image, tp)
    if partition is None or bytes(image.topics_by_name[tp.topic].id) != topic_id:
        # Deleted by somebody: an AlterPartition names the topic id, so nothing can be handed over any more.
        return Settlement.IMPOSSIBLE
    if not set(partition.replicas).intersection(link_brokers):
        return Settlement.HANDED_OVER
    if any(broker not in link_brokers for broker in partition.isr):
        # In the ISR, but not complete: the controller may elect a real broker at any moment.
        if partition.leader >= 0 and partition.leader not in link_brokers:
            return Settlement.HANDED_OVER
        return Settlement.PARTIAL
    if unknown is None or partition.partition_epoch > unknown.partition_epoch:
        return Settlement.IMPOSSIBLE
    return Settlement.OPEN


class HandOverAnswer(Enum):
    """The meaning of a partition's code in the AlterPartition answer."""

    ACCEPTED = auto()  # in the log: wait until it is seen there
    REREAD = auto()  # certainly refused; newer epochs or a returned broker may make the next one pass
    FATAL = auto()  # certainly refused, and the next one would be too
    UNKNOWN = auto()  # may be carried out yet


_ANSWERS: Mapping[int, HandOverAnswer] = {
    error_codes.NONE: HandOverAnswer.ACCEPTED,
    error_codes.NEW_LEADER_ELECTED: HandOverAnswer.ACCEPTED,
    error_codes.INELIGIBLE_REPLICA: HandOverAnswer.REREAD,
    error_codes.NOT_LEADER_OR_FOLLOWER: HandOverAnswer.REREAD,  # not sent, the image shows another leader by now
    error_codes.INVALID_UPDATE_VERSION: HandOverAnswer.REREAD,  # stale partition epoch
    error_codes.FENCED_LEADER_EPOCH: HandOverAnswer.REREAD,
    error_codes.STALE_BROKER_EPOCH: HandOverAnswer.REREAD,  # the leader's registration changed
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: HandOverAnswer.REREAD,
    error_codes.UNKNOWN_TOPIC_ID: HandOverAnswer.REREAD,
    error_codes.INVALID_REQUEST: HandOverAnswer.REREAD,  # not the leader any more, or the reassignment was cancelled
    error_codes.CLUSTER_AUTHORIZATION_FAILED: HandOverAnswer.FATAL,
    error_codes.UNSUPPORTED_VERSION: HandOverAnswer.FATAL,
}


def judge_answer(code: int) -> HandOverAnswer:
    """A code nobody expected proves nothing, so it is UNKNOWN."""
    return _ANSWERS.get(int(code), HandOverAnswer.UNKNOWN)


def refusal_text(code: int) -> str:
    if int(code) == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        return "the target refused AlterPartition: the sidecar's principal needs CLUSTER_ACTION on Cluster"
    return f"the target's controller answered {error_name(code)}"


def revoke_assignments(link_brokers: Sequence[int], targets: Sequence[int]) -> tuple[list[int], list[int]]:
    """Two reassignments, one after the other, that change nothing but the partition epoch.

    The first lists the targets in another order: same replicas, same adding and removing, so a record is
    written and every AlterPartition sent before is stale. The second puts the order back. Followers keep
    their copies. And if the hand-over was carried out before they arrive, they only turn the order there
    and back: no link broker may be named, or it would be added to the replicas again.

    One target alone has no other order, so there the link brokers that are listed are put in front of it:
    `link_brokers`, registered ones only, the leader first (the first replica is elected by the controller's
    own balancing). With all of them named nothing is adding or removing anew, so that even half of it leaves
    the partition open. The sender has to look afterwards: `undo_revoke`.
    """
    if len(targets) > 1:
        return [*targets[1:], targets[0]], list(targets)
    return [*link_brokers, *targets], list(targets)


def undo_revoke(partition: PartitionView, link_brokers: Collection[int]) -> bool:
    """Did a revoke come after the hand-over, and are link brokers on their way back in? Then cancel that."""
    handed_over = partition.leader >= 0 and partition.leader not in link_brokers
    return handed_over and bool(set(partition.adding).intersection(link_brokers))
