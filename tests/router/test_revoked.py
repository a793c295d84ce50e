"""A right that was taken away ends within TTL and patience, whatever the broker owes the client meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.authorize import Authorizer
from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually, session_of
from wire.frames.types import AclRight
from wire.schema import codec

TTL, PATIENCE = 0.2, 0.4
LIMITS = RouterLimits(authorization_ttl=TTL, upstream_timeout=PATIENCE, settle_grace=0.3, backoff_min=0.01)
READ_AND_WRITE = 0b11000


class Broker:
    """Answers in order, as a broker does: nothing leaves while a JoinGroup of the client waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bits = READ_AND_WRITE
        self.busy = False
        self.asked = 0
        self._owed: list[Any] = []
        monkeypatch.setattr(Authorizer, "_ask_metadata", lambda *told: self.ask(*told))

    def ask(self, authorizer: Authorizer, topics: list[str], answered: Any) -> None:
        self.asked += 1
        authorizer._upstream.owed = int(self.busy)  # a JoinGroup, as Upstream.forward counts it
        self._owed.append((topics, answered))
        if not self.busy:
            asyncio.get_running_loop().call_soon(self.serve)

    def serve(self) -> None:
        owed, self._owed = self._owed, []
        for topics, answered in owed:
            told = [
                {
                    "error_code": 0,
                    "name": topic,
                    "topic_authorized_operations": self.bits,
                    "partitions": [],
                }
                for topic in topics
            ]
            frame = codec.encode_response("metadata", 9, 1, {"topics": told, "brokers": []})
            answered(memoryview(frame))


async def test_behind_a_join_group_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    async with Rig(limits=LIMITS) as rig:
        producer = Producer(await rig.client(), rig)
        assert [one.error for one in await producer.send(0)] == [0]
        broker.bits, broker.busy = 0, True
        # The old answer is used on, as always, until the broker's time for the next one is over.
        (connection,) = rig.listener.connections
        authorizer = session_of(connection).authorizer
        async with asyncio.timeout(10):
            while True:
                writing = producer.send(0)
                while not writing.done() and authorizer.allowed("orders", AclRight.WRITE) is not None:
                    await asyncio.wait([writing], timeout=0.05)
                if not writing.done():
                    break
                assert [one.error for one in writing.result()] == [0]
                await asyncio.sleep(0.02)
        assert not writing.done()
        written = len(rig.values())
        await asyncio.sleep(3 * (TTL + PATIENCE))
        assert not writing.done()
        assert len(rig.values()) == written  # as long as it takes
        broker.busy = False
        broker.serve()
        assert [one.error for one in await asyncio.wait_for(writing, 25)] == [29]
        assert len(rig.values()) == written


async def test_one_that_was_given_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    async with Rig(limits=LIMITS) as rig:
        producer = Producer(await rig.client(), rig)
        await producer.send(0)
        broker.busy = True
        await asyncio.sleep(TTL + PATIENCE + 0.1)
        writing = producer.send(0)  # the first for longer than an old answer is used
        await asyncio.sleep(0.1)
        assert not writing.done()
        broker.busy = False
        broker.serve()
        assert [one.error for one in await asyncio.wait_for(writing, 25)] == [0]


async def test_while_the_broker_answers_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    async with Rig(limits=LIMITS) as rig:
        producer = Producer(await rig.client(), rig)
        await producer.send(0)
        broker.bits = 0
        codes = []
        for _ in range(60):
            codes += [one.error for one in await producer.send(0)]
            if codes[-1]:
                break
            await asyncio.sleep(0.02)
        assert codes[-1] == 29
        await eventually(lambda: broker.asked >= 2)
