"""Replication to one stock follower: through the link, beside Kafka's own follower with the same bytes.

Rounds alternate, so that whatever else the machine does meets all sides. Stock: the source's broker 2 is added to
the replicas of a topic on broker 1. Link: the target's only broker is the replica of the mirror. Either way one
stock broker fetches the same bytes over loopback and writes them down. With 1 kB records in 128 kB batches two more
take their turn: a direct produce of those bytes to the source, and MirrorMaker 2, which copies what was produced.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.bench.correctness import compare
from lab.bench.growth import Growth, GrowthWatch
from lab.bench.load import build_batch, fill
from lab.bench.memory import MIB, MemoryWatch
from lab.bench.mirror_maker import MirrorMaker
from lab.bench.results import CaseResult, Goal, median_of, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage, target_cluster
from lab.bench.turns import Round, take_turns

PARTITIONS = 4
STOCK_FOLLOWER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Which bytes are copied, and what is aimed at."""

    name: str
    topic: str
    what: str
    record_bytes: int
    batch_bytes: int
    zstd: bool = False
    share: float = 1.0  # of the settings' bytes
    ratio: float  # at least, of Kafka's own follower
    cpu: float | None = None  # seconds per GB of the sidecar, at most
    others: bool = False  # direct produce and MirrorMaker 2 beside it

    def batch(self) -> bytes:
        return build_batch(self.record_bytes, self.batch_bytes, int(time.time() * 1000), zstd=self.zstd)

    async def filled(self, source: Source, settings: Settings) -> int:
        """The topic with its bytes; how many."""
        size = int(settings.bytes * self.share)
        return await source.filled(
            self.topic, PARTITIONS, size, self.record_bytes, self.batch_bytes, zstd=self.zstd
        )


LARGE = Work(
    name="replication",
    topic="replicated",
    what="1 kB records in 128 kB batches",
    record_bytes=1000,
    batch_bytes=128 * 1024,
    ratio=0.95,
    cpu=0.6,
    others=True,
)
SMALL = Work(
    name="small_batches",
    topic="small",
    what="100 B records in 1 kB batches",
    record_bytes=100,
    batch_bytes=1024,
    share=0.4,
    ratio=0.85,
    cpu=0.8,
)
ZSTD = Work(
    name="zstd",
    topic="compressed",
    what="1 kB records in 128 kB batches that zstd halves",
    record_bytes=1000,
    batch_bytes=128 * 1024,
    zstd=True,
    ratio=0.95,
)


def case(work: Work) -> Callable[[Source, Settings, Callable[[str], None]], Awaitable[CaseResult]]:
    """The case of that work."""

    async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
        return await _run(work, source, settings, say)

    return run


