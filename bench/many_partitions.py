"""A thousand partitions, mostly idle: how soon the link has them, what they cost when nothing happens, and how far behind
a follower is when fifty of them are written to.

Lag is looked at from outside and at the same records for everybody: one thread watches the `.log` files of the source's
leader, of Kafka's own follower (broker 2 of the source) and of the link's follower, and notes how much later than the
leader's each of the others has grown to the same size.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.correctness import compare
from bench.load import build_batch, fill
from bench.memory import MIB, MemoryWatch
from bench.paced import PacedProducer
from bench.results import CaseResult, Goal, median_of, percentile, strip
from bench.settings import Settings
from bench.stage import Source, Stage, stage

TOPICS = 10
ACTIVE_SHARE = 0.05
BATCHES_PER_SECOND = 200  # over all active partitions
BATCH_BYTES = 1024
READY_TIMEOUT = 180.0
SETTLE = 5.0
POLL: Final = 0.001
SEGMENT = "00000000000000000000.log"


class LagWatch:
    """`with LagWatch(leader, copies) as watch:` then `watch.lags`: side -> ms behind, one per growth of a leader's file."""

    def __init__(self, leader: Sequence[Path], copies: dict[str, Sequence[Path]]) -> None:
        self.lags: dict[str, list[float]] = {side: [] for side in copies}
        self._leader = [directory / SEGMENT for directory in leader]
        self._copies = {side: [one / SEGMENT for one in of] for side, of in copies.items()}
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def __enter__(self) -> LagWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping = True
        self._thread.join(10)

    def _watch(self) -> None:
        count = len(self._leader)
        sizes = [os.stat(path).st_size for path in self._leader]
        # (when the leader had it, size) of growths that the copy has not been seen to have
        missing: dict[str, list[list[tuple[float, int]]]] = {
            side: [[] for _ in range(count)] for side in self._copies
        }
        while not self._stopping:
            now = time.monotonic()
            # Copies first: a growth of the leader that is seen in this turn is never behind its copy.
            for side, paths in self._copies.items():
                for index, waiting in enumerate(missing[side]):
                    if waiting:
                        size = os.stat(paths[index]).st_size
                        while waiting and waiting[0][1] <= size:
                            self.lags[side].append(1000 * (now - waiting.pop(0)[0]))
            for index, path in enumerate(self._leader):
                size = os.stat(path).st_size
                if size != sizes[index]:
                    sizes[index] = size
                    for side in self._copies:
                        missing[side][index].append((now, size))
            time.sleep(POLL)


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    each = settings.many // TOPICS
    topics = [f"many-{number}" for number in range(TOPICS)]
    active = max(1, int(each * ACTIVE_SHARE))
    result = CaseResult(
        "many_partitions",
        f"{each * TOPICS} partitions of {TOPICS} topics, {active * TOPICS} of them written to "
        f"with {BATCHES_PER_SECOND} batches of {BATCH_BYTES} B a second; "
        "how much later a follower's file has grown than the leader's",
        {"stock": [], "link": []},
    )
    batch = build_batch(100, BATCH_BYTES, int(time.time() * 1000))
    for topic in topics:
        await source.cluster.create_topic(topic, [[1]] * each)
        await fill(source.cluster.connected, topic, each, each * len(batch), batch)
    async with stage(source, "many", 1) as on, _memory(on) as memory:
        await _measure(on, topics, each, active, batch, settings, result, say)
        memory_peak = memory.peak_now() / MIB
        for topic in topics:
            checked, problems = await compare(on, topic, each, [1])
            result.checked = {key: result.checked.get(key, 0) + value for key, value in checked.items()}
            result.problems += problems
    _judge(result, memory_peak)
    return result


def _memory(on: Stage) -> MemoryWatch:
    return MemoryWatch(on.sidecar)


