"""The head: who it takes, whose leases it vouches for, and whom a fence waits for."""

from __future__ import annotations

import asyncio

import pytest

from controller.state import SidecarIdentity
from fleet import messages as m
from fleet.commands import FleetIncomplete
from fleet.fleet_controller import FleetController
from fleet.lease import DRIFT, Holder
from fleet.progress import CopyReport, encode_copies
from fleet.stored_controller import StoredController
from fleet.stores.base import ControllerFenced, StoreError
from tests.controller.fleet_kit import (
    LINK,
    SETTINGS,
    TP,
    Caller,
    TroubledStore,
    head_with_mirror,
    hello,
    now,
    running_head,
    with_mirror,
)
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition

LEASE = SETTINGS.lease * DRIFT


async def refused(head: FleetController, broker_id: int = 900, **fields: object) -> m.Refusal:
    caller = Caller(head, broker_id)
    caller.say(hello(broker_id, **fields))
    refusal = await caller.hear(m.Refusal)
    await caller.over()
    return refusal


async def fence_time(head: FleetController, timeout: float = 30.0) -> float:
    begun = now()
    await head.commands.fence(LINK, [TP], timeout=timeout)
    return now() - begun


# Who is taken.


def test_a_member_joins_and_is_written_down_before_its_first_lease() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head)
            welcome = await caller.join(session="a", version="1.2")
            assert head.controller.image.identities[900].session == "a"
            assert welcome.image is not None
            assert {path for path, _, _ in welcome.image} == set(head.controller.image.versions)
            assert welcome.lease == SETTINGS.lease
            assert not head.leases.may_hold(now())
            assert (await caller.renew(4)).n == 4
            assert head.leases.may_hold(now()) == [Holder(900, "a")]
            assert head.alive() == {900}

    run_virtual(main())


@pytest.mark.parametrize(
    ("fields", "text", "fatal"),
    [
        ({"protocol": (9, 12)}, "protocol in versions 9 to 12", True),
        ({"cluster_id": "other"}, "belongs to target cluster other", True),
        ({"highest_epoch": 99}, "not the newest", False),
    ],
)
def test_who_is_not_taken(fields: dict[str, object], text: str, fatal: bool) -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            refusal = await refused(head, **fields)
            assert text in refusal.reason
            assert refusal.fatal is fatal
            assert not head.controller.image.identities
            assert not head.members

    run_virtual(main())


def test_a_newer_program_is_taken_at_the_version_both_know() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            assert (await Caller(head).join(protocol=(1, 7))).protocol == 1

    run_virtual(main())


@pytest.mark.parametrize("raw", [{"type": "renew", "n": 1}, {"type": "x"}, None])
def test_who_does_not_begin_with_hello(raw: dict[str, object] | None) -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head)
            if raw is not None:
                caller.channel.send(raw)  # type: ignore[arg-type]
            await caller.over(timeout=SETTINGS.hello_timeout + 1)
            assert not head.members

    run_virtual(main())


def test_two_processes_with_one_broker_id() -> None:
    """The first one is there, then silent, then its lease is over: refused for good, refused, taken."""

    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        async with running_head(controller, store) as head:
            first = Caller(head)
            await first.join(session="a")
            await first.renew()
            refusal = await refused(head, session="b")
            assert refusal.fatal
            assert "another sidecar with broker.id 900" in refusal.reason
            await asyncio.sleep(SETTINGS.failure_timeout + 0.1)
            refusal = await refused(head, session="b")
            assert not refusal.fatal
            assert "its lease ends in" in refusal.reason
            # The store must not name the one without a lease: the next head would wait for the wrong one.
            assert controller.image.identities[900].session == "a"
            await asyncio.sleep(LEASE)
            second = Caller(head)
            await second.join(session="b")
            await first.over()
            assert controller.image.identities[900].session == "b"

    run_virtual(main())


