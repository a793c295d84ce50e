"""Produce requests of an unusual shape, at an awkward moment: what they cost, and that order holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.produce.fast_path import FastPath
from tests.fakes.batches import build_batch
from tests.router.rig import Producer, Rig, eventually
from wire.errors import ConnectionLost
from wire.frames.produce import encode_produce_request, parse_produce_response
from wire.frames.types import TopicPartition
from wire.server.listener import ListenerLimits

TP0, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize("batches", [0, 1])
async def test_a_topic_without_partitions_in_front(batches: int) -> None:
    """No client of note sends it, and anybody can."""
    async with Rig() as rig:
        rig.mirror("audit", 1)
        connection = await rig.client()
        producer = Producer(connection, rig)
        await producer.send(0, topic="orders")
        correlation_id = connection.next_correlation_id()
        parts = [(0, memoryview(build_batch(1)))][:batches]
        request = encode_produce_request(
            9, correlation_id, "app", None, -1, 30_000, [("audit", []), ("orders", parts)]
        )
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection.channel.send(correlation_id, request, answered.set_result)
        reply = await asyncio.wait_for(answered, 25)
        response = parse_produce_response(reply, 9)
        assert [(key, [one.error for one in results]) for key, results in response.topics] == [
            ("audit", []),
            ("orders", [0] * batches),
        ]
        assert rig.router.hub.budget.used == 0
        assert len(rig.values()) == 1 + batches


async def test_a_request_that_fails_inside_gives_its_bytes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours closes the connection; it must not take the room of all others, too."""

    def send(*_: Any) -> bool:
        raise RuntimeError("a bug")

    async with Rig() as rig:
        connection = await rig.client()
        monkeypatch.setattr(FastPath, "send", send)
        with pytest.raises(ConnectionLost):
            await Producer(connection, rig).send(0)
        await eventually(lambda: len(rig.loop_errors) == 1)
        rig.loop_errors.clear()
        assert rig.router.hub.budget.used == 0


async def test_what_waits_behind_an_answer_does_not_keep_its_bytes() -> None:
    """The budget has them back when the source has acknowledged them; so must the memory."""
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig)
        await producer.send(0, 1)
        await rig.router.fence([TP0], timeout=25)
        held = producer.send(0)
        behind = producer.send(1, records=build_batch(1, value_size=300_000))
        await eventually(lambda: len(rig.values(index=1)) == 2)
        (server,) = rig.listener.connections
        await eventually(lambda: [one.done for one in server._open] == [False, True])
        assert [len(one.frame) > 0 for one in server._open] == [True, False]
        assert not behind.done()
        rig.router.unfence([TP0])
        assert [(await one)[0].error for one in (held, behind)] == [0, 0]


async def test_a_request_that_comes_in_while_lanes_are_pumped_does_not_overtake() -> None:
    """One partition is refused, which makes room for a request that waited to be read. Its batch is for another partition,
    whose earlier batch is to leave in the same go.
    """
    async with Rig(source_nodes=1) as rig:
        rig.listener.limits = ListenerLimits(max_pipelined=2)
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(1)
        await rig.router.fence([TP0, TP1], timeout=25)
        refused, first, second = producer.send(0), producer.send(1), producer.send(1)
        (server,) = rig.listener.connections
        await eventually(lambda: len(server._open) == 2 and bool(server._backlog))
        rig.directory.mirrors["orders"].partitions[0].leading = False
        rig.router.unfence([TP1, TP0])
        assert (await refused)[0].error != 0
        assert [(await one)[0].error for one in (first, second)] == [0, 0]
        assert rig.values(index=1) == [(5, 0), (5, 1), (5, 2)]


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_partition_that_is_named_twice(version: int, apart: bool) -> None:
    """A broker writes the last of these batches and says nothing of the others. Nothing of the request is written here."""
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig, version=version)
        correlation_id = connection.next_correlation_id()
        mirror = rig.directory.mirrors["orders"]
        key = mirror.topic_id if version == 13 else "orders"
        batch = memoryview(build_batch(1))
        topics = [(key, [(0, batch), (1, batch), (0, batch)])]
        if apart:
            topics = [(key, [(0, batch), (1, batch)]), (key, [(0, batch)])]
        request = encode_produce_request(version, correlation_id, "app", None, -1, 30_000, topics)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection.channel.send(correlation_id, request, answered.set_result)
        reply = await asyncio.wait_for(answered, 25)
        response = parse_produce_response(reply, version)
        told = [(one.index, one.error) for _, results in response.topics for one in results]
        assert told == [(0, 42), (1, 42), (0, 42)]
        assert rig.router.hub.budget.used == 0
        assert [one.error for one in await producer.send(0, 1)] == [0, 0]
        assert (len(rig.values()), len(rig.values(index=1))) == (1, 1)
        assert rig.source.counts["produce"] <= 2


async def test_a_partition_that_is_named_twice_without_acks() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        Producer(connection, rig).send(0, 0, acks=0)
        await eventually(lambda: not rig.listener.connections)
        assert rig.values() == []
        assert rig.router.hub.budget.used == 0
