"""The Router's throughput: 64 kB batches produced through the sidecar, beside the same produced straight to the source
and the same through a process that only passes bytes on (relay.py).

The mirror is paused meanwhile (its followers get nothing, forwarding goes on), so the sidecar's CPU is the Router's alone.
Afterwards it is resumed, and its copy is compared with the source.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from lab.bench.cluster import BenchCluster, BenchError
from lab.bench.correctness import compare
from lab.bench.load import build_batch, fill
from lab.bench.page_cache import give_back
from lab.bench.relay import HOST, RelayProcess
from lab.bench.replication import PARTITIONS
from lab.bench.results import CaseResult, Goal, median_of, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, require_disk, stage
from lab.bench.turns import take_turns
from lab.clusters.child_process import ChildProcess
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.frames.types import Node, TopicPartition

TOPIC = "routed"
BATCH_BYTES = 64 * 1024
SHARE = 0.4  # of the settings' bytes, in each round
SIDES = 3  # direct, relay, link


class Relayed(Cluster):
    """The source, every connection to its node 1 through the relay."""

    def __init__(self, source: BenchCluster, relay: RelayProcess) -> None:
        address = (HOST, source.brokers[0].port())
        super().__init__("relayed", [address], ClientSecurity.from_properties({}), client_id="bench")
        self._relay = relay

    async def open_connection(
        self, node: Node | int, *, alloc: Callable[[int], bytearray] | None = None
    ) -> Connection:
        """A connection of its own for the caller, who closes it."""
        return await super().open_connection(Node(1, HOST, self._relay.port), alloc=alloc)


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    total = int(settings.bytes * SHARE)
    result = CaseResult(
        "forward",
        f"{total / 1e9:.3g} GB in {BATCH_BYTES // 1024} kB batches, 8 requests in flight on each of {PARTITIONS} "
        "connections, acks=1; through the sidecar, beside straight to the source and through a process that only "
        "passes bytes on",
    )
    # Every round stays on the source's disk, and all of it is copied to the target's at the end.
    rounds = SIDES * (settings.copy_warm_up + settings.copy_rounds)
    require_disk(source.directory, 2 * rounds * total, "the case forward")
    batch = build_batch(1000, BATCH_BYTES, int(time.time() * 1000))
    async with (
        source.topic(TOPIC, PARTITIONS),
        stage(source, "forward", 1) as on,
        RelayProcess(on.source.brokers[0].port(), source.directory / "relay") as relay,
        _relayed(on.source, relay) as relayed,
    ):
        await on.create_mirror(TOPIC, 1)
        await on.wait_active(TOPIC)
        await on.pause_mirror(TOPIC)
        # A new link forwards nothing before its producer ids are safe: the first request of all waits for that.
        acknowledged = [await fill(on.target.connected, TOPIC, PARTITIONS, 1, batch)]

        async def produce(cluster: Cluster, between: ChildProcess) -> dict[str, Any]:
            size, one = await _round(on, cluster, between, total, batch)
            acknowledged.append(size)
            await asyncio.to_thread(give_back, on.source.replica_dirs(TOPIC, PARTITIONS, 1))
            return one

        await take_turns(
            result,
            {
                "direct": partial(produce, on.source.connected, on.sidecar),
                "relay": partial(produce, relayed, relay),
                "link": partial(produce, on.target.connected, on.sidecar),
            },
            say,
            warm_up=settings.copy_warm_up,
            rounds=settings.copy_rounds,
        )
        await on.resume_mirror(TOPIC)
        await on.wait_active(TOPIC)
        result.checked, result.problems = await compare(on, TOPIC, PARTITIONS, [1])
        if result.checked["bytes"] != (expected := sum(acknowledged)):
            result.problems.append(
                f"{expected} bytes were acknowledged, the logs hold {result.checked['bytes']}"
            )
    _judge(result)
    return result


@asynccontextmanager
async def _relayed(source: BenchCluster, relay: RelayProcess) -> AsyncIterator[Cluster]:
    cluster = Relayed(source, relay)
    try:
        yield cluster
    finally:
        await cluster.close()


async def _round(
    on: Stage, cluster: Cluster, between: ChildProcess, total: int, batch: bytes
) -> tuple[int, dict[str, Any]]:
    await cluster.refresh([TOPIC], timeout=10)
    if cluster.leader(TopicPartition(TOPIC, 0)) is None:
        raise BenchError(f"{TOPIC} has no leader")
    used, leader = between.cpu_seconds(), on.source.nodes[1].cpu_seconds()
    began = time.monotonic()
    size = await fill(cluster, TOPIC, PARTITIONS, total, batch)
    seconds = time.monotonic() - began
    gb = size / 1e9
    return size, {
        "mb_per_second": size / 1e6 / seconds,
        "cpu_per_gb": (between.cpu_seconds() - used) / gb,
        "leader_cpu_per_gb": (on.source.nodes[1].cpu_seconds() - leader) / gb,
    }


def _judge(result: CaseResult) -> None:
    figures, rounds = result.figures, result.rounds
    for side in ("direct", "relay", "link"):
        for key in rounds[side][0]:
            figures[f"{side}_{key}"] = median_of(rounds[side], key)
    ratio = figures["ratio"] = figures["link_mb_per_second"] / figures["direct_mb_per_second"]
    relayed = figures["relay_ratio"] = figures["relay_mb_per_second"] / figures["direct_mb_per_second"]
    figures["cpu_of_the_relay"] = figures["relay_cpu_per_gb"] / figures["link_cpu_per_gb"]
    result.ratios = {"forwarded / direct": ratio, "forwarded / relayed": ratio / relayed}
    result.goals = [
        Goal("Router throughput, ratio to direct", ratio, 0.9, at_least=True),
        Goal("Router CPU", figures["link_cpu_per_gb"], 0.7, at_least=False, unit="s/GB"),
    ]
    result.plots = [
        strip("Produce", "MB/s", rounds, "mb_per_second"),
        strip("CPU of sidecar, or relay", "s/GB", rounds, "cpu_per_gb"),
    ]
