"""The replica list of one mirror partition over several link brokers: the one next step. Pure.

Rules of the target's controller these steps rest on (PartitionReassignmentReplicas, PartitionChangeBuilder,
ReplicationControlManager, all of 3.x and 4.x alike):
- A reassignment to T merges: replicas = T + (old replicas - T). `adding` becomes T - replicas and `removing`
  replicas - T, but *each only if it is not empty*; else its old value stays.
- It completes with the first change whose ISR, less `removing`, is not empty and holds all of `adding`, and
  all that remain too if fewer are added than removed. Then `removing` leaves the replicas.
- A cancel takes `adding` out of the replicas and the ISR and clears both lists. It is refused if the ISR
  would be empty after it.
- T may name registered brokers only; one that was unregistered while it was listed has to be left out of T,
  and so lands in `removing`.

Shapes a partition goes through:
- D, after the copies were asked for: replicas [1,2,900,901], adding [1,2], removing [900,901]. Only real
  brokers in the ISR can complete it. A cancel would drop the copies.
- P, plain: replicas [900,901,1,2], nothing adding or removing. Link brokers join and leave one by one.
- O, a P that was opened for a promote: adding empty, removing all link brokers.
D becomes P by *laundering*: a reassignment that adds one more link broker makes `adding` be that one alone,
and the cancel after it takes just that one out again. The copies stay as plain replicas.

Invariant between any two steps, whoever is killed where: no real broker in the ISR, at least one link
broker in it, no step that can complete without the copies, no cancel while `adding` has a target.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from controller.cluster_view import PartitionView


@dataclass(frozen=True, slots=True)
class Reassign:
    """AlterPartitionReassignments to exactly these replicas."""

    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelReassignment:
    """AlterPartitionReassignments with no replicas."""


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """AlterPartition by the partition's leader, who is the first of the new ISR."""

    new_isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """ElectLeaders: the first replica, which is in the ISR, becomes the leader."""


Step = Reassign | CancelReassignment | AlterIsr | ElectPreferred


@dataclass(frozen=True, slots=True)
class LiveBrokers:
    """The brokers that are there. `alive` are link brokers that are unfenced and whose members are heard of."""

    link: Collection[int]  # every id that is a sidecar's, or was when it was put into a replica list
    alive: Collection[int]
    registered: Collection[int]  # real ones too


def led_by_link(partition: PartitionView, link_brokers: Collection[int]) -> bool:
    """A link broker leads and no real broker is in the ISR: the shape in which steps may be taken."""
    return partition.leader in link_brokers and all(b in link_brokers for b in partition.isr)


def copies_asked_for(partition: PartitionView, targets: Sequence[int]) -> bool:
    """Are all targets listed, so that they copy? False: never asked, or the reassignment was cancelled."""
    return bool(targets) and set(targets) <= set(partition.replicas)


def is_open(partition: PartitionView, targets: Sequence[int], link_brokers: Collection[int]) -> bool:
    """Would an ISR with all targets complete the reassignment and leave exactly them, in this order?"""
    removing = set(partition.removing)
    listed = {b for b in partition.replicas if b in link_brokers}
    return (
        bool(targets)
        and bool(listed)
        and [b for b in partition.replicas if b not in removing] == list(targets)
        and set(partition.adding) <= set(targets)
    )


def open_step(partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers) -> Step | None:
    """The step that brings a partition nearer to `is_open`; None if it is, or if no step of ours can (is_open tells)."""
    if is_open(partition, targets, brokers.link) or not led_by_link(partition, brokers.link):
        return None
    if not copies_asked_for(partition, targets) or not set(targets) <= set(brokers.registered):
        return None
    if set(partition.adding) <= set(targets):
        return _safe(partition, Reassign(tuple(targets)), targets)
    # Brokers left in `adding` could never be in an ISR that the hand-over wants: clear it first.
    return _clear_adding(partition, targets, brokers, leader_may_move=True)


def leader_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """The next step of moving leadership to wanted[0]: put it first, then elect it. Needs no other step before."""
    if not _may_step(partition, targets, brokers):
        return None
    wanted = [b for b in wanted if b in brokers.registered]
    first = _first(partition, wanted, brokers)
    if first == partition.leader:
        return None
    if partition.replicas[0] == first:
        return ElectPreferred()
    return _ordered(partition, first, targets, brokers)


