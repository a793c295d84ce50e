"""Partitions that a cluster placed on a link broker: each step is what a controller takes, and all lead away."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import Refused
from controller.plan.evictions import Elect, NewIsr, NewReplicas, names, next_step
from controller.plan.placement import ReplicaBroker

OURS = frozenset({800, 801})


@dataclass(frozen=True)
class Placed:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def taken(partition: Placed, step: NewIsr | NewReplicas | Elect) -> Placed:
    """As KRaft takes it: an ISR has its leader, a reassignment is over when all that were added are in sync."""
    if isinstance(step, Elect):
        assert partition.replicas[0] in partition.isr
        return replace(partition, leader=partition.replicas[0], leader_epoch=partition.leader_epoch + 1)
    if isinstance(step, NewReplicas):
        now = replace(
            partition,
            replicas=(*step.replicas, *(b for b in partition.replicas if b not in step.replicas)),
            adding=tuple(b for b in step.replicas if b not in partition.replicas),
            removing=tuple(b for b in partition.replicas if b not in step.replicas),
        )
    else:
        assert partition.leader in step.isr and set(step.isr) <= set(partition.replicas)
        now = replace(partition, isr=step.isr)
    wanted = [b for b in now.replicas if b not in now.removing]
    if now.removing and set(wanted) & set(now.isr) and set(now.adding) <= set(now.isr):
        now = replace(
            now, replicas=tuple(wanted), isr=tuple(b for b in now.isr if b in wanted), adding=(), removing=()
        )
    if now.leader not in now.isr:
        now = replace(
            now, leader=next(b for b in now.replicas if b in now.isr), leader_epoch=now.leader_epoch + 1
        )
    return now


@given(
    st.permutations([1, 2, 3, 800, 801]).flatmap(
        lambda found: st.integers(1, 4).map(lambda factor: tuple(found[:factor]))
    )
)
def test_new_topics_go_to_real_brokers(replicas: tuple[int, ...]) -> None:
    partition = Placed(replicas, replicas, replicas[0])
    brokers = [ReplicaBroker(one) for one in (1, 2, 3)]
    for _ in range(12):
        if not names(partition, OURS):
            break
        step = next_step(partition, OURS, brokers, {})
        if step is None:  # a follower that was added is on its way into the ISR
            assert partition.adding and partition.leader not in OURS
            step = NewIsr((*partition.isr, *(b for b in partition.adding if b not in partition.isr)))
        partition = taken(partition, step)
    assert not names(partition, OURS) and partition.leader not in OURS
    assert len(partition.replicas) == min(3, len(replicas))


def test_records_on_a_broker_that_is_down_are_not_led_by_others() -> None:
    partition = Placed((1, 800), (800,), 800, leader_epoch=4)
    assert next_step(partition, OURS, [ReplicaBroker(2)], {}) is None


def test_nobody_to_take_it() -> None:
    with pytest.raises(Refused, match="no real broker"):
        next_step(Placed((800,), (800,), 800), OURS, [], {})
