"""What follows a batch whose time is over goes back like it, on the wire: the source never sees it without the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from router.dispatch import session_of
from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually

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
        second = producer.send(0, timeout_ms=20_000)
        assert (await first)[0].error == 7
        speaks()
        for route in list(session(rig).produce._ways._routes._routes.values()):
            route.close()
        assert (await asyncio.wait_for(second, 5))[0].error == 7
        again = [producer.send(0, sequence=sequence) for sequence in (1, 2)]
        assert [(await one)[0].error for one in again] == [0, 0]
        assert rig.values() == [(5, 0), (5, 1), (5, 2)]


async def test_its_bytes_are_held_until_the_source_has_answered() -> None:
    async with Rig(limits=LIMITS, source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        rig.source.inject("produce", delay=0.6, times=1)
        told = [producer.send(0, timeout_ms=300) for _ in range(2)]
        assert [(await one)[0].error for one in told] == [7, 7]
        assert rig.router.hub.budget.used > 0
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
