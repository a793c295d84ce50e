"""The fakes answer as Kafka does where other tests rely on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes import FakeCluster, FakeLog, build_batch, control_batch, parse_batches, values_of
from tests.fakes.batches import crc_ok
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost, RequestTimedOut


@asynccontextmanager
async def to_node(fake: FakeCluster, node: int = 1) -> AsyncIterator[Connection]:
    broker = fake.brokers[node]
    connection = await Connection.open(
        broker.host, broker.port, ClientSecurity.plaintext(), client_id="me", timeout=5
    )
    try:
        yield connection
    finally:
        connection.close()
        await connection.closed_event.wait()


def batch(sequence: int, *, pid: int = 7, epoch: int = 0, count: int = 1) -> bytes:
    return build_batch(count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


# --- batches and logs


def test_batches_are_what_kafka_expects() -> None:
    data = build_batch([b"a", (b"k", None)], base_offset=5, leader_epoch=3) + control_batch(9, 0, commit=True)
    first, second = parse_batches(data, allow_partial=False)
    assert (first.base_offset, first.last_offset, first.leader_epoch, first.count) == (5, 6, 3, 2)
    assert crc_ok(data, first)
    assert second.is_control
    assert second.is_transactional
    assert values_of(data)[:2] == [(5, b"a"), (6, None)]
    assert not crc_ok(data[:70] + b"\xff\xff" + data[72:], first)


def test_sequences_like_the_broker_checks_them() -> None:
    log = FakeLog()
    for sequence in range(7):
        assert log.append(batch(sequence), 0).base_offset == sequence
    # one of the last five again: its first offset, nothing appended
    assert log.append(batch(2), 0) == (0, 2, True)
    assert log.log_end_offset == 7
    assert log.append(batch(1), 0).error == 45
    assert log.append(batch(8), 0).error == 45
    assert log.append(batch(7), 0).base_offset == 7
    # a new epoch starts at zero; the old one is fenced
    assert log.append(batch(3, epoch=1), 0).error == 45
    assert log.append(batch(0, epoch=1), 0).error == 0
    assert log.append(batch(8), 0).error == 47
    # a producer nobody knows may start anywhere
    assert log.append(batch(40, pid=8), 0).error == 0
    # without a producer id nothing is checked
    assert log.append(build_batch(1), 0).error == 0
    assert log.append(build_batch(1), 0).error == 0


def test_the_sequence_wraps() -> None:
    log = FakeLog()
    assert log.append(batch(2**31 - 2, count=3), 0).error == 0
    assert log.append(batch(1), 0).error == 0


def test_a_corrupt_batch_is_refused() -> None:
    log = FakeLog()
    data = bytearray(build_batch(1))
    data[-1] ^= 1
    assert log.append(bytes(data), 0).error == 2
    assert log.append(b"", 0).error == 2
    assert log.append(build_batch(1)[:-3], 0).error == 2
    assert log.log_end_offset == 0


def test_epochs_truncation_and_regrowth() -> None:
    log = FakeLog()
    log.add(10, leader_epoch=0)
    log.add(10, leader_epoch=2)
    log.add(10, leader_epoch=5)
    assert log.epochs == [(0, 0), (2, 10), (5, 20)]
    assert log.epoch_end(0, 5) == (0, 10)
    assert log.epoch_end(3, 5) == (2, 20)
    assert log.epoch_end(5, 5) == (5, 30)
    assert log.epoch_end(7, 5) == (-1, -1)
    log.truncate(20)
    assert log.log_end_offset == log.high_watermark == 20
    log.add(3, leader_epoch=6)
    assert log.epoch_end(5, 6) == (2, 20)
    assert log.epoch_of(21) == 6


def test_truncation_forgets_producers_beyond_it() -> None:
    log = FakeLog()
    for sequence in range(4):
        log.append(batch(sequence), 0)
    log.truncate(2)
    assert log.append(batch(3), 0).error == 45
    assert log.append(batch(2), 0).base_offset == 2


def test_transactions_hold_the_last_stable_offset() -> None:
    log = FakeLog()
    log.add(2)
    log.add(3, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    log.add(1)
    assert (log.last_stable_offset, log.high_watermark) == (2, 6)
    log.end_transaction(4, 0, commit=False)
    assert log.last_stable_offset == log.high_watermark == 7
    assert log.aborted == [(4, 2, 6)]


def test_reads_cut_the_last_batch_and_give_the_first_one_whole() -> None:
    log = FakeLog()
    for _ in range(3):
        log.add(5, value_size=100)
    size = len(log.batches[0].data)
    assert len(log.read(0, size + 10, until=15)) == size + 10
    assert len(log.read(0, 10, until=15)) == size
    assert log.read(0, 10, until=15, whole_first=False) == b""
    # the batch that holds the offset, up to the high watermark
    assert [b.base_offset for b in parse_batches(log.read(7, 10**6, until=10))] == [5]
    assert log.read(15, 10**6, until=15) == b""


# --- Produce


async def produce(
    connection: Connection, topic: str, records: bytes, partition: int = 0, acks: int = -1
) -> Any:
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    answer = await connection.call(
        "produce", {"acks": acks, "timeout_ms": 1000, "topic_data": data}, timeout=5, max_version=12
    )
    return answer.responses[0].partition_responses[0]


async def test_produce_to_the_leader_and_to_another() -> None:
    async with FakeCluster(2) as fake, to_node(fake) as connection:
        fake.add_topic("t", 2, leader_epoch=4)
        done = await produce(connection, "t", build_batch(3))
        assert (done.error_code, done.base_offset) == (0, 0)
        assert fake.partition("t").log.batches[0].info.leader_epoch == 4
        moved = await produce(connection, "t", build_batch(3), partition=1)
        assert moved.error_code == 6
        assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (2, 4)
        assert (await produce(connection, "none", build_batch(1))).error_code == 3


async def test_a_lost_answer_is_a_duplicate_the_second_time() -> None:
    async with FakeCluster(1) as fake:
        fake.add_topic("t")
        fake.inject("produce", close_after=0)
        async with to_node(fake) as connection:
            with pytest.raises(ConnectionLost):
                await produce(connection, "t", batch(0, count=3))
        assert fake.partition("t").log.log_end_offset == 3
        async with to_node(fake) as connection:
            again = await produce(connection, "t", batch(0, count=3))
        assert (again.error_code, again.base_offset) == (0, 0)
        assert fake.partition("t").log.log_end_offset == 3


async def test_faults_with_and_without_effect() -> None:
    async with FakeCluster(1) as fake, to_node(fake) as connection:
        fake.add_topic("t")
        log = fake.partition("t").log
        fake.inject("produce", error=6)
        assert (await produce(connection, "t", build_batch(1))).error_code == 6
        assert log.log_end_offset == 0
        fake.inject("produce", error=7, apply=True)
        assert (await produce(connection, "t", build_batch(1))).error_code == 7
        assert log.log_end_offset == 1
        fake.inject("produce", delay=0.1)
        start = time.monotonic()
        assert (await produce(connection, "t", build_batch(1))).base_offset == 1
        assert time.monotonic() - start >= 0.1
        fake.inject("produce", drop=True, process=False)
        with pytest.raises(RequestTimedOut):
            await connection.call(
                "produce",
                {"acks": -1, "topic_data": [{"name": "t", "partition_data": [{"records": build_batch(1)}]}]},
                timeout=0.1,
                max_version=12,
            )
        assert log.log_end_offset == 2


async def test_a_fault_is_for_its_node_and_match_only() -> None:
    async with FakeCluster(2) as fake:
        fake.add_topic("t", 2)
        fault = fake.inject("produce", error=6, node=2, times=None, match=lambda r: r.acks == -1)
        async with to_node(fake, 1) as connection:
            assert (await produce(connection, "t", build_batch(1))).error_code == 0
        async with to_node(fake, 2) as connection:
            assert (await produce(connection, "t", build_batch(1), partition=1)).error_code == 6
            assert (await produce(connection, "t", build_batch(1), partition=1, acks=1)).error_code == 0
        assert fault.hits == 1
        fake.clear_faults()


# --- Fetch


async def fetch(
    connection: Connection,
    fake: FakeCluster,
    offsets: dict[int, int],
    *,
    version: int = 17,
    session: tuple[int, int] = (0, -1),
    forget: tuple[int, ...] = (),
    wait_ms: int = 0,
    **partition: object,
) -> Any:
    topic = fake.topics.get("t")
    key = {"topic": "t", "topic_id": topic.topic_id if topic else bytes(16)}
    asked = [
        {"partition": p, "fetch_offset": o, "partition_max_bytes": 1 << 20, **partition}
        for p, o in offsets.items()
    ]
    return await connection.call(
        "fetch",
        {
            "replica_id": -1,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "session_id": session[0],
            "session_epoch": session[1],
            "topics": [{**key, "partitions": asked}] if asked else [],
            "forgotten_topics_data": [{**key, "partitions": list(forget)}] if forget else [],
        },
        timeout=5,
        version=version,
    )


def told(answer: Any) -> dict[int, int]:
    """Partition -> bytes of records."""
    return {p.partition_index: len(p.records or b"") for topic in answer.responses for p in topic.partitions}


@pytest.mark.parametrize("version", range(4, 18))
async def test_fetch_in_every_version(version: int) -> None:
    async with FakeCluster(1) as fake, to_node(fake) as connection:
        fake.add_topic("t")
        fake.add("t", 0, [b"one", b"two"])
        answer = await fetch(connection, fake, {0: 0}, version=version)
        (partition,) = answer.responses[0].partitions
        assert (partition.error_code, partition.high_watermark) == (0, 2)
        assert values_of(partition.records) == [(0, b"one"), (1, b"two")]


async def test_fetch_waits_for_data_but_not_longer_than_asked() -> None:
    async with FakeCluster(1) as fake, to_node(fake) as connection:
        fake.add_topic("t")
        start = time.monotonic()
        assert told(await fetch(connection, fake, {0: 0}, wait_ms=100)) == {0: 0}
        assert time.monotonic() - start >= 0.1
        waiting = asyncio.create_task(fetch(connection, fake, {0: 0}, wait_ms=60_000))
        await asyncio.sleep(0.05)
        fake.add("t")
        assert told(await waiting)[0] > 0
        assert time.monotonic() - start < 30


async def test_incremental_sessions() -> None:
    async with FakeCluster(1) as fake, to_node(fake) as connection:
        fake.add_topic("t", 3)
        fake.add("t", 0)
        full = await fetch(connection, fake, {0: 0, 1: 0, 2: 0}, session=(0, 0))
        assert set(told(full)) == {0, 1, 2}
        session = full.session_id
        assert session > 0
        assert told(await fetch(connection, fake, {0: 1}, session=(session, 1))) == {}
        fake.add("t", 1)
        assert set(told(await fetch(connection, fake, {}, session=(session, 2)))) == {1}
        # still not fetched past: told again; 2 is forgotten
        fake.add("t", 2)
        assert set(told(await fetch(connection, fake, {}, session=(session, 3), forget=(2,)))) == {1}
        for bad, error in (((session, 3), 71), ((session + 1, 1), 70)):
            assert (await fetch(connection, fake, {}, session=bad)).error_code == error
        assert (await fetch(connection, fake, {}, session=(session, 4), version=12)).error_code == 106
        # the session survives bad requests and ends with epoch -1
        assert (await fetch(connection, fake, {0: 1}, session=(session, 4))).error_code == 0
        assert (await fetch(connection, fake, {0: 1}, session=(session, -1))).session_id == 0
        assert (await fetch(connection, fake, {}, session=(session, 5))).error_code == 70


async def test_fetch_errors_and_divergence() -> None:
    async with FakeCluster(2) as fake, to_node(fake) as connection:
        fake.add_topic("t", 2)
        fake.add("t", 0, 10)
        fake.truncate("t", 0, 10)
        fake.add("t", 0, 10)

        async def one(offset: int, **partition: object) -> Any:
            answer = await fetch(connection, fake, {0: offset}, **partition)  # type: ignore[arg-type]
            return answer.responses[0].partitions[0]

        assert (await one(21)).error_code == 1
        assert (await one(0, current_leader_epoch=0)).error_code == 74
        assert (await one(0, current_leader_epoch=2)).error_code == 75
        assert (await one(15, last_fetched_epoch=1)).error_code == 0
        diverged = (await one(15, last_fetched_epoch=0)).diverging_epoch
        assert (diverged.epoch, diverged.end_offset) == (0, 10)
        fake.move_leader("t", 0, 2)
        follower_read = await one(0)
        assert follower_read.error_code == 0
        fake.partition("t").replicas.remove(1)
        moved = await one(0)
        assert (moved.error_code, moved.current_leader.leader_id) == (6, 2)


async def test_a_recreated_topic_is_another_topic() -> None:
    async with FakeCluster(1) as fake, to_node(fake) as connection:
        old = fake.add_topic("t")
        fake.recreate_topic("t")
        assert fake.topics["t"].topic_id != old.topic_id
        topics = [{"topic_id": old.topic_id, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]
        answer = await connection.call(
            "fetch", {"topics": topics, "session_epoch": -1}, timeout=5, version=13
        )
        assert answer.responses[0].partitions[0].error_code == 100


async def test_a_rack_is_sent_to_its_replica() -> None:
    async with FakeCluster(2, racks={1: "a", 2: "b"}) as fake, to_node(fake) as connection:
        fake.add_topic("t")
        fake.add("t")
        fake.follower_fetching = True
        topics = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
        for rack, expected in (("a", -1), ("b", 2), ("", -1), ("z", -1)):
            answer = await connection.call(
                "fetch", {"replica_id": -1, "topics": topics, "rack_id": rack}, timeout=5, version=12
            )
            assert answer.responses[0].partitions[0].preferred_read_replica == expected


async def test_metadata_shows_what_is_published() -> None:
    async with FakeCluster(2) as fake, to_node(fake) as connection:
        fake.add_topic("t")
        fake.move_leader("t", 0, 2, publish=False)

        async def leader() -> int:
            answer = await connection.call("metadata", {"topics": [{"name": "t"}]}, timeout=5)
            return int(answer.topics[0].partitions[0].leader_id)

        assert await leader() == 1
        fake.publish("t", 0)
        assert await leader() == 2
        await fake.brokers[2].stop()
        assert await leader() == -1


async def test_a_stopped_node_returns_on_its_port() -> None:
    async with FakeCluster(1) as fake:
        port = fake.brokers[1].port
        async with to_node(fake) as connection:
            await fake.brokers[1].stop()
            await connection.closed_event.wait()
        await fake.brokers[1].start()
        assert fake.brokers[1].port == port
        async with to_node(fake) as connection:
            assert (await connection.call("describe_cluster", {}, timeout=5)).cluster_id == fake.cluster_id
