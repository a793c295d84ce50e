"""The way of a partition that a cluster placed on a link broker by itself back to real brokers, one step at a time. Pure.

A cluster that cannot cordon (before Kafka 4.3) places new topics on link brokers as on any other, and a partition that is no
mirror has nobody there who serves it. Each step follows from the partition as it is, so that any sidecar may take it:

    another replica is in sync    -> first in the list -> elected -> the ISR without link brokers -> reassigned
    none but link brokers ever    -> reassigned -> in sync with the new ones, whose logs are as empty: they lead then

It has as many replicas afterwards as before, if there are so many brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from controller.errors import Refused
from controller.plan.placement import Load, ReplicaBroker, place


class PlacedPartition(Protocol):
    """A partition in the metadata log."""

    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def adding(self) -> tuple[int, ...]: ...
    @property
    def removing(self) -> tuple[int, ...]: ...
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class NewIsr(NamedTuple):
    isr: tuple[int, ...]


class Elect(NamedTuple):
    """The first of the replicas, which is in sync."""


class NewReplicas(NamedTuple):
    replicas: tuple[int, ...]


def names(partition: PlacedPartition, ours: Collection[int]) -> bool:
    """Whether a link broker is a replica of it."""
    return not set(ours).isdisjoint(partition.replicas)


def next_step(
    partition: PlacedPartition,
    ours: Collection[int],
    brokers: Sequence[ReplicaBroker],
    load: Mapping[int, Load],
    *,
    follows: bool = False,
) -> NewIsr | NewReplicas | Elect | None:
    """`brokers`: the real ones that may hold replicas now. `follows`: the link brokers among its replicas do, by now, and
    so would be in the ISR again at once. None: nothing to do, or nothing that is safe; Refused where there are too few
    brokers."""
    alive = {one.id for one in brokers}
    wanted = [one for one in partition.replicas if one not in partition.removing]
    others = [one for one in wanted if one not in ours]
    in_sync = tuple(one for one in partition.isr if one not in ours)
    if in_sync and partition.leader in ours and not partition.adding:
        # An ISR always has the leader, so that somebody else leads first.
        if partition.replicas[0] in in_sync:
            return Elect()
        return NewReplicas((*in_sync, *(one for one in wanted if one not in in_sync)))
    if in_sync and partition.leader not in ours and len(in_sync) < len(partition.isr) and not follows:
        return NewIsr(in_sync)
    if (
        not in_sync
        and not (partition.leader in ours and (not others or partition.leader_epoch == 0))
        and not partition.adding
    ):
        return None  # somebody's records may be on a real broker that is down: nobody else may lead
    if len(others) < len(wanted):
        free = [one for one in brokers if one.id not in others]
        count = min(len(wanted) - len(others), len(free))
        if not others and not count:
            raise Refused("no real broker is there to take it")
        [chosen] = place(free, 1, count, load) if count else [()]
        return NewReplicas((*others, *chosen))
    if partition.leader in ours:
        return NewIsr((partition.leader, *(one for one in wanted if one in alive)))
    return None
