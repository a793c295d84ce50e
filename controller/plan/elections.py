"""Which sidecar should lead each partition, and which link brokers should it have? Pure and deterministic.

A leader has to be alive, in the ISR and not draining. Of these the ones in the rack of the source's replica
come first (reading across racks is slow or paid for), and among those the one that leads least. Leadership is
sticky: it moves only for a rack, to even out a difference of two or more, or because the leader drains.
Evening out follows chains: if the busiest has no partition that the idlest may lead, a partition of it goes to
a third one, which gives one on. Every round takes a few moves only, so that producers are held for few
partitions at a time; the next round begins from what really happened.

Hosting (being a link broker of a partition at all) is sticky too, and evened out the same way. A sidecar that
is dead keeps its place: it returns, or its absence is made final by taking it out of the sidecars. A round
plans no leadership for a sidecar that does not host yet: it comes in the ISR first.

The rounds end: each move takes one partition into its rack, or makes the sum of the squared loads smaller
without taking one out of its rack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wire.frames.types import TopicPartition

LINK_BROKERS = 3
MOST_MOVES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarBroker:
    """One member of the fleet, as a broker."""

    id: int
    rack: str | None = None
    alive: bool = True  # its member is heard of and its broker unfenced
    draining: bool = False  # it gives up leadership, but stays in the ISRs
    leaving: bool = False  # it gives up everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """One partition as the target has it now."""

    leader: int  # -1: nobody
    isr: Sequence[int]
    replicas: Sequence[int]  # real brokers may be among them
    rack: str | None = None  # of the source's leader, or of the replica that is read
    movable: bool = True  # False: counted, but a promote owns it


class Move(NamedTuple):
    """Planned: the old leader is alive and can be held and drained first."""

    tp: TopicPartition
    origin: int
    to: int


@dataclass(frozen=True, slots=True)
class Elections:
    """One round: `moves` for leadership; `wanted` link brokers per partition, the leader first."""

    moves: tuple[Move, ...]
    wanted: Mapping[TopicPartition, tuple[int, ...]]


def plan_elections(
    partitions: Mapping[TopicPartition, Led],
    sidecars: Sequence[SidecarBroker],
    *,
    link_brokers: int = LINK_BROKERS,
    most_moves: int = MOST_MOVES,
) -> Elections:
    """The next few moves towards an even load, and who should be in each partition's replicas."""
    fleet = {sidecar.id: sidecar for sidecar in sidecars}
    planned = _Round(partitions, fleet, most_moves)
    planned.leave_draining()
    planned.into_rack()
    planned.even_out()
    hosts = _hosts(planned.order, partitions, fleet, link_brokers, most_moves)
    wanted = {
        tp: _wanted(hosts[tp], planned.leaders[tp], partitions[tp], planned.candidates[tp])
        for tp in planned.order
    }
    return Elections(planned.made(), wanted)


def _able(sidecar: SidecarBroker) -> bool:
    return sidecar.alive and not sidecar.draining and not sidecar.leaving


def _candidates(partition: Led, fleet: Mapping[int, SidecarBroker]) -> tuple[int, ...]:
    """The brokers that may lead, the rack already decided: those in it if there are any, else all."""
    able = sorted(b for b in partition.isr if b in fleet and _able(fleet[b]))
    near = [b for b in able if partition.rack is not None and fleet[b].rack == partition.rack]
    return tuple(near or able)


class _Round:
    """One round: leaders as planned so far, with what each of the sidecars leads."""

    def __init__(
        self, partitions: Mapping[TopicPartition, Led], fleet: Mapping[int, SidecarBroker], most: int
    ) -> None:
        self.order = sorted(partitions)
        self.candidates = {tp: _candidates(partitions[tp], fleet) for tp in self.order}
        self.leaders = {tp: partitions[tp].leader for tp in self.order}
        self._partitions = partitions
        self._fleet = fleet
        self._left = most
        self._load = dict.fromkeys(sorted(fleet), 0)
        for leader in self.leaders.values():
            if leader in self._load:
                self._load[leader] += 1

    def made(self) -> tuple[Move, ...]:
        return tuple(
            Move(tp, self._partitions[tp].leader, self.leaders[tp]) for tp in self.order if self._moved(tp)
        )

    def leave_draining(self) -> None:
        for tp in self.order:
            leader = self._fleet.get(self._partitions[tp].leader)
            if leader is not None and (leader.draining or leader.leaving):
                self._to_least(tp)

    def into_rack(self) -> None:
        """The leader could lead, but another one is nearer to the source."""
        for tp in self.order:
            leader = self.leaders[tp]
            if leader not in self.candidates[tp] and leader in self._fleet and not self._moved(tp):
                self._to_least(tp)

    def even_out(self) -> None:
        moved = {tp for tp in self.order if self._moved(tp)}
        while self._left > 0 and (chain := self._chain(moved)) is not None:
            for tp, to in chain:
                self._move(tp, to)
                moved.add(tp)

    def _moved(self, tp: TopicPartition) -> bool:
        return self.leaders[tp] != self._partitions[tp].leader

    def _may_move(self, tp: TopicPartition) -> bool:
        return self._partitions[tp].movable and self._partitions[tp].leader >= 0 and bool(self.candidates[tp])

    def _to_least(self, tp: TopicPartition) -> None:
        """Only from a leader that is alive: a dead one is fenced, and the target's controller chooses."""
        leader = self._fleet.get(self._partitions[tp].leader)
        if self._left > 0 and self._may_move(tp) and (leader is None or leader.alive):
            self._move(tp, min(self.candidates[tp], key=lambda b: (self._load[b], b)))

    def _move(self, tp: TopicPartition, to: int) -> None:
        origin = self.leaders[tp]
        if origin in self._load:
            self._load[origin] -= 1
        self._load[to] += 1
        self.leaders[tp] = to
        self._left -= 1

    def _chain(self, moved: set[TopicPartition]) -> list[tuple[TopicPartition, int]] | None:
        """The shortest chain from a busy sidecar to one that leads at least two less; None if there is none that
        fits into the round. A partition moves once a round.
        """
        led: dict[int, list[TopicPartition]] = {}
        load = self._load
        for tp in self.order:
            leader = self.leaders[tp]
            if tp not in moved and leader in self.candidates[tp] and self._may_move(tp):
                led.setdefault(leader, []).append(tp)
        for start in sorted(led, key=lambda b: (-load[b], b)):
            came: dict[int, tuple[int, TopicPartition]] = {}
            depth = {start: 0}
            queue = deque([start])
            while queue:
                at = queue.popleft()
                for tp in led.get(at, ()):
                    for broker in self.candidates[tp]:
                        if broker in depth or self._left < depth[at] + 1:
                            continue
                        came[broker] = (at, tp)
                        depth[broker] = depth[at] + 1
                        queue.append(broker)
                        if load[broker] <= load[start] - 2:
                            return _unwind(came, start, broker)
        return None


