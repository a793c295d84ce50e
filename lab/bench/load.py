"""Fills topics quickly: the same pre-built record batch, sent again and again over raw Produce requests.

Does not live here: what is measured with the data (run.py).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Sequence

import cramjam
from crc32c import crc32c

from wire.client.cluster import Cluster
from wire.errors import BrokerError, ClusterUnreachable, WireError
from wire.frames.primitives import varint
from wire.frames.produce import encode_produce_request, parse_produce_response
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

VERSION = 9  # named topics, flexible; every Kafka from 2.8 on has it
BATCH_OVERHEAD = 61
ZSTD = 4  # of a batch's attributes
PIPELINED = 8
SMALL = 16 * 1024  # batches below it share a request, one of each partition
# Unknown partition, leader not available, not leader; and of a sidecar whose link does not forward yet:
# not enough replicas.
NOT_YET = (3, 5, 6, 19)
FIRST_TIMEOUT = 30.0
ANSWER_TIMEOUT = 60.0

Topics = list[tuple[str, list[tuple[int, memoryview]]]]  # of a request: records by partition


def build_batch(record_bytes: int, batch_bytes: int, timestamp_ms: int, *, zstd: bool = False) -> bytes:
    """A v2 batch without a producer id, about `batch_bytes` long before compression; values are random bytes,
    or random hexadecimal digits (half as long when compressed) with `zstd`.
    """
    records = bytearray()
    count = 0
    while True:
        body = (
            b"\x00"
            + varint(0)
            + varint(count)
            + varint(-1)
            + varint(record_bytes // 2 * 2 if zstd else record_bytes)
            + (os.urandom(record_bytes // 2).hex().encode() if zstd else os.urandom(record_bytes))
            + varint(0)
        )
        record = varint(len(body)) + body
        if count and BATCH_OVERHEAD + len(records) + len(record) > batch_bytes:
            break
        records += record
        count += 1
    if zstd:
        records = bytearray(cramjam.zstd.compress(bytes(records), 3))
    tail = (
        struct.pack(
            ">hiqqqhii", ZSTD if zstd else 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count
        )
        + records
    )
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, crc32c(tail)) + tail


async def fill(cluster: Cluster, topic: str, partitions: int, total_bytes: int, batch: bytes) -> int:
    """Append about `total_bytes` of `batch` to the topic, spread over its partitions; returns the bytes appended.

    Large batches take a connection per partition. Small ones, which cost by the request, travel together.
    """
    await cluster.refresh([topic], timeout=10)
    per_partition = max(1, total_bytes // partitions // len(batch))
    tps = [TopicPartition(topic, index) for index in range(partitions)]
    groups: dict[object, list[TopicPartition]] = {}
    for tp in tps:
        groups.setdefault(cluster.leader(tp) if len(batch) < SMALL else tp, []).append(tp)
    async with TaskGroup() as group:
        for together in groups.values():
            group.create_task(_fill(cluster, together, per_partition, batch))
    return per_partition * partitions * len(batch)


async def _fill(cluster: Cluster, tps: Sequence[TopicPartition], requests: int, batch: bytes) -> None:
    leader = cluster.leader(tps[0])
    if leader is None:
        raise ClusterUnreachable(f"{tps[0]} has no leader")
    connection = await cluster.open_connection(leader)
    loop = asyncio.get_running_loop()
    records = memoryview(batch)
    topics: Topics = [(tps[0].topic, [(tp.partition, records) for tp in tps])]
    room = asyncio.Event()
    failure: list[Exception] = []
    pending = 0

    def send(to: Topics, replied: Callable[[Exception | None], None]) -> None:
        def on_reply(reply: memoryview | WireError) -> None:
            replied(reply if isinstance(reply, WireError) else _error(reply, tps[0].topic))

        correlation_id = connection.next_correlation_id()
        buffers = encode_produce_request(VERSION, correlation_id, "bench-load", None, 1, 30_000, to)
        connection.channel.send(correlation_id, buffers, on_reply)

    def replied(error: Exception | None) -> None:
        nonlocal pending
        pending -= 1
        if error is not None:
            failure.append(error)
        room.set()

    async def first(tp: TopicPartition) -> None:
        """Alone: metadata names a leader a moment before that broker knows that it leads, and a new link
        forwards nothing before its producer ids are safe.
        """
        alone = [(tp.topic, [(tp.partition, records)])]
        deadline = loop.time() + FIRST_TIMEOUT
        while True:
            future: asyncio.Future[Exception | None] = loop.create_future()
            send(alone, future.set_result)
            error = await future
            if error is None:
                return
            if not isinstance(error, BrokerError) or error.code not in NOT_YET or loop.time() > deadline:
                raise error
            await asyncio.sleep(0.05)

    try:
        for tp in tps:
            await first(tp)
        for _ in range(requests - 1):
            while pending >= PIPELINED and not failure:
                room.clear()
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    await room.wait()
            if failure:
                raise failure[0]
            pending += 1
            send(topics, replied)
        async with asyncio.timeout(ANSWER_TIMEOUT):
            while pending and not failure:
                room.clear()
                await room.wait()
        if failure:
            raise failure[0]
    finally:
        connection.close()


def _error(reply: memoryview, topic: str) -> Exception | None:
    for _, results in parse_produce_response(reply, VERSION).topics:
        for result in results:
            if result.error:
                return BrokerError(result.error, message=f"filling {topic}-{result.index}", api="produce")
    return None