def members_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """The next step towards the wanted replicas and ISR, with whoever leads now."""
    if not _may_step(partition, targets, brokers):
        return None
    wanted = [b for b in wanted if b in brokers.registered]  # no other can be named in a list
    if not copies_asked_for(partition, targets):
        return _safe(partition, Reassign(tuple(targets)), targets) if _all_there(targets, brokers) else None
    # A target that somebody else is taking out, or a completion that would take it out.
    if set(partition.removing) & set(targets):
        if set(partition.adding) <= set(brokers.link):
            return _cancel(partition, targets)
        return _safe(partition, Reassign(tuple(targets)), targets) if _all_there(targets, brokers) else None
    return (
        _settle_order(partition, wanted, targets, brokers)
        or _isr_step(partition, wanted, targets, brokers)
        or _pending_step(partition, wanted, targets, brokers)
        or _add_step(partition, wanted, targets, brokers)
        or _remove_step(partition, wanted, targets, brokers)
        or _target_order_step(partition, wanted, targets, brokers)
    )


# --- the parts ---------------------------------------------------------------------------------------------


def _may_step(partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers) -> bool:
    """A leader that is dead is fenced first, and the controller elects another one."""
    return bool(targets) and led_by_link(partition, brokers.link) and partition.leader in brokers.alive


def _first(partition: PartitionView, wanted: Sequence[int], brokers: LiveBrokers) -> int:
    """The broker that should lead now: wanted[0]; while it cannot, any wanted one, preferably the present leader."""
    able = [b for b in wanted if b in partition.isr and b in brokers.alive]
    if not able or (able[0] != wanted[0] and partition.leader in able):
        return partition.leader
    return able[0]


def _head(partition: PartitionView, wanted: Sequence[int], brokers: LiveBrokers) -> int:
    """The broker to stand first while only members change: none that is not there for a good reason."""
    first = _first(partition, wanted, brokers)
    return first if partition.replicas[0] == first else partition.leader