def _unwind(
    came: Mapping[int, tuple[int, TopicPartition]], start: int, end: int
) -> list[tuple[TopicPartition, int]]:
    chain: list[tuple[TopicPartition, int]] = []
    at = end
    while at != start:
        before, tp = came[at]
        chain.append((tp, at))
        at = before
    return chain


# --- hosting -----------------------------------------------------------------------------------------------


def _hosts(
    order: Sequence[TopicPartition],
    partitions: Mapping[TopicPartition, Led],
    fleet: Mapping[int, SidecarBroker],
    count: int,
    most: int,
) -> dict[TopicPartition, list[int]]:
    staying = {b for b, sidecar in fleet.items() if not sidecar.leaving}
    able = sorted(b for b, sidecar in fleet.items() if _able(sidecar))
    hosts: dict[TopicPartition, list[int]] = {}
    load = dict.fromkeys(sorted(staying), 0)
    for tp in order:
        partition = partitions[tp]
        listed = [b for b in partition.replicas if b in staying]
        # Too many: the leader stays, then who is in the ISR.
        listed.sort(key=lambda b: (b != partition.leader, b not in partition.isr))
        hosts[tp] = listed[:count]
        for broker in hosts[tp]:
            load[broker] += 1
    for tp in order:
        while len(hosts[tp]) < count and partitions[tp].movable:
            free = [b for b in able if b not in hosts[tp]]
            if not free:
                break
            new = min(free, key=lambda b: (_far(partitions[tp], fleet[b]), load[b], b))
            hosts[tp].append(new)
            load[new] += 1
    for _ in range(most):
        if not _shift_host(order, partitions, fleet, able, hosts, load):
            break
    return hosts


def _far(partition: Led, sidecar: SidecarBroker) -> bool:
    return partition.rack is not None and sidecar.rack != partition.rack


def _shift_host(
    order: Sequence[TopicPartition],
    partitions: Mapping[TopicPartition, Led],
    fleet: Mapping[int, SidecarBroker],
    able: Sequence[int],
    hosts: dict[TopicPartition, list[int]],
    load: dict[int, int],
) -> bool:
    """One place from a full to an empty sidecar; not the leader's, and not the last one in the source's rack."""
    for full in sorted(able, key=lambda b: (-load[b], b)):
        for empty in sorted(able, key=lambda b: (load[b], b)):
            if load[full] - load[empty] < 2:
                break
            for tp in order:
                partition, listed = partitions[tp], hosts[tp]
                if full not in listed or empty in listed or not partition.movable:
                    continue
                if full == partition.leader:
                    continue
                near = [b for b in listed if not _far(partition, fleet[b])]
                if near == [full] and _far(partition, fleet[empty]):
                    continue
                listed[listed.index(full)] = empty
                load[full] -= 1
                load[empty] += 1
                return True
    return False


def _wanted(hosts: Sequence[int], leader: int, partition: Led, candidates: Sequence[int]) -> tuple[int, ...]:
    """The leader first. One that moves away, or that nobody could replace yet, stays listed until it has."""
    first = leader
    if first < 0 and candidates:
        first = candidates[0]
    ordered = [b for b in partition.replicas if b in hosts] + [
        b for b in hosts if b not in partition.replicas
    ]
    if first not in hosts:
        # It leads and leaves, and nobody else can lead yet; or the place it gets is taken by its own election.
        ordered = [b for b in ordered if b != first]
        return (first, *ordered) if first in candidates else tuple(ordered)
    return (first, *(b for b in ordered if b != first))
