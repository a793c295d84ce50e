"""Gates against stock brokers and stock clients: nothing is read while gated, and then exactly from the commit on."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from controller.groups import GateKind
from groups.gates.base import Gate, GroupActive
from groups.gates.coordinators import KeyType
from groups.gates.requests import describe
from lab.clusters.kafka_cluster import KafkaCluster
from tests.real.harness_gates import (
    Reader,
    Side,
    add_partitions,
    at,
    filled_topic,
    offsets,
    renew_for,
    sidecar,
)
from wire.errors import ClusterUnreachable
from wire.frames.types import TopicPartition

PARTITIONS = 4
RECORDS = 300
HOLD = 4.0
LIBRARIES = ("confluent classic", "confluent consumer", "aiokafka", "kafka-python")
# Which gates are made for which clients; kafka-python and aiokafka do not ask for stable offsets by default.
HELD_BY = [
    *((GateKind.CONSUMER_AND_TRANSACTION, library) for library in LIBRARIES),
    *((GateKind.CLASSIC_AND_TRANSACTION, library) for library in LIBRARIES),
    (GateKind.CONSUMER, "confluent consumer"),
    (GateKind.CONSUMER, "kafka-python"),
    (GateKind.CLASSIC, "aiokafka"),
    (GateKind.TRANSACTION, "confluent classic"),
    (GateKind.TRANSACTION, "confluent consumer"),
]


async def held_and_opened(bootstrap: str, topic: str, pairs: list[tuple[GateKind, str]]) -> dict[str, float]:
    """All pairs at once, each a group: closed, a client comes, another sidecar takes over, opened. Seconds from opening to
    the last partition's first record.
    """
    await filled_topic(bootstrap, topic, PARTITIONS, RECORDS)
    groups = {f"{kind} {library} {topic}".replace(" ", "-"): (kind, library) for kind, library in pairs}
    stored: dict[str, object] = {}
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(sidecar(bootstrap, stored))
        gates: dict[str, Gate] = {name: one.plan(name, kind) for name, (kind, _) in groups.items()}
        await asyncio.gather(*(gate.close(at(topic, 10, PARTITIONS)) for gate in gates.values()))
        readers = {name: Reader(library, bootstrap, name, [topic]) for name, (_, library) in groups.items()}
        for reader in readers.values():
            stack.push_async_callback(reader.stop)
        await renew_for(gates, HOLD)
        await asyncio.gather(*(gate.commit(offsets(topic, 50, PARTITIONS)) for gate in gates.values()))
        two = await stack.enter_async_context(sidecar(bootstrap, stored))
        gates = {name: two.resume(name) for name in groups}
        await asyncio.gather(*(gate.close(at(topic, 50, PARTITIONS)) for gate in gates.values()))
        await renew_for(gates, HOLD)
        early = {name: reader.first for name, reader in readers.items() if reader.first}
        assert not early

        took: dict[str, float] = {}

        async def open_one(name: str) -> None:
            await gates[name].open(offsets(topic, 100, PARTITIONS))
            opened = time.monotonic()
            await readers[name].wait_first(PARTITIONS, 30.0)
            took[name] = max(when for _, when in readers[name].first.values()) - opened

        await asyncio.gather(*(open_one(name) for name in groups))
        for name, reader in readers.items():
            begun = {tp.partition: offset for tp, (offset, _) in reader.first.items()}
            assert begun == {index: 100 + index for index in range(PARTITIONS)}, name
        return took


async def test_every_gate_holds_the_clients_it_is_made_for(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str], record_property: Callable[..., None]
) -> None:
    took = await held_and_opened(target_cluster.bootstrap, unique_topic("gated"), HELD_BY)
    for name, seconds in took.items():
        record_property(name, round(seconds, 2))
        print(f"{name}: {seconds:.2f} s from opening to the last partition's first record")


@pytest.mark.slow
async def test_classic_gates_on_a_target_without_the_consumer_protocol(
    start_cluster: Callable[..., Awaitable[KafkaCluster]], unique_topic: Callable[[str], str]
) -> None:
    old = await start_cluster(name="old", version="3.9.1")
    pairs = [
        (GateKind.CLASSIC_AND_TRANSACTION, library)
        for library in LIBRARIES
        if library != "confluent consumer"
    ]
    await held_and_opened(old.bootstrap, unique_topic("gated"), pairs)


async def test_opening_right_after_the_last_member_came(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    """aiokafka joins as somebody new when it hears ILLEGAL_GENERATION, and waits for the session of whom it was: the gate
    must not leave before the first member has heard of the second."""
    topic, session = unique_topic("gated"), 30.0
    bootstrap = target_cluster.bootstrap
    await filled_topic(bootstrap, topic, PARTITIONS, RECORDS)
    async with AsyncExitStack() as stack:
        side = await stack.enter_async_context(sidecar(bootstrap, {}))
        gate = side.plan(topic, GateKind.CONSUMER_AND_TRANSACTION)
        await gate.close(at(topic, 10, PARTITIONS))
        readers: list[Reader] = []
        for count in (2, 3):  # the gate's member is one
            readers.append(Reader("aiokafka", bootstrap, topic, [topic], session=session))
            stack.push_async_callback(readers[-1].stop)
            async with asyncio.timeout(30):
                while len((await describe(side.coordinators, topic, timeout=10)).members) < count:
                    await asyncio.sleep(0.02)
        await gate.open(offsets(topic, 100, PARTITIONS))
        async with asyncio.timeout(session / 2):
            while len({tp for reader in readers for tp in reader.first}) < PARTITIONS:
                await asyncio.sleep(0.02)
    begun = {tp.partition: offset for reader in readers for tp, (offset, _) in reader.first.items()}
    assert begun == {index: 100 + index for index in range(PARTITIONS)}


async def coordinator(side: Side, group: str) -> int | None:
    try:
        return await side.coordinators.find(KeyType.GROUP, group)
    except ClusterUnreachable:
        return None


async def test_a_restarted_coordinator_and_partitions_that_appear(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    topic, later = unique_topic("gated"), unique_topic("later")
    bootstrap = target_cluster.bootstrap
    await filled_topic(bootstrap, topic, PARTITIONS, RECORDS)
    await filled_topic(bootstrap, later, 1, RECORDS)
    everything = at(topic, 10, PARTITIONS + 2) | at(later, 5, 1)
    async with AsyncExitStack() as stack:
        side = await stack.enter_async_context(sidecar(bootstrap, {}))
        consumer = f"consumer-{topic}"
        async with asyncio.timeout(30):  # the first group of a cluster has none at once
            while (node := await coordinator(side, consumer)) is None:
                await asyncio.sleep(0.2)
        for number in itertools.count():  # one broker coordinates both, so that one restart does
            classic = f"classic-{number}-{topic}"
            if await coordinator(side, classic) == node:
                break
        gates = {
            consumer: side.plan(consumer, GateKind.CONSUMER_AND_TRANSACTION),
            classic: side.plan(classic, GateKind.CLASSIC_AND_TRANSACTION),
        }
        for gate in gates.values():
            await gate.close(at(topic, 10, PARTITIONS))
        readers = {classic: Reader("confluent classic", bootstrap, classic, [topic, later])}
        stack.push_async_callback(readers[classic].stop)
        await renew_for(gates, 1.0)
        for gate in gates.values():
            await gate.close(everything)
        # One gate has somebody waiting by then, the other one has not: see `pair` for what a consumer member cannot hold.
        await add_partitions(bootstrap, topic, PARTITIONS + 2, range(PARTITIONS, PARTITIONS + 2), RECORDS)
        await renew_for(gates, 6.0)  # a heartbeat tells the consumer member of its new partitions
        readers[consumer] = Reader("confluent consumer", bootstrap, consumer, [topic, later])
        stack.push_async_callback(readers[consumer].stop)
        await renew_for(gates, 3.0)

        (broker,) = (broker for broker in target_cluster.brokers if broker.node_id == node)
        restarting = asyncio.get_running_loop().create_task(broker.restart())
        while not restarting.done():
            await renew_for(gates, 0.5)
        await restarting
        await renew_for(gates, 3.0)
        assert {name: reader.first for name, reader in readers.items() if reader.first} == {}
        final = offsets(topic, 100, PARTITIONS + 2) | offsets(later, 200, 1)
        await asyncio.gather(*(gate.commit(final) for gate in gates.values()))
        assert {name: gate.unheld() for name, gate in gates.items() if gate.unheld()} == {}

        await asyncio.gather(*(gate.open(final) for gate in gates.values()))
        for name, reader in readers.items():
            await reader.wait_first(PARTITIONS + 3, 60.0)
            begun = {tp: offset for tp, (offset, _) in reader.first.items()}
            assert begun == {tp: offset.offset for tp, offset in final.items()}, name


async def test_an_active_group_is_refused_and_goes_on_undisturbed(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    topic = unique_topic("active")
    bootstrap = target_cluster.bootstrap
    await filled_topic(bootstrap, topic, 2, RECORDS)
    async with AsyncExitStack() as stack:
        side = await stack.enter_async_context(sidecar(bootstrap, {}))
        for library in ("confluent classic", "confluent consumer"):
            group = f"{library}-{topic}".replace(" ", "-")
            reader = Reader(library, bootstrap, group, [topic])
            stack.push_async_callback(reader.stop)
            await reader.wait_first(2, 30.0)
            for kind in set(GateKind) - {GateKind.STREAMS}:
                with pytest.raises(GroupActive, match="app-") as refused:
                    await side.plan(group, kind).close(at(topic, 10, 2))
                assert {tp for member in refused.value.members for tp in member.partitions} == {
                    TopicPartition(topic, 0),
                    TopicPartition(topic, 1),
                }