def _settle_order(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """The first replica is whom `auto.leader.rebalance` elects as soon as it is in the ISR. A link broker
    that stands there and is not to lead would take leadership back when it returns: put the leader first.
    """
    head = partition.replicas[0]
    if head not in brokers.link or head not in brokers.registered:
        return None
    if head in (partition.leader, _first(partition, wanted, brokers)):
        return None
    return _ordered(partition, partition.leader, targets, brokers)


def _isr_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """The leader and every wanted link broker that is alive and listed, nobody else."""
    keep = {*wanted, *targets, partition.leader}
    joining = not keep & set(partition.removing)  # else what is added may push out somebody we want
    members = [partition.leader]
    for broker in wanted:
        if broker in members or broker not in brokers.alive or broker not in partition.replicas:
            continue
        if broker in partition.adding and not joining and broker not in partition.isr:
            continue
        members.append(broker)
    if set(members) == set(partition.isr):
        return None
    return _safe(partition, AlterIsr(tuple(members)), targets)


def _pending_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """Link brokers in `adding` that did not join: the middle of laundering, or one that died on its way."""
    pending = [b for b in partition.adding if b in brokers.link]
    if not pending:
        return None
    keep = {*wanted, *targets, partition.leader}
    if set(pending) <= set(partition.isr) and not keep & set(partition.removing):
        # Joined; it stays in `adding` while more unregistered ones are removed than added. Harmless.
        return None
    return _clear_adding(partition, targets, brokers, leader_may_move=False)


def _add_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """One more link broker, in place of one that is not wanted any more if there is one."""
    missing = [b for b in wanted if b in brokers.alive and b not in partition.replicas]
    gone = [b for b in partition.replicas if b not in brokers.registered]
    if not missing or set(gone) & set(targets):
        return None
    head = _head(partition, wanted, brokers)
    if any(b not in brokers.link for b in partition.adding):
        return _ordered(partition, head, targets, brokers, add=missing[:1])
    spare = [
        b
        for b in partition.replicas
        if b in brokers.link and b not in wanted and b != partition.leader and b not in gone
    ]
    spare.sort(key=lambda b: b in partition.isr)
    # Only if at least as many come as go does it complete before the hand-over.
    drop = gone or spare[:1]
    return _ordered(partition, head, targets, brokers, add=missing[: max(1, len(gone))], drop=drop)


def _remove_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """A broker that is not wanted is listed in `removing`; it goes with the next one that comes, or with the hand-over."""
    leaving = [
        b
        for b in partition.replicas
        if b in brokers.link and b not in wanted and b != partition.leader and b in brokers.registered
    ]
    if set(leaving) <= set(partition.removing):
        return None
    return _ordered(partition, _head(partition, wanted, brokers), targets, brokers, drop=leaving)


def _target_order_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """The first target will lead after the hand-over. Half a revoke leaves another one there."""
    if [b for b in partition.replicas if b in targets] == list(targets) or not _all_there(targets, brokers):
        return None
    listed = {b for b in partition.replicas if b in brokers.link}
    if listed <= set(partition.removing) and set(partition.adding) <= set(targets):
        return _safe(partition, Reassign(tuple(targets)), targets)
    return _ordered(partition, _head(partition, wanted, brokers), targets, brokers)


def _clear_adding(
    partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers, *, leader_may_move: bool
) -> Step | None:
    # A real broker that is no target may go: it was to be one.
    if not set(partition.adding) & set(targets) and (
        leader_may_move or partition.leader not in partition.adding
    ):
        cancel = _cancel(partition, targets)
        if cancel is not None:
            return cancel
    # Laundering: with somebody else in `adding`, the cancel takes out that one only.
    others = sorted(
        (b for b in brokers.link if b in brokers.registered and b not in partition.replicas),
        key=lambda b: (b not in brokers.alive, b),
    )
    if not others:
        return None
    return _ordered(partition, partition.leader, targets, brokers, add=others[:1])


def _cancel(partition: PartitionView, targets: Sequence[int]) -> Step | None:
    """Never with a target in `adding`: its copy would be deleted."""
    if set(partition.adding) & set(targets):
        return None
    return CancelReassignment() if set(partition.isr) - set(partition.adding) else None


def _ordered(
    partition: PartitionView,
    first: int,
    targets: Sequence[int],
    brokers: LiveBrokers,
    *,
    add: Sequence[int] = (),
    drop: Collection[int] = (),
) -> Step | None:
    """The listed replicas in the order first, link brokers, added ones, targets, others; registered ones only."""
    listed = [b for b in partition.replicas if b in brokers.registered and b not in drop]
    links = [b for b in listed if b in brokers.link and b != first]
    others = [b for b in listed if b not in brokers.link and b not in targets]
    replicas = (first, *links, *add, *(b for b in targets if b in listed), *others)
    if replicas == tuple(partition.replicas):
        return None
    return _safe(partition, Reassign(replicas), targets)


def _all_there(targets: Sequence[int], brokers: LiveBrokers) -> bool:
    return set(targets) <= set(brokers.registered)


def _safe(partition: PartitionView, step: Reassign | AlterIsr, targets: Sequence[int]) -> Step | None:
    """The step, unless the change it makes would complete something that drops a copy or the leader."""
    if isinstance(step, AlterIsr):
        lists = (tuple(partition.replicas), tuple(partition.adding), tuple(partition.removing))
        isr: Sequence[int] = step.new_isr
    else:
        lists = reassigned(partition, step.replicas)
        isr = partition.isr
        if not set(partition.replicas).intersection(targets) <= set(step.replicas):
            return None  # a copy would be on its way out
    after = completed(*lists, isr)
    if after is None:
        return step
    replicas, members = after
    had = {b for b in targets if b in lists[0]}
    return step if had <= set(replicas) and partition.leader in members else None


# --- the controller's rules --------------------------------------------------------------------------------

Lists = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def reassigned(partition: PartitionView, wanted: Sequence[int]) -> Lists:
    """(replicas, adding, removing) right after a reassignment, before it completes."""
    removing = tuple(sorted(set(partition.replicas) - set(wanted)))
    adding = tuple(sorted(set(wanted) - set(partition.replicas)))
    return (
        (*wanted, *removing),
        adding or tuple(partition.adding),
        removing or tuple(partition.removing),
    )


def completed(
    replicas: Sequence[int], adding: Sequence[int], removing: Sequence[int], isr: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(replicas, ISR) if a change with this ISR completes the reassignment (maybeCompleteReassignment)."""
    if not adding and not removing:
        return None
    members = tuple(b for b in isr if b not in removing)
    remaining = tuple(b for b in replicas if b not in removing)
    if not members or not remaining or not set(adding) <= set(members):
        return None
    if len(adding) < len(removing) and not set(remaining) <= set(members):
        return None
    return remaining, members
