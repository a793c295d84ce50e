"""Kafka's own producer through the sidecar, and straight to the source: `kafka-producer-perf-test`, 1 kB records in 128 kB
batches, 4 partitions.

forward.py sends one batch a request. This client puts what is ready of all partitions into one request, which the
Router takes apart and puts together again; and it is an application's, with its own idea of what to wait for. Each round is
a JVM of its own. The mirror is paused meanwhile, as there.
"""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lab.bench.correctness import compare
from lab.bench.load import build_batch, fill
from lab.bench.mirror_maker import log_ends
from lab.bench.page_cache import give_back
from lab.bench.perf_tools import write_topic
from lab.bench.replication import PARTITIONS
from lab.bench.results import CaseResult, Goal, median_of, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, require_disk, stage
from lab.bench.turns import take_turns
from lab.clusters.kafka_jars import ensure_distribution

TOPIC = "routed-by-kafkas-own"
RECORD_BYTES = 1000
PROPERTIES = {"batch.size": str(128 * 1024), "linger.ms": "5", "acks": "all"}
PAYLOADS = 1000  # different records


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    records = settings.bytes // RECORD_BYTES
    shown = ", ".join(f"{name}={value}" for name, value in PROPERTIES.items())
    result = CaseResult(
        "forward_client",
        f"kafka-producer-perf-test, {settings.bytes / 1e9:.3g} GB of records of {RECORD_BYTES} bytes to {PARTITIONS} "
        f"partitions, {shown}, idempotent as it is by default; through the sidecar, beside straight to the source",
    )
    require_disk(
        source.directory, 4 * (settings.warm_up + settings.rounds) * settings.bytes, "the case forward_client"
    )
    distribution = await ensure_distribution()
    payloads = source.directory / "payloads.txt"
    await asyncio.to_thread(_write_payloads, payloads)
    async with source.topic(TOPIC, PARTITIONS), stage(source, "forward-client", 1) as on:
        await on.create_mirror(TOPIC, 1)
        await on.wait_active(TOPIC)
        await on.pause_mirror(TOPIC)
        # A new link forwards nothing before its producer ids are safe: the first request of all waits for that.
        await fill(on.target.connected, TOPIC, PARTITIONS, 1, build_batch(RECORD_BYTES, 64 * 1024, 0))

        async def produce(bootstrap: str) -> dict[str, Any]:
            used = on.sidecar.cpu_seconds()
            speed = await write_topic(
                distribution, source.directory, bootstrap, TOPIC, records, payloads, PROPERTIES
            )
            cpu = on.sidecar.cpu_seconds() - used
            await asyncio.to_thread(give_back, on.source.replica_dirs(TOPIC, PARTITIONS, 1))
            return {"mb_per_second": speed / 1e6, "cpu_per_gb": cpu / (records * RECORD_BYTES / 1e9)}

        before = sum(await log_ends(on.source.connected, TOPIC))
        await take_turns(
            result,
            {
                "direct": partial(produce, on.source.bootstrap),
                "link": partial(produce, on.target.bootstrap),
            },
            say,
            warm_up=settings.warm_up,
            rounds=settings.rounds,
        )
        # No markers are in it and nothing is deleted, so offsets count records.
        result.checked["records"] = sum(await log_ends(on.source.connected, TOPIC)) - before
        await on.resume_mirror(TOPIC)
        await on.wait_active(TOPIC)
        compared, result.problems = await compare(on, TOPIC, PARTITIONS, [1])
        result.checked |= compared
        expected = 2 * (settings.warm_up + settings.rounds) * records
        if result.checked["records"] != expected:
            result.problems.append(
                f"{expected} records were acknowledged, the logs have {result.checked['records']} more"
            )
    _judge(result)
    return result


def _write_payloads(file: Path) -> None:
    some = random.Random(1)
    lines = ("".join(some.choices(string.ascii_letters, k=RECORD_BYTES)) for _ in range(PAYLOADS))
    file.write_text("\n".join(lines))


def _judge(result: CaseResult) -> None:
    figures, rounds = result.figures, result.rounds
    for side in ("direct", "link"):
        for key in rounds[side][0]:
            figures[f"{side}_{key}"] = median_of(rounds[side], key)
    ratio = figures["ratio"] = figures["link_mb_per_second"] / figures["direct_mb_per_second"]
    result.ratios = {"forwarded / direct": ratio}
    result.goals = [
        Goal("Kafka's own producer, throughput, ratio to direct", ratio, 0.9, at_least=True),
        Goal(
            "Router CPU, Kafka's own producer", figures["link_cpu_per_gb"], 0.7, at_least=False, unit="s/GB"
        ),
    ]
    result.plots = [
        strip("Produce", "MB/s", rounds, "mb_per_second"),
        strip("CPU of sidecar", "s/GB", rounds, "cpu_per_gb"),
    ]
