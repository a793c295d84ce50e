"""Which real brokers get a mirror partition's replicas, and which of them will lead. Pure and deterministic.

Kafka's own placer is random and would also consider the link broker; here the first replica of the
reassignment's target list is the leader after promote, so both replicas and leaders are balanced, on top of
what is there already.

Replicas are chosen greedily: a rack that the partition has no replica in comes first, then the broker with
the fewest replicas; an uneven rest is moved along chains of partitions. Leaders are then evened out: a partition may be led
by any of its replicas, so an excess of leaders moves along a chain of partitions to a broker that has too
few, until no such chain is left. That is the smallest skew these replica sets allow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controller.errors import Refused


class ReplicaBroker(NamedTuple):
    """A real broker of the target that may hold replicas."""

    id: int
    rack: str | None = None


class Load(NamedTuple):
    """The load of a broker so far."""

    replicas: int = 0
    leaders: int = 0


def place(
    brokers: Sequence[ReplicaBroker],
    partitions: int,
    replication_factor: int,
    load: Mapping[int, Load] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Replicas per partition, preferred leader first."""
    known = {broker.id: broker for broker in brokers}
    if len(known) != len(brokers):
        raise Refused("a broker id is listed twice")
    if partitions < 1 or replication_factor < 1:
        raise Refused("partitions and replication factor start at 1")
    if replication_factor > len(known):
        raise Refused(
            f"replication factor {replication_factor} needs that many brokers at the target, "
            f"and {len(known)} are alive"
        )
    # Racks count only if every broker has one: half a rack plan is worse than none.
    racks = {b.id: b.rack for b in brokers} if all(b.rack is not None for b in brokers) else {}
    before = load or {}
    replicas = {b: before.get(b, Load()).replicas for b in sorted(known)}
    leaders = {b: before.get(b, Load()).leaders for b in sorted(known)}
    sets = [_choose(replicas, racks, replication_factor) for _ in range(partitions)]
    _even_out(sets, replicas, racks)
    led = _lead(sets, leaders)
    return tuple(
        (leader, *_rotated([b for b in members if b != leader], index))
        for index, (members, leader) in enumerate(zip(sets, led, strict=True))
    )


def _choose(replicas: dict[int, int], racks: Mapping[int, str | None], count: int) -> list[int]:
    """The brokers of one partition; counts them in."""
    chosen: list[int] = []
    rack_of_chosen: dict[str | None, int] = {}
    for _ in range(count):
        best = min(
            (b for b in replicas if b not in chosen),
            key=lambda b: (rack_of_chosen.get(racks[b], 0) if racks else 0, replicas[b], b),
        )
        chosen.append(best)
        replicas[best] += 1
        if racks:
            rack_of_chosen[racks[best]] = rack_of_chosen.get(racks[best], 0) + 1
    return chosen


def _even_out(sets: list[list[int]], replicas: dict[int, int], racks: Mapping[int, str | None]) -> None:
    """Even out the greedy choice: move replicas from full to empty brokers where no partition loses a rack. One move may
    need others before it: the partitions of a full broker may all have a replica in the empty one's rack.
    """
    while max(replicas.values()) - min(replicas.values()) > 1:
        for full in sorted(replicas, key=lambda b: (-replicas[b], b)):
            moves = _moves(full, sets, replicas, racks)
            if moves:
                break
        else:
            return
        for index, source, destination in moves:
            sets[index] = [destination if b == source else b for b in sets[index]]
        replicas[full] -= 1
        replicas[moves[-1][2]] += 1


def _moves(
    full: int, sets: Sequence[Sequence[int]], replicas: Mapping[int, int], racks: Mapping[int, str | None]
) -> list[tuple[int, int, int]]:
    """The shortest chain of moves (index of a partition, from, to), each in another partition, from a full broker to one
    with at least two replicas less; empty if there is none."""
    emptiest_first = sorted(replicas, key=lambda b: (replicas[b], b))
    in_rack = [Counter(racks[b] for b in members) for members in sets] if racks else []
    chains: dict[int, list[tuple[int, int, int]]] = {full: []}
    queue = deque([full])
    while queue and len(chains) < len(replicas):
        source = queue.popleft()
        used = {index for index, _, _ in chains[source]}
        for index, members in enumerate(sets):
            if source not in members or index in used:
                continue
            for destination in emptiest_first:
                if destination in members or destination in chains:
                    continue
                if racks and (racks[source] != racks[destination]):
                    here = in_rack[index]
                    if here[racks[source]] == 1 and here[racks[destination]] > 0:
                        continue  # the partition would lose a rack
                chains[destination] = [*chains[source], (index, source, destination)]
                if replicas[full] - replicas[destination] >= 2:
                    return chains[destination]
                queue.append(destination)
    return []


def _lead(sets: Sequence[Sequence[int]], leaders: dict[int, int]) -> list[int]:
    """A leader per partition: greedily, then chains until the skew cannot shrink."""
    led: list[int] = []
    for members in sets:
        leader = min(members, key=lambda b: (leaders[b], b))
        leaders[leader] += 1
        led.append(leader)
    while True:
        chain = _chain(sets, led, leaders)
        if chain is None:
            return led
        first, last = led[chain[0][0]], chain[-1][1]
        for partition, leader in chain:
            led[partition] = leader
        leaders[first] -= 1
        leaders[last] += 1


def _chain(
    sets: Sequence[Sequence[int]], led: Sequence[int], leaders: Mapping[int, int]
) -> list[tuple[int, int]] | None:
    """Partitions whose leadership moves on so that the busiest broker leads one less; None if there is
    no gain.
    """
    by_leader: dict[int, list[int]] = {}
    for partition, leader in enumerate(led):
        by_leader.setdefault(leader, []).append(partition)
    for start in sorted(by_leader, key=lambda b: (-leaders[b], b)):
        came: dict[int, tuple[int, int]] = {}  # broker -> (from broker, partition that moves)
        queue = deque([start])
        while queue:
            at = queue.popleft()
            for partition in by_leader.get(at, []):
                for broker in sets[partition]:
                    if broker == start or broker in came:
                        continue
                    came[broker] = (at, partition)
                    queue.append(broker)
                    if leaders[broker] <= leaders[start] - 2:
                        return _unwind(came, start, broker)
    return None


def _unwind(came: Mapping[int, tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    chain: list[tuple[int, int]] = []
    at = end
    while at != start:
        before, partition = came[at]
        chain.append((partition, at))
        at = before
    return chain[::-1]


def _rotated(members: list[int], by: int) -> list[int]:
    """The second replica leads next if the first one fails: do not make it always the same."""
    if not members:
        return members
    by %= len(members)
    return members[by:] + members[:by]
