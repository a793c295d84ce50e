"""A promote with live producers, small: one link, idempotent writers, a sidecar that can be killed, a judge.

Stalls are made with what really stalls (a stopped process, an open transaction, a missing right); the phases
that a killed sidecar had written down are read from its store.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from admin.client import AdminError
from admin.models import (
    MirrorDescription,
    MirrorState,
    PartitionLag,
    PromoteJobStatus,
    PromoteOptions,
    PromotePhase,
    PromoteRequest,
)
from lab.clusters.child_process import ChildProcess
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.checker import Verdict, check
from lab.workload.history import History
from lab.workload.inspection import Placement, compare_clusters, compare_followers, final_logs, placements
from lab.workload.live_producers import AiokafkaProducer, LibrdkafkaProducer, LiveProducer
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_stalls import PATIENCE, brokers_back, stopped, topic_configs
from tests.real.verdicts import assert_sound
from wire.frames.types import TopicPartition

LINK = "old"
POLL = 0.02
RATE = 100.0


async def eventually(what: str, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait for a condition that costs nothing to look at."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
        await asyncio.sleep(POLL)


def log_starts(bootstrap: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """As consumers are told."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        return {
            tp: int(consumer.get_watermark_offsets(KafkaPartition(tp.topic, tp.partition), timeout=30)[0])
            for tp in tps
        }
    finally:
        consumer.close()


