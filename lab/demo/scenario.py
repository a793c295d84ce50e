"""The demonstration from the first cluster's start to the last check.

Everything goes the way an operator would go: the sidecar is a process, commands are the command line's. Writing,
reading, comparing and judging live in the modules beside this one; options and exit code in demo.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.clusters.kafka_jars import DEFAULT_VERSION, ensure_distribution
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from lab.demo.group_moves import judge_groups
from lab.demo.progress import Progress
from lab.demo.report import DemoResult
from lab.demo.switching import RETURNS, SOURCE_BROKER_ID, Switching, can_join
from lab.demo.waits import DemoError, caught_up, ended, held, rebalanced
from lab.workload.checker import check
from lab.workload.history import History
from lab.workload.inspection import (
    compare_clusters,
    compare_followers,
    final_logs,
    leaders,
    older_records,
    placements,
)
from lab.workload.live_consumers import AiokafkaConsumer, LibrdkafkaConsumer, LiveConsumer, read_up_to
from lab.workload.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from lab.workload.source_data import LIVE_TOPICS, TOPICS, YEAR_MS, SourceFiller, SourceTopic
from wire.task_group import TaskGroup

LINK = "demo"
SIDECAR_ID = 900
DRAIN_TIMEOUT = 30.0
SPARK_TIMEOUT = 600.0  # a machine with few cores, two clusters on them, and a JVM more
# Two cores of Spark are plenty for what the demonstration writes, and leave some for everybody else. Its JVM, which ends in
# two minutes, is not to spend the first of them on compiling well.
VALIDATION = {
    "policy": "require",
    "spark.master": "local[2]",
    "spark.conf": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
}
SOURCE_PROPERTIES = {
    "log.cleaner.backoff.ms": "300",  # or one would wait 15 s for compaction gaps
    "log.retention.ms": "-1",  # it keeps for ever; the target has Kafka's default, a week
}
TARGET_PROPERTIES = {
    "replica.fetch.backoff.ms": "50",  # as docs/operations.md advises for a short pause
    "log.retention.check.interval.ms": "1000",  # whatever retention is to delete is gone while one looks on
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The choices of a user."""

    out: Path
    source_version: str = DEFAULT_VERSION
    target_version: str = DEFAULT_VERSION
    seconds: float = 2.0  # how long clients run undisturbed between two steps
    rate: float = 1.0


