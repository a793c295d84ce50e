"""The promote driver in a world of trouble: die or fail at every await, with every kind of lost request."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controller.phases import Phase
from controller.state import JobStatus
from tests.controller.simulation import LINK, Chances, World, promote_through_trouble
from tests.controller.virtual_loop import run_virtual

PROFILES = {
    "calm": Chances(),
    "answer lost": Chances(alter_unanswered=1.0),
    "request lost": Chances(alter_lost=0.6),
    "request late": Chances(alter_late=0.9),
    "controller changes": Chances(alter_not_controller=0.8),
    "epochs move": Chances(alter_late=0.5, alter_unanswered=0.3, bump=0.1),
    "everything": Chances(
        alter_lost=0.2,
        alter_late=0.3,
        alter_unanswered=0.2,
        alter_not_controller=0.2,
        call_fails=0.01,
        bump=0.03,
    ),
}


SHAPES: dict[str, dict[str, bool]] = {"one": {}, "two": {"two": True}, "plain": {"plain": True}}


def live(
    seed: int,
    profile: str,
    crash_at: int | None,
    mode: str,
    broker_fails: bool,
    shape: str = "one",
    fail_over: float = 0.0,
) -> tuple[int, list[Phase]]:
    """One life. A failure names everything that is needed to see it again."""

    async def main() -> tuple[int, list[Phase]]:
        rng = random.Random(seed)
        chances = replace(PROFILES[profile], fail_over=fail_over)
        world = World(rng, chances=chances, crash_at=crash_at, crash_mode=mode, **SHAPES[shape])
        if broker_fails:
            world.loop.call_later(
                rng.uniform(0, 0.06), world.broker_down, rng.choice([1, 2]), rng.choice([0.2, 3.0, 20.0])
            )
        controller, _ = await promote_through_trouble(world)
        assert not controller.image.running_jobs(LINK)
        return world.gates, [controller.image.partitions[LINK, tp].phase for tp in world.tps]

    try:
        return run_virtual(main())
    except Exception as error:
        raise AssertionError(
            f"live({seed}, {profile!r}, {crash_at}, {mode!r}, {broker_fails}, {shape!r}, {fail_over}): {error}"
        ) from error


@pytest.mark.parametrize("profile", PROFILES)
def test_without_a_crash(profile: str) -> None:
    ended = {phase for seed in range(40) for phase in live(seed, profile, None, "cancel", seed % 2 == 1)[1]}
    assert Phase.PROMOTED in ended


@pytest.mark.parametrize("mode", ["cancel", "raise"])
@pytest.mark.parametrize("profile", PROFILES)
def test_trouble_at_every_await(profile: str, mode: str) -> None:
    for seed in (1, 2):
        broker_fails = seed == 2
        gates, _ = live(seed, profile, None, mode, broker_fails)
        for at in range(1, min(gates, 120) + 1):
            live(seed, profile, at, mode, broker_fails)


@pytest.mark.parametrize("profile", ["request late", "controller changes", "epochs move", "everything"])
def test_random_lives(profile: str) -> None:
    chooser = random.Random(profile)
    for _ in range(150):
        live(
            chooser.randrange(10**6),
            profile,
            chooser.randrange(1, 70),
            chooser.choice(["cancel", "raise"]),
            chooser.random() < 0.5,
        )


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("shape", ["two", "plain"])
def test_several_link_brokers_one_of_which_comes_and_goes(profile: str, shape: str) -> None:
    """Each partition is handed over by whoever leads it; those that are not open are opened first."""
    chooser = random.Random(f"{profile} {shape}")
    ended: set[Phase] = set()
    for _ in range(40):
        crash_at = chooser.choice([None, chooser.randrange(1, 70)])
        fail_over = chooser.choice([0.0, 0.01, 0.1])
        mode, broker_fails = chooser.choice(["cancel", "raise"]), chooser.random() < 0.3
        ended.update(
            live(chooser.randrange(10**6), profile, crash_at, mode, broker_fails, shape, fail_over)[1]
        )
    assert Phase.PROMOTED in ended


def test_the_world_notices_a_driver_that_lets_go_too_early() -> None:
    """The invariants have teeth: unfence behind the driver's back and they bite."""

    async def main() -> None:
        world = World(random.Random(1), chances=Chances(alter_late=1.0))
        for delay in range(1, 40):
            world.loop.call_later(delay * 0.02, world.fenced.clear)
        await promote_through_trouble(world)

    with pytest.raises(Exception, match=r"may still land|past the fence|after it was handed over|replicas"):
        run_virtual(main())


@pytest.mark.parametrize("epochs_move", [False, True])
def test_a_request_of_a_dead_process_is_waited_for_or_made_stale(epochs_move: bool) -> None:
    """It dies with an AlterPartition under way that lands 18 s later; then a replica is down, so the promote
    has to be given up. What was sent last is in the store, even if the epochs moved before it was sent."""

    async def main() -> None:
        world = World(random.Random(4), chances=Chances(alter_late=1.0))
        world.late = 18.0
        world.crash_label = "alter_partition late"

        def trouble() -> None:
            states = {node[0] for path, node in world.store.nodes.items() if path.endswith("/state")}
            if epochs_move and not world.flying and any("VALIDATED" in state for state in states):
                for tp, state in world.real.items():
                    world.real[tp] = replace(state, partition_epoch=9)
                world.visible = world._snapshot()
            if world.crashed:
                world.broker_down(2, 100.0)
            else:
                world.loop.call_later(0.0001, trouble)

        trouble()
        controller, _ = await promote_through_trouble(world)
        assert {state.phase for state in controller.image.link_partitions(LINK)} == {Phase.ACTIVE}
        assert "broker 2 is down" in (controller.image.partitions[LINK, world.tps[0]].reason or "")

    run_virtual(main())


def test_a_calm_promote_is_recorded_and_quick() -> None:
    async def main() -> None:
        world = World(random.Random(3), partitions=12)
        controller, outcomes = await promote_through_trouble(world)
        (outcome,) = outcomes
        assert outcome.promoted == tuple(world.tps)
        assert not outcome.abandoned
        assert outcome.phases_ms["fenced_total"] <= 100
        assert world.sent == 1
        assert world.restored == ["t"]
        job = controller.image.jobs[LINK, outcome.job_id]
        assert job.status is JobStatus.DONE
        assert job.phases_ms == outcome.phases_ms

    run_virtual(main())


@pytest.mark.parametrize("shape", ["two", "plain"])
def test_two_leaders_hand_over_in_one_calm_promote(shape: str) -> None:
    async def main() -> None:
        world = World(random.Random(3), partitions=6, **SHAPES[shape])
        assert {state.leader for state in world.real.values()} == set(world.links)
        controller, outcomes = await promote_through_trouble(world)
        (outcome,) = outcomes
        assert outcome.promoted == tuple(world.tps)
        assert outcome.phases_ms["fenced_total"] <= 100
        assert world.sent == 1
        assert {state.phase for state in controller.image.link_partitions(LINK)} == {Phase.PROMOTED}

    run_virtual(main())
