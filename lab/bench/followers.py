"""Several followers: three copies beside Kafka's own three copies; the source is read once for all of them, and one
that stalls costs no memory.

Stock: brokers 2, 3 and 4 of the source are added to the replicas of a topic on broker 1, so that as many copies are made
as the target's three brokers make through the link. Bytes from the source are counted twice, by the sidecar itself and by
the kernel for its process (which counts everything else that it reads as well, and batches that the source cut off); the
larger one is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from lab.bench.correctness import compare
from lab.bench.growth import Growth, GrowthWatch
from lab.bench.memory import MIB, MemoryWatch, bytes_read
from lab.bench.replication import LARGE, PARTITIONS
from lab.bench.results import CaseResult, Goal, Line, median_of, strip
from lab.bench.settings import Settings
from lab.bench.stage import MEMORY_BUDGET, Source, Stage, stage
from lab.bench.turns import take_turns

REPLICATION_FACTOR = 3
STOCK_FOLLOWERS = (2, 3, 4)
STALLED = 3  # not the broker that is the controller
STALL_AFTER = 0.05  # of the bytes, so that it has begun to read
TOPIC = LARGE.topic


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> list[CaseResult]:
    """Two cases on one stage."""
    total = await LARGE.filled(source, settings)
    await source.renew(STOCK_FOLLOWERS)
    async with stage(source, "three", REPLICATION_FACTOR) as on:
        once = await three_copies(on, settings, total, say)
        stalled = await stalled_follower(on, total, say)
    return [once, stalled]


async def three_copies(on: Stage, settings: Settings, total: int, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "three_followers",
        f"{total / 1e9:.3g} GB, {LARGE.what}, to {REPLICATION_FACTOR} followers at once; the slowest copy, "
        "first byte to last",
    )
    await take_turns(
        result,
        {"stock": partial(_stock_round, on, total), "link": partial(_link_round, on, total)},
        say,
        warm_up=settings.copy_warm_up,
        rounds=settings.copy_rounds,
        unit="MB/s to each",
    )
    await on.create_mirror(TOPIC, REPLICATION_FACTOR)
    await on.wait_active(TOPIC)
    brokers = [node.node_id for node in on.target.brokers]
    result.checked, result.problems = await compare(on, TOPIC, PARTITIONS, brokers)
    await on.delete_mirror(TOPIC)
    stock, link, figures = result.rounds["stock"], result.rounds["link"], result.figures
    figures["stock_mb_per_second"] = median_of(stock, "mb_per_second")
    figures["stock_leader_cpu_per_gb"] = median_of(stock, "leader_cpu_per_gb")
    for key in link[0]:
        figures[f"link_{key}"] = median_of(link, key)
    for key in ("fetched_per_byte", "read_per_byte", "peak_rss_mib"):
        figures[f"link_{key}"] = max(one[key] for one in link)
    ratio = figures["ratio"] = figures["link_mb_per_second"] / figures["stock_mb_per_second"]
    worst = max(figures["link_fetched_per_byte"], figures["link_read_per_byte"])
    result.ratios = {"link / stock followers": ratio, "bytes mirrored / bytes from the source": 1 / worst}
    result.goals = [
        Goal("RF 3, ratio to Kafka's own followers", ratio, 0.9, at_least=True),
        Goal("RF 3, sidecar CPU", figures["link_sidecar_cpu_per_gb"], 0.9, at_least=False, unit="s/GB"),
        Goal("RF 3: bytes from the source / bytes mirrored", worst, 1.02, at_least=False),
    ]
    result.plots = [
        strip("Throughput to each of three", "MB/s", result.rounds, "mb_per_second"),
        strip("Bytes from the source per byte mirrored", "", result.rounds, "read_per_byte"),
    ]
    return result


async def _stock_round(on: Stage, total: int) -> dict[str, Any]:
    cluster = on.source
    watches = [
        GrowthWatch(
            cluster.replica_dirs(TOPIC, PARTITIONS, broker),
            total,
            {"leader": cluster.nodes[1].cpu_seconds, "follower": cluster.nodes[broker].cpu_seconds},
        )
        for broker in STOCK_FOLLOWERS
    ]
    await cluster.reassign(TOPIC, PARTITIONS, [1, *STOCK_FOLLOWERS])
    copies = await asyncio.gather(*(watch.done() for watch in watches))
    await cluster.wait_reassigned()
    await cluster.reassign(TOPIC, PARTITIONS, [1])
    for broker in STOCK_FOLLOWERS:
        await cluster.wait_gone(TOPIC, broker)
    return _slowest(copies)


async def _link_round(on: Stage, total: int) -> dict[str, Any]:
    counted, read = await _fetched(on), bytes_read(on.sidecar)
    watches = [_watch(on, total, node.node_id) for node in on.target.brokers]
    async with MemoryWatch(on.sidecar) as memory:
        await on.create_mirror(TOPIC, REPLICATION_FACTOR)
        copies = await asyncio.gather(*(watch.done() for watch in watches))
    counted, read = await _fetched(on) - counted, bytes_read(on.sidecar) - read
    await on.delete_mirror(TOPIC)
    return {
        **_slowest(copies),
        "fetched_per_byte": counted / total,
        "read_per_byte": read / total,
        "peak_rss_mib": memory.peak / MIB,
    }


def _slowest(copies: list[Growth]) -> dict[str, Any]:
    return {
        "mb_per_second": min(copy.mb_per_second for copy in copies),
        **{
            f"{name}_cpu_per_gb": max(copy.cpu_per_gb(name) for copy in copies)
            for name in copies[0].cpu_seconds
        },
    }


async def _fetched(on: Stage) -> int:
    return (await on.status()).links[0].traffic.fetched_bytes


async def stalled_follower(on: Stage, total: int, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "stalled_follower",
        f"{total / 1e9:.3g} GB to {REPLICATION_FACTOR} followers, one of them stopped (SIGSTOP) on the way "
        "and resumed when the others have it all; resident memory of the sidecar until the last has it too",
        {"link": []},
    )
    stalled = on.target.nodes[STALLED]
    healthy = [node.node_id for node in on.target.brokers if node.node_id != STALLED]
    watches = {node.node_id: _watch(on, total, node.node_id) for node in on.target.brokers}
    reached = GrowthWatch(
        on.target.replica_dirs(TOPIC, PARTITIONS, STALLED), int(total * STALL_AFTER), {}, exact=False
    )
    async with MemoryWatch(on.sidecar) as memory:
        await on.create_mirror(TOPIC, REPLICATION_FACTOR)
        await reached.done()
        stalled.pause()
        try:
            copies: list[Growth] = await asyncio.gather(*(watches[broker].done() for broker in healthy))
        finally:
            stalled.resume()
        behind = await watches[STALLED].done()
    await on.delete_mirror(TOPIC)
    peak = memory.peak / MIB
    result.rounds["link"].append(
        {
            "peak_rss_mib": peak,
            "rss_mib_every_second": memory.every_second(),
            "mb_per_second_of_the_others": min(copy.mb_per_second for copy in copies),
            "seconds_until_the_stalled_one_had_all": behind.seconds,
        }
    )
    say(f"peak {peak:.0f} MiB")
    result.figures["peak_rss_mib"] = peak
    result.plots = [Line("Resident memory, a stalled follower", "MiB", {"sidecar": memory.samples})]
    result.goals = [
        Goal("RSS with a stalled follower", peak, 1.2 * MEMORY_BUDGET / MIB, at_least=False, unit="MiB")
    ]
    return result


def _watch(on: Stage, total: int, broker: int) -> GrowthWatch:
    return GrowthWatch(
        on.target.replica_dirs(TOPIC, PARTITIONS, broker), total, {"sidecar": on.sidecar.cpu_seconds}
    )
