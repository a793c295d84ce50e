"""Link brokers among the replicas of a partition that its own brokers lead: the one next step. Pure.

They stand last: the controller's own balancing elects the first replica at a moment that nobody chose. One that leads
although nothing was taken over (a late request, somebody's reassignment) gives the leadership back: the real brokers of the
ISR have all that was acknowledged, and the link broker took no record.

A link broker counts in the ISR like any replica. Where fewer real brokers are in it than min.insync.replicas, it would let
writes pass that are refused without it, or, by the larger number of replicas, have some refused that pass now
(`Partition.effectiveMinIsr`). So it does not come then, and does not go either; another one may take its place.

A reassignment is complete when all that it adds are in the ISR. One that adds a link broker that nobody has follow never is,
whatever else it adds, and no other can take its place: it is cancelled, and whoever asked for the rest asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controller.cluster_view import ImageView, PartitionView
from controller.judge.hand_over import broker_trouble, unregistered
from controller.plan.replicas import CancelReassignment, ElectPreferred, Reassign


class InSync(StrEnum):
    """Of one partition whose link brokers are to be in-sync replicas in its own cluster."""

    WAITING = "WAITING"  # not among the replicas, with the reason
    FOLLOWING = "FOLLOWING"  # among the replicas, not in the ISR
    IN_SYNC = "IN_SYNC"


@dataclass(frozen=True, slots=True)
class SyncStep:
    """Where a partition stands, and the request that brings it further, if there is one to send."""

    state: InSync
    reason: str = ""
    send: Reassign | CancelReassignment | ElectPreferred | None = None


def sync_step(
    image: ImageView,
    partition: PartitionView,
    link_brokers: Collection[int],
    candidates: Sequence[int],
    count: int,
    min_insync: int | None,
) -> SyncStep:
    """`link_brokers`: every id that is one of ours; `count` of the `candidates` are to be among the replicas, and follow
    once they are; 0 to leave.
    `min_insync`: the partition's min.insync.replicas, None where nobody has told it yet."""
    real = [b for b in partition.replicas if b not in link_brokers and b not in partition.removing]
    ours = [b for b in partition.replicas if b in link_brokers]
    state = _state(partition, ours)
    if partition.leader < 0:
        return SyncStep(state, "it has no leader")
    if not real:
        return SyncStep(state, "it has no replica but link brokers")
    if partition.leader in link_brokers:
        return _step_down(image, partition, real, state)
    usable = [b for b in candidates if b in image.brokers]
    alive = [b for b in usable if broker_trouble(image, b) is None]
    # Those that are there stay as long as they live; a dead one only while nobody can take its place.
    kept = [b for b in ours if b in alive]
    rest = [b for b in alive if b not in kept]
    dead = [b for b in ours if b in usable and b not in alive]
    chosen = [*kept, *rest, *dead][:count]
    order = (*real, *chosen)
    others = not {*partition.adding, *partition.removing} <= set(link_brokers)
    told = f"adding {list(partition.adding)}, removing {list(partition.removing)}"
    come = {*chosen, *alive} if others else set(chosen)
    if not set(partition.adding).intersection(link_brokers) <= come:
        why = f"its reassignment ({told}) waits for a link broker that does not follow: cancelled"
        return SyncStep(state, why if others else "", CancelReassignment())
    if others:
        return SyncStep(state, f"somebody reassigns it ({told})")
    if order == tuple(b for b in partition.replicas if b not in partition.removing):
        return SyncStep(state, _why_not(image, state, ours) if count else "")
    if set(chosen) != set(ours) and not (chosen and state is InSync.IN_SYNC):
        if min_insync is None:
            return SyncStep(state, "its min.insync.replicas is not known yet")
        in_isr = sum(b in partition.isr for b in real)
        if in_isr < min_insync:
            return SyncStep(
                state, f"only {in_isr} of its own brokers are in the ISR, min.insync.replicas is {min_insync}"
            )
    if gone := unregistered(image, order):
        return SyncStep(state, gone)
    return SyncStep(state, send=Reassign(order))


def _state(partition: PartitionView, ours: Sequence[int]) -> InSync:
    if any(b in partition.isr for b in ours):
        return InSync.IN_SYNC
    return InSync.FOLLOWING if ours else InSync.WAITING


def _step_down(
    image: ImageView,
    partition: PartitionView,
    real: Sequence[int],
    state: InSync,
) -> SyncStep:
    able = [b for b in real if b in partition.isr and broker_trouble(image, b) is None]
    if not able:
        return SyncStep(
            state, f"link broker {partition.leader} leads it, and none of {list(real)} is in the ISR"
        )
    reason = f"link broker {partition.leader} leads it, and was not asked to"
    if partition.replicas[0] in able:
        return SyncStep(state, reason, ElectPreferred())
    turned = dict.fromkeys([*able, *real, *partition.replicas])
    return SyncStep(state, reason, Reassign(tuple(b for b in turned if b in image.brokers)))


def _why_not(image: ImageView, state: InSync, ours: Sequence[int]) -> str:
    if state is InSync.IN_SYNC:
        return ""
    if not ours:
        return "the sidecar that leads its mirror is no broker of its cluster, or is down there"
    troubles = [trouble for b in ours if (trouble := broker_trouble(image, b)) is not None]
    return troubles[0] if troubles else "its link broker has not reached the end of the log"
