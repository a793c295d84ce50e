"""What follows a batch whose time is over goes back like it, on the wire: the source never sees it without the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually, held_produce, session_of

LIMITS = RouterLimits(settle_grace=0.3, backoff_min=0.01, min_timeout=0.3)


def silence(rig: Rig) -> Callable[[], None]:
    """The source reads what it is sent and does nothing with it, until that is called."""
    rig.source.inject("produce", drop=True, process=False, times=None)
    return rig.source.clear_faults


def session(rig: Rig) -> Any:
    (connection,) = rig.listener.connections
    return session_of(connection)


async def test_the_connection_ends_behind_one_whose_time_is_over() -> None:
    async with Rig(limits=LIMITS, source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        speaks = silence(rig)
        first = producer.send(0, timeout_ms=300)
        second = producer.send(0, timeout_ms=60_000)
        assert (await first)[0].error == 7
        speaks()
        for route in list(session(rig).produce._routes._routes._routes.values()):
            route.close()
        assert (await asyncio.wait_for(second, 25))[0].error == 7
        again = [producer.send(0, sequence=sequence) for sequence in (1, 2)]
        assert [(await one)[0].error for one in again] == [0, 0]
        assert rig.values() == [(5, 0), (5, 1), (5, 2)]


async def test_its_bytes_are_held_until_the_source_has_answered() -> None:
    async with Rig(limits=LIMITS, source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        answer = held_produce(rig.source)
        told = [producer.send(0, timeout_ms=300) for _ in range(2)]
        assert [(await one)[0].error for one in told] == [7, 7]
        assert rig.router.hub.budget.used > 0
        answer.set()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        assert rig.values() == [(5, 0), (5, 1), (5, 2)]


async def test_what_was_on_the_way_behind_a_refusal_of_the_source_does_not_overtake_it() -> None:
    """A source that is short of replicas just once."""
    async with Rig(limits=LIMITS, source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        rig.source.inject("produce", error=19, times=1)
        told = [(await producer.send(0))[0].error for _ in range(3)]
        assert told == [19, 19, 19]
        assert rig.source.counts["produce"] == 2, "the others were not sent"
        again = [producer.send(0, sequence=sequence) for sequence in (1, 2, 3)]
        assert [(await one)[0].error for one in again] == [0, 0, 0]
        assert rig.values() == [(5, 0), (5, 1), (5, 2), (5, 3)]


async def test_several_refused_at_once_have_one_order() -> None:
    async with Rig(limits=LIMITS, source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        rig.source.inject("produce", error=19, times=1)
        pending = [producer.send(0) for _ in range(4)]
        assert [(await one)[0].error for one in pending] == [19, 6, 6, 6], "none of them is told of a gap"


class HeldRights:
    """The real broker's answer about what the client may do is on its way until `come`."""

    def __init__(self, rig: Rig) -> None:
        authorizer = session(rig).authorizer
        self._real = authorizer._topic_answered
        self._held: list[tuple[str, memoryview]] = []
        authorizer._topic_answered = lambda *answer: self._held.append(answer)

    def come(self) -> None:
        for answer in self._held:
            self._real(*answer)


async def connected(rig: Rig) -> Producer:
    producer = Producer(await rig.client(), rig, producer_id=5)
    await eventually(lambda: len(rig.listener.connections) == 1 and session(rig) is not None)
    return producer


@pytest.mark.parametrize("wait", [0.0, 1.2], ids=["at once", "when nobody is waited for any more"])
async def test_what_waits_for_the_clients_rights_does_not_overtake_one_whose_time_is_over(
    wait: float,
) -> None:
    async with Rig(limits=LIMITS) as rig:
        producer = await connected(rig)
        rights = HeldRights(rig)
        first = producer.send(0, 1, timeout_ms=300)
        second = producer.send(0)
        other = producer.send(1, sequence=0)
        assert [one.error for one in await first] == [6, 6]
        third = producer.send(0)  # it was on the way
        again = [producer.send(0, sequence=0)]
        await asyncio.sleep(wait)
        rights.come()
        assert [(await one)[0].error for one in (second, third)] == [6, 6]
        again += [producer.send(0, sequence=sequence) for sequence in (1, 2)]
        assert [(await one)[0].error for one in again] == [0, 0, 0]
        assert (await other)[0].error == 0, "the one that comes again itself"
        assert rig.values() == [(5, 0), (5, 1), (5, 2)]


async def test_whose_time_is_over_while_its_rights_are_asked_for_keeps_nothing() -> None:
    async with Rig(limits=LIMITS) as rig:
        producer = await connected(rig)
        rights = HeldRights(rig)
        assert (await producer.send(0, timeout_ms=300))[0].error == 6
        garbled = producer.send(0, records=b"x", timeout_ms=300)
        by_name = Producer(producer.connection, rig, version=12, producer_id=5)
        elsewhere = by_name.send(0, topic="payments", timeout_ms=300)
        assert [(await one)[0].error for one in (garbled, elsewhere)] == [6, 6]
        rights.come()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        assert rig.values() == []