class Demo:
    """One run. Every attribute is set by the phase that makes it."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        self.options = options
        self.history = History()
        self.progress = Progress(console, self._ticker)
        self.topics: Sequence[SourceTopic] = TOPICS
        # A source that cannot be joined is left for good.
        self.switching = (
            Switching(LINK, self.history, options.rate) if can_join(options.source_version) else None
        )
        self.live_topics: Sequence[SourceTopic] = LIVE_TOPICS
        if self.switching is not None:
            self.topics, self.live_topics = (*TOPICS, RETURNS), (*LIVE_TOPICS, RETURNS)
        self.producers: list[LiveProducer] = []
        self.consumers: list[LiveConsumer] = []
        self._acked_before = (0, time.monotonic())
        self._acks_per_second = 0.0
        self._more: dict[str, Any] = {}
        self._promote_id = ""

    async def run(self) -> DemoResult:
        """All phases; raises LinkerError if one cannot be carried out."""
        options, phase = self.options, self.progress.phase
        async with AsyncExitStack() as stack:
            with phase("download", "Kafka on this machine") as now:
                for version in sorted({options.source_version, options.target_version}):
                    dist = await ensure_distribution(version, progress=self.progress.say)
                    now.detail = str(dist.home)
            with phase("start_clusters", "source and target cluster start") as now:
                source, target = await self._start_clusters(stack)
                now.detail = f"source {source.bootstrap}, target {target.bootstrap}"
            sidecar = self._sidecar(target)
            stack.push_async_callback(sidecar.close)
            started = asyncio.create_task(sidecar.start())  # it does not need the source yet
            stack.push_async_callback(ended, started)
            with phase("fill", "topics at the source are filled") as now:
                now.detail = await self._fill(source)
            stack.push_async_callback(self._abandon_clients)
            with phase("start_clients", "producers and consumers start at the source") as now:
                await self._start_clients(source)
                now.detail = ", ".join(client.name for client in self._first)
            with phase("start_sidecar", "sidecar joins the target cluster") as now:
                await started
                now.detail = f"broker {SIDECAR_ID} at {sidecar.address()}"
            with phase("link", "linker link create"):
                joins = ["--join-source"] if self.switching is not None else []
                await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap, *joins)
            with phase("mirror", "linker mirror create"):
                names = [topic.name for topic in self.topics]
                await sidecar.linker("mirror", "create", *names, "--link", LINK, "--replication-factor", "3")
            with phase("catch_up", "mirrors catch up") as now:
                await caught_up(sidecar, LINK, len(self.topics), now)
            # Nobody needs its outcome before the promote, and Spark takes its time to start.
            compared = asyncio.create_task(self._validate(sidecar))
            stack.push_async_callback(ended, compared)
            with phase("move_producers", "producers move, one after the other") as now:
                for producer in self.producers:
                    now.detail = producer.name
                    await producer.move(target.bootstrap)
                now.detail = "only bootstrap.servers changed"
            with phase("hold_groups", "the target holds the consumers' groups back") as now:
                now.detail = await held(sidecar, LINK, {consumer.group for consumer in self.consumers})
            with phase("move_consumers", "linker group promote, while consumers move one by one") as now:
                groups = await self._move_groups(sidecar, target)
                now.detail = "each group went on where it stopped"
            with phase("forwarding", "writes at the target go to the source's log"):
                await asyncio.sleep(options.seconds)
            with phase("validate", "linker validate: Spark compares all replicas") as now:
                now.detail = await compared
            with phase("promote", "linker mirror promote") as now:
                window = await self._promote(sidecar)
                now.detail = ", ".join(f"{name} {ms} ms" for name, ms in self._more["promote_ms"].items())
            with phase("prove", "the last validation, with exact ends, and its evidence") as now:
                now.detail = await self._proved(sidecar)
            if self.switching is not None:
                await self.switching.run(self.progress, sidecar, source, target)
            with phase("leave", "linker sidecar leave, and the process ends"):
                await self._leave(sidecar)
            with phase("alone", "clients go on without the sidecar"):
                await asyncio.sleep(options.seconds)
            with phase("stop", "producers stop, consumers read to the end"):
                await self._stop_producers()
            with phase("check", "every record and every replica is checked") as now:
                result = await self._check(source, target, window, groups)
                now.detail = f"{len(result.comparisons)} replicas, {result.verdict.acked} records"
        return result

    @property
    def _first(self) -> list[LiveProducer | LiveConsumer]:
        return [*self.producers, *self.consumers]

    @property
    def _clients(self) -> list[LiveProducer | LiveConsumer]:
        return [*self._first, *(self.switching.clients if self.switching else ())]

    def _sidecar(self, target: KafkaCluster) -> SidecarProcess:
        joins = {} if self.switching is None else {LINK: {"broker.id": SOURCE_BROKER_ID}}
        return SidecarProcess(
            SidecarSpec(
                target_bootstrap=target.bootstrap, broker_id=SIDECAR_ID, sources=joins, validation=VALIDATION
            ),
            self.options.out / "sidecar",
        )

    async def _start_clusters(self, stack: AsyncExitStack) -> tuple[KafkaCluster, KafkaCluster]:
        options = self.options
        directory = options.out / "clusters"
        source = KafkaCluster(
            KafkaClusterSpec(
                name="source",
                brokers=2,
                racks=("a", "b"),
                version=options.source_version,
                properties=SOURCE_PROPERTIES,
            ),
            directory,
        )
        target = KafkaCluster(
            KafkaClusterSpec(
                name="target",
                brokers=3,
                controllers=1,
                racks=("a", "b", "c"),
                version=options.target_version,
                properties=TARGET_PROPERTIES,
            ),
            directory,
        )
        stack.push_async_callback(source.close)
        stack.push_async_callback(target.close)
        async with TaskGroup() as group:
            group.create_task(source.start())
            group.create_task(target.start())
        return source, target

    async def _fill(self, source: KafkaCluster) -> str:
        filler = SourceFiller(source.bootstrap)
        await asyncio.to_thread(filler.create, self.topics, 2)
        await asyncio.to_thread(filler.fill, self.topics)
        log_dirs = {node.node_id: node.data for node in source.brokers}
        gaps = 0
        for topic in self.topics:
            if topic.compacted:
                gaps += await asyncio.to_thread(filler.wait_compacted, topic, log_dirs)
        partitions = sum(topic.partitions for topic in self.topics)
        return f"{len(self.topics)} topics, {partitions} partitions, {gaps} offsets compacted away"

    async def _start_clients(self, source: KafkaCluster) -> None:
        rate, history = self.options.rate, self.history
        kinds = (
            (AiokafkaProducer, "writer-aiokafka", 200),
            (LibrdkafkaProducer, "writer-librdkafka", 400),
            (KafkaPythonProducer, "writer-kafka-python", 100),
        )
        for topic, (kind, name, per_second) in zip(LIVE_TOPICS, kinds, strict=True):
            self.producers.append(kind(name, topic.name, topic.partitions, per_second * rate, history))
        names = [topic.name for topic in self.live_topics]
        self.consumers = [
            kind(f"{kind.library}-{member}", names, history, group=f"readers-{kind.library}")
            for member in (1, 2)
            for kind in (AiokafkaConsumer, LibrdkafkaConsumer)
        ]
        async with TaskGroup() as group:
            for client in self._first:
                group.create_task(client.start(source.bootstrap))

    async def _move_groups(self, sidecar: SidecarProcess, target: KafkaCluster) -> tuple[float, float]:
        """A rolling restart. The promote is asked for after the first members have moved, and waits for the last ones."""
        first, rest = self.consumers[:2], self.consumers[2:]
        assignments = [consumer.assignments for consumer in rest]
        began = self.history.mark("groups move")
        for consumer in first:
            await consumer.move(target.bootstrap, held=True)
        groups = sorted({consumer.group for consumer in self.consumers})  # the others stay at the source
        promote = asyncio.create_task(
            sidecar.linker("group", "promote", *groups, "--link", LINK, "--timeout", str(DRAIN_TIMEOUT))
        )
        try:
            await rebalanced(rest, assignments)
            for consumer in rest:
                await consumer.move(target.bootstrap, held=True)
            await promote
        finally:
            promote.cancel()
        return began, self.history.mark("groups are open")

    async def _validate(self, sidecar: SidecarProcess) -> str:
        """While everybody writes: each replica as far as it has come."""
        result = await sidecar.run("validate", LINK, "-o", "json", timeout=SPARK_TIMEOUT)
        if not result.output.strip():
            raise DemoError(f"linker validate failed: {result.errors.strip()[-1500:]}")
        run = result.json()
        self._more["validated_before_promote"] = {
            name: run[name] for name in ("replicas", "batches", "records", "bytes", "mismatches", "reason")
        }
        if result.exit_code != 0:
            raise DemoError(f"linker validate: {result.errors.strip()[-1500:]}")
        return f"{run['replicas']} replicas, {run['batches']} batches, {run['mismatches']} mismatches"

    async def _proved(self, sidecar: SidecarProcess) -> str:
        """The verdict in the promote's evidence."""
        follow = ("mirror", "promote", "--attach", self._promote_id, "-o", "json")
        result = await sidecar.run(*follow, timeout=SPARK_TIMEOUT)
        if not result.output.strip():
            raise DemoError(f"linker {' '.join(follow)}: {result.errors.strip()[-1500:]}")
        job = result.json()
        if job["phase"] != "PROMOTED":
            raise DemoError(f"the promote was abandoned: {job['reason']}")
        found = job["validation"] or {}
        self._more |= {
            "validated_replicas": found.get("replicas", 0),
            "validated_batches": found.get("batches", 0),
            "mismatches": found.get("mismatches"),
            "evidence": found.get("html"),
            "validation_state": found.get("state"),
            "validation_reason": found.get("reason"),
        }
        return f"{found.get('replicas')} replicas, {found.get('batches')} batches, {found.get('html')}"

    async def _promote(self, sidecar: SidecarProcess) -> tuple[float, float]:
        """Until the target leads. The clients' pauses are looked for from here to there; the last validation comes
        after it, and they do not wait for that."""
        began = self.history.mark("promote begins")
        names = [topic.name for topic in TOPICS]
        begun = await sidecar.linker("mirror", "promote", *names, "--link", LINK, "--no-wait", "-o", "json")
        self._promote_id = str(begun.json()["id"])
        deadline = time.monotonic() + SPARK_TIMEOUT
        with sidecar.client() as client:
            while not (job := await asyncio.to_thread(client.describe_promote, self._promote_id)).phase.final:
                if time.monotonic() > deadline:
                    raise DemoError(f"the promote is {job.phase} after {SPARK_TIMEOUT:.0f} s: {job.reason}")
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # clients that were held get their answers after it
        self._more["promote_ms"] = {str(phase): spent for phase, spent in job.phases_ms.items()}
        return began, self.history.mark("promote is over")

    async def _leave(self, sidecar: SidecarProcess) -> None:
        self._more["sidecar"] = {
            "cpu_seconds": round(sidecar.cpu_seconds(), 2),
            "peak_resident_mib": round(sidecar.peak_resident_bytes() / (1 << 20), 1),
        }
        await sidecar.linker("sidecar", "leave", str(SIDECAR_ID))
        code = await sidecar.ended()  # nothing is left to do for it
        if code != 0:
            raise DemoError(f"the sidecar ended with exit code {code}, see {sidecar.log}")

    async def _stop_producers(self) -> None:
        for producer in self.producers:
            await producer.stop()

    async def _check(
        self,
        source: KafkaCluster,
        target: KafkaCluster,
        window: tuple[float, float],
        move: tuple[float, float],
    ) -> DemoResult:
        topics = self.topics
        source_placed = await asyncio.to_thread(placements, source.bootstrap, topics)
        placed = await asyncio.to_thread(placements, target.bootstrap, topics)
        logs = await asyncio.to_thread(final_logs, target, self.live_topics, placed)
        ends = {partition: log.end for partition, log in logs.items()}
        groups = {consumer.name: consumer.group for consumer in self.consumers}
        for group in sorted(set(groups.values())):
            members = [consumer for consumer in self.consumers if consumer.group == group]
            await read_up_to(members, ends, DRAIN_TIMEOUT)  # what is missing then, the checker names
        for consumer in self.consumers:
            await consumer.stop()
        verdict = await asyncio.to_thread(check, self.history, logs, promote=window)
        moves = await asyncio.to_thread(judge_groups, self.history, logs, groups, move=move, opened=move[1])
        followers = await asyncio.to_thread(compare_followers, target, topics, placed)
        compared = await asyncio.to_thread(compare_clusters, source, target, topics, source_placed, placed)
        half_a_year_ago = int(time.time() * 1000) - YEAR_MS // 2
        self._more["records_of_last_year"] = {
            "source": await asyncio.to_thread(older_records, source, topics, source_placed, half_a_year_ago),
            "target": await asyncio.to_thread(older_records, target, topics, placed, half_a_year_ago),
        }
        self._more["versions"] = {"source": source.spec.version, "target": target.spec.version}
        self._more["notices"] = len(self.history.notices)
        return DemoResult(
            verdict=verdict,
            groups=moves,
            unrestarted=None if self.switching is None else self.switching.judged(logs),
            comparisons=compared,
            followers=followers,
            leaders=leaders(placed),
            sidecar_id=SIDECAR_ID,
            phases_ms=self.progress.phases_ms,
            more=self._more,
        )

    async def _abandon_clients(self) -> None:
        """Stop what still runs when a phase failed; that error matters, not what a client says to it."""
        for client in self._clients:
            try:
                await client.stop()
            except Exception as error:
                logging.getLogger(__name__).warning("%s did not stop: %r", client.name, error)

    def _ticker(self) -> str:
        acked, now = len(self.history.acks), time.monotonic()
        before, then = self._acked_before
        if now - then >= 1.0:
            self._acks_per_second = (acked - before) / (now - then)
            self._acked_before = (acked, now)
        if not self.producers:
            return ""
        errors = len(self.history.errors) + len(self.history.unacked)
        return (
            f"{acked} records acknowledged ({self._acks_per_second:.0f}/s), {len(self.history.reads)} read, "
            f"{errors} client errors"
        )
