"""Draining and leaving: marks that outlive a link controller but not a process, a seat that is handed over, and
replica lists that need one sidecar less."""

from __future__ import annotations

import asyncio

import pytest

from controller.errors import NotFound
from fleet.balancer import Balancer
from fleet.messages import LinkTraffic, Report, SidecarReport
from fleet.stored_controller import StoredController
from tests.controller.fleet_kit import (
    LINK,
    SETTINGS,
    TP,
    Caller,
    TroubledStore,
    head_with_mirror,
    now,
    running_head,
    with_mirror,
)
from tests.controller.test_balancer import Fleet, scene, until_quiet
from tests.controller.test_fleet_runner import fleet_of_three
from tests.controller.virtual_loop import run_virtual


def test_marks_outlive_the_link_controller_but_not_the_process() -> None:
    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        async with running_head(controller, store) as head:
            with pytest.raises(NotFound, match="sidecar 901 does not exist"):
                await controller.mark_sidecar(901, draining=True)
            await Caller(head, 901).join(session="a")
            await controller.mark_sidecar(901, draining=True, dry_run=True)
            assert not head.draining()
            await controller.mark_sidecar(901, draining=True)
            await controller.mark_sidecar(901, leaving=True)
            assert head.draining() == {901}
        controller = await StoredController.open(store)
        kept = controller.image.identities[901]
        assert (kept.draining, kept.leaving, kept.session) == (True, True, "a")
        async with running_head(controller, store) as head:
            await Caller(head, 901).join(session="a")
            assert head.draining() == {901}
            inherited = head.lease_left(901)
            assert inherited is not None and inherited > 0
            await Caller(head, 901).join(session="b", replaces=["a"])
            assert head.draining() == frozenset()

    run_virtual(main())


def test_what_a_sidecar_says_of_itself_and_who_is_waited_for() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head, 901)
            await caller.join()
            assert head.heard_ago(902) is None
            about = SidecarReport(
                heartbeat_age=0.5, links=[LinkTraffic(link=LINK, forwarded_produces=3)], not_ready="x"
            )
            caller.say(Report(copies=[], sidecar=about))
            await caller.renew()
            assert head.members[901].said == about
            left = head.lease_left(901)
            assert left is not None and left > 9
            fence = asyncio.create_task(head.commands.fence(LINK, [TP], timeout=5))
            await asyncio.sleep(0.1)
            ((command, silent),) = head.commands.waiting()
            assert (command.what, command.link, silent) == ("fence", LINK, [901])
            fence.cancel()
            await asyncio.gather(fence, return_exceptions=True)
            assert head.commands.waiting() == []
            caller.channel.close("it is gone")
            await asyncio.sleep(1)
            ago = head.heard_ago(901)
            assert ago is not None and 0.9 < ago < 1.2

    run_virtual(main())


def test_the_seat_is_handed_over_and_not_taken_back() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            old.runner.stand_aside = lambda: True
            old.runner.resign("it leaves")
            await asyncio.sleep(2)
            new = fleet.head
            assert new is not old
            assert old.leased, "it goes on as a member"
            # The next one dies: the third takes over, although the one that leaves could.
            await new.stop()
            new.runner.fleet_controller = None
            fleet.server.give(None)
            await asyncio.sleep(3)
            assert fleet.head not in (old, new)

    run_virtual(main())


def test_a_seat_that_could_not_be_given_back_is_given_back_later() -> None:
    """The store is away in the moment in which the link controller leaves."""

    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            old.runner.stand_aside = lambda: True
            old.store.away = True
            old.runner.resign("it leaves")
            await asyncio.sleep(SETTINGS.store_timeout + 1)
            seat = old.store.seat
            assert old.runner.fleet_controller is None
            assert seat is not None and seat.holder.broker_id == old.broker_id
            old.store.away = False
            await asyncio.sleep(3)
            assert fleet.head is not old
            assert old.leased, "it goes on as a member"

    run_virtual(main())


def test_a_fleet_without_others_needs_the_one_that_leaves() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            for other in fleet.others:
                await other.stop()
            old.runner.stand_aside = lambda: True
            old.runner.resign("it leaves")
            await asyncio.sleep(5)
            assert old.runner.fleet_controller is None
            await asyncio.sleep(8)
            assert fleet.head is old

    run_virtual(main())


def test_resigning_without_a_seat_is_nothing() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            for other in fleet.others:
                other.runner.resign("no seat")
            await asyncio.sleep(1)
            begun = now()
            assert fleet.head.ruling == 1
            assert begun > 0

    run_virtual(main())


@pytest.mark.parametrize("fence_it", [False, True])
def test_nothing_needs_one_that_leaves(fence_it: bool) -> None:
    async def main() -> None:
        fleet = Fleet(900, 901, 902)
        balancer = Balancer(fleet)
        await until_quiet(fleet, balancer)
        if fence_it:
            fleet.member(902, alive=False)
        fleet.member(902, leaving=True)
        await until_quiet(fleet, balancer)
        fleet.check()
        for state in fleet.kraft.partitions.values():
            assert state.leader in (900, 901)
            assert 902 not in state.isr
            assert 902 not in state.adding
            assert 902 not in state.replicas or 902 in state.removing
        # It may be unregistered now; what is left goes on, and another one is taken in.
        fleet.kraft.unregister(902)
        del fleet.members[902]
        fleet.known.discard(902)
        fleet.publish()
        await asyncio.sleep(0.1)
        await until_quiet(fleet, balancer)
        fleet.check()
        assert fleet.isrs() == {(900, 901)}
        fleet.join(903)
        await asyncio.sleep(0.1)
        await until_quiet(fleet, balancer)
        fleet.check()
        assert fleet.isrs() == {(900, 901, 903)}

    scene(main)


def test_why_a_draining_one_still_leads() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901)
        balancer = Balancer(fleet)
        await until_quiet(fleet, balancer)
        fleet.member(900, draining=True)
        assert set(balancer.why_led(900).values()) == {None}
        assert len(balancer.why_led(900)) == 3
        fleet.mirrored = {
            tp: type(one)(targets=one.targets, movable=False) for tp, one in fleet.mirrored.items()
        }
        assert set(balancer.why_led(900).values()) == {"a promote, or its bring-up, owns it"}
        fleet.mirrored = {
            tp: type(one)(targets=one.targets, movable=True) for tp, one in fleet.mirrored.items()
        }
        fleet.member(901, alive=False)
        (why,) = set(balancer.why_led(900).values())
        assert why == "of its ISR, 901 cannot lead now (away, fenced or draining)"
        fleet.member(901, alive=True)
        await until_quiet(fleet, balancer)
        assert balancer.why_led(900) == {}
        assert balancer.moves_done >= 3
        fleet.member(900, draining=False)
        await until_quiet(fleet, balancer)
        fleet.member(900, alive=False)
        await until_quiet(fleet, balancer)
        assert balancer.fenced_dead == 1

    scene(main)
