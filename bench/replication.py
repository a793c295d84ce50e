"""Replication to one stock follower: through the link, beside Kafka's own follower with the same bytes.

Rounds alternate, so that whatever else the machine does meets both sides. Stock: the source's broker 2 is
added to the replicas of a topic on broker 1. Link: the target's only broker is the replica of the mirror.
Either way one stock broker fetches 1 kB records in 128 kB batches over loopback and writes them down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.growth import Growth, GrowthWatch
from bench.memory import MIB, MemoryWatch
from bench.results import CaseResult, Goal, median_of
from bench.settings import Settings
from bench.stage import Source, Stage, stage

TOPIC = "replicated"
PARTITIONS = 4
RECORD_BYTES = 1000
BATCH_BYTES = 128 * 1024


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "replication",
        f"{settings.bytes / 1e9:g} GB, {RECORD_BYTES} B records in {BATCH_BYTES // 1024} kB batches, "
        f"{PARTITIONS} partitions, one follower; growth of the follower's log files, first byte to last",
        {"stock": [], "link": [], "stock_warm_up": [], "link_warm_up": []},
    )
    total = await source.filled(TOPIC, PARTITIONS, settings.bytes, RECORD_BYTES, BATCH_BYTES)
    async with stage(source, "one", 1) as on:
        for number in range(-settings.warm_up, settings.rounds):
            for side, copy in (("stock", stock_round), ("link", link_round)):
                one = await copy(on, total)
                label = "warm-up" if number < 0 else f"round {number + 1}"
                say(f"{label} {side}: {one['mb_per_second']:.0f} MB/s")
                result.rounds[side if number >= 0 else f"{side}_warm_up"].append(one)
    stock, link = result.rounds["stock"], result.rounds["link"]
    figures = result.figures
    figures["stock_mb_per_second"] = median_of(stock, "mb_per_second")
    figures["link_mb_per_second"] = median_of(link, "mb_per_second")
    figures["ratio"] = figures["link_mb_per_second"] / figures["stock_mb_per_second"]
    figures["sidecar_cpu_seconds_per_gb"] = median_of(link, "sidecar_cpu_per_gb")
    figures["peak_rss_mib"] = max(one["peak_rss_mib"] for one in link)
    result.goals = [
        Goal("replication, ratio to Kafka's own follower", figures["ratio"], 0.85, at_least=True),
        Goal("sidecar CPU", figures["sidecar_cpu_seconds_per_gb"], 0.8, at_least=False, unit="s/GB"),
    ]
    return result


async def stock_round(on: Stage, total: int) -> dict[str, Any]:
    """Kafka's own follower: broker 2 of the source gets the topic, and loses it again."""
    cluster = on.source
    watch = GrowthWatch(
        cluster.replica_dirs(TOPIC, PARTITIONS, 2),
        total,
        {"leader": cluster.nodes[1].cpu_seconds, "follower": cluster.nodes[2].cpu_seconds},
    )
    await cluster.reassign(TOPIC, PARTITIONS, [1, 2])
    growth = await watch.done()
    await cluster.wait_reassigned()
    await cluster.reassign(TOPIC, PARTITIONS, [1])
    await cluster.wait_gone(TOPIC, 2)
    return _figures(growth)


async def link_round(on: Stage, total: int) -> dict[str, Any]:
    """The link's follower: the target's broker copies the mirror, which is then deleted."""
    follower = on.target.nodes[1]
    watch = GrowthWatch(
        on.target.replica_dirs(TOPIC, PARTITIONS, 1),
        total,
        {
            "leader": on.source.nodes[1].cpu_seconds,
            "follower": follower.cpu_seconds,
            "sidecar": on.sidecar.cpu_seconds,
        },
    )
    async with MemoryWatch(on.sidecar) as memory:
        await on.create_mirror(TOPIC, 1)
        growth = await watch.done()
    await on.delete_mirror(TOPIC)
    return {**_figures(growth), "peak_rss_mib": memory.peak / MIB}


def _figures(growth: Growth) -> dict[str, Any]:
    return {
        "mb_per_second": growth.mb_per_second,
        "seconds": growth.seconds,
        **{f"{name}_cpu_per_gb": growth.cpu_per_gb(name) for name in growth.cpu_seconds},
    }
