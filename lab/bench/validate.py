"""Validation by Spark: batches beside records, beside Kafka's own consumer, and how its cost grows with the bytes.

One broker holds a topic, and the validator compares the partition with itself: it reads every byte twice, once as the
source's and once as a replica's, as it would from two clusters; no copy has to be made first. One embedded Spark serves all
rounds; its first run, which starts the Python workers, is a warm-up. Throughput counts the bytes of *one* side, so it is
what a person waits for; `read_mb_per_second` counts both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lab.bench.cluster import BenchError
from lab.bench.memory import MIB
from lab.bench.perf_tools import read_topic
from lab.bench.results import CaseResult, Goal, median_of
from lab.bench.settings import Settings
from lab.bench.stage import Source
from lab.clusters.kafka_jars import ensure_distribution
from validator import messages
from validator.mode import Mode

RECORD_BYTES = 1000
BATCH_BYTES = 64 * 1024
SIZES = (1, 2, 4)  # times the settings' bytes
EVENT_TIMEOUT = 600.0
MEMORY_POLL = 0.2
HEAP_MB = 512
REPLICA = 1  # broker id


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "validate",
        f"one partition of {settings.bytes / 1e9:g} GB (and {SIZES[1]} and {SIZES[2]} times that), {RECORD_BYTES} B"
        f" records in {BATCH_BYTES // 1024} kB batches, against itself on one broker; Spark embedded, {HEAP_MB} MB heap",
        {"batches": [], "records": [], "consumer": [], "growth": []},
    )
    for times in SIZES:
        await source.filled(f"validated-{times}", 1, times * settings.bytes, RECORD_BYTES, BATCH_BYTES)
    distribution = await ensure_distribution()
    async with _validator(source.directory) as validator:
        warm_up = await validator.run(source, SIZES[0], Mode.BATCHES)
        # exactly as many as there are: for one more the tool would wait, and count the waiting
        records = warm_up["records"]
        for number in range(settings.rounds):
            for mode in Mode:
                try:
                    one = await validator.run(source, SIZES[0], mode)
                except RunFailed as error:
                    if mode is not Mode.RECORDS:
                        raise
                    result.problems.append(str(error))  # the connector may not be had here
                    say(str(error))
                else:
                    result.rounds[mode.value].append(one)
                    say(f"round {number + 1} {mode}: {one['mb_per_second']:.0f} MB/s")
            speed = await read_topic(
                distribution,
                source.directory,
                source.cluster.bootstrap,
                "validated-1",
                records,
            )
            result.rounds["consumer"].append({"mb_per_second": speed / 1e6})
            say(f"round {number + 1} kafka-consumer-perf-test: {speed / 1e6:.0f} MB/s")
        for times in SIZES:
            grown = await validator.run(source, times, Mode.BATCHES)
            result.rounds["growth"].append({"times": times, **grown})
            say(f"{times} times the bytes: {grown['seconds']:.1f} s, peak {grown['peak_rss_mib']:.0f} MiB")
    _judge(result)
    return result


def _judge(result: CaseResult) -> None:
    figures = result.figures
    batches = figures["batches_mb_per_second"] = median_of(result.rounds["batches"], "mb_per_second")
    consumer = figures["consumer_mb_per_second"] = median_of(result.rounds["consumer"], "mb_per_second")
    figures["read_mb_per_second"] = 2 * batches
    growth = result.rounds["growth"]
    figures["seconds"] = {str(one["times"]): one["seconds"] for one in growth}
    figures["peak_rss_mib"] = max(one["peak_rss_mib"] for one in growth)
    # per byte, the largest beside the smallest: 1 is linear
    figures["growth"] = (growth[-1]["seconds"] / growth[-1]["bytes"]) / (
        growth[0]["seconds"] / growth[0]["bytes"]
    )
    result.goals = [
        Goal(
            "validation, read from one side beside kafka-consumer-perf-test",
            batches / consumer,
            0.5,
            at_least=True,
        ),
        Goal("validation, seconds per byte of 4 times the bytes", figures["growth"], 1.3, at_least=False),
    ]
    if result.rounds["records"]:
        records = figures["records_mb_per_second"] = median_of(result.rounds["records"], "mb_per_second")
        result.goals.append(Goal("validation, batches beside records", batches / records, 3.0, at_least=True))


class RunFailed(BenchError):
    """A run of the validator failed; its reason."""


class _Validator:
    """The validator process, one run at a time."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._runs = 0

    async def send(self, command: messages.Command) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise BenchError("the validator takes no commands")
        stdin.write(messages.encode(command))
        await stdin.drain()

    async def event(self) -> messages.Event:
        stdout = self._process.stdout
        async with asyncio.timeout(EVENT_TIMEOUT):
            line = b"" if stdout is None else await stdout.readline()
        if not line:
            raise BenchError(f"the validator has ended; see {self._log}")
        return messages.decode_event(line)

    async def run(self, source: Source, times: int, mode: Mode) -> Mapping[str, Any]:
        """One run over the topic of that size; RunFailed if the validator could not do it."""
        self._runs += 1
        side = messages.Side(name="bench", bootstrap=tuple(source.cluster.bootstrap.split(",")))
        plan = messages.PartitionPlan(
            topic=f"validated-{times}", partition=0, replicas=(messages.ReplicaPlan(broker_id=REPLICA),)
        )
        command = messages.Run(
            id=f"run-{self._runs}", mode=mode, source=side, target=side, partitions=(plan,)
        )
        memory = asyncio.create_task(_peak_rss(self._process.pid))
        began = time.monotonic()
        try:
            await self.send(command)
            while not isinstance(event := await self.event(), messages.Finished | messages.Failed):
                pass
        finally:
            memory.cancel()
        seconds = time.monotonic() - began
        peak = await memory
        if isinstance(event, messages.Failed):
            raise RunFailed(f"validation in mode {mode} failed: {event.reason}")
        if event.mismatches:
            raise BenchError(f"a topic differs from itself: {event}")
        return {
            "seconds": seconds,
            "bytes": event.bytes,
            "batches": event.batches,
            "records": event.records,
            "mb_per_second": event.bytes / 1e6 / seconds,
            "peak_rss_mib": peak / MIB,
        }


async def _peak_rss(pid: int) -> int:
    """The largest sum of what the process and its children (the JVM, Python workers) hold, until it is cancelled."""
    peak = 0
    try:
        while True:
            peak = max(peak, await asyncio.to_thread(_resident, pid))
            await asyncio.sleep(MEMORY_POLL)
    except asyncio.CancelledError:
        return peak


def _resident(root: int) -> int:
    """Proportional set size of a session: the driver, its JVM, and the Python workers, which are in a process group of
    their own. Pages that forked workers share count once."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) != root:
                continue
            for line in (entry / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue  # it has just ended
    return total


@asynccontextmanager
async def _validator(directory: Path) -> AsyncIterator[_Validator]:
    log = directory / "validator.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "validator"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=messages.MAX_LINE,
            start_new_session=True,
        )
    try:
        validator = _Validator(process, log)
        conf = {"spark.driver.memory": f"{HEAP_MB}m"}
        await validator.send(messages.Configure(work_dir=str(directory / "validator"), conf=conf))
        ready = await validator.event()
        if not isinstance(ready, messages.Ready):
            raise BenchError(f"Spark did not start: {ready}")
        yield validator
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