async def _measure(
    on: Stage,
    topics: Sequence[str],
    each: int,
    active: int,
    batch: bytes,
    settings: Settings,
    result: CaseResult,
    say: Callable[[str], None],
) -> None:
    figures = result.figures
    began = time.monotonic()
    await on.create_mirrors(topics, 1)
    await on.wait_all_active(topics, READY_TIMEOUT)
    figures["link_ready_seconds"] = time.monotonic() - began
    began = time.monotonic()
    for topic in topics:
        await on.source.reassign(topic, each, [1, 2])
    await on.source.wait_reassigned()
    figures["stock_ready_seconds"] = time.monotonic() - began
    say(
        f"ready after {figures['link_ready_seconds']:.1f} s, stock after {figures['stock_ready_seconds']:.1f} s"
    )
    await asyncio.sleep(SETTLE)
    result.rounds["idle"] = []
    for _ in range(settings.rounds):
        sidecar, stock = on.sidecar.cpu_seconds(), on.source.nodes[2].cpu_seconds()
        began = time.monotonic()
        await asyncio.sleep(settings.window_seconds)
        seconds = time.monotonic() - began
        result.rounds["idle"].append(
            {
                "sidecar_percent": 100 * (on.sidecar.cpu_seconds() - sidecar) / seconds,
                "stock_follower_percent": 100 * (on.source.nodes[2].cpu_seconds() - stock) / seconds,
            }
        )
    rate = BATCHES_PER_SECOND * len(batch) / len(topics)
    for number in range(-settings.warm_up, settings.rounds):
        lags = await _lags(on, topics, active, batch, rate, settings.window_seconds)
        for side, values in lags.items():
            one = {"p50_ms": percentile(values, 0.5), "p99_ms": percentile(values, 0.99), "seen": len(values)}
            if number >= 0:
                result.rounds[side].append(one)
                say(f"round {number + 1} {side}: lag p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms")


async def _lags(
    on: Stage, topics: Sequence[str], active: int, batch: bytes, rate: float, seconds: float
) -> dict[str, list[float]]:
    def directories(cluster: str, broker: int) -> list[Path]:
        of = on.source if cluster == "source" else on.target
        return [path for topic in topics for path in of.replica_dirs(topic, active, broker)]

    watch = LagWatch(
        directories("source", 1), {"stock": directories("source", 2), "link": directories("target", 1)}
    )
    producers = [PacedProducer(on.source.connected, topic, active, batch, rate) for topic in topics]

    async def produce(producer: PacedProducer) -> None:
        async with producer.running():
            await asyncio.sleep(seconds)

    with watch:
        await asyncio.gather(*(produce(producer) for producer in producers))
        await asyncio.sleep(0.5)
    return watch.lags


def _judge(result: CaseResult, peak: float) -> None:
    figures, rounds = result.figures, result.rounds
    for side in ("stock", "link"):
        for key in ("p50_ms", "p99_ms"):
            figures[f"{side}_lag_{key}"] = median_of(rounds[side], key)
    for key in ("sidecar_percent", "stock_follower_percent"):
        figures[f"idle_{key}"] = median_of(rounds["idle"], key)
    figures["peak_rss_mib"] = peak
    behind = figures["lag_ratio"] = figures["link_lag_p99_ms"] / figures["stock_lag_p99_ms"]
    result.ratios = {"stock's lag p99 / the link's": 1 / behind}
    result.goals = [
        Goal("many partitions, lag p99 / stock follower's", behind, 2, at_least=False),
        Goal("many partitions, idle CPU", figures["idle_sidecar_percent"], 5, at_least=False, unit="%"),
        Goal("many partitions, ready", figures["link_ready_seconds"], 20, at_least=False, unit="s"),
        Goal("RSS, many partitions", peak, 300, at_least=False, unit="MiB"),
    ]
    result.plots = [
        strip("Lag p99", "ms", {side: rounds[side] for side in ("stock", "link")}, "p99_ms"),
        strip("Idle CPU of the sidecar", "% of a core", {"link": rounds["idle"]}, "sidecar_percent"),
    ]
