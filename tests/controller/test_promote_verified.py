"""Copies that change after they were verified are verified again before they are handed over."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fleet.link_controller import LinkController
from tests.controller.promote_kit import once_at, promote
from tests.controller.simulation import (
    OTHER,
    Chances,
    World,
    promote_through_trouble,
)
from tests.controller.virtual_loop import run_virtual


def verifications(world: World) -> int:
    return sum(line.endswith(" tail check") for line in world.log)


# While it is verified, and after: the first request is refused, and the next one would carry the new epochs.
@pytest.mark.parametrize("moment", ["tail check", "alter_partition before"])
def test_copies_that_were_dropped_and_asked_for_again_are_verified_again(moment: str) -> None:
    """Somebody cancels the reassignment and submits it once more: the brokers never restarted, and have nothing."""

    def prepare(world: World, _: LinkController) -> None:
        tp = world.tps[0]

        def drop() -> None:
            before = world.real[tp]
            world.kraft.reassign(tp, None)
            world.kraft.reassign(tp, (1, 2))
            after = world.real[tp]
            assert replace(after, leader_epoch=0, partition_epoch=0) == replace(
                before, leader_epoch=0, partition_epoch=0
            )
            world.held[tp] = {1: 0, 2: 0}
            world.positions[tp] = {}
            for broker in (1, 2):
                world.loop.call_later(0.5, world._fetched, tp, broker, world.source[tp])

        once_at(world, moment, drop)

    world, _, outcome, _ = promote(prepare)
    assert outcome.promoted == tuple(world.tps)
    assert verifications(world) == 2
    assert 500 <= outcome.phases_ms["fenced_total"] < 1000


def test_a_link_leader_that_dies_when_all_is_verified_costs_one_more_verification() -> None:
    def prepare(world: World, _: LinkController) -> None:
        once_at(world, "alter_partition before", lambda: world.kraft.fence(OTHER))

    world, _, outcome, _ = promote(prepare, two=True)
    assert outcome.promoted == tuple(world.tps)
    assert verifications(world) == 2
    assert outcome.phases_ms["fenced_total"] < 1000


def test_a_hand_over_that_lands_while_it_is_verified_again_ends_the_verification() -> None:
    """The new leader epoch is the hand-over's own: nobody is held until the fence's deadline for it."""

    async def main() -> None:
        world = World(random.Random(5), chances=Chances(alter_late=1.0))
        world.late = 1000.0
        world.crash_label = "alter_partition late"

        def watch() -> None:
            if world.crashed:
                once_at(world, "tail check", land)
            else:
                world.loop.call_later(0.0001, watch)

        def land() -> None:
            [flight] = world.flying
            world.flying.clear()
            world.carry_out(flight.items)

        watch()
        _, [outcome] = await promote_through_trouble(world)
        assert outcome.promoted == tuple(world.tps)
        assert world.sent == 1
        assert outcome.phases_ms["fenced_total"] < 1000

    run_virtual(main())
