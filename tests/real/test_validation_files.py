"""Faults planted in the files of a real broker, found by the validator process with real Spark.

The target has one broker; each damaged partition is its own, led by it, so that nobody repairs what is broken. Segments are
small enough to have no index entries, so that a changed file is still a log that the broker opens.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from lab.clusters.kafka_cluster import KafkaCluster
from tests.fakes.batches import build_batch, parse_batches
from tests.validator.process import validator_process
from tests.validator.without_spark import found
from validator.messages import Configure, Finished, PartitionPlan, ReplicaPlan, Run, Side
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition
from wire.together import together

TOPIC = "validated"
BATCHES = 10
RECORDS = 4
END = BATCHES * RECORDS


def flip(data: bytearray) -> None:
    info = parse_batches(data)[5]
    data[info.position + info.size - 3] ^= 0x04


def fix_crc(data: bytearray) -> None:
    flip(data)
    info = parse_batches(data)[5]
    crc = crc32c(bytes(data[info.position + 21 : info.position + info.size]))
    struct.pack_into(">I", data, info.position + 17, crc)


def drop(data: bytearray) -> None:
    info = parse_batches(data)[5]
    del data[info.position : info.position + info.size]


def double(data: bytearray) -> None:
    info = parse_batches(data)[5]
    data[info.position : info.position] = data[info.position : info.position + info.size]


def swap(data: bytearray) -> None:
    first, second = parse_batches(data)[5:7]
    start, middle, end = first.position, second.position, second.position + second.size
    data[start:end] = data[middle:end] + data[start:middle]


def cut(data: bytearray) -> None:
    del data[parse_batches(data)[-1].position :]


def one_record_less(data: bytearray) -> None:
    info = parse_batches(data)[-1]
    del data[info.position :]
    data += build_batch(
        RECORDS - 1,
        base_offset=info.base_offset,
        leader_epoch=info.leader_epoch,
        timestamp=info.max_timestamp,
    )


FAULTS: list[tuple[str, Callable[[bytearray], None], list[tuple[str, int]]]] = [
    ("nothing", lambda data: None, []),
    ("one flipped bit", flip, [("corrupt", 20)]),
    ("a changed record, its CRC fixed", fix_crc, [("differing", 20)]),
    ("a missing batch", drop, [("missing", 20)]),
    ("a doubled batch", double, [("overlapping", 20)]),
    ("two batches swapped", swap, [("reordered", 20)]),
    ("ends a batch early", cut, [("short", END - RECORDS)]),
    ("ends a record early", one_record_less, [("differing", END - RECORDS), ("short", END - 1)]),
    ("starts late", lambda data: None, [("late_start", 0)]),
]
LATE = len(FAULTS) - 1


async def client(cluster: KafkaCluster) -> Cluster:
    made = Cluster(
        cluster.spec.name,
        parse_bootstrap_servers(cluster.bootstrap),
        ClientSecurity.plaintext(),
        client_id="test",
    )
    await made.connect()
    return made


async def fill(cluster: KafkaCluster) -> None:
    """The same batches on either cluster."""
    made = await client(cluster)
    try:
        answer = await made.call(
            "create_topics",
            {
                "topics": [
                    {
                        "name": TOPIC,
                        "num_partitions": len(FAULTS),
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [{"name": "retention.ms", "value": "-1"}],
                    }
                ],
                "timeout_ms": 30_000,
            },
            timeout=40,
        )
        assert [int(topic.error_code) for topic in answer.topics] == [0]
        for partition in range(len(FAULTS)):
            for number in range(BATCHES):
                values = [f"{partition}-{number}-{i}".encode() for i in range(RECORDS)]
                await produce(made, partition, build_batch(values, timestamp=1_700_000_000_000 + number))
    finally:
        await made.close()


async def produce(made: Cluster, partition: int, records: bytes) -> None:
    """Acknowledged once; a partition that was only just created is asked again."""
    async with asyncio.timeout(60):
        while True:
            await made.refresh([TOPIC])
            leader = made.leader(TopicPartition(TOPIC, partition))
            if leader is None:
                continue
            data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": records}]}]
            answer = await made.call(
                "produce",
                {"transactional_id": None, "acks": -1, "timeout_ms": 10_000, "topic_data": data},
                node_id=leader.id,
                timeout=20,
                version=9,
            )
            (told,) = answer.responses[0].partition_responses
            if int(told.error_code) in (3, 5, 6):
                await asyncio.sleep(0.1)
                continue
            assert int(told.error_code) == 0
            return


async def delete_records(cluster: KafkaCluster, partition: int, offset: int) -> None:
    made = await client(cluster)
    try:
        await made.refresh([TOPIC])
        answer = await made.call(
            "delete_records",
            {
                "topics": [{"name": TOPIC, "partitions": [{"partition_index": partition, "offset": offset}]}],
                "timeout_ms": 10_000,
            },
            node_id=1,
            timeout=20,
        )
        assert int(answer.topics[0].partitions[0].error_code) == 0
    finally:
        await made.close()


def plant(cluster: KafkaCluster) -> None:
    """Change the files of a broker that is down."""
    for partition, (_, fault, _) in enumerate(FAULTS):
        directory = cluster.partition_dir(1, TopicPartition(TOPIC, partition))
        (segment,) = directory.glob("*.log")
        data = bytearray(segment.read_bytes())
        assert len(data) < 4096, "no index entries yet"
        fault(data)
        segment.write_bytes(data)


def run_of(source: KafkaCluster, target: KafkaCluster, run_id: str, **fields: Any) -> Run:
    def side(cluster: KafkaCluster) -> Side:
        return Side(name=cluster.spec.name, bootstrap=tuple(cluster.bootstrap.split(",")))

    plans = tuple(
        PartitionPlan(topic=TOPIC, partition=index, replicas=(ReplicaPlan(broker_id=1),), **fields)
        for index in range(len(FAULTS))
    )
    return Run(id=run_id, source=side(source), target=side(target), partitions=plans, wait_s=1)


@pytest.mark.timeout(600)
async def test_faults_in_the_files_of_a_broker(
    start_cluster: Callable[..., Awaitable[KafkaCluster]], tmp_path: Path
):
    source, target = await together(start_cluster(name=name, brokers=1) for name in ("source", "target"))
    await fill(source)
    await fill(target)
    async with validator_process(tmp_path) as validator:
        await validator.ready(Configure(work_dir=str(tmp_path / "work")))
        end, results = await validator.result(run_of(source, target, "before", source_partitions=len(FAULTS)))
        assert isinstance(end, Finished), end
        assert (end.mismatches, end.replicas) == (0, len(FAULTS))
        assert [(one.through, one.batches, one.digest == one.source_digest) for one in results] == [
            (END, BATCHES, True)
        ] * len(FAULTS)

        await delete_records(target, LATE, 2 * RECORDS)
        (broker,) = target.brokers
        await broker.stop()
        plant(target)
        await broker.start()
        end, results = await validator.result(run_of(source, target, "after"))
        assert isinstance(end, Finished), end
        assert {FAULTS[one.partition][0]: found(one) for one in results} == {
            name: expected for name, _, expected in FAULTS
        }
        assert end.mismatches == len(FAULTS) - 1
        for one in results:
            _, _, expected = FAULTS[one.partition]
            ends = [offset for kind, offset in expected if kind != "late_start"]
            assert one.through == min([END, *ends])

        end, results = await validator.result(run_of(source, target, "explained", retention_ms=1000))
        assert isinstance(end, Finished) and end.mismatches == len(FAULTS) - 1
        late = results[LATE]
        assert (found(late), late.start, late.through) == ([("late_start", 0)], 2 * RECORDS, END)
        assert late.missing is not None
        assert (late.missing.batches, late.missing.records) == (2, 2 * RECORDS)
        assert "retention.ms=1000" in late.missing.why