def test_the_first_of_two_gets_no_lease_while_the_second_is_written_down() -> None:
    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        async with running_head(controller, store) as head:
            first = Caller(head)
            await first.join(session="a")
            await asyncio.sleep(SETTINGS.failure_timeout + 0.1)
            store.delay = 0.5
            second = Caller(head)
            second.say(hello(900, session="b"))
            await asyncio.sleep(0.1)
            with pytest.raises(Exception, match="connected again"):
                first.say(m.Renew(n=1))
                await first.hear(m.Renewed)
            await second.hear(m.Welcome)
            assert Holder(900, "a") not in head.leases.may_hold(now())

    run_virtual(main())


def test_a_restarted_process_vouches_for_the_end_of_the_earlier_one() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            first = Caller(head)
            await first.join(session="a")
            await first.renew()
            second = Caller(head)
            await second.join(session="b", replaces=["z", "a"])
            await first.over()
            assert not head.leases.may_hold(now())
            assert await fence_time_with(head, second) < 0.1

    run_virtual(main())


async def fence_time_with(head: FleetController, caller: Caller) -> float:
    """The caller carries out the fence as soon as it hears of it."""

    async def carry_out() -> None:
        order = await caller.hear(m.Command)
        caller.say(m.Done(command=order.id))

    carrying = asyncio.create_task(carry_out())
    took = await fence_time(head)
    carrying.cancel()
    return took


def test_the_same_process_connects_again() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            first, second = Caller(head), Caller(head)
            await first.join()
            await first.renew()
            await second.join()
            await first.over()
            await second.renew()
            assert head.members[900].channel.peer == "sidecar 900"

    run_virtual(main())


# Leases.


def test_no_renewal_is_answered_without_a_proof_and_one_proof_serves_many() -> None:
    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        async with running_head(controller, store) as head:
            callers = [Caller(head, broker) for broker in (900, 901)]
            for caller in callers:
                await caller.join()
            store.failing = StoreError("away")
            for caller in callers:
                caller.say(m.Renew(n=1))
                assert await caller.heard() == [] or True
            await asyncio.sleep(2)
            assert not head.leases.may_hold(now())
            store.failing = None
            store.hanging = True
            for caller in callers:
                caller.say(m.Renew(n=2))
            await asyncio.sleep(SETTINGS.store_timeout + 1)
            assert not head.leases.may_hold(now())
            store.hanging = False
            for caller in callers:
                caller.say(m.Renew(n=3))
                assert (await caller.hear(m.Renewed)).n == 3
            assert len(head.leases.may_hold(now())) == 2

    run_virtual(main())


def test_a_head_that_was_replaced_ends_at_its_next_proof() -> None:
    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        head = FleetController(controller, store, SETTINGS, now, endless_leases=False, cluster_id=lambda: "")
        running = asyncio.create_task(head.run())
        caller = Caller(head)
        await caller.join()
        await store.claim()
        caller.say(m.Renew(n=1))
        with pytest.raises(ControllerFenced):
            await running
        assert not [x for x in await caller.heard() if isinstance(x, m.Renewed)]
        await caller.over()

    run_virtual(main())


def test_leases_of_an_older_head_are_waited_for() -> None:
    async def main() -> None:
        store = TroubledStore()
        first = await with_mirror(store)
        for broker, session in ((900, "a"), (901, "b")):
            await first.save_identity(
                SidecarIdentity(
                    broker_id=broker, incarnation_id=bytes(16), log_dir_id=bytes(16), session=session
                )
            )
        controller = await StoredController.open(store)
        claimed = now() - 1.0
        async with running_head(controller, store, claimed_at=claimed) as head:
            assert head.leases.may_hold(now()) == [Holder(900, "a"), Holder(901, "b")]
            with pytest.raises(FleetIncomplete, match=r"sidecar 900: is away, and its lease ends in 4\.\d s"):
                await head.commands.fence(LINK, [TP], timeout=5.0)
            # A new process of 901 says that the old one is over; 900's lease runs out.
            other = Caller(head, 901)
            await other.join(session="c", replaces=["b"])
            await fence_time_with(head, other)
            assert now() == pytest.approx(claimed + LEASE, abs=0.11)

    run_virtual(main())


