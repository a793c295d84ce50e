"""A thousand partitions, mostly idle: how soon the link has them, what they cost when nothing happens, and how far behind
a follower is when fifty of them are written to.

Kafka's own follower (broker 2 of the source) has a thousand of its own, written to in turn with those of the link: of the
same partitions the link would have to wait for that follower, because it reads what is committed and nothing else.

Lag is looked at from outside: one thread watches the `.log` files of the leader and of the follower, and notes how much
later than the leader's the other has grown to the same size.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lab.bench.cluster import BenchCluster
from lab.bench.correctness import compare
from lab.bench.load import build_batch, fill
from lab.bench.memory import MIB, MemoryWatch
from lab.bench.paced import PacedProducer
from lab.bench.results import CaseResult, Goal, median_of, percentile, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage

TOPICS = 10
ACTIVE_SHARE = 0.05
BATCHES_PER_SECOND = 200  # over all active partitions
BATCH_BYTES = 1024
READY_TIMEOUT = 180.0
SETTLE = 5.0
POLL: Final = 0.001
SEGMENT = "00000000000000000000.log"


class LagWatch:
    """`with LagWatch(leader, copy) as watch:` then `watch.lags`: ms behind, one per growth of a leader's file."""

    def __init__(self, leader: Sequence[Path], copy: Sequence[Path]) -> None:
        self.lags: list[float] = []
        self._leader = [directory / SEGMENT for directory in leader]
        self._copy = [directory / SEGMENT for directory in copy]
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def __enter__(self) -> LagWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping = True
        self._thread.join(10)

    def _watch(self) -> None:
        sizes = [os.stat(path).st_size for path in self._leader]
        # (when the leader had it, size) of growths that the copy has not been seen to have
        missing: list[list[tuple[float, int]]] = [[] for _ in self._leader]
        while not self._stopping:
            now = time.monotonic()
            # The copy first: a growth of the leader that is seen in this turn is never behind its copy.
            for path, waiting in zip(self._copy, missing, strict=True):
                if waiting:
                    size = os.stat(path).st_size
                    while waiting and waiting[0][1] <= size:
                        self.lags.append(1000 * (now - waiting.pop(0)[0]))
            for index, path in enumerate(self._leader):
                size = os.stat(path).st_size
                if size != sizes[index]:
                    sizes[index] = size
                    missing[index].append((now, size))
            time.sleep(POLL)


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    each = settings.many // TOPICS
    topics = [f"many-{number}" for number in range(TOPICS)]
    own = [f"own-{number}" for number in range(TOPICS)]
    active = max(1, int(each * ACTIVE_SHARE))
    result = CaseResult(
        "many_partitions",
        f"{each * TOPICS} partitions of {TOPICS} topics, {active * TOPICS} of them written to "
        f"with {BATCHES_PER_SECOND} batches of {BATCH_BYTES} B a second; "
        "how much later a follower's file has grown than the leader's. As many for Kafka's own follower, in turn",
        {"stock": [], "link": []},
    )
    batch = build_batch(100, BATCH_BYTES, int(time.time() * 1000))
    for topic in [*topics, *own]:
        await source.cluster.create_topic(topic, [[1]] * each)
        await fill(source.cluster.connected, topic, each, each * len(batch), batch)
    async with stage(source, "many", 1) as on, _memory(on) as memory:
        await _measure(on, topics, own, each, active, batch, settings, result, say)
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
    own: Sequence[str],
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
    for topic in own:
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
    sides = {"stock": (own, on.source, 2), "link": (topics, on.target, 1)}
    for number in range(-settings.warm_up, settings.rounds):
        for side, (of, cluster, broker) in sides.items():
            one = await _lags(on, of, cluster, broker, active, batch, rate, settings.window_seconds)
            if number >= 0:
                result.rounds[side].append(one)
                say(
                    f"round {number + 1} {side}: lag p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms, "
                    f"leader's broker {one['leader_percent']:.0f} % of a core"
                )


async def _lags(
    on: Stage,
    topics: Sequence[str],
    copying: BenchCluster,
    broker: int,
    active: int,
    batch: bytes,
    rate: float,
    seconds: float,
) -> dict[str, Any]:
    def directories(cluster: BenchCluster, node: int) -> list[Path]:
        return [path for topic in topics for path in cluster.replica_dirs(topic, active, node)]

    watch = LagWatch(directories(on.source, 1), directories(copying, broker))
    producers = [PacedProducer(on.source.connected, topic, active, batch, rate) for topic in topics]

    async def produce(producer: PacedProducer) -> None:
        async with producer.running():
            await asyncio.sleep(seconds)

    began, leader = time.monotonic(), on.source.nodes[1].cpu_seconds()
    with watch:
        await asyncio.gather(*(produce(producer) for producer in producers))
        took, used = time.monotonic() - began, on.source.nodes[1].cpu_seconds() - leader
        await asyncio.sleep(0.5)
    return {
        "p50_ms": percentile(watch.lags, 0.5),
        "p99_ms": percentile(watch.lags, 0.99),
        "seen": len(watch.lags),
        "leader_percent": 100 * used / took,
    }


def _judge(result: CaseResult, peak: float) -> None:
    figures, rounds = result.figures, result.rounds
    for side in ("stock", "link"):
        for key in ("p50_ms", "p99_ms"):
            figures[f"{side}_lag_{key}"] = median_of(rounds[side], key)
        figures[f"{side}_leader_percent"] = median_of(rounds[side], "leader_percent")
    for key in ("sidecar_percent", "stock_follower_percent"):
        figures[f"idle_{key}"] = median_of(rounds["idle"], key)
    figures["peak_rss_mib"] = peak
    behind = figures["lag_ratio"] = figures["link_lag_p99_ms"] / figures["stock_lag_p99_ms"]
    result.ratios = {"stock's lag p99 / the link's, in turn": 1 / behind}
    result.goals = [
        Goal("many partitions, lag p99 / stock follower's", behind, 2, at_least=False),
        Goal("many partitions, idle CPU", figures["idle_sidecar_percent"], 5, at_least=False, unit="%"),
        Goal("many partitions, ready", figures["link_ready_seconds"], 20, at_least=False, unit="s"),
        Goal("RSS, many partitions", peak, 300, at_least=False, unit="MiB"),
    ]
    sides = {side: rounds[side] for side in ("stock", "link")}
    result.plots = [
        strip("Lag p99", "ms", sides, "p99_ms"),
        strip("CPU of the leader's broker", "% of a core", sides, "leader_percent"),
        strip("Idle CPU of the sidecar", "% of a core", {"link": rounds["idle"]}, "sidecar_percent"),
    ]
