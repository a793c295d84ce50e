"""How far the clocks of a cluster's brokers are from ours, as far as the protocol tells.

No answer of Kafka's carries the time. But a coordinator stamps what it writes to its own topics with its own clock
(`__consumer_offsets`, `__transaction_state`), and ListOffsets tells the newest stamp of a partition (MAX_TIMESTAMP,
KIP-734, Kafka 3.0). A stamp that appears between two readings was made between them: that bounds the difference from both
sides. Where nothing appears, nothing is known, and that is said. Only questions are asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.list_offsets import MAX_TIMESTAMP
from wire.frames.types import TopicPartition

STAMPED = ("__consumer_offsets", "__transaction_state")
_EVERY = 0.2
_CLOSE_MS = 600  # a range that is not wider is good enough


class ClockReading(NamedTuple):
    """Newest stamps in epoch ms, by leader and partition; asked for and answered on our wall clock, ms."""

    asked: int
    answered: int
    stamps: Mapping[tuple[int, TopicPartition], int]


class ClockRange(NamedTuple):
    """A broker's clock minus ours, in ms: somewhere in between."""

    broker: int
    low: int
    high: int


def bound(
    before: ClockReading, after: ClockReading, known: Mapping[int, ClockRange]
) -> dict[int, ClockRange]:
    """Add two readings, one after the other, to the known ranges. A range that has become empty (a clock was set, or
    the stamp is a client's) begins anew."""
    ranges = dict(known)
    for (broker, tp), stamp in after.stamps.items():
        old = before.stamps.get((broker, tp))
        if old is None or old == stamp:
            continue
        fresh = ClockRange(broker, stamp - after.answered, stamp - before.asked)
        was = ranges.get(broker)
        if was is not None and max(was.low, fresh.low) <= min(was.high, fresh.high):
            fresh = ClockRange(broker, max(was.low, fresh.low), min(was.high, fresh.high))
        ranges[broker] = fresh
    return ranges


async def measure(cluster: Cluster, *, patience: float) -> dict[int, ClockRange]:
    """By broker, as far as they stamp something within `patience` seconds. LinkerError if the cluster does not tell."""
    deadline = time.monotonic() + patience
    await cluster.refresh(STAMPED, timeout=patience)
    partitions = [
        TopicPartition(topic, index)
        for topic in STAMPED
        if (found := cluster.topics.get(topic)) is not None and not found.error
        for index in found.partitions
    ]
    if not partitions:
        return {}
    ranges: dict[int, ClockRange] = {}
    leaders = {node.id for tp in partitions if (node := cluster.leader(tp)) is not None}
    before = await _read(cluster, partitions, patience)
    while (left := deadline - time.monotonic()) > 0:
        if leaders <= ranges.keys() and all(one.high - one.low <= _CLOSE_MS for one in ranges.values()):
            break
        await asyncio.sleep(min(_EVERY, left))
        after = await _read(cluster, partitions, max(left, 1.0))
        ranges = bound(before, after, ranges)
        before = after
    return ranges


async def _read(cluster: Cluster, partitions: list[TopicPartition], timeout: float) -> ClockReading:
    asked = time.time_ns() // 1_000_000
    found = await cluster.list_offsets(dict.fromkeys(partitions, MAX_TIMESTAMP), timeout=timeout)
    answered = time.time_ns() // 1_000_000
    codes = {result.error for result in found.values() if result.error}
    if codes and len(codes) == len({result.error for result in found.values()}):
        raise LinkerError(
            f"{cluster.name} does not tell the newest timestamps of its own topics: {sorted(codes)}"
        )
    stamps = {
        (node.id, tp): result.timestamp
        for tp, result in found.items()
        if not result.error and result.timestamp >= 0 and (node := cluster.leader(tp)) is not None
    }
    return ClockReading(asked, answered, stamps)
