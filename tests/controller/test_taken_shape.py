"""A partition that was taken over from real brokers, which stay plain replicas outside the ISR: nothing changes that shape
but a hand-over, and a hand-over completes it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.judge.hand_over import Settlement, plan_hand_over, settle
from controller.plan.reassign import move_step, moved_to, unsettled
from controller.plan.replicas import Reassign, is_open, led_by_link
from tests.controller.kraft_model import Image, Kraft, Partition, Topic
from tests.controller.test_replica_plan import ID, LINK, REAL, T0, Scene


def taken(real: Sequence[int] = (1, 2), link: Sequence[int] = (900,), **options: int) -> Scene:
    """As a switch takes it: followed, in the ISR, first among the replicas, elected, alone in the ISR."""
    kraft = Kraft(**options)  # type: ignore[arg-type]
    for broker in (*REAL, *LINK):
        kraft.register(broker)
    kraft.create("t", ID, {0: real})
    one = Scene(kraft, real)
    assert kraft.reassign(T0, [*real, *link]) == 0
    assert one.alter([*real, *link]) == 0
    assert kraft.reassign(T0, [*link, *real]) == 0
    assert kraft.elect_preferred([T0]) == {T0: 0}
    assert one.alter(link) == 0
    return one


def image(one: Scene) -> Image:
    return Image({"t": Topic(ID, "t", {0: one.partition})}, one.kraft.brokers)


@pytest.mark.parametrize("real", [(1,), (1, 2), (3, 1, 2)])
@pytest.mark.parametrize("link", [(900,), (900, 901)])
def test_it_stays_as_it_is_and_can_be_handed_over(real: tuple[int, ...], link: tuple[int, ...]) -> None:
    one = taken(real, link)
    shape = one.partition
    assert (shape.replicas, shape.isr, shape.leader) == ((*link, *real), link, 900)
    assert (shape.adding, shape.removing) == ((), ())
    assert led_by_link(shape, LINK)
    # Neither a bring-up, nor a balancer, nor the controller's own balancing has anything to do.
    assert not unsettled(shape, real, one.brokers())
    assert moved_to(shape, real, one.brokers()) is None
    assert one.run(link) == []
    one.kraft.rebalance()
    assert one.partition == shape
    # A promote opens it, which completes nothing, and hands over with all of them.
    plan = plan_hand_over(image(one), {T0: ID}, LINK, {T0: real})
    assert "has to be opened first" in plan.obstacles[T0].reason and plan.obstacles[T0].may_pass
    assert plan.closed == {T0: real}
    assert one.open() == [Reassign(real)]
    assert is_open(one.partition, real, LINK)
    assert (one.partition.isr, one.partition.leader) == (link, 900)
    plan = plan_hand_over(image(one), {T0: ID}, LINK, {T0: real})
    assert plan.obstacles == {} and plan.closed == {}
    assert tuple(m.broker_id for m in plan.items[T0].new_isr) == (*link, *real)
    one.hand_over()
    assert settle(image(one), T0, ID, LINK, None) is Settlement.HANDED_OVER


def test_the_real_brokers_are_found_where_the_state_does_not_name_them() -> None:
    one = taken((1, 2), (900, 901))
    one.open()
    plan = plan_hand_over(image(one), {T0: ID}, LINK)
    assert tuple(m.broker_id for m in plan.items[T0].new_isr) == (900, 901, 1, 2)


def test_link_brokers_come_and_go_and_no_real_broker_gets_into_the_isr() -> None:
    """`Scene.carry_out` looks at that after each step, and that no copy is dropped."""
    one = taken()
    one.run([900, 901])
    assert (one.partition.replicas, one.partition.isr) == ((900, 901, 1, 2), (900, 901))
    one.run([901, 900])
    assert one.partition.leader == 901
    one.run([901])
    assert one.partition.isr == (901,)
    one.open()
    one.hand_over()


def test_a_promote_that_was_abandoned_leaves_a_shape_that_is_as_good() -> None:
    one = taken()
    one.open()
    opened = one.partition
    assert not unsettled(opened, (1, 2), one.brokers())
    one.run([900])
    assert set(one.partition.replicas) == {900, 1, 2} and one.partition.isr == (900,)
    one.open()
    one.hand_over()


def test_the_link_broker_dies_and_comes_back() -> None:
    """min.insync.replicas is 1: nobody outside of the ISR becomes eligible."""
    one = taken()
    one.kraft.fence(900)
    assert one.partition.leader == -1
    assert not set(one.partition.elr) & set(REAL)
    one.kraft.unfence(900)
    assert (one.partition.leader, one.partition.isr) == (900, (900,))


@pytest.mark.parametrize("wanted", [(1, 3), (3, 1), (3,)])
def test_another_broker_is_added_beside_those_that_hold_the_log(wanted: tuple[int, ...]) -> None:
    one = taken()
    step = move_step(one.partition, wanted, one.brokers())
    assert step == Reassign(wanted)
    one.carry_out(step)
    after: Partition = one.partition
    assert {1, 2} <= set(after.replicas), "a copy of the cluster's own log is gone"
    assert (after.isr, after.leader) == ((900,), 900)
    one.targets = wanted
    assert is_open(after, wanted, LINK)
    one.hand_over()
