"""Leaders and link brokers over a fleet: who may lead, small steps, stickiness, and where the rounds end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.plan.elections import Elections, Led, SidecarBroker, plan_elections
from wire.frames.types import TopicPartition

IDS = (900, 901, 902, 903, 904)
World = dict[TopicPartition, Led]


def tps(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", index) for index in range(count)]


def world(leaders: list[int], members: tuple[int, ...] = (900, 901, 902), **options: object) -> World:
    return {
        tp: Led(leader=leader, isr=members, replicas=(*members, 1, 2), **options)  # type: ignore[arg-type]
        for tp, leader in zip(tps(len(leaders)), leaders, strict=True)
    }


def fleet(*ids: int) -> list[SidecarBroker]:
    return [SidecarBroker(id=broker) for broker in ids]


def applied(state: World, plan: Elections) -> World:
    """Everything of the plan happened: who is wanted and alive is in the ISR, and the leaders moved."""
    done = dict(state)
    moved = {move.tp: move.to for move in plan.moves}
    for tp, wanted in plan.wanted.items():
        members = tuple(wanted) if state[tp].leader in wanted or tp in moved else (*wanted, state[tp].leader)
        done[tp] = replace(
            state[tp], leader=moved.get(tp, state[tp].leader), isr=members, replicas=(*members, 1, 2)
        )
    return done


def rounds(state: World, sidecars: list[SidecarBroker], most: int = 200, **options: int) -> World:
    for _ in range(most):
        plan = plan_elections(state, sidecars, **options)
        after = applied(state, plan)
        if after == state:
            return state
        state = after
    raise AssertionError("the rounds do not end")


def load(state: World) -> Counter[int]:
    return Counter(led.leader for led in state.values())


def test_one_sidecar_leads_all_and_nothing_moves() -> None:
    state = world([900] * 5, (900,))
    plan = plan_elections(state, fleet(900))
    assert plan.moves == ()
    assert set(plan.wanted.values()) == {(900,)}


def test_a_difference_of_one_moves_nothing() -> None:
    state = world([900, 900, 901, 901, 902])
    plan = plan_elections(state, fleet(900, 901, 902))
    assert plan.moves == ()
    assert [wanted[0] for wanted in plan.wanted.values()] == [900, 900, 901, 901, 902]


def test_small_steps_to_an_even_load() -> None:
    state = world([900] * 30)
    sidecars = fleet(900, 901, 902)
    plan = plan_elections(state, sidecars, most_moves=4)
    assert len(plan.moves) == 4
    assert load(rounds(state, sidecars, most_moves=4)) == {900: 10, 901: 10, 902: 10}


def test_a_draining_one_gives_up_all_and_gets_nothing_but_stays_in_the_isr() -> None:
    state = world([900, 901, 902] * 4)
    sidecars = [SidecarBroker(id=900, draining=True), *fleet(901, 902)]
    plan = plan_elections(state, sidecars)
    assert {move.origin for move in plan.moves} == {900}
    assert len(plan.moves) == 4
    assert all(900 in wanted for wanted in plan.wanted.values())
    assert load(rounds(state, sidecars)) == {901: 6, 902: 6}


def test_nobody_else_can_lead_yet() -> None:
    state = world([900] * 3, (900,))
    plan = plan_elections(state, [SidecarBroker(id=900, draining=True), *fleet(901)])
    assert plan.moves == ()
    assert set(plan.wanted.values()) == {(900, 901)}, "it comes into the ISR first"


def test_a_leaving_one_is_not_wanted_once_another_leads() -> None:
    state = world([900] * 3, (900, 901))
    sidecars = [SidecarBroker(id=900, leaving=True), *fleet(901)]
    plan = plan_elections(state, sidecars)
    assert [move.to for move in plan.moves] == [901] * 3
    after = rounds(state, sidecars)
    assert {tuple(led.isr) for led in after.values()} == {(901,)}


def test_a_dead_one_is_never_moved_from_nor_elected_and_keeps_its_place() -> None:
    state = world([900] * 6)
    sidecars = [SidecarBroker(id=901, alive=False), *fleet(900, 902)]
    plan = plan_elections(state, sidecars)
    assert {move.to for move in plan.moves} == {902}
    assert all(901 in wanted for wanted in plan.wanted.values())
    dead = [SidecarBroker(id=900, alive=False, draining=True), *fleet(901, 902)]
    assert plan_elections(state, dead).moves == (), "it is fenced, and the target's controller elects"


def test_the_rack_of_the_source_comes_first() -> None:
    sidecars = [
        SidecarBroker(id=900, rack="a"),
        SidecarBroker(id=901, rack="b"),
        SidecarBroker(id=902, rack="b"),
    ]
    state = world([900] * 4, rack="b")
    assert load(rounds(state, sidecars)) == {901: 2, 902: 2}
    # No sidecar in that rack: all of them count.
    assert load(rounds(world([900] * 6, rack="z"), sidecars)) == {900: 2, 901: 2, 902: 2}


def test_a_chain_where_the_idle_one_hosts_nothing_of_the_busy_one() -> None:
    first, second, third = tps(3)
    state: World = {
        first: Led(leader=900, isr=(900, 901), replicas=(900, 901)),
        second: Led(leader=900, isr=(900, 901), replicas=(900, 901)),
        third: Led(leader=901, isr=(901, 902), replicas=(901, 902)),
    }
    plan = plan_elections(state, fleet(900, 901, 902), link_brokers=2)
    assert {(move.origin, move.to) for move in plan.moves} == {(900, 901), (901, 902)}


def test_what_a_promote_owns_counts_but_does_not_move() -> None:
    state = world([900] * 6)
    state = {tp: replace(led, movable=tp.partition >= 4) for tp, led in state.items()}
    after = rounds(state, fleet(900, 901))
    assert load(after) == {900: 4, 901: 2}


def test_one_that_joined_a_large_fleet_gets_places_first_and_leadership_then() -> None:
    state = world([900, 901, 902] * 4)
    sidecars = fleet(900, 901, 902, 903)
    plan = plan_elections(state, sidecars)
    assert plan.moves == ()
    after = rounds(state, sidecars)
    assert set(load(after).values()) == {3}
    assert all(len(led.isr) == 3 for led in after.values())


racks = st.sampled_from([None, "a", "b"])
sidecar_lists = st.lists(
    st.builds(
        SidecarBroker,
        id=st.sampled_from(IDS),
        rack=racks,
        alive=st.booleans(),
        draining=st.booleans(),
        leaving=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda sidecar: sidecar.id,
)
partitions = st.lists(
    st.tuples(
        st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True),
        st.integers(0, 3),
        racks,
        st.booleans(),
    ),
    max_size=12,
)


def any_world(drawn: list[tuple[list[int], int, str | None, bool]]) -> World:
    state: World = {}
    for tp, (members, out, rack, movable) in zip(tps(len(drawn)), drawn, strict=True):
        isr = tuple(members[: max(1, len(members) - out)])
        state[tp] = Led(leader=isr[0], isr=isr, replicas=(*members, 1), rack=rack, movable=movable)
    return state


@settings(deadline=None)
@given(drawn=partitions, sidecars=sidecar_lists, most=st.integers(1, 5))
def test_every_move_is_allowed_and_they_are_few(
    drawn: list[tuple[list[int], int, str | None, bool]], sidecars: list[SidecarBroker], most: int
) -> None:
    state = any_world(drawn)
    by_id = {sidecar.id: sidecar for sidecar in sidecars}
    plan = plan_elections(state, sidecars, most_moves=most)
    assert plan == plan_elections(dict(reversed(state.items())), sidecars[::-1], most_moves=most)
    assert len(plan.moves) <= most
    assert len({move.tp for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        to = by_id[move.to]
        assert to.alive
        assert not to.draining
        assert not to.leaving
        assert move.to in state[move.tp].isr
        assert move.origin == state[move.tp].leader != move.to
        assert state[move.tp].movable
        assert plan.wanted[move.tp][0] == move.to
    for tp, wanted in plan.wanted.items():
        assert len(set(wanted)) == len(wanted) <= 4
        new = set(wanted) - set(state[tp].replicas)
        assert all(by_id[b].alive and not by_id[b].draining for b in new)


@settings(deadline=None)
@given(drawn=partitions, sidecars=sidecar_lists, most=st.integers(1, 5))
def test_the_rounds_end(
    drawn: list[tuple[list[int], int, str | None, bool]], sidecars: list[SidecarBroker], most: int
) -> None:
    state = rounds(any_world(drawn), sidecars, most_moves=most)
    assert plan_elections(state, sidecars, most_moves=most).moves == ()


@settings(deadline=None)
@given(
    leaders=st.lists(st.sampled_from(IDS[:3]), min_size=1, max_size=40),
    count=st.integers(1, 3),
    drain=st.booleans(),
    most=st.integers(1, 10),
)
def test_where_everybody_hosts_everything_loads_end_within_one(
    leaders: list[int], count: int, drain: bool, most: int
) -> None:
    sidecars = [SidecarBroker(id=b, draining=drain and b == 900 and count > 1) for b in IDS[:count]]
    members = IDS[:count]
    state = world([b if b in members else 900 for b in leaders], members)
    after = load(rounds(state, sidecars, most_moves=most))
    able = [s.id for s in sidecars if not s.draining]
    assert max(after[b] for b in able) - min(after[b] for b in able) <= 1
    assert not any(after[s.id] for s in sidecars if s.draining)