async def _run(work: Work, source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    total = await work.filled(source, settings)
    await source.renew([STOCK_FOLLOWER])
    result = CaseResult(
        work.name,
        f"{total / 1e9:.3g} GB, {work.what}, {PARTITIONS} partitions, one follower; growth of the follower's log "
        "files, first byte to last",
    )
    async with stage(source, work.name.replace("_", "-"), 1) as on, AsyncExitStack() as stack:
        others: dict[str, Round] = {}
        if work.others:
            target = await stack.enter_async_context(target_cluster(source, "mirror-maker", 1))
            maker = await stack.enter_async_context(
                MirrorMaker(on.source, target, source.directory / "mirror-maker", say)
            )
            others = {
                "direct": partial(_Direct().round, on, work, total),
                "mirror_maker": partial(maker.round, total),
            }
        await take_turns(
            result,
            {"stock": partial(stock_round, on, work, total), "link": partial(link_round, on, work, total)},
            say,
            warm_up=settings.copy_warm_up,
            rounds=settings.copy_rounds,
            others=others,
        )
        await on.create_mirror(work.topic, 1)
        await on.wait_active(work.topic)
        result.checked, result.problems = await compare(on, work.topic, PARTITIONS, [1])
    _judge(work, result)
    return result


def _judge(work: Work, result: CaseResult) -> None:
    rounds, figures = result.rounds, result.figures
    link = rounds["link"]
    for side in ("stock", "link", "direct", "mirror_maker"):
        if side not in rounds:
            continue
        figures[f"{side}_mb_per_second"] = median_of(rounds[side], "mb_per_second")
        for key in rounds[side][0]:
            if key.endswith("_cpu_per_gb"):
                figures[f"{side}_{key}"] = median_of(rounds[side], key)
    figures["peak_rss_mib"] = max(one["peak_rss_mib"] for one in link)
    ratio = figures["ratio"] = figures["link_mb_per_second"] / figures["stock_mb_per_second"]
    cpu = figures["link_sidecar_cpu_per_gb"]
    result.ratios = {"link / stock follower": ratio}
    result.goals = [Goal(f"{work.name}, ratio to Kafka's own follower", ratio, work.ratio, at_least=True)]
    if work.cpu is not None:
        result.goals.append(Goal(f"{work.name}, sidecar CPU", cpu, work.cpu, at_least=False, unit="s/GB"))
    if work.others:
        faster = figures["link_mb_per_second"] / figures["mirror_maker_mb_per_second"]
        cheaper = figures["mirror_maker_mirror_maker_cpu_per_gb"] / max(cpu, 1e-9)
        figures |= {"mirror_maker_ratio": faster, "mirror_maker_cpu_ratio": cheaper}
        result.ratios |= {"link / MirrorMaker 2": faster, "MirrorMaker 2's CPU / sidecar's": cheaper}
        result.goals += [
            Goal(f"{work.name}, ratio to MirrorMaker 2", faster, 3.5, at_least=True),
            Goal(f"{work.name}, MirrorMaker 2's CPU / sidecar's", cheaper, 20, at_least=True),
            Goal(f"RSS, {PARTITIONS} partitions", figures["peak_rss_mib"], 84, at_least=False, unit="MiB"),
        ]
    result.plots = [
        strip("Throughput", "MB/s", rounds, "mb_per_second"),
        strip("CPU of what copies", "s/GB", rounds, "copier_cpu_per_gb"),
    ]


async def stock_round(on: Stage, work: Work, total: int) -> dict[str, Any]:
    """Kafka's own follower: broker 2 of the source gets the topic, and loses it again."""
    cluster = on.source
    watch = GrowthWatch(
        cluster.replica_dirs(work.topic, PARTITIONS, STOCK_FOLLOWER),
        total,
        {"leader": cluster.nodes[1].cpu_seconds, "follower": cluster.nodes[STOCK_FOLLOWER].cpu_seconds},
    )
    await cluster.reassign(work.topic, PARTITIONS, [1, STOCK_FOLLOWER])
    growth = await watch.done()
    await cluster.wait_reassigned()
    await cluster.reassign(work.topic, PARTITIONS, [1])
    await cluster.wait_gone(work.topic, STOCK_FOLLOWER)
    return round_of(growth)


async def link_round(on: Stage, work: Work, total: int) -> dict[str, Any]:
    """The link's follower: the target's broker copies the mirror, which is then deleted."""
    watch = GrowthWatch(
        on.target.replica_dirs(work.topic, PARTITIONS, 1),
        total,
        {
            "leader": on.source.nodes[1].cpu_seconds,
            "follower": on.target.nodes[1].cpu_seconds,
            "sidecar": on.sidecar.cpu_seconds,
        },
    )
    async with MemoryWatch(on.sidecar) as memory:
        await on.create_mirror(work.topic, 1)
        growth = await watch.done()
    await on.delete_mirror(work.topic)
    return {
        **round_of(growth),
        "copier_cpu_per_gb": growth.cpu_per_gb("sidecar"),
        "peak_rss_mib": memory.peak / MIB,
    }


class _Direct:
    """Produces the same bytes to the source, into a topic of its own each time, which MirrorMaker 2 copies next."""

    def __init__(self) -> None:
        self._number = 0

    async def round(self, on: Stage, work: Work, total: int) -> dict[str, Any]:
        topic = f"{MirrorMaker.PREFIX}{self._number}"
        self._number += 1
        await on.source.create_topic(topic, [[1]] * PARTITIONS)
        batch = work.batch()
        leader = on.source.nodes[1]
        began, cpu = time.monotonic(), leader.cpu_seconds()
        size = await fill(on.source.connected, topic, PARTITIONS, total, batch)
        seconds = time.monotonic() - began
        return {
            "mb_per_second": size / 1e6 / seconds,
            "seconds": seconds,
            "leader_cpu_per_gb": (leader.cpu_seconds() - cpu) / (size / 1e9),
        }


def round_of(growth: Growth) -> dict[str, Any]:
    """The figures of one copy."""
    return {
        "mb_per_second": growth.mb_per_second,
        "seconds": growth.seconds,
        "first_byte": growth.first_byte,
        **{f"{name}_cpu_per_gb": growth.cpu_per_gb(name) for name in growth.cpu_seconds},
    }