class Scene:
    """Topics of one test at the source, mirrored by one sidecar, written to by live producers."""

    def __init__(
        self,
        source: KafkaCluster,
        target: KafkaCluster,
        sidecar: SidecarProcess,
        topics: Sequence[SourceTopic],
    ) -> None:
        self.source = source
        self.target = target
        self.sidecar = sidecar
        self.topics = list(topics)
        self.history = History()
        self.producers: list[LiveProducer] = []
        self.began = 0.0  # of the last promote, on the history's clock
        self.copies = min(3, len(target.brokers))

    # --- before -------------------------------------------------------------------------------------------------------

    async def begin(self, *, rate: float = RATE) -> None:
        """Fill, link, mirror, and let two writers (librdkafka, aiokafka) in at the target."""
        filler = SourceFiller(self.source.bootstrap, scale=0.05)
        await asyncio.to_thread(filler.create, self.topics, min(2, len(self.source.brokers)))
        await asyncio.to_thread(filler.fill, self.topics)
        await self.sidecar.linker("link", "create", LINK, "--bootstrap-servers", self.source.bootstrap)
        await self.sidecar.linker(
            "mirror", "create", *self.names, "--link", LINK, "--replication-factor", str(self.copies)
        )
        await self.wait_active()
        self.add_writers(rate)
        for producer in self.producers:
            await producer.start(self.target.bootstrap)
        await self.acked_more(20)

    def add_writers(self, rate: float) -> None:
        kinds = (LibrdkafkaProducer, AiokafkaProducer)
        for index, kind in enumerate(kinds):
            topic = self.topics[index % len(self.topics)]
            self.producers.append(
                kind(f"{kind.library}-{topic.name}", topic.name, topic.partitions, rate, self.history)
            )

    @property
    def names(self) -> list[str]:
        return [topic.name for topic in self.topics]

    @property
    def tps(self) -> list[TopicPartition]:
        return [tp for topic in self.topics for tp in topic.topic_partitions()]

    async def ask(self, call: Callable[[Any], Any]) -> Any:
        """One call of the admin API."""

        def run() -> Any:
            with self.sidecar.client() as client:
                return call(client)

        return await asyncio.to_thread(run)

    async def describe(self, topic: str) -> MirrorDescription:
        """One mirror, partition by partition."""
        answer: MirrorDescription = await self.ask(lambda client: client.describe_mirror(LINK, topic))
        return answer

    async def wait_active(self, timeout: float = PATIENCE) -> None:
        """Until every mirror is copied by all its replicas and produces are forwarded."""
        deadline = time.monotonic() + timeout
        while True:
            status = await self.ask(lambda client: client.status())
            [link] = [one for one in status.links if one.name == LINK]
            mirrors = {one.topic: one for one in link.mirror_list if one.topic in self.names}
            assert not [one for one in mirrors.values() if one.state is MirrorState.FAILED], mirrors
            if link.forwarding.enabled and all(
                name in mirrors
                and mirrors[name].state is MirrorState.ACTIVE
                and mirrors[name].lag is not None
                for name in self.names
            ):
                return
            assert time.monotonic() < deadline, f"not active within {timeout:.0f} s: {link}"
            await asyncio.sleep(0.1)

    # --- producers ----------------------------------------------------------------------------------------------------

    async def acked_more(self, records: int = 50, timeout: float = PATIENCE) -> None:
        """Until every producer got that many further acks: writes flow."""
        start = len(self.history.acks)

        def enough() -> bool:
            counts = dict.fromkeys((producer.name for producer in self.producers), 0)
            for ack in self.history.acks[start:]:
                if ack.producer in counts:
                    counts[ack.producer] += 1
            return all(count >= records for count in counts.values())

        await eventually(f"{records} more acks for every producer", enough, timeout)

    async def hush(self, timeout: float = PATIENCE) -> None:
        """Nothing more is sent, everything sent is acknowledged, and the replicas have all of it."""
        for producer in self.producers:
            producer._rate = 0.0
        await eventually("every record has its outcome", lambda: self.history.pending() == 0, timeout)
        # No lag is none behind what the sidecar has heard of the source, which may have acknowledged more since.
        ends = dict.fromkeys(self.tps, 0)
        for ack in self.history.acks:
            if ack.offset is not None:
                ends[ack.partition] = max(ends[ack.partition], ack.offset + 1)

        def copied(one: PartitionLag) -> bool:
            end = ends[TopicPartition(one.topic, one.partition)]
            return one.lag == 0 and one.target_end_offset is not None and one.target_end_offset >= end

        deadline = time.monotonic() + timeout
        while True:
            report = await self.ask(lambda client: client.lag(LINK, self.names))
            if len(report.partitions) == len(ends) and all(copied(one) for one in report.partitions):
                return
            assert time.monotonic() < deadline, f"replicas stay behind: {report}, acknowledged up to {ends}"
            await asyncio.sleep(0.05)

    def speak(self, rate: float = RATE) -> None:
        """After `hush`."""
        for producer in self.producers:
            producer._rate = rate

    # --- promote ------------------------------------------------------------------------------------------------------

    async def start_promote(self, **options: Any) -> str:
        """Begin a promote of all topics of the scene; its id."""
        request = PromoteRequest(topics=self.names, options=PromoteOptions(**options))
        self.began = self.history.mark("promote")
        job = await self.ask(lambda client: client.promote(LINK, request))
        return str(job.id)

    async def job(self, job_id: str) -> PromoteJobStatus:
        answer: PromoteJobStatus = await self.ask(lambda client: client.describe_promote(job_id))
        return answer

    async def reach(
        self, job_id: str, phase: PromotePhase, why: str = "", timeout: float = PATIENCE
    ) -> PromoteJobStatus:
        """Wait until the job is in a phase (and says why it waits there)."""
        deadline = time.monotonic() + timeout
        while True:
            job = await self.job(job_id)
            if job.phase is phase and why in (job.reason or ""):
                return job
            assert not job.phase.final, f"wanted {phase}, it ended: {job}"
            assert time.monotonic() < deadline, f"wanted {phase} {why!r}, it is {job}"
            await asyncio.sleep(POLL)

    @asynccontextmanager
    async def standing_in(
        self, phase: PromotePhase, process: ChildProcess, **options: int
    ) -> AsyncIterator[str]:
        """A promote that stands in a phase for as long as a broker is stopped; its id.

        The controller fences a broker that sleeps for some seconds. On a machine that is slow enough for the promote to
        see that before the phase, it is tried again.
        """
        for _ in range(5):
            with stopped(process):
                job_id = await self.start_promote(**{"catch_up_timeout_ms": 2000, **options})
                while (job := await self.job(job_id)).phase is not phase and not job.phase.final:
                    await asyncio.sleep(POLL)
                if job.phase is phase:
                    yield job_id
                    return
            await brokers_back(self.target)
            await self.wait_active()
        raise AssertionError(f"no promote stood in {phase}: {job}")

    async def settled(self, job_id: str, timeout: float = PATIENCE) -> PromoteJobStatus:
        """Wait for the job's end, over restarts of the sidecar."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                job = await self.job(job_id)
                if job.phase.final:
                    return job
                state: object = job
            except AdminError as error:
                if not (error.unreachable or error.status == 503):
                    raise
                state = error
            assert time.monotonic() < deadline, f"promote {job_id} does not end: {state}"
            await asyncio.sleep(0.1)

    async def promoted(self, **options: Any) -> PromoteJobStatus:
        """A promote that has to work."""
        job = await self.settled(await self.start_promote(**options))
        assert job.phase is PromotePhase.PROMOTED, job
        return job

    async def disturbed(self, tp: TopicPartition) -> PromoteJobStatus:
        """A promote under which somebody writes to the source past the fence; its end.

        On a busy machine writes may be held for less time than that somebody needs for a record. So a broker sleeps until
        one is written; one that is missed before the writes are held is tried again, as in `standing_in`.
        """
        async with writing_by_itself(self.source.bootstrap, tp) as written:
            for _ in range(5):
                with stopped(self.target.nodes[2]):
                    job_id = await self.start_promote(catch_up_timeout_ms=2000, fence_timeout_ms=60_000)
                    past: int | None = None
                    while not (job := await self.job(job_id)).phase.final:
                        if past is None and job.phase is PromotePhase.FENCED:
                            past = written() + 2  # one of them was on its way
                        if past is not None and written() >= past:
                            break
                        await asyncio.sleep(POLL)
                ended = await self.settled(job_id)
                if "past the fence" in (ended.reason or ""):
                    return ended
                await brokers_back(self.target)
                await self.wait_active()
        raise AssertionError(f"nobody wrote past the fence: {ended}")

    def stored_phases(self) -> set[str]:
        """What a sidecar that was killed had written down."""
        assert not self.sidecar.running
        return {str(state["phase"]) for state in self._stored("/links/%/mirrors/%/state")}

    def stored_jobs(self) -> set[str]:
        assert not self.sidecar.running
        return {str(job["status"]) for job in self._stored(f"/links/{LINK}/promotes/%")}

    def _stored(self, pattern: str) -> list[dict[str, Any]]:
        database = sqlite3.connect(self.sidecar.directory / "state" / "linker.db")
        try:
            rows = database.execute("SELECT value FROM node WHERE path LIKE ?", (pattern,)).fetchall()
        finally:
            database.close()
        return [json.loads(value) for (value,) in rows]

    # --- after --------------------------------------------------------------------------------------------------------

    async def judge(self, *, unknown: int = 0) -> Verdict:
        """Every topic is promoted: stop the writers, then check every record, replica, leader and config.

        `unknown` is how many sends have no outcome; each may be in the log once, or not.
        """
        for producer in self.producers:
            await producer.stop()
        source_placed = await asyncio.to_thread(placements, self.source.bootstrap, self.topics)
        placed = await asyncio.to_thread(placements, self.target.bootstrap, self.topics)
        logs = await asyncio.to_thread(final_logs, self.target, self.topics, placed)
        verdict = check(self.history, logs, promote=(self.began, self.history.clock()))
        assert_sound(verdict)
        assert verdict.unknown == unknown
        assert verdict.failed == 0
        for compared in (
            await asyncio.to_thread(
                compare_clusters,
                self.source,
                self.target,
                self.topics,
                source_placed,
                placed,
                await asyncio.to_thread(log_starts, self.source.bootstrap, self.tps),
            ),
            await asyncio.to_thread(
                compare_followers,
                self.target,
                self.topics,
                placed,
                await asyncio.to_thread(log_starts, self.target.bootstrap, self.tps),
            ),
        ):
            unequal = [one for one in compared if not (one.identical and one.offsets_identical)]
            assert unequal == [], unequal
        self.check_placement(placed)
        await self.check_configs()
        return verdict

    def check_placement(self, placed: Mapping[TopicPartition, Placement]) -> None:
        """Real brokers only, as many replicas as asked for."""
        real = {node.node_id for node in self.target.brokers}
        for tp, placement in placed.items():
            assert set(placement.replicas) <= real, (tp, placement)
            assert len(placement.replicas) == self.copies, (tp, placement)
            assert placement.leader in real, (tp, placement)

    async def check_configs(self) -> None:
        """What mirroring forced upon the topics is gone, what was copied has stayed. A broker that is asked may hear of the
        last change a little later."""
        for topic in self.topics:
            wished = topic.configs.get("unclean.leader.election.enable")
            expected = {name: (value, True) for name, value in topic.configs.items()}
            expected["unclean.leader.election.enable"] = (wished or "false", wished is not None)
            deadline = asyncio.get_running_loop().time() + 10
            while True:
                configs = await asyncio.to_thread(topic_configs, self.target.bootstrap, topic.name)
                seen = {name: configs[name] for name in expected}
                if seen == expected or asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(0.1)
            assert seen == expected, topic.name

    async def close(self) -> None:
        for producer in self.producers:
            await producer.stop()


@asynccontextmanager
async def writing_by_itself(bootstrap: str, tp: TopicPartition) -> AsyncIterator[Callable[[], int]]:
    """A record at a time for the length of the block, out of a process of its own: what else this one has to do keeps it
    from nothing. How many it has written is asked of what is yielded. The checker does not know its records."""
    program = (
        "import sys; from confluent_kafka import Producer\n"
        "producer = Producer({'bootstrap.servers': sys.argv[1], 'linger.ms': 0})\n"
        "while producer.flush(30) == 0:\n"
        "    producer.produce(sys.argv[2], b'by itself', partition=int(sys.argv[3]))\n"
        "    print('.', end='', flush=True)\n"
    )
    written = 0

    async def read(stdout: asyncio.StreamReader) -> None:
        nonlocal written
        while dots := await stdout.read(1024):
            written += len(dots)

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, bootstrap, tp.topic, str(tp.partition), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readexactly(20), PATIENCE)
        reading = asyncio.create_task(read(process.stdout))
        yield lambda: written
    finally:
        process.kill()
        await process.wait()
    await reading


MakeScene = Callable[..., Awaitable[Scene]]


@asynccontextmanager
async def scenes(
    source: KafkaCluster,
    target: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    """`await make()`: a scene that is set, with one topic of three partitions unless topics are given."""
    made: list[Scene] = []

    async def make(topics: Sequence[SourceTopic] | None = None, *, copies: int | None = None) -> Scene:
        await brokers_back(target)
        chosen = topics or [SourceTopic(unique_topic("live"), 3, SourceFiller.history)]
        sidecar = await start_sidecar(target.bootstrap)
        made.append(Scene(source, target, sidecar, chosen))
        made[-1].copies = copies or made[-1].copies
        await made[-1].begin()
        return made[-1]

    try:
        yield make
    finally:
        for scene in made:
            await scene.close()
