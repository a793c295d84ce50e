"""Fills topics quickly: the same pre-built record batch, sent again and again over raw Produce requests.

Does not live here: what is measured with the data (run.py).
"""

from __future__ import annotations

import asyncio
import os
import struct

from crc32c import crc32c

from wire.cluster import Cluster
from wire.errors import BrokerError, ClusterUnreachable, WireError
from wire.produce import encode_produce_request, parse_produce_response
from wire.types import TopicPartition

VERSION = 9  # named topics, flexible; every Kafka from 2.8 on has it
BATCH_OVERHEAD = 61
CRC_FROM = 21
PIPELINED = 8
NOT_YET = (3, 5, 6)  # unknown partition, leader not available, not leader
FIRST_TIMEOUT = 30.0


def varint(value: int) -> bytes:
    """Zig-zag varint as records use it."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def build_batch(record_bytes: int, batch_bytes: int, timestamp_ms: int) -> bytes:
    """An uncompressed v2 batch of random values, about `batch_bytes` long, without a producer id."""
    records = bytearray()
    count = 0
    while True:
        body = (
            b"\x00"
            + varint(0)
            + varint(count)
            + varint(-1)
            + varint(record_bytes)
            + os.urandom(record_bytes)
            + varint(0)
        )
        record = varint(len(body)) + body
        if count and BATCH_OVERHEAD + len(records) + len(record) > batch_bytes:
            break
        records += record
        count += 1
    tail = struct.pack(">hiqqqhii", 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, crc32c(tail)) + tail


async def fill(cluster: Cluster, topic: str, partitions: int, total_bytes: int, batch: bytes) -> int:
    """Append about `total_bytes` of `batch` to the topic, spread over its partitions; returns the bytes appended."""
    await cluster.refresh([topic], timeout=10)
    per_partition = max(1, total_bytes // partitions // len(batch))
    async with asyncio.TaskGroup() as group:
        for partition in range(partitions):
            group.create_task(
                _fill_partition(cluster, TopicPartition(topic, partition), per_partition, batch)
            )
    return per_partition * partitions * len(batch)


async def _fill_partition(cluster: Cluster, tp: TopicPartition, batches: int, batch: bytes) -> None:
    leader = cluster.leader(tp)
    if leader is None:
        raise ClusterUnreachable(f"{tp} has no leader")
    connection = await cluster.open_connection(leader)
    loop = asyncio.get_running_loop()
    pending: set[asyncio.Future[None]] = set()

    def sent(future: asyncio.Future[None]) -> None:
        def on_reply(reply: memoryview | WireError) -> None:
            if isinstance(reply, WireError):
                future.set_exception(reply)
                return
            error = parse_produce_response(reply, VERSION).topics[0][1][0].error
            if error:
                future.set_exception(BrokerError(error, message=f"filling {tp}", api="produce"))
            else:
                future.set_result(None)

        correlation_id = connection.next_correlation_id()
        buffers = encode_produce_request(
            VERSION,
            correlation_id,
            "bench-load",
            None,
            1,
            30_000,
            [(tp.topic, [(tp.partition, memoryview(batch))])],
        )
        connection.channel.send(correlation_id, buffers, on_reply)

    async def first() -> None:
        """Alone: metadata names a leader a moment before that broker knows that it leads."""
        deadline = loop.time() + FIRST_TIMEOUT
        while True:
            future: asyncio.Future[None] = loop.create_future()
            sent(future)
            try:
                await future
                return
            except BrokerError as error:
                if error.code not in NOT_YET or loop.time() > deadline:
                    raise
            await asyncio.sleep(0.05)

    try:
        await first()
        for _ in range(batches - 1):
            while len(pending) >= PIPELINED:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    future.result()
            future = loop.create_future()
            sent(future)
            pending.add(future)
        if pending:
            done, _ = await asyncio.wait(pending, timeout=60)
            for future in done:
                future.result()
    finally:
        connection.close()
