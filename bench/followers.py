"""Several followers: the source is read once for all of them, and one that stalls costs no memory.

Bytes from the source are counted twice, by the sidecar itself and by the kernel for its process (which counts
everything else that it reads as well, and batches that the source cut off); the larger one is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bench.growth import Growth, GrowthWatch
from bench.memory import MIB, MemoryWatch, bytes_read
from bench.replication import BATCH_BYTES, PARTITIONS, RECORD_BYTES, TOPIC
from bench.results import CaseResult, Goal, median_of
from bench.settings import Settings
from bench.stage import Source, Stage, stage

REPLICATION_FACTOR = 3
STALLED = 3  # not the broker that is the controller
STALL_AFTER = 0.05  # of the bytes, so that it has begun to read


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> list[CaseResult]:
    """Two cases on one stage."""
    total = await source.filled(TOPIC, PARTITIONS, settings.bytes, RECORD_BYTES, BATCH_BYTES)
    async with stage(source, "three", REPLICATION_FACTOR) as on:
        once = await read_once(on, settings, total, say)
        stalled = await stalled_follower(on, settings, total, say)
    return [once, stalled]


async def read_once(on: Stage, settings: Settings, total: int, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "read_once",
        f"{settings.bytes / 1e9:g} GB to {REPLICATION_FACTOR} followers; bytes read from the source / bytes of the log",
        {"link": [], "link_warm_up": []},
    )
    for number in range(-settings.warm_up, settings.rounds):
        counted, read = (await on.status()).links[0].traffic.fetched_bytes, bytes_read(on.sidecar)
        watches = [_watch(on, total, node.node_id) for node in on.target.brokers]
        async with MemoryWatch(on.sidecar) as memory:
            await on.create_mirror(TOPIC, REPLICATION_FACTOR)
            copies = await asyncio.gather(*(watch.done() for watch in watches))
        counted = (await on.status()).links[0].traffic.fetched_bytes - counted
        read = bytes_read(on.sidecar) - read
        await on.delete_mirror(TOPIC)
        one = {
            "fetched_per_byte": counted / total,
            "read_per_byte": read / total,
            "mb_per_second": min(copy.mb_per_second for copy in copies),
            "sidecar_cpu_per_gb": max(copy.cpu_per_gb("sidecar") for copy in copies),
            "peak_rss_mib": memory.peak / MIB,
        }
        say(f"{one['read_per_byte']:.3f} bytes read per byte, {one['mb_per_second']:.0f} MB/s to each")
        result.rounds["link" if number >= 0 else "link_warm_up"].append(one)
    rounds = result.rounds["link"]
    figures = result.figures
    for key in ("mb_per_second", "sidecar_cpu_per_gb"):
        figures[key] = median_of(rounds, key)
    for key in ("fetched_per_byte", "read_per_byte", "peak_rss_mib"):
        figures[key] = max(one[key] for one in rounds)
    worst = max(figures["fetched_per_byte"], figures["read_per_byte"])
    result.goals = [Goal("RF 3: bytes from the source / bytes mirrored", worst, 1.05, at_least=False)]
    return result


async def stalled_follower(
    on: Stage, settings: Settings, total: int, say: Callable[[str], None]
) -> CaseResult:
    result = CaseResult(
        "stalled_follower",
        f"{settings.bytes / 1e9:g} GB to {REPLICATION_FACTOR} followers, one of them stopped (SIGSTOP) on the way "
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
    result.rounds["link"].append(
        {
            "peak_rss_mib": memory.peak / MIB,
            "rss_mib_every_second": memory.every_second(),
            "mb_per_second_of_the_others": min(copy.mb_per_second for copy in copies),
            "seconds_until_the_stalled_one_had_all": behind.seconds,
        }
    )
    peak = memory.peak / MIB
    say(f"peak {peak:.0f} MiB")
    result.figures["peak_rss_mib"] = peak
    result.goals = [Goal("RSS with a stalled follower", peak, 300, at_least=False, unit="MiB")]
    return result


def _watch(on: Stage, total: int, broker: int) -> GrowthWatch:
    return GrowthWatch(
        on.target.replica_dirs(TOPIC, PARTITIONS, broker), total, {"sidecar": on.sidecar.cpu_seconds}
    )
