"""A day in small: half an hour of writes, copies, clients that come and go, mirrors that are made, paused and deleted.

Resident memory and open files of the sidecar must not grow: the second quarter of the time is held beside the
last. The live topic is produced through the sidecar all the time, and compared at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import confluent_kafka

from lab.bench.cluster import BenchError
from lab.bench.correctness import compare
from lab.bench.latency import CLIENT_LOG
from lab.bench.load import build_batch
from lab.bench.memory import MIB, open_files
from lab.bench.paced import PacedProducer, out_of_order
from lab.bench.replication import PARTITIONS
from lab.bench.results import CaseResult, Goal, Line, percentile
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage
from wire.frames.batch import read_batch_header

LIVE, CHURNED = "soak", "soak-churned"
RATE = 4e6
CHURNED_BYTES = 50_000_000
CLIENTS = 20  # of each cycle
CLIENT_TIMEOUT = 20.0
SAMPLE = 1.0


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "soak",
        f"{settings.soak_seconds / 60:g} minutes: {RATE / 1e6:g} MB/s forwarded and copied; all the time "
        f"{CLIENTS} clients come and go, and a mirror of {CHURNED_BYTES / 1e6:g} MB is made, paused, resumed and deleted",
        {"link": []},
    )
    batch = build_batch(1000, 16 * 1024, int(time.time() * 1000))
    await source.cluster.create_topic(LIVE, [[1]] * PARTITIONS)
    await source.filled(CHURNED, PARTITIONS, min(CHURNED_BYTES, settings.bytes), 1000, 64 * 1024)
    samples: list[tuple[float, float, int]] = []
    async with stage(source, "soak", 1) as on:
        await on.create_mirror(LIVE, 1)
        await on.wait_active(LIVE)
        producer = PacedProducer(on.target.connected, LIVE, PARTITIONS, batch, RATE)
        began = time.monotonic()
        cycles = 0
        async with producer.running():
            watching = asyncio.create_task(_watch(on, began, samples))
            try:
                while time.monotonic() - began < settings.soak_seconds:
                    await _cycle(on)
                    cycles += 1
                    if cycles % 10 == 1:
                        rss, files = samples[-1][1:] if samples else (0.0, 0)
                        say(f"{time.monotonic() - began:.0f} s, cycle {cycles}: {rss:.0f} MiB, {files} files")
            finally:
                watching.cancel()
                await asyncio.wait([watching])
        await on.wait_active(LIVE)
        result.checked, result.problems = await compare(on, LIVE, PARTITIONS, [1])
        result.problems += out_of_order(producer.acked, read_batch_header(batch, 0).record_count)
    _judge(result, samples, producer.between(began, time.monotonic()), cycles)
    result.figures["retries"] = producer.retries
    return result


async def _cycle(on: Stage) -> None:
    await on.create_mirror(CHURNED, 1)
    await on.wait_active(CHURNED)
    await asyncio.to_thread(_clients, on.target.bootstrap)
    await on.pause_mirror(CHURNED)
    await on.resume_mirror(CHURNED)
    await on.wait_active(CHURNED)
    await on.delete_mirror(CHURNED)


def _clients(bootstrap: str) -> None:
    """Producers that connect, write one record that is forwarded, and leave."""
    for number in range(CLIENTS):
        client = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "client.id": f"soak-{number}", "enable.idempotence": True},
            logger=CLIENT_LOG,
        )
        errors: list[str] = []
        client.produce(
            CHURNED, b"soak", partition=number % PARTITIONS, on_delivery=partial(_delivered, errors)
        )
        if client.flush(CLIENT_TIMEOUT) or errors:
            raise BenchError(f"a client could not write to {CHURNED} within {CLIENT_TIMEOUT:g} s: {errors}")


def _delivered(errors: list[str], error: Any, _message: Any) -> None:
    if error is not None:
        errors.append(str(error))


async def _watch(on: Stage, began: float, samples: list[tuple[float, float, int]]) -> None:
    while True:
        samples.append((time.monotonic() - began, on.sidecar.resident_bytes() / MIB, open_files(on.sidecar)))
        await asyncio.sleep(SAMPLE)


def _judge(
    result: CaseResult, samples: list[tuple[float, float, int]], latencies: list[float], cycles: int
) -> None:
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    rss = [median(one[1] for one in part) for part in (early, late)]
    files = [median(one[2] for one in part) for part in (early, late)]
    result.rounds["link"] = [{"rss_mib": round(one[1], 1), "open_files": one[2]} for one in samples[::10]]
    result.figures = {
        "cycles": cycles,
        "rss_mib_second_quarter": rss[0],
        "rss_mib_last_quarter": rss[1],
        "peak_rss_mib": max(one[1] for one in samples),
        "files_second_quarter": files[0],
        "files_last_quarter": files[1],
        "forwarded_p99_ms": percentile(latencies, 0.99),
    }
    result.goals = [
        Goal("soak, RSS last quarter / second", rss[1] / rss[0], 1.05, at_least=False),
        Goal("soak, open files last quarter / second", files[1] / files[0], 1.05, at_least=False),
    ]
    result.plots = [
        Line("Resident memory", "MiB", {"sidecar": [(one[0], one[1]) for one in samples]}),
        Line("Open files", "", {"sidecar": [(one[0], float(one[2])) for one in samples]}),
    ]