def test_an_endless_lease_is_held_by_whoever_shares_the_process() -> None:
    async def main() -> None:
        async with head_with_mirror(endless_leases=True) as head:
            caller = Caller(head, local=True)
            welcome = await caller.join()
            assert welcome.lease is None
            assert welcome.image is None
            assert not head.controller.image.identities
            await head.controller.create_link("x", "c", {})
            assert not [x for x in await caller.heard() if isinstance(x, m.Delta)]

    run_virtual(main())


# Fences.


def test_a_fence_waits_for_everybody_who_may_acknowledge() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            callers = [Caller(head, broker) for broker in (900, 901, 902)]
            for caller in callers[:2]:
                await caller.join()
                await caller.renew()
            await callers[
                2
            ].join()  # connected, no lease: the fence goes to it before any renewal is answered
            fencing = asyncio.create_task(fence_time(head))
            orders = [await caller.hear(m.Command) for caller in callers]
            assert {order.what for order in orders} == {"fence"}
            callers[0].say(m.Done(command=orders[0].id))
            callers[1].say(m.Done(command=orders[1].id, error="2 writes in flight"))
            again = await callers[1].hear(m.Command)
            assert again == orders[1]
            assert not fencing.done()
            callers[1].say(m.Done(command=again.id))
            assert await fencing < 1

    run_virtual(main())


@pytest.mark.parametrize("connected", [True, False])
def test_a_fence_waits_for_whoever_holds_an_endless_lease(connected: bool) -> None:
    """However long the commit before it took, on a disk that stood still: no renewal was answered meanwhile."""

    async def main() -> None:
        async with head_with_mirror(endless_leases=True) as head:
            caller = Caller(head, local=True)
            await caller.join()
            await caller.renew()
            if not connected:
                caller.channel.close("it could not keep up")
                await caller.over()
            await asyncio.sleep(3 * LEASE)
            fencing = asyncio.create_task(fence_time(head, timeout=5))
            await asyncio.sleep(0.5)
            assert not fencing.done()
            if not connected:
                assert head.absent() == "sidecar 900 is away, and its lease does not end"
                caller = Caller(head, local=True)
                await caller.join()
            order = await caller.hear(m.Command)
            assert order.what == "fence"
            caller.say(m.Done(command=order.id))
            assert 0.5 <= await fencing < 1
            assert head.absent() is None
            with pytest.raises(FleetIncomplete, match="is connected, and its lease does not end"):
                await head.commands.fence(LINK, [TP], timeout=0.5)
            caller.say(m.Bye())
            await caller.over()
            assert await fence_time(head) == 0

    run_virtual(main())


def test_who_is_gone_is_waited_for_as_long_as_its_lease_may_be_valid() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head)
            await caller.join()
            await caller.renew()
            renewed_at = now()
            caller.channel.close("the machine is gone")
            await caller.over()
            await asyncio.sleep(1)
            with pytest.raises(FleetIncomplete, match=r"sidecar 900: is away, and its lease ends in"):
                await head.commands.fence(LINK, [TP], timeout=2)
            await head.commands.fence(LINK, [TP], timeout=30)
            assert now() == pytest.approx(renewed_at + LEASE, abs=0.11)

    run_virtual(main())


def test_who_connects_meanwhile_is_told_and_who_reconnects_again() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            first = Caller(head)
            await first.join()
            await first.renew()
            fencing = asyncio.create_task(fence_time(head))
            order = await first.hear(m.Command)
            first.channel.close("reset")
            await first.over()
            newcomer = Caller(head, 901)
            await newcomer.join()
            assert (await newcomer.hear(m.Command)).id == order.id
            back = Caller(head)
            await back.join()
            assert (await back.hear(m.Command)).id == order.id
            back.say(m.Done(command=order.id + 7))  # of something else
            await asyncio.sleep(0.2)
            assert not fencing.done()
            back.say(m.Done(command=order.id))
            await fencing

    run_virtual(main())


