"""Other real brokers for the replicas of a mirror: which ones, and the one next step at the target. Pure.

The real brokers of a mirror are outside the ISR, and only an ISR with all of them would complete the reassignment that they
are in. So a reassignment of a mirror completes with the promote, as its first one does: the new brokers are added and copy,
those that are left are `removing` and go on copying until the hand-over, which does not wait for them. KRaft has no way to
take one single copy away earlier that would not put a real broker into the ISR first. Only all copies of a partition
together can be dropped, by a reassignment to the link brokers alone.

The target's metadata log says where the replicas are to be, and the state follows it (`moved_to`). So it makes no
difference whether this tool, its operator or another tool asked, and a request that was cut off is no half state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controller.cluster_view import PartitionView
from controller.errors import Refused
from controller.phases import Phase
from controller.plan.placement import Load, ReplicaBroker
from controller.plan.replicas import LiveBrokers, Reassign, Step, copies_asked_for, led_by_link, open_step

#: The replicas of a partition may change in these. A promote that catches up looks at them again until it holds writes.
MOVABLE = frozenset({Phase.LINKING, Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP})


def replace_replicas(
    current: Sequence[Sequence[int]],
    *,
    leave: Collection[int],
    brokers: Sequence[ReplicaBroker],
    load: Mapping[int, Load],
    racks: Mapping[int, str | None],
    fewer: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Replicas per partition without those of `leave`. In the place of each comes one of `brokers`: of a rack that the
    partition has no replica in if there is one, and of these the one with the fewest replicas. Refused if there are not
    enough, unless `fewer` replicas will do. `racks`: of all brokers, those that are away included."""
    counts = {b.id: load.get(b.id, Load()).replicas for b in brokers if b.id not in leave}
    known = dict(racks) if all(rack is not None for rack in racks.values()) else {}
    planned: list[tuple[int, ...]] = []
    for index, replicas in enumerate(current):
        chosen = list(replicas)
        for old in [b for b in replicas if b in leave]:
            place = chosen.index(old)
            others = [b for b in chosen if b != old]
            taken = [known[b] for b in others if b in known]
            able = [b for b in counts if b not in others]
            if able:
                new = min(able, key=lambda b: (taken.count(known.get(b)) if known else 0, counts[b], b))
                chosen[place] = new
                counts[new] += 1
            elif fewer and others:
                chosen = others
            else:
                raise Refused(
                    f"partition {index}: no other broker can take the replica of broker {old} "
                    f"(replicas {list(replicas)}, able to: {sorted(counts) or 'none'})"
                )
        planned.append(tuple(chosen))
    return tuple(planned)


def moved_to(
    partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers
) -> tuple[int, ...] | None:
    """The real brokers that an open reassignment leads to, where these are others than the targets and a hand-over will be
    able to complete it. None: nobody asked for others, or only that can be done which was to be before."""
    if not led_by_link(partition, brokers.link) or not _disturbed(partition, targets, brokers):
        return None
    found = tuple(b for b in partition.replicas if b not in partition.removing and b not in brokers.link)
    adding = set(partition.adding) - set(brokers.link)
    completes = adding <= set(found) or not adding & set(found)
    return found if found and completes and found != tuple(targets) else None


def unsettled(partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers) -> bool:
    """Are copies missing, or does a reassignment stand that no hand-over to the targets can complete?"""
    return not copies_asked_for(partition, targets) or _disturbed(partition, targets, brokers)


def _disturbed(partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers) -> bool:
    """A target that is unregistered cannot be named in any list, and so lands in `removing` by itself."""
    adding = set(partition.adding) - set(brokers.link)
    leaving = set(partition.removing) & set(targets) & set(brokers.registered)
    return bool(adding - set(targets) or leaving)


def move_step(partition: PartitionView, targets: Sequence[int], brokers: LiveBrokers) -> Step | None:
    """The next step towards copies on the targets that a hand-over can complete. None: there is none left, or the copies
    would have to be dropped first (`unsettled` tells)."""
    if not led_by_link(partition, brokers.link) or not set(targets) <= set(brokers.registered):
        return None
    if not copies_asked_for(partition, targets) or set(partition.removing) & set(targets):
        # Only link brokers are in the ISR, and none of them is among the targets: nothing completes by this.
        return Reassign(tuple(targets))
    return open_step(partition, targets, brokers)
