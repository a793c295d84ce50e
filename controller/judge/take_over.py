"""The next request that brings a partition from its own brokers to link brokers, or back. Pure: the metadata image decides.

The steps rely on these facts of the controller (`ReplicationControlManager`, `PartitionChangeBuilder` of 4.x):
- A reassignment that only changes the order of the replicas is carried out at once, with one record and without a new
  leader epoch. ElectLeaders PREFERRED elects the first replica if it is in the ISR.
- An AlterPartition is accepted only with the present leader epoch and partition epoch, in the name of the leader. A change
  of the leader raises the leader epoch. So once a real broker leads under a higher leader epoch than an AlterPartition
  carried, that AlterPartition can never be carried out.
- Below min.insync.replicas, brokers that leave the ISR become eligible leaders. With an ISR of that size or more the record
  empties both lists of them.
- Nothing else takes a broker into the ISR. One that is fenced leaves it, and becomes no eligible leader but of itself.

A late request to reassign or to elect, after all was given back, can make a link broker the leader once more, with the real
brokers in the ISR. That does no harm: the real brokers lead again a moment later (`plan.in_sync`), and no record is taken
meanwhile. A late request cannot shrink the ISR, because an AlterPartition is noted under the newest controller epoch before
it is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from controller.cluster_view import ImageView, PartitionView
from controller.judge.alignment import ReplicaPosition
from controller.judge.hand_over import broker_trouble, find, unregistered
from controller.plan.replicas import AlterIsr, ElectPreferred, Reassign
from controller.state import Attempt
from wire.frames.types import TopicId, TopicPartition


class EligiblePartition(PartitionView, Protocol):
    """A partition with the brokers that may be elected although they left the ISR (KIP-966)."""

    @property
    def elr(self) -> Sequence[int]: ...
    @property
    def last_known_elr(self) -> Sequence[int]: ...


class Reached(NamedTuple):
    """Done: the metadata log shows it."""


class NotNow(NamedTuple):
    reason: str
    may_pass: bool = True  # the reason may go away without anybody's doing


@dataclass(frozen=True, slots=True)
class Shrinkable:
    """The next request is an AlterPartition to this ISR: a link broker leads, but real brokers are still in the ISR, or may
    be elected."""

    new_isr: tuple[int, ...]


TakeStep = Reassign | ElectPreferred | Shrinkable | Reached | NotNow
BackStep = Reassign | ElectPreferred | AlterIsr | Reached | NotNow


def held_by_link(partition: EligiblePartition, link_brokers: Collection[int]) -> bool:
    """Whether a link broker leads, and only link brokers can be elected, whichever brokers die."""
    electable = {*partition.isr, *partition.elr, *partition.last_known_elr}
    return partition.leader in link_brokers and electable <= set(link_brokers)


def obstacle(
    image: ImageView,
    tp: TopicPartition,
    topic_id: TopicId,
    link_brokers: Collection[int],
    follower: int | None = None,
) -> NotNow | None:
    """Why a partition cannot be taken over now. `follower`: the link broker that can tell the end of the log. -1: there is
    none; None: any of them can."""
    partition = _found(image, tp, topic_id)
    if isinstance(partition, NotNow):
        return partition
    if partition.leader < 0:
        return NotNow("it has no leader")
    # The link brokers that are to join the leader were added to the replicas when the take-over was prepared.
    if partition.removing or not set(partition.adding) <= set(link_brokers):
        return NotNow(
            f"it is being reassigned (adding {list(partition.adding)}, removing {list(partition.removing)})"
        )
    if gone := unregistered(image, [b for b in partition.replicas if b not in link_brokers]):
        return NotNow(gone, may_pass=False)
    ready = _ready(image, partition, link_brokers)
    if follower == -1:
        return NotNow("the sidecar that leads its mirror has not joined the partition's cluster as a broker")
    if follower is not None and ready != [follower]:
        return NotNow(f"link broker {follower} has to be the only one in its ISR {list(partition.isr)}")
    if not ready:
        return NotNow(f"no link broker is in its ISR {list(partition.isr)}")
    return None


def take_step(
    image: ImageView,
    tp: TopicPartition,
    topic_id: TopicId,
    link_brokers: Collection[int],
    turn: int = 0,
    most: int = 1,
) -> TakeStep:
    """The next request of a take-over. `turn` spreads the leaders over the link brokers that are in the ISR. Up to `most`
    link brokers hold the partition afterwards: those that come are replicas with the reassignment, and in the ISR with the
    AlterPartition that takes the real brokers out of it."""
    partition = _found(image, tp, topic_id)
    if isinstance(partition, NotNow):
        return partition
    if held_by_link(partition, link_brokers):
        return Reached()
    if partition.removing or not set(partition.adding) <= set(link_brokers):
        return NotNow("it is being reassigned, by another request than ours")
    ready = _ready(image, partition, link_brokers)
    if partition.leader in link_brokers:
        if partition.leader not in ready:
            return NotNow(f"its leader, link broker {partition.leader}, is down")
        beside = [b for b in partition.replicas if b in link_brokers and broker_trouble(image, b) is None]
        return Shrinkable((partition.leader, *(b for b in beside if b != partition.leader)))
    if not ready:
        return NotNow(f"no link broker is in its ISR {list(partition.isr)} any more")
    if partition.replicas[0] in ready:
        return ElectPreferred()
    turned = [*ready[turn % len(ready) :], *ready[: turn % len(ready)]]
    new = [b for b in sorted(link_brokers) if b not in partition.replicas and b in image.brokers]
    new = [b for b in new if broker_trouble(image, b) is None]
    new = [new[(turn + i) % len(new)] for i in range(len(new))][: max(0, most - len(ready))]
    return Reassign((*turned, *new, *(b for b in partition.replicas if b not in turned)))


def back_step(
    image: ImageView,
    tp: TopicPartition,
    topic_id: TopicId,
    link_brokers: Collection[int],
    *,
    attempt: Attempt | None,
    end: int | None,
    positions: Mapping[int, ReplicaPosition],
    order: Sequence[int] = (),
    patient: bool = True,
    closed: bool = False,
) -> BackStep:
    """The next request of giving a partition back.

    `attempt`: the newest AlterPartition that may be under way. `end`: the end of the link brokers' log. `order`: the real
    brokers in the order that they had before. `patient`: wait for every real broker that is alive, not only for one.
    `closed`: the other cluster keeps the partition and nobody can write here, so any broker may lead, whatever it lacks.
    """
    partition = _found(image, tp, topic_id)
    if isinstance(partition, NotNow):
        return Reached() if not partition.may_pass else partition
    if partition.leader >= 0 and partition.leader not in link_brokers:
        if attempt is not None and partition.leader_epoch <= attempt.leader_epoch:
            return NotNow(
                "an AlterPartition of a later leader epoch was sent: the metadata log is read first"
            )
        return Reached()
    if partition.leader < 0:
        return NotNow(f"it has no leader: one of {list(partition.isr)} has to come back")
    real = [b for b in (*order, *partition.replicas) if b in partition.replicas and b not in link_brokers]
    real = list(dict.fromkeys(real))
    alive = [b for b in real if broker_trouble(image, b) is None]
    members = [b for b in alive if b in partition.isr]
    if members:
        # Each member has all that the whole ISR acknowledged. Records for acks=1 may lie beyond: it has to reach the end.
        at_end = [b for b in members if end is not None and _stands_at(image, b, positions.get(b), end)]
        if not at_end and end is not None and patient and not closed:
            return NotNow(f"brokers {members} have not followed to {end} yet")
        first = at_end or members
        if partition.replicas[0] in first:
            return ElectPreferred()
        return Reassign(_behind(image, first, real, partition))
    if not alive:
        return NotNow(f"none of its brokers {real} is alive")
    if closed:
        ready = alive
    elif end is None:
        return NotNow("the end of its log is not known yet")
    else:
        ready = [b for b in alive if _stands_at(image, b, positions.get(b), end)]
    if not ready or (patient and len(ready) < len(alive)):
        late = {b: positions[b].offset if b in positions else None for b in alive if b not in ready}
        return NotNow(f"brokers {late} have not followed to {end} yet")
    if partition.replicas[0] not in ready:
        return Reassign(_behind(image, ready, real, partition))
    trouble = broker_trouble(image, partition.leader)
    if trouble is not None:
        return NotNow(trouble)
    # Link brokers beside the leader do not follow: in the ISR of a real leader they would hold up its acknowledgements.
    return AlterIsr((partition.leader, *ready))


def _found(image: ImageView, tp: TopicPartition, topic_id: TopicId) -> EligiblePartition | NotNow:
    partition = find(image, tp)
    if partition is None or bytes(image.topics_by_name[tp.topic].id) != topic_id:
        return NotNow("the topic was deleted or re-created", may_pass=False)
    return partition  # type: ignore[return-value]


def _ready(image: ImageView, partition: PartitionView, link_brokers: Collection[int]) -> list[int]:
    """The link brokers in the ISR that may lead, in the order of the replicas."""
    return [
        b
        for b in partition.replicas
        if b in link_brokers and b in partition.isr and broker_trouble(image, b) is None
    ]


def _behind(
    image: ImageView, first: Sequence[int], real: Sequence[int], partition: PartitionView
) -> tuple[int, ...]:
    """All replicas in a new order: first these, then the other real brokers, then the link brokers. A broker that somebody
    has unregistered can be named in no list, and so is taken out."""
    order = dict.fromkeys([*first, *real, *partition.replicas])
    return tuple(broker for broker in order if broker in image.brokers)


def _stands_at(image: ImageView, broker: int, position: ReplicaPosition | None, end: int) -> bool:
    """Whether this incarnation of the broker has fetched from `end`, and so has all that is before it."""
    if position is None or position.offset != end:
        return False
    return position.broker_epoch in (-1, image.brokers[broker].epoch)
