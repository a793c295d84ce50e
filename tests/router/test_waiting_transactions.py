"""Writes of transactions wait for their promote: clients that count their tries have them for longer."""

from __future__ import annotations

import asyncio

import pytest

from router.ports import RouterLimits
from router.produce import transactions
from tests.router.rig import Producer, Rig, eventually
from wire.frames.types import TopicPartition

TP0 = TopicPartition("orders", 0)
NOT_LEADER, NOT_ENOUGH_REPLICAS = 6, 19
PATIENT = RouterLimits(settle_grace=0.3, backoff_min=0.01, transaction_patience=60.0)
WORDS = "topic orders is a mirror: transactions can write to it once it is promoted"


async def producer(rig: Rig) -> Producer:
    return Producer(await rig.client(), rig, producer_id=9)


async def waiting(rig: Rig, batches: int) -> None:
    await eventually(lambda: rig.router.hub.transactions_waiting == batches)


def nothing_left(rig: Rig) -> bool:
    hub = rig.router.hub
    return not (hub.transactions or hub.transactions_waiting or hub.transactions_bytes or hub.budget.used)


async def test_it_is_answered_at_once_when_every_broker_names_the_new_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig(limits=PATIENT) as rig:
        one = await producer(rig)
        pending = [one.send(0, transactional=True) for _ in range(3)]
        await waiting(rig, 3)
        assert rig.router.holds([TP0]), "its hand-over is seen through"
        assert not rig.router.holds([TopicPartition("orders", 1)])
        rig.router.hub.hold([TP0])
        rig.hand_over("orders", 0, 1)
        rig.router.carry([TP0])
        monkeypatch.setattr(transactions, "_LOOK", 0.0)
        await asyncio.sleep(1.3)
        assert rig.router.hub.transactions_waiting == 3, "some brokers may not know it yet"
        monkeypatch.setattr(transactions, "_LOOK", 60.0)
        await asyncio.sleep(0.5)  # from now on by the word of the hand-over alone
        rig.router.handed_over([TP0])
        for answer in pending:
            (result,) = await asyncio.wait_for(answer, 25)
            assert (result.error, result.current_leader) == (NOT_LEADER, (1, 4))
        assert nothing_left(rig)
        assert rig.source.counts["produce"] == rig.target.counts["produce"] == 0


async def test_without_a_promote_it_is_to_try_again() -> None:
    limits = RouterLimits(settle_grace=0.3, backoff_min=0.01, transaction_patience=0.5)
    async with Rig(limits=limits) as rig:
        one = await producer(rig)
        started = rig.router.hub.loop.time()
        (told,) = await asyncio.wait_for(one.send(0, transactional=True), 25)
        assert (told.error, told.error_message) == (NOT_ENOUGH_REPLICAS, WORDS)
        assert rig.router.hub.loop.time() - started >= 0.5
        assert nothing_left(rig)
        assert rig.source.counts["produce"] == 0


async def test_its_own_time_ends_it_earlier() -> None:
    async with Rig(limits=PATIENT) as rig:
        one = await producer(rig)
        (told,) = await asyncio.wait_for(one.send(0, transactional=True, timeout_ms=1000), 25)
        assert told.error == NOT_ENOUGH_REPLICAS
        assert nothing_left(rig)


async def test_a_mirror_that_fails_or_goes_meanwhile_is_told() -> None:
    async with Rig(limits=PATIENT) as rig:
        one = await producer(rig)
        failed, gone = one.send(0, transactional=True), one.send(1, transactional=True)
        await waiting(rig, 2)
        rig.directory.mirrors["orders"].partitions[0].refusing = "the mirror has failed"
        (told,) = await asyncio.wait_for(failed, 25)
        assert (told.error, told.error_message) == (NOT_ENOUGH_REPLICAS, "the mirror has failed")
        rig.directory.mirrors.clear()
        (told,) = await asyncio.wait_for(gone, 25)
        assert told.error == NOT_LEADER
        assert nothing_left(rig)


async def test_no_more_wait_than_there_is_room_for() -> None:
    """By number, and by bytes; each client has a connection of its own, which is answered in order."""
    for limits in (
        RouterLimits(transaction_patience=60.0, transactions_waiting=2),
        RouterLimits(transaction_patience=60.0, held_bytes=800),  # a batch of these has 70
    ):
        async with Rig(limits=limits) as rig:
            pending = [(await producer(rig)).send(0, transactional=True) for _ in range(2)]
            await waiting(rig, 2)
            third = await producer(rig)
            (told,) = await asyncio.wait_for(third.send(0, transactional=True), 25)
            assert (told.error, told.error_message) == (NOT_ENOUGH_REPLICAS, WORDS)
            assert not any(one.done() for one in pending)
            await waiting(rig, 2)


async def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    async with Rig(limits=PATIENT) as rig:
        one = await producer(rig)
        one.send(0, 1, transactional=True)
        await waiting(rig, 2)
        one.connection.channel.close()
        await eventually(lambda: nothing_left(rig))


async def test_what_a_client_writes_beside_it_is_forwarded() -> None:
    async with Rig(limits=PATIENT) as rig:
        one, other = await producer(rig), Producer(await rig.client(), rig, producer_id=5)
        one.send(0, transactional=True)
        await waiting(rig, 1)
        assert (await asyncio.wait_for(other.send(0), 25))[0].error == 0
        rig.router.hub.hold([TP0])
        await asyncio.wait_for(
            rig.router.hub.fence([TP0], timeout=25), 25
        )  # it does not keep a fence from standing
