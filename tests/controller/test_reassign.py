"""Other real brokers for a mirror: the plan, and against the controller's rules (kraft_model) that the state can follow
whatever somebody reassigned, and that a hand-over completes it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import Refused
from controller.plan.placement import Load, ReplicaBroker
from controller.plan.reassign import move_step, moved_to, replace_replicas, unsettled
from controller.plan.replicas import CancelReassignment, Reassign, is_open, open_step
from tests.controller.kraft_model import Partition
from tests.controller.test_replica_plan import LINK, REAL, T0, Scene, scene

RACKS = {1: "a", 2: "b", 3: "c", 4: "b"}


def replaced(
    current: Sequence[Sequence[int]],
    leave: set[int],
    able: Sequence[int] = (1, 3, 4),
    load: dict[int, Load] | None = None,
    *,
    fewer: bool = False,
) -> tuple[tuple[int, ...], ...]:
    brokers = [ReplicaBroker(b, RACKS[b]) for b in able]
    return replace_replicas(current, leave=leave, brokers=brokers, load=load or {}, racks=RACKS, fewer=fewer)


def test_a_replica_is_replaced_in_its_place_by_one_of_another_rack() -> None:
    # Brokers 3 and 4 both give partition 0 a second rack: each in its turn, the one with less first.
    assert replaced([(1, 2), (1, 2)], {2}) == ((1, 3), (1, 4))
    assert replaced([(2, 3)], {2}, load={1: Load(9)}) == ((4, 3),), "its leader's place is kept"
    assert replaced([(1, 2)], {2}, load={3: Load(9)}) == ((1, 4),)
    assert replaced([(1, 3)], {2}) == ((1, 3),)


def test_a_rack_counts_for_more_than_load() -> None:
    assert replaced([(2, 3)], {3}, able=(1, 4), load={1: Load(9)}) == ((2, 1),)


def test_no_other_broker() -> None:
    with pytest.raises(
        Refused, match=r"no other broker can take the replica of broker 2 .*able to: \[1, 3\]"
    ):
        replaced([(1, 2, 3)], {2}, able=(1, 3))
    assert replaced([(1, 2, 3)], {2}, able=(1, 3), fewer=True) == ((1, 3),)
    with pytest.raises(Refused):
        replaced([(2,)], {2}, able=(), fewer=True)


def moved(one: Scene) -> None:
    """As the bring-up does: the state follows, then what stands at the target is settled."""
    found = moved_to(one.partition, one.targets, one.brokers())
    if found is not None:
        one.targets = found
    for _ in range(10):
        if not unsettled(one.partition, one.targets, one.brokers()):
            return
        step = move_step(one.partition, one.targets, one.brokers())
        if step is None:
            return
        one.carry_out(step)
    raise AssertionError(f"no end: {one.partition} for {one.targets}")


def test_a_tool_moves_one_replica() -> None:
    one = scene(link=(900,))
    one.kraft.reassign(T0, [1, 3])
    assert one.partition == Partition((1, 3, 2, 900), (900,), (3,), (2, 900), 900, 0, 2)
    moved(one)
    assert one.targets == (1, 3)
    assert is_open(one.partition, (1, 3), LINK)
    one.hand_over()


def test_and_back_again() -> None:
    """The one that was added is in `adding` still, which only a cancel clears."""
    one = scene(link=(900,))
    one.kraft.reassign(T0, [1, 3])
    moved(one)
    one.kraft.reassign(T0, [1, 2])
    assert one.partition.adding == (3,)
    moved(one)
    assert one.targets == (1, 2)
    assert set(one.partition.replicas) == {1, 2, 900}
    one.open()
    one.hand_over()


def test_fewer_of_those_that_are_being_added_is_put_back() -> None:
    """One sidecar cannot get the other out of `adding`, and with it there no hand-over completes."""
    one = scene(link=(900,))
    one.kraft.reassign(T0, [1])
    moved(one)
    assert one.targets == (1, 2)
    one.open()
    one.hand_over()


def test_the_link_broker_alone_is_put_back() -> None:
    one = scene(link=(900,))
    one.kraft.reassign(T0, [900])
    assert set(one.partition.removing) == {1, 2}
    moved(one)
    assert one.targets == (1, 2)
    one.hand_over()


def test_a_target_that_was_unregistered_is_left_where_it_is() -> None:
    """It is `removing` as soon as anybody else is asked for, since no list may name it."""
    one = scene((900, 901))
    one.run([900, 901, 902])
    one.kraft.fence(2)
    one.kraft.unregister(2)
    one.run([900, 901, 903])
    moved(one)
    assert one.targets == (1, 2)
    one.kraft.reassign(T0, [1, 3])
    moved(one)
    assert one.targets == (1, 3)
    one.open()
    one.hand_over()


lists = st.lists(st.sampled_from(REAL), min_size=1, max_size=3, unique=True)


@settings(deadline=None, max_examples=300)
@given(
    targets=lists,
    history=st.lists(
        st.one_of(
            st.tuples(st.just("tool"), st.tuples(lists, st.booleans())),
            st.tuples(st.just("move"), lists),
            st.tuples(st.just("cancel"), st.none()),
            st.tuples(st.just("fleet"), st.lists(st.sampled_from(LINK[:3]), min_size=1, unique=True)),
        ),
        max_size=8,
    ),
    fleet=st.booleans(),
)
def test_whatever_is_reassigned_the_state_follows_and_a_hand_over_completes_it(
    targets: list[int], history: list[tuple[str, object]], fleet: bool
) -> None:
    one = scene((900,), targets, link=LINK if fleet else (900,))
    for event, value in history:
        match event:
            case "tool":
                replicas, named = value  # type: ignore[misc]
                one.kraft.reassign(
                    T0, [*([900] if named and 900 in one.partition.replicas else []), *replicas]
                )
            case "cancel":
                one.kraft.reassign(T0, None)
            case "fleet" if fleet:
                one.run(value)  # type: ignore[arg-type]
            case "move":
                before = one.targets
                one.targets = tuple(value)  # type: ignore[arg-type]
                for _ in range(10):
                    step = move_step(one.partition, one.targets, one.brokers())
                    if step is None or is_open(one.partition, one.targets, LINK):
                        break
                    assert isinstance(step, Reassign | CancelReassignment)
                    one.carry_out(step)
                if unsettled(one.partition, one.targets, one.brokers()):
                    one.targets = before  # the copies would have to be dropped first
        assert set(one.partition.isr) <= set(LINK)
        moved(one)
        assert not unsettled(one.partition, one.targets, one.brokers()), (event, value, one.partition)
    if one.partition.leader in LINK:
        while (step := open_step(one.partition, one.targets, one.brokers())) is not None:
            one.carry_out(step)
        one.hand_over()
