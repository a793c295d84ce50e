"""The ways of a topic that was switched, beside those of one that was not: writes that are forwarded, and their copies.

Of two topics one is mirrored, and written to at the target; the other was switched, and is written to at the source. Either
way each write passes the sidecar to the owner, and each of its bytes comes back through it to both brokers of the other
cluster. In turn: latency at a steady rate, then as much as librdkafka can get rid of at once, until it is acknowledged and
until the copies have it. At the end all logs of both clusters are compared.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka

from admin.models import SyncRequest
from lab.bench.cluster import BenchCluster, BenchError, nap
from lab.bench.latency import CLIENT_LOG, PARTITIONS, Sender
from lab.bench.promote import SMALL_INDEXES
from lab.bench.results import CaseResult, Goal, median_of, strip
from lab.bench.settings import Settings
from lab.bench.stage import LINK, Source, Stage
from lab.bench.switch import BROKERS, RATE, joined_stage, latencies_of, orders_of, switched
from lab.workload.inspection import Placement, compare_clusters, placements
from lab.workload.source_data import SourceTopic
from wire.frames.types import TopicPartition

VALUE = os.urandom(10_000)
SHARE = 10  # of the bytes of a copy
TIMEOUT = 120.0
POLL = 0.02
NO_SLOWER = 0.9


class Flood:
    """A librdkafka that writes as much as it may, into batches of half a megabyte."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": 500_000,
            },
            logger=CLIENT_LOG,
        )

    def write(self, size: int) -> None:
        """Returns when all of it is acknowledged. Blocks; BenchError."""
        failed: list[str] = []

        def told(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for number in range(size // len(VALUE)):
            while True:
                try:
                    self._producer.produce(
                        self._topic, VALUE, partition=number % PARTITIONS, on_delivery=told
                    )
                    break
                except BufferError:
                    self._producer.poll(POLL)
            self._producer.poll(0)
        left = self._producer.flush(TIMEOUT)
        if left or failed:
            raise BenchError(f"{self._topic}: {left} records were not acknowledged, errors {failed[:3]}")


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    async with joined_stage(source, "reversed", settings) as on:
        return await _run(on, settings, say)


async def _run(on: Stage, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    size = settings.bytes // SHARE
    result = CaseResult(
        "reversed",
        f"a topic that was switched, written to at the source, and one that was not, written to at the target, in turn: "
        f"librdkafka at {RATE:,}/s, then {size / 1e6:g} MB at once; acks=all, {PARTITIONS} partitions, RF {BROKERS}",
    )
    topics = {"mirrored": "way-there", "switched": "way-back"}
    at = {"mirrored": on.target.bootstrap, "switched": on.source.bootstrap}
    for topic in topics.values():
        await on.source.create_topic(topic, orders_of(PARTITIONS), SMALL_INDEXES)
    await on.create_mirrors(list(topics.values()), BROKERS)
    await on.wait_all_active(list(topics.values()))
    await on.sync(topics["switched"])
    await asyncio.to_thread(switched, on, [topics["switched"]])
    await asyncio.to_thread(_not_in_sync, on, topics["switched"])
    senders = {side: Sender(side, at[side], topic) for side, topic in topics.items()}
    floods = {side: Flood(at[side], topic) for side, topic in topics.items()}
    result.rounds = {side: [] for side in topics}
    try:
        for number in range(-settings.warm_up, settings.rounds):
            for side, topic in topics.items():
                one = await _round(on, senders[side], floods[side], topic, size, settings)
                say(f"{side} {'warm-up' if number < 0 else f'round {number + 1}'}: {one}")
                if number >= 0:
                    result.rounds[side].append(one)
    finally:
        for sender in senders.values():
            sender.close()
    result.problems += await asyncio.to_thread(_differences, on, topics)
    figures = result.figures
    for side, of in result.rounds.items():
        figures |= {f"{side}_{key}": median_of(of, key) for key in of[0]}
    result.ratios = {
        f"{name}: switched / mirrored": figures[f"switched_{key}"] / figures[f"mirrored_{key}"]
        for name, key in (("forwarded", "forwarded_mb_s"), ("copied", "copied_mb_s"), ("p50", "p50_ms"))
    }
    result.goals = [
        Goal(
            f"{name} to the owner of a switched topic, over a mirrored one's", ratio, NO_SLOWER, at_least=True
        )
        for name, ratio in result.ratios.items()
        if not name.startswith("p50")
    ]
    result.plots = [strip("Forwarded and acknowledged", "MB/s", result.rounds, "forwarded_mb_s")]
    return result


async def _round(
    on: Stage, sender: Sender, flood: Flood, topic: str, size: int, settings: Settings
) -> dict[str, float]:
    cpu = on.sidecar.cpu_seconds()
    found = await asyncio.to_thread(sender.window, RATE, settings.window_seconds)
    one = latencies_of(found, on.sidecar.cpu_seconds() - cpu)
    await _copied(on, topic)
    began = time.monotonic()
    await asyncio.to_thread(flood.write, size)
    acknowledged = time.monotonic()
    await _copied(on, topic)
    return {
        **one,
        "forwarded_mb_s": size / 1e6 / (acknowledged - began),
        "copied_mb_s": size / 1e6 / (time.monotonic() - began),
    }


async def _copied(on: Stage, topic: str) -> None:
    """Until the other cluster's brokers have all of it."""
    deadline = time.monotonic() + TIMEOUT

    def lag() -> int | None:
        with on.sidecar.client() as client:
            return client.describe_mirror(LINK, topic).lag

    while (behind := await asyncio.to_thread(lag)) != 0:
        await nap(deadline, f"{topic} is {behind} records behind after {TIMEOUT:g} s")


def _not_in_sync(on: Stage, topic: str) -> None:
    """The other topic is not, either."""
    with on.sidecar.client() as client:
        client.sync_mirrors(LINK, SyncRequest(topics=[topic], off=True))


def _differences(on: Stage, topics: dict[str, str]) -> list[str]:
    found = []
    for side, topic in topics.items():
        owner, other = (on.source, on.target) if side == "mirrored" else (on.target, on.source)
        written = [SourceTopic(topic, PARTITIONS, lambda _filler, _topic: None)]
        led = _real(owner, placements(owner.bootstrap, written))
        copied = _real(other, placements(other.bootstrap, written))
        compared = compare_clusters(owner, other, written, led, copied)
        found += [f"{one.partition}: {one.difference}" for one in compared if not one.identical]
        if len(compared) != BROKERS * PARTITIONS:
            found.append(f"{topic}: {len(compared)} replicas were compared")
    return found


def _real(
    cluster: BenchCluster, placed: Mapping[TopicPartition, Placement]
) -> dict[TopicPartition, Placement]:
    """Without link brokers, which have no log."""
    ids = {node.node_id for node in cluster.brokers}
    return {
        tp: Placement(one.leader, tuple(b for b in one.replicas if b in ids)) for tp, one in placed.items()
    }
