"""Replica lists step by step, against the controller's rules (kraft_model): every step is accepted, none takes
a copy or the last link broker away, and they come to an end where things are as wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controller.alter_partition import alter_partition_item
from controller.judge.hand_over import revoke_assignments
from controller.plan.replicas import (
    AlterIsr,
    CancelReassignment,
    ElectPreferred,
    LiveBrokers,
    Reassign,
    Step,
    completed,
    copies_asked_for,
    is_open,
    led_by_link,
    open_step,
)
from tests.controller.kraft_model import NEW_LEADER_ELECTED, Image, Kraft, Partition, Topic
from tests.controller.steps import next_step
from wire.frames.types import TopicPartition

T0 = TopicPartition("t", 0)
ID = b"\x01" * 16
REAL = (1, 2, 3)
LINK = (900, 901, 902, 903)
MOST_STEPS = 20


class Scene:
    """One partition in the model, and the steps of the plan carried out on it."""

    def __init__(self, kraft: Kraft, targets: Sequence[int]) -> None:
        self.kraft = kraft
        self.targets = tuple(targets)

    @property
    def partition(self) -> Partition:
        return self.kraft.partitions[T0]

    def brokers(self) -> LiveBrokers:
        return LiveBrokers(
            link=LINK,
            alive={b for b in LINK if self.kraft.active(b)},
            registered=set(self.kraft.brokers),
        )

    def alter(self, new_isr: Sequence[int]) -> int:
        image = Image({"t": Topic(ID, "t", {0: self.partition})}, self.kraft.brokers)
        item = alter_partition_item(image, T0, new_isr)
        codes = self.kraft.alter_partition(item.leader, [item])
        assert isinstance(codes, dict)
        return codes[T0]

    def carry_out(self, step: Step) -> None:
        before = self.partition
        match step:
            case Reassign(replicas):
                assert self.kraft.reassign(T0, replicas) == 0, (step, before)
            case CancelReassignment():
                assert not set(before.adding) & set(self.targets), (step, before)
                assert self.kraft.reassign(T0, None) == 0, (step, before)
            case AlterIsr(new_isr):
                assert new_isr[0] == before.leader
                assert self.alter(new_isr) == 0, (step, before)
            case ElectPreferred():
                assert self.kraft.elect_preferred([T0]) == {T0: 0}, (step, before)
        after = self.partition
        assert after.partition_epoch > before.partition_epoch, f"{step} changes nothing of {before}"
        assert set(after.isr) <= set(LINK), (step, before, after)
        assert after.isr
        assert after.leader in LINK, (step, before, after)
        kept = set(self.targets) & set(before.replicas)
        assert kept <= set(after.replicas), f"{step} drops a copy: {before} -> {after}"

    def run(self, wanted: Sequence[int]) -> list[Step]:
        steps: list[Step] = []
        while (step := next_step(self.partition, wanted, self.targets, self.brokers())) is not None:
            steps.append(step)
            self.carry_out(step)
            assert len(steps) < MOST_STEPS, steps
        return steps

    def open(self) -> list[Step]:
        steps: list[Step] = []
        while (step := open_step(self.partition, self.targets, self.brokers())) is not None:
            steps.append(step)
            self.carry_out(step)
            assert len(steps) < MOST_STEPS, steps
        return steps

    def hand_over(self) -> None:
        assert self.alter((*self.partition.isr, *self.targets)) == NEW_LEADER_ELECTED
        after = self.partition
        assert after.replicas == self.targets
        assert set(after.isr) == set(self.targets)
        assert after.leader == self.targets[0]
        assert (after.adding, after.removing) == ((), ())


def scene(
    created: Sequence[int] = (900,),
    targets: Sequence[int] = (1, 2),
    link: Sequence[int] = LINK,
    *,
    asked: bool = True,
    **options: int,
) -> Scene:
    kraft = Kraft(**options)  # type: ignore[arg-type]
    for broker in (*REAL, *link):
        kraft.register(broker)
    kraft.create("t", ID, {0: created})
    if asked:
        kraft.reassign(T0, targets)
    return Scene(kraft, targets)


def test_one_sidecar_asks_for_the_copies_and_has_nothing_more_to_do() -> None:
    one = scene(asked=False)
    assert not copies_asked_for(one.partition, (1, 2))
    assert one.run([900]) == [Reassign((1, 2))]
    assert one.partition == Partition((1, 2, 900), (900,), (1, 2), (900,), 900, 0, 1)
    assert is_open(one.partition, (1, 2), LINK)
    one.hand_over()


def test_the_first_one_that_is_added_launders_the_copies() -> None:
    one = scene()
    steps = one.run([900, 901])
    assert steps == [
        Reassign((900, 901, 1, 2)),
        CancelReassignment(),
        Reassign((900, 901, 1, 2)),
        AlterIsr((900, 901)),
    ]
    assert one.partition.replicas == (900, 901, 1, 2)
    assert one.partition.isr == (900, 901)
    assert (one.partition.adding, one.partition.removing) == ((), ())
    assert not is_open(one.partition, (1, 2), LINK)
    # The next one costs two.
    assert one.run([900, 901, 902]) == [Reassign((900, 901, 902, 1, 2)), AlterIsr((900, 901, 902))]
    assert one.open() == [Reassign((1, 2))]
    assert is_open(one.partition, (1, 2), LINK)
    one.hand_over()


def test_leadership_moves_by_order_and_election_and_the_copies_stay_asked_for() -> None:
    one = scene((900, 901))
    assert one.run([901, 900]) == [Reassign((901, 900, 1, 2)), ElectPreferred()]
    assert one.partition.leader == 901
    assert one.partition.adding == (1, 2)
    assert one.partition.removing == (900, 901)
    assert is_open(one.partition, (1, 2), LINK)
    assert not one.open()
    one.hand_over()


def test_one_that_returns_is_in_the_isr_again_and_does_not_take_leadership_by_itself() -> None:
    one = scene((900, 901))
    one.run([901, 900])
    one.kraft.fence(901)
    assert one.partition.leader == 900
    one.kraft.unfence(901)
    assert one.partition.isr == (900,)
    assert one.run([900, 901]) == [Reassign((900, 901, 1, 2)), AlterIsr((900, 901))]
    one.kraft.rebalance()
    assert one.partition.leader == 900


@pytest.mark.parametrize("wanted", [[900], [900, 901, 902]])
def test_half_a_revoke_is_put_right(wanted: list[int]) -> None:
    one = scene((900,))
    one.run(wanted)
    one.kraft.reassign(
        T0, [b for b in one.partition.replicas if b in wanted[1:]] + [2, 1, 900][: 2 + len(wanted[1:])]
    )
    one.run(wanted)
    assert [b for b in one.partition.replicas if b in REAL] == [1, 2]
    assert set(one.partition.isr) == set(wanted)
    one.open()
    one.hand_over()


def test_a_rebalance_by_the_controller_never_elects_a_real_broker() -> None:
    one = scene((900, 901))
    assert one.partition.replicas[0] == 1
    one.kraft.rebalance()
    assert one.partition.leader == 900
    assert one.partition.partition_epoch == 1, "not even a record"


def test_one_that_is_not_wanted_makes_room_for_the_next() -> None:
    one = scene((900, 901))
    one.run([900, 901, 902])
    assert one.run([900, 901]) == [AlterIsr((900, 901)), Reassign((900, 901, 1, 2))]
    assert one.partition.removing == (902,)
    one.kraft.unregister(902)
    one.run([900, 901, 903])
    assert one.partition.replicas == (900, 901, 903, 1, 2)
    assert (one.partition.adding, one.partition.removing) == ((), ())


def test_two_that_were_unregistered_while_listed() -> None:
    """The one that comes is in the ISR, though in `adding`: fewer come than go. A promote still opens."""
    one = scene((900, 901, 902))
    one.run([902])
    one.kraft.unregister(900)
    one.kraft.unregister(901)
    one.run([902, 903])
    assert one.partition.isr == (902, 903)
    assert one.run([903, 902])
    assert one.partition.leader == 903
    one.open()
    assert is_open(one.partition, (1, 2), LINK)
    one.hand_over()


def test_the_last_one_in_the_isr_is_never_cancelled_away() -> None:
    state = Partition((900, 901, 1, 2), (901,), (901,), (900,), 901, 3, 9)
    everybody = LiveBrokers(link=LINK, alive={901}, registered={1, 2, 900, 901})
    assert open_step(state, (1, 2), everybody) is None
    assert not is_open(state, (1, 2), LINK)
    # With one that is not listed, `adding` becomes that one, and the cancel takes it out alone.
    more = replace(everybody, registered={1, 2, 900, 901, 902})
    assert isinstance(open_step(state, (1, 2), more), Reassign)


@pytest.mark.parametrize(
    "state",
    [
        Partition((1, 2), (1, 2), (), (), 1, 6, 9),  # handed over
        Partition((1, 2, 900), (900, 1), (1, 2), (900,), 900, 6, 9),  # half way: only forward
        Partition((1, 2, 900), (900,), (1, 2), (900,), -1, 6, 9),  # nobody leads
    ],
)
def test_nothing_is_touched_that_is_not_led_by_a_link_broker_alone(state: Partition) -> None:
    brokers = LiveBrokers(link=LINK, alive=LINK, registered={*REAL, *LINK})
    assert not led_by_link(state, LINK)
    assert next_step(state, [901, 900], (1, 2), brokers) is None
    assert open_step(state, (1, 2), brokers) is None


def test_a_dead_leader_is_fenced_before_anything_is_planned() -> None:
    one = scene((900, 901))
    heard = replace(one.brokers(), alive={901, 902})
    assert next_step(one.partition, [901, 902], (1, 2), heard) is None


def test_a_copy_that_somebody_takes_out_is_kept() -> None:
    one = scene((900, 901))
    one.run([900, 901, 902])
    one.kraft.fence(901)
    # It would complete, without the copies, as soon as 901 is in the ISR again.
    one.kraft.reassign(T0, [900, 901, 902])
    assert set(one.partition.removing) == {1, 2}
    one.kraft.unfence(901)
    one.run([900, 901, 902])
    assert set(one.partition.isr) == {900, 901, 902}
    assert copies_asked_for(one.partition, (1, 2))


# --- any history -------------------------------------------------------------------------------------------

links = st.sampled_from(LINK)
wishes = st.lists(links, min_size=1, max_size=3, unique=True)
events = st.one_of(
    st.tuples(st.just("fence"), links),
    st.tuples(st.just("unfence"), links),
    st.tuples(st.just("unregister"), links),
    st.tuples(st.just("register"), links),
    st.tuples(st.just("restart"), st.sampled_from(REAL)),
    st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("rebalance"), st.none()),
    st.tuples(st.just("half a revoke"), st.none()),
    st.tuples(st.just("steps"), st.tuples(wishes, st.integers(1, 4))),
    st.tuples(st.just("open"), st.integers(1, 3)),
)
outside = st.tuples(
    st.just("outside"), st.lists(st.sampled_from((*REAL, *LINK)), min_size=1, max_size=6, unique=True)
)


def happen(one: Scene, event: str, value: object) -> None:
    kraft = one.kraft
    match event:
        case "fence":
            kraft.fence(value)  # type: ignore[arg-type]
        case "unfence" | "register":
            if value not in kraft.brokers:
                if event == "register":
                    kraft.register(value)  # type: ignore[arg-type]
            else:
                kraft.unfence(value)  # type: ignore[arg-type]
        case "unregister":
            kraft.unregister(value)  # type: ignore[arg-type]
        case "restart":
            kraft.fence(value)  # type: ignore[arg-type]
            kraft.register(value)  # type: ignore[arg-type]
        case "cancel":
            kraft.reassign(T0, None)
        case "rebalance":
            kraft.rebalance()
        case "half a revoke" if is_open(one.partition, one.targets, LINK):
            listed = [b for b in one.partition.replicas if b in kraft.brokers and b in LINK]
            kraft.reassign(T0, revoke_assignments(listed, one.targets)[0])
        case "outside":
            kraft.reassign(T0, value)  # type: ignore[arg-type]
        case "steps":
            wanted, most = value  # type: ignore[misc]
            for _ in range(most):
                step = next_step(one.partition, wanted, one.targets, one.brokers())
                if step is None:
                    break
                one.carry_out(step)
        case "open":
            for _ in range(value):  # type: ignore[call-overload]
                step = open_step(one.partition, one.targets, one.brokers())
                if step is None:
                    break
                one.carry_out(step)


def stuck_in_adding(one: Scene) -> bool:
    """Everybody in the ISR is in `adding`, and no other link broker is there to launder with."""
    brokers = one.brokers()
    return set(one.partition.isr) <= set(one.partition.adding) and not any(
        b in brokers.registered and b not in one.partition.replicas for b in LINK
    )


@settings(deadline=None, max_examples=400)
@given(
    created=wishes,
    targets=st.lists(st.sampled_from(REAL), min_size=1, max_size=3, unique=True),
    history=st.lists(events, max_size=12),
    wanted=wishes,
    min_isr=st.integers(1, 3),
    elr=st.booleans(),
    bump=st.booleans(),
)
def test_from_any_history_to_what_is_wanted_and_on_to_the_hand_over(
    created: list[int],
    targets: list[int],
    history: list[tuple[str, object]],
    wanted: list[int],
    min_isr: int,
    elr: bool,
    bump: bool,
) -> None:
    one = scene(created, targets, asked=False, min_isr=min_isr, elr_enabled=elr, bump_on_shrink=bump)
    for event, value in history:
        happen(one, event, value)
        assert set(one.partition.isr) <= set(LINK), (event, value)
    assume(one.partition.leader in LINK)
    one.run(wanted)
    state = one.partition
    alive = [b for b in wanted if one.kraft.active(b)]
    assert copies_asked_for(state, targets)
    assert set(alive) <= set(state.replicas), state
    assert set(state.isr) == {*alive, state.leader}, state
    assert state.leader == wanted[0] or wanted[0] not in alive
    assert [b for b in state.replicas if b in targets] == targets
    one.kraft.rebalance()
    assert one.partition.leader == state.leader, "the controller's own balancing has no other wish"
    assert (
        state.replicas[0] not in LINK
        or state.replicas[0] in (state.leader, *wanted)
        or (state.replicas[0] not in one.kraft.brokers)
    )
    one.open()
    if not stuck_in_adding(one):
        assert is_open(one.partition, targets, LINK), one.partition
        one.hand_over()


@settings(deadline=None, max_examples=400)
@given(
    created=wishes,
    targets=st.lists(st.sampled_from(REAL), min_size=1, max_size=2, unique=True),
    history=st.lists(st.one_of(events, outside), max_size=12),
    wanted=wishes,
)
def test_whatever_somebody_else_reassigns_no_step_does_harm_and_they_end(
    created: list[int], targets: list[int], history: list[tuple[str, object]], wanted: list[int]
) -> None:
    one = scene(created, targets, asked=False)
    for event, value in history:
        happen(one, event, value)  # carry_out checks each step
        if one.partition.leader not in LINK or not set(one.partition.isr) <= set(LINK):
            return
    one.run(wanted)
    one.open()
    if is_open(one.partition, targets, LINK):
        one.hand_over()


@given(
    replicas=st.lists(st.integers(1, 6), min_size=1, unique=True),
    data=st.data(),
)
def test_our_rule_of_completion_is_the_models(replicas: list[int], data: st.DataObject) -> None:
    some = st.lists(st.sampled_from(replicas), unique=True)
    adding, removing, isr = data.draw(some), data.draw(some), data.draw(some)
    assume(isr)
    kraft = Kraft()
    for broker in replicas:
        kraft.register(broker)
    before = Partition(tuple(replicas), tuple(isr), tuple(adding), tuple(removing), isr[0])
    built = kraft._build(before, kraft.active) or before
    found = completed(replicas, adding, removing, isr)
    if found is None:
        assert built.replicas == before.replicas
        assert (built.adding, built.removing) == (before.adding, before.removing)
    else:
        assert (built.replicas, built.isr) == found