def test_who_says_good_bye_is_not_waited_for() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head)
            await caller.join()
            await caller.renew()
            fencing = asyncio.create_task(fence_time(head))
            await caller.hear(m.Command)
            caller.say(m.Bye())
            assert await fencing < 0.2
            assert head.alive() == frozenset()

    run_virtual(main())


def test_a_silent_one_ends_the_fence_with_its_name_and_a_cancel_leaves_nothing() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head)
            await caller.join()
            await caller.renew()
            with pytest.raises(FleetIncomplete, match="sidecar 900: is connected"):
                await head.commands.fence(LINK, [TP], timeout=1)
            fencing = asyncio.create_task(head.commands.fence(LINK, [TP], timeout=5))
            await asyncio.sleep(0.1)
            fencing.cancel()
            await asyncio.gather(fencing, return_exceptions=True)
            assert not head.commands._pending
            other = Caller(head, 901)
            await other.join()
            assert not [x for x in await other.heard() if isinstance(x, m.Command)]

    run_virtual(main())


def test_what_is_told_does_not_wait_for_the_dead() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            quick, silent = Caller(head, 900), Caller(head, 901)
            await quick.join()
            await silent.join()
            for what in ("unfence", "handed_over", "answered"):
                telling = asyncio.create_task(head.commands.tell(what, LINK, [TP], timeout=60))  # type: ignore[arg-type]
                order = await quick.hear(m.Command)
                assert order.what == what
                quick.say(m.Done(command=order.id, error="no such thing"))
                await telling
            assert now() < SETTINGS.failure_timeout + 1
            await head.commands.hold(LINK, [TP], 900, timeout=0.3)
            assert (await quick.hear(m.Command)).what == "hold"
            await head.commands.release(LINK, [TP], 900, timeout=0.3)
            assert (await quick.hear(m.Command)).what == "release"
            assert not [x for x in await silent.heard() if isinstance(x, m.Command) and x.what == "hold"]

    run_virtual(main())


def test_where_the_source_ends_is_told_by_the_sidecar_that_is_asked() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            one, other = Caller(head, 900), Caller(head, 901)
            await one.join()
            await other.join()

            async def answered(**said: object) -> dict[TopicPartition, int]:
                asking = asyncio.create_task(head.commands.stop_following(LINK, [TP], 901, timeout=2))
                order = await other.hear(m.Command)
                assert order.what == "stop_following"
                one.say(m.Done(command=order.id, ends=[(TP.topic, TP.partition, 1)])) if not said else None
                if said:
                    other.say(m.Done.model_validate({"command": order.id, **said}, strict=False))
                return await asking

            assert await answered(ends=[(TP.topic, TP.partition, 7)]) == {TP: 7}
            with pytest.raises(FleetIncomplete, match="sidecar 901: not followed now"):
                await answered(error="not followed now")
            with pytest.raises(FleetIncomplete, match="901"):
                await answered(ends=[])
            with pytest.raises(
                FleetIncomplete, match="901"
            ):  # silent; what another one says is of no account
                await answered()
            assert not [x for x in await one.heard() if isinstance(x, m.Command)]
            head.commands.follow_again(LINK, [TP])
            for caller in (one, other):
                assert (await caller.hear(m.Command)).what == "follow_again"
            assert not head.commands._pending

    run_virtual(main())


# Who is alive.


def test_silence_and_resets_are_told_apart_from_death() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            seen: list[frozenset[int]] = []
            head.on_membership.add(lambda: seen.append(head.alive()))
            caller = Caller(head)
            await caller.join()
            await asyncio.sleep(SETTINGS.failure_timeout - 0.3)
            caller.say(m.Renew(n=1))
            await asyncio.sleep(SETTINGS.failure_timeout - 0.3)
            assert head.alive() == {900}
            await asyncio.sleep(0.6)
            assert head.alive() == frozenset()
            caller.say(m.Renew(n=2))
            await asyncio.sleep(0.2)
            assert head.alive() == {900}
            caller.channel.close("reset")
            await asyncio.sleep(SETTINGS.reset_grace - 0.2)
            assert head.alive() == {900}
            again = Caller(head)
            await again.join()
            await asyncio.sleep(1)
            assert head.alive() == {900}
            again.channel.close("reset")
            await asyncio.sleep(SETTINGS.reset_grace + 0.2)
            assert head.alive() == frozenset()
            assert seen[-1] == frozenset()

    run_virtual(main())


