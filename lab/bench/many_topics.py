"""Thousands of topics with one partition each: how soon a link has them, and what they cost when nothing happens.

Source and target have one broker each, so that the time is the link's and not that of a crowd of followers. Each number of
topics gets a target and a sidecar of its own. While the topics are linked, a thread asks the admin API every few
milliseconds whether the sidecar is ready. The longest answer is the longest pause of the event loop, seen from outside. At
the end topics are made at the source one after the other, and the link takes them by pattern.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from admin.models import LinkOptionsUpdate, UpdateLinkRequest
from lab.bench.cluster import BenchCluster, BenchError
from lab.bench.load import build_batch
from lab.bench.memory import MIB, MemoryWatch
from lab.bench.results import CaseResult, Goal, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage
from lab.clusters.sidecar_process import SidecarProcess
from wire.errors import BrokerError

AT_ONCE = 250  # topics in one request to a cluster
READY_TIMEOUT = 900.0
SETTLE = 20.0
BATCH_BYTES = 200
PROBE = 0.05
LOOKS = 5.0  # seconds between two looks at the source's topics
MADE_LATER = 3


class PauseWatch:
    """`with PauseWatch(sidecar) as watch:` then `watch.longest`: seconds that the admin API took at the most."""

    def __init__(self, sidecar: SidecarProcess) -> None:
        self.longest = 0.0
        self.answers = 0
        self._url = sidecar.admin_url
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="pauses", daemon=True)

    def __enter__(self) -> PauseWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping = True
        self._thread.join(60)

    def _watch(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stopping:
                began = time.monotonic()
                client.get("/healthz")
                self.longest = max(self.longest, time.monotonic() - began)
                self.answers += 1
                time.sleep(PROBE)


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    counts = settings.topics
    result = CaseResult(
        "many_topics",
        f"{', '.join(f'{count:,}' for count in counts)} topics of one partition with a record each, one broker at the "
        "source and one at the target: seconds until all are ACTIVE without lag, then CPU and memory while nothing happens",
        {"link": []},
    )
    async with Source(
        source.directory, name="source-topics", brokers=1, quick_start=settings.quick_start
    ) as own:
        names = [f"topic-{number:05d}" for number in range(max(counts))]
        await _make(own.cluster, names)
        for count in counts:
            async with stage(own, f"topics-{count}", 1) as on:
                one = await _linked(on, names[:count], settings, result)
            result.rounds["link"].append({"topics": count, **one})
            say(
                f"{count} topics: ACTIVE after {one['ready_seconds']:.1f} s ({one['ms_per_topic']:.1f} ms each, CPU "
                f"{one['cpu_ms_per_topic']:.1f} ms each), longest pause {one['longest_pause_ms']:.0f} ms, idle "
                f"{one['idle_percent']:.1f} % of a core, {one['rss_mib']:.0f} MiB, status {one['status_seconds']:.2f} s, "
                f"a new topic ACTIVE after {one['new_topic_seconds']:.1f} s"
            )
    most = result.rounds["link"][-1]
    result.figures = dict(most)
    result.goals = [
        Goal(f"{most['topics']:,} topics ACTIVE", most["ready_seconds"], 60, at_least=False, unit="s"),
        Goal(f"{most['topics']:,} topics, idle CPU", most["idle_percent"], 5, at_least=False, unit="%"),
        Goal(f"{most['topics']:,} topics, RSS", most["rss_mib"], 250, at_least=False, unit="MiB"),
        Goal(
            f"{most['topics']:,} topics, linker status", most["status_seconds"], 1, at_least=False, unit="s"
        ),
        Goal(
            f"{most['topics']:,} topics, one more ACTIVE (it is looked for every {LOOKS:.0f} s)",
            max(one["new_topic_seconds"] for one in result.rounds["link"]),
            LOOKS + 2,
            at_least=False,
            unit="s",
        ),
    ]
    result.plots = [
        strip("Time per topic", "ms", result.rounds, "ms_per_topic"),
        strip("CPU per topic", "ms", result.rounds, "cpu_ms_per_topic"),
    ]
    return result


async def _linked(on: Stage, names: list[str], settings: Settings, result: CaseResult) -> dict[str, Any]:
    used, began = on.sidecar.cpu_seconds(), time.monotonic()
    async with MemoryWatch(on.sidecar) as memory:
        with PauseWatch(on.sidecar) as pauses:
            await on.create_mirrors(names, 1)
            created = time.monotonic() - began
            await on.wait_all_active(names, READY_TIMEOUT, pause=2.0)
            ready = time.monotonic() - began
        cpu = on.sidecar.cpu_seconds() - used
        await asyncio.sleep(SETTLE if settings.window_seconds > 1 else 1.0)
        used, began = on.sidecar.cpu_seconds(), time.monotonic()
        await asyncio.sleep(4 * settings.window_seconds)
        idle = 100 * (on.sidecar.cpu_seconds() - used) / (time.monotonic() - began)
        began = time.monotonic()
        status = await on.sidecar.run("status")
        if "ACTIVE" not in status.output:
            result.problems.append(f"linker status says nothing of ACTIVE mirrors: {status.errors[:200]}")
        status_seconds = time.monotonic() - began
        api = time.monotonic()
        await on.status()
        api = time.monotonic() - api
        found = await _found(on, len(names))
        peak = memory.peak_now() / MIB
    return {
        "ready_seconds": ready,
        "create_seconds": created,
        "ms_per_topic": 1000 * ready / len(names),
        "cpu_ms_per_topic": 1000 * cpu / len(names),
        "longest_pause_ms": 1000 * pauses.longest,
        "idle_percent": idle,
        "rss_mib": on.sidecar.resident_bytes() / MIB,
        "peak_rss_mib": peak,
        "status_seconds": status_seconds,
        "status_api_seconds": api,
        "new_topic_seconds": found,
    }


async def _found(on: Stage, count: int) -> float:
    """The longest time from the creation of a topic at the source until its mirror is ACTIVE without lag."""
    options = LinkOptionsUpdate.model_validate(
        {"topics_include": f"later-{count}-.*", "topics_refresh_interval_ms": int(1000 * LOOKS)}
    )
    await on.update_link(UpdateLinkRequest(options=options))
    longest = 0.0
    for number in range(MADE_LATER):
        await asyncio.sleep(LOOKS / MADE_LATER)  # not in step with the looks
        began = time.monotonic()
        await on.source.create_topic(f"later-{count}-{number}", [[1]])
        while True:
            try:
                await on.wait_active(f"later-{count}-{number}")
                break
            except BenchError as error:
                if "has no mirror" not in str(error) or time.monotonic() - began > 60:
                    raise
            await asyncio.sleep(PROBE)
        longest = max(longest, time.monotonic() - began)
    return longest


async def _make(cluster: BenchCluster, names: list[str]) -> None:
    """The topics, each with one batch."""
    batch = build_batch(100, BATCH_BYTES, int(time.time() * 1000))
    for first in range(0, len(names), AT_ONCE):
        part = names[first : first + AT_ONCE]
        made = await cluster.call(
            "create_topics",
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                    for name in part
                ],
                "timeout_ms": 30_000,
                "validate_only": False,
            },
        )
        for one in made.topics:
            if int(one.error_code):
                raise BrokerError(int(one.error_code), message=f"creating {one.name}", api="create_topics")
    await _write(cluster, names, batch)


async def _write(cluster: BenchCluster, names: list[str], batch: bytes) -> None:
    """One batch into each; again where the broker does not know yet that it leads."""
    left, deadline = list(names), time.monotonic() + 120
    while left:
        refused = []
        for first in range(0, len(left), AT_ONCE):
            answer = await cluster.connected.call(
                "produce",
                {
                    "transactional_id": None,
                    "acks": 1,
                    "timeout_ms": 30_000,
                    "topic_data": [
                        {"name": name, "partition_data": [{"index": 0, "records": batch}]}
                        for name in left[first : first + AT_ONCE]
                    ],
                },
                timeout=60,
                version=9,
            )
            refused += [
                str(topic.name)
                for topic in answer.responses
                if any(int(part.error_code) for part in topic.partition_responses)
            ]
        if refused and time.monotonic() > deadline:
            raise BrokerError(
                3, message=f"{len(refused)} topics take no record, {refused[0]} first", api="produce"
            )
        if refused:
            await asyncio.sleep(0.5)
        left = refused
