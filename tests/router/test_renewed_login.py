"""A source that ends logins (connections.max.reauth.ms): another connection takes the place of one before its end, with
nothing lost, refused or out of order. The fake ends a connection at the first request behind its login's end, as brokers do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually, held_produce
from wire.client.connection import Connection
from wire.frames.types import Node

LIFETIME = 2.0
LIMITS = RouterLimits(settle_grace=0.3, backoff_min=0.01)


class Clock:
    """The source's: it stands still when the process does. Requests that were sent in time lie unread meanwhile."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._seen = time.monotonic()

    def monotonic(self) -> float:
        now = time.monotonic()
        self._lost += max(0.0, now - self._seen - 0.1)
        self._seen = now
        return now - self._lost

    async def run(self) -> None:
        while True:
            self.monotonic()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    clock = Clock()
    made = Rig(source_users={"link": "secret"}, source_nodes=1, limits=LIMITS)
    made.source.session_lifetime_ms = int(LIFETIME * 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fakes.broker.time", clock)
        running = asyncio.create_task(clock.run())
        try:
            async with made:
                yield made
        finally:
            running.cancel()


def without_retries(one: Rig) -> None:
    """Nothing was sent twice, nothing was lost with its connection, and no connection was cut off in use."""
    assert one.source.counts["produce"] == len(one.values())
    assert one.source.expired == 0


def noted_logins(one: Rig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the router got each of its connections to the source; the next write may take it."""
    found: list[float] = []
    really = one.cluster.open_connection

    async def noted(node: Node) -> Connection:
        connection = await really(node)
        found.append(time.monotonic())
        return connection

    monkeypatch.setattr(one.cluster, "open_connection", noted)
    return found


@pytest.mark.parametrize(("acks", "producer_id"), [(-1, 5), (1, -1), (0, -1)])
async def test_a_producer_writes_across_the_ends_of_many_logins(acks: int, producer_id: int) -> None:
    async with rig() as one:
        client = await one.client()
        producer = Producer(client, one, producer_id=producer_id)
        until = time.monotonic() + 3 * LIFETIME
        sent = 0
        while time.monotonic() < until:
            pending = [producer.send(0, acks=acks) for _ in range(3)]
            sent += 3
            if acks:
                assert [(await told)[0].error for told in pending] == [0] * 3
            await asyncio.sleep(0.02)
        await eventually(lambda: len(one.values()) == sent)
        if producer_id >= 0:
            assert one.values() == [(5, sequence) for sequence in range(sent)]
        assert not client.closed
        without_retries(one)
        assert one.source.connections_that_asked("produce") <= 2


async def test_a_slow_answer_comes_on_the_old_one_and_nothing_overtakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig() as one:
        logins = noted_logins(one, monkeypatch)
        producer = Producer(await one.client(), one, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        answer = held_produce(one.source)
        slow = producer.send(0)
        # A broker begins with the next one when the one before it is answered: sent on the old one, writes would come behind
        # its end. They wait for the new one, however long its login takes on a busy machine.
        await eventually(lambda: len(logins) == 2)
        behind = []
        until = logins[0] + 1.3 * LIFETIME
        while time.monotonic() < until:
            behind.append(producer.send(0))
            await asyncio.sleep(0.1)
        assert not slow.done()
        answer.set()
        assert (await slow)[0].error == 0
        assert [(await told)[0].error for told in behind] == [0] * len(behind)
        assert one.values() == [(5, sequence) for sequence in range(2 + len(behind))]
        without_retries(one)


async def test_an_idle_one_is_dropped_and_not_renewed_for_ever() -> None:
    async with rig() as one:
        producer = Producer(await one.client(), one, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        await eventually(lambda: one.source.connections_that_asked("produce") == 0)
        assert (await producer.send(0))[0].error == 0
        without_retries(one)


async def test_a_source_that_takes_no_login_now_is_asked_again() -> None:
    """The old connection goes on until its end; then writes wait."""
    async with rig() as one:
        producer = Producer(await one.client(), one, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        one.source.inject("sasl_authenticate", error=58, times=3)
        until = time.monotonic() + 2.3 * LIFETIME
        while time.monotonic() < until:
            assert (await asyncio.wait_for(producer.send(0), 25))[0].error == 0
            await asyncio.sleep(0.05)
        assert one.source.counts["produce"] == len(one.values())
        assert one.source.expired == 0


async def test_behind_the_end_of_a_login_nothing_is_sent_however_long_there_is_no_new_one() -> None:
    """Also by the short way of a producer that goes on as before (``fast_path.py``)."""
    async with rig() as one:
        producer = Producer(await one.client(), one, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        one.source.inject("sasl_authenticate", error=58, times=10_000)
        until = time.monotonic() + 1.3 * LIFETIME
        pending = []
        while time.monotonic() < until:
            pending.append(producer.send(0))
            await asyncio.sleep(0.05)
        one.source.clear_faults()
        assert [(await asyncio.wait_for(told, 25))[0].error for told in pending] == [0] * len(pending)
        assert one.values() == [(5, sequence) for sequence in range(1 + len(pending))]
        without_retries(one)
