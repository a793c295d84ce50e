"""Writes that come while nothing is forwarded, for a moment: they wait in their turn, and no client hears of it."""

from __future__ import annotations

import asyncio

import pytest

from router.ports import RouterLimits
from tests.router.rig import E0, Producer, Rig, ScriptedLease, eventually
from wire.frames.types import TopicPartition

TP0 = TopicPartition("orders", 0)
NOT_LEADER, NOT_ENOUGH_REPLICAS, TIMED_OUT = 6, 19, 7
BRISK = RouterLimits(settle_grace=0.3, backoff_min=0.01, min_timeout=0.3)


def shut(rig: Rig, *, on: bool) -> None:
    """Every partition at once, as when a broker of the target appears."""
    for partition in rig.directory.mirrors["orders"].partitions.values():
        partition.forwarding = on


async def waiting(rig: Rig, batches: int) -> None:
    await eventually(
        lambda: (
            sum(len(lane.queue) for tp in (TP0, TopicPartition("orders", 1)) for lane in lanes(rig, tp))
            == batches
        )
    )


def lanes(rig: Rig, tp: TopicPartition) -> list[object]:
    return list(rig.router.hub.fences.lanes(tp))  # type: ignore[return-value]


@pytest.mark.parametrize("told", [True, False], ids=["told", "looked for"])
async def test_they_go_on_in_order_when_forwarding_is_back(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the word of whoever turned it on, and without one by the tick."""
    if told:
        monkeypatch.setattr("router.produce.forwarding.TICK", 60.0)
    async with Rig(limits=BRISK) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        shut(rig, on=False)
        pending = [producer.send(0) for _ in range(5)] + [producer.send(1)]
        await waiting(rig, 6)
        assert rig.source.counts["produce"] == 1
        assert rig.router.hub.budget.used > 0, "their bytes are in the budget"
        shut(rig, on=True)
        if told:
            rig.router.forwarding_changed()
        assert [result.error for one in pending for result in await asyncio.wait_for(one, 25)] == [0] * 6
        assert rig.values() == [(5, sequence) for sequence in range(6)]
        assert rig.router.hub.budget.used == 0
        assert not rig.router.hub.shut
        assert (await producer.send(0))[0].error == 0


async def test_their_requests_time_is_the_end_of_it() -> None:
    async with Rig(limits=BRISK) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        shut(rig, on=False)
        started = rig.router.hub.loop.time()
        pending = [producer.send(0, timeout_ms=500) for _ in range(3)]
        assert [(await one)[0].error for one in pending] == [NOT_LEADER] * 3
        assert rig.router.hub.loop.time() - started < 5
        shut(rig, on=True)
        rig.router.forwarding_changed()
        behind = await producer.send(0, sequence=4)
        assert behind[0].error == NOT_LEADER, "it follows those that went back"
        again = [producer.send(0, sequence=sequence) for sequence in (1, 2, 3, 4)]
        assert [(await one)[0].error for one in again] == [0] * 4
        assert rig.values() == [(5, sequence) for sequence in range(5)]
        assert rig.router.hub.budget.used == 0


async def test_no_more_is_kept_than_the_budget() -> None:
    limits = RouterLimits(settle_grace=0.3, backoff_min=0.01, held_bytes=600)
    async with Rig(limits=limits) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        shut(rig, on=False)
        pending = [producer.send(0) for _ in range(50)]
        await eventually(lambda: rig.router.hub.budget.paused == 1)
        await asyncio.sleep(0.1)
        assert rig.router.hub.budget.used < 600 + 300, "one request more than the limit, for one client"
        shut(rig, on=True)
        rig.router.forwarding_changed()
        assert [(await asyncio.wait_for(one, 25))[0].error for one in pending] == [0] * 50
        assert rig.values() == [(5, sequence) for sequence in range(51)]


async def test_a_lapsed_lease_is_waited_for() -> None:
    lease = ScriptedLease()
    async with Rig(limits=BRISK, lease=lease) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        lease.lapse()
        pending = [producer.send(0) for _ in range(3)]
        await waiting(rig, 3)
        assert rig.source.counts["produce"] == 1
        lease.renew()
        rig.router.lease_renewed()
        assert [(await one)[0].error for one in pending] == [0] * 3
        assert rig.values() == [(5, sequence) for sequence in range(4)]


async def test_a_mirror_that_fails_meanwhile_is_told_at_once() -> None:
    async with Rig(limits=BRISK) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        shut(rig, on=False)
        pending = producer.send(0)
        await waiting(rig, 1)
        rig.directory.mirrors["orders"].partitions[0].refusing = "the mirror has failed"
        assert (await asyncio.wait_for(pending, 25))[0].error == NOT_ENOUGH_REPLICAS


async def test_a_leader_elsewhere_ends_it() -> None:
    async with Rig(limits=BRISK) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        shut(rig, on=False)
        pending = producer.send(0)
        await waiting(rig, 1)
        rig.hand_over("orders", 0, 2)
        told = (await asyncio.wait_for(pending, 25))[0]
        assert (told.error, told.current_leader) == (NOT_LEADER, (2, E0 + 1))


async def test_a_fence_and_its_end_leave_them_waiting() -> None:
    """A promote that begins meanwhile stands at once: none of them was sent. Given up, they wait on."""
    async with Rig(limits=BRISK) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        shut(rig, on=False)
        pending = [producer.send(0) for _ in range(3)]
        await waiting(rig, 3)
        await rig.router.fence([TP0], timeout=25)
        rig.router.unfence([TP0])
        await asyncio.sleep(0.25)
        assert not any(one.done() for one in pending)
        shut(rig, on=True)
        rig.router.forwarding_changed()
        assert [(await one)[0].error for one in pending] == [0] * 3
        assert rig.values() == [(5, sequence) for sequence in range(4)]


async def test_of_unknown_outcome_they_are_told_so() -> None:
    """Lost on the way to the source, and forwarding goes off before it is sent again: it may be in the log."""
    async with Rig(limits=BRISK, source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        rig.source.inject("produce", close_after=0, delay=0.1)
        lost = producer.send(0, timeout_ms=1000)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        shut(rig, on=False)
        assert (await asyncio.wait_for(lost, 25))[0].error == TIMED_OUT
        assert rig.source.counts["produce"] == 2
        shut(rig, on=True)
        assert (await producer.send(0, sequence=1))[0].error in (0, 46)
        assert rig.values() == [(5, 0), (5, 1)]


async def test_a_client_that_goes_away_leaves_nothing() -> None:
    async with Rig(limits=BRISK) as rig:
        connection = await rig.client()
        producer = Producer(connection, rig, producer_id=5)
        shut(rig, on=False)
        producer.send(0)
        await waiting(rig, 1)
        connection.close()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        assert not rig.router.hub.shut
        assert not lanes(rig, TP0)