def test_after_its_start_a_head_gives_everybody_time() -> None:
    async def main() -> None:
        store = TroubledStore()
        first = await with_mirror(store)
        await first.save_identity(
            SidecarIdentity(broker_id=901, incarnation_id=bytes(16), log_dir_id=bytes(16), session="b")
        )
        controller: StoredController = await StoredController.open(store)
        async with running_head(controller, store) as head:
            await asyncio.sleep(SETTINGS.failure_timeout)
            assert head.alive() == {901}
            await asyncio.sleep(SETTINGS.retry_max + 0.3)
            assert head.alive() == frozenset()

    run_virtual(main())


def test_deltas_are_numbered_per_channel() -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            first = Caller(head)
            await first.join()
            await head.controller.create_link("x", "c", {})
            second = Caller(head, 901)
            await second.join()
            await head.controller.delete_link("x")
            deltas = [x for x in await first.heard() if isinstance(x, m.Delta)]
            assert [x.seq for x in deltas] == [1, 2, 3]  # the link, the second's identity, the removal
            deltas = [x for x in await second.heard() if isinstance(x, m.Delta)]
            assert [(x.seq, x.gone) for x in deltas] == [(1, [["link", "x"]])]

    run_virtual(main())


def test_what_was_reported_of_a_mirror_is_not_of_the_next_one_of_its_name() -> None:
    """The topic of the new one begins at leader epoch 0 again."""

    def report(leader_epoch: int, end: int) -> m.Report:
        copy = CopyReport(
            link=LINK,
            topic=TP.topic,
            partition=TP.partition,
            leader_epoch=leader_epoch,
            loaded=True,
            high_watermark=end,
            log_start_offset=0,
        )
        return m.Report(copies=encode_copies([copy]))

    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        mirror = controller.image.mirrors[LINK, TP.topic]
        states = controller.image.topic_partitions(LINK, TP.topic)
        async with running_head(controller, store) as head:

            async def told(one: m.Report) -> int | None:
                caller.say(one)
                await asyncio.sleep(0.01)
                noted = head.book.get(LINK, TP)
                return None if noted is None else noted.copy.high_watermark

            caller = Caller(head)
            await caller.join()
            assert await told(report(5, 100)) == 100
            assert await told(report(4, 50)) == 100
            await controller.delete_mirror(LINK, TP.topic)
            assert head.book.get(LINK, TP) is None
            assert await told(report(5, 101)) is None  # it was on its way
            await controller.create_mirror(mirror, states)
            assert await told(report(0, 7)) == 7
            # Whatever a lower epoch comes from: who told of the higher one is silent.
            assert await told(report(6, 8)) == 8
            assert await told(report(0, 9)) == 8
            await asyncio.sleep(3.1)
            assert await told(report(0, 10)) == 10

    run_virtual(main())


@pytest.mark.parametrize("session", ["b", "a"])
def test_one_that_comes_back_is_not_forgotten_for_having_been_told_to_leave(session: str) -> None:
    """Nobody would wait for the lease that it gets then."""

    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        async with running_head(controller, store) as head:
            first = Caller(head)
            await first.join(session="a")
            await controller.mark_sidecar(900, leaving=True)
            assert not await head.remove_departed(900)
            first.say(m.Bye())
            await first.over()
            store.delay = 0.5
            second = Caller(head)
            second.say(hello(900, session=session, broker_epoch=7))
            await asyncio.sleep(0.1)
            assert 900 not in head.members
            assert not await head.remove_departed(900)
            await second.hear(m.Welcome)
            assert controller.image.identities[900].session == session
            second.say(m.Bye())
            await second.over()
            assert await head.remove_departed(900) is (session == "a"), "a new process was not told to leave"
            assert (900 in controller.image.identities) is (session == "b")

    run_virtual(main())
