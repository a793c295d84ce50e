"""Java producers in cases that public reports tell of: a mirror that is made anew under them, and batches that are split."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.clients.build import Builder
from tests.clients.catalog import LIBRDKAFKA, Library
from tests.clients.program import Program, Transcript
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import create_topic, linked_sidecar, mirrored, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac was not found: install a JDK"),
]
#: The last one that keeps a topic's leader epoch when the topic is made anew (KAFKA-12257), and the newest.
BEFORE_12257 = Library(name="java-2.7.2", kind="java", program="Client", version="2.7.2")
NEWEST = Library(name="java-4.3.1", kind="java", program="Client", version="4.3.1")
PARTITIONS = 2
PATIENCE = 60.0


@pytest_asyncio.fixture(loop_scope="session")
async def sidecar(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, _numbers: Iterator[int]
) -> AsyncIterator[SidecarProcess]:
    async with linked_sidecar(
        source_cluster, target_cluster, 900 + next(_numbers), tmp_path / "sidecar"
    ) as running:
        yield running


class Writers:
    """One program for each library, all of them at the target."""

    def __init__(self, target: KafkaCluster, topic: str, directory: Path) -> None:
        self.target, self.topic, self.directory = target, topic, directory
        self.programs: list[Program] = []

    async def start(self, *libraries: Library, **settings: str) -> None:
        builder = Builder(self.directory / "programs")
        told = {
            "role": "producer",
            "topic": self.topic,
            "partitions": str(PARTITIONS),
            "rate": "100",
            **settings,
        }
        for library in libraries:
            transcript = Transcript(library.name, PARTITIONS, self.topic)
            log = self.directory / f"{library.name}.log"
            self.programs.append(Program(await builder.command(library), transcript, told, log))
            await self.programs[-1].start(self.target.bootstrap, "target")

    async def again(self) -> None:
        """Restarted as by a supervisor that does not wait, with numbers that were not in use."""
        for program in self.programs:
            await program.kill()
            program.transcript.next += 1_000_000
            await program.start(self.target.bootstrap, "target")

    async def acked_more(self, records: int = 50) -> dict[str, float]:
        """How long it took each of them, in seconds."""
        began, took = time.monotonic(), {}
        for program in self.programs:
            wanted = len(program.transcript.acks) + records
            await program.until(
                lambda acks=program.transcript.acks, wanted=wanted: len(acks) >= wanted,  # type: ignore[misc]
                PATIENCE,
                f"have {records} more records acknowledged",
            )
            took[program.name] = round(time.monotonic() - began, 1)
        return took

    async def judged(self) -> None:
        """Every record that was acknowledged is at its offset, and every number of a program is there once at most."""
        for program in self.programs:
            await program.stop()
        found = await asyncio.to_thread(self._log)
        values = list(found.values())
        assert len(values) == len(set(values))
        for program in self.programs:
            for ack in program.transcript.acks:
                at = (ack.partition.partition, ack.offset)
                assert ack.offset is None or found.get(at) == (program.name, str(ack.sequence)), (
                    ack,
                    found.get(at),
                )

    def _log(self) -> dict[tuple[int, int | None], tuple[str, str]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.target.bootstrap,
                "group.id": f"judge-{self.topic}",
                "auto.offset.reset": "earliest",
            }
        )
        found: dict[tuple[int, int | None], tuple[str, str]] = {}
        try:
            for partition in range(PARTITIONS):
                here = KafkaPartition(self.topic, partition, 0)
                _, end = consumer.get_watermark_offsets(here, timeout=30)
                consumer.assign([here])
                seen = 0
                while seen < end:
                    message = consumer.poll(30)
                    assert message is not None and message.error() is None, (partition, seen, end)
                    seen = message.offset() + 1
                    parts = message.value().split(b"|", 3)
                    if parts[0] == b"live":
                        found[partition, message.offset()] = (parts[1].decode(), parts[2].decode())
        finally:
            consumer.close()
        return found

    async def close(self) -> None:
        for program in self.programs:
            await program.kill()


async def test_batches_that_are_split(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """The source's MESSAGE_TOO_LARGE comes through, the producer splits under idempotence, over the promote too."""
    topic = unique_topic("small")
    limit = {"max.message.bytes": "400"}
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, topic, PARTITIONS, 2, limit)
    await mirrored(sidecar, topic)
    writers = Writers(target_cluster, topic, tmp_path)
    try:
        await writers.start(NEWEST, rate="1000", **{"set.linger.ms": "20"})
        await writers.acked_more(500)
        [program] = writers.programs
        splits = [program.log.read_text().count("splitting and retrying")]
        await sidecar.linker("mirror", "promote", topic, "--link", LINK)
        splits.append(program.log.read_text().count("splitting and retrying"))
        await writers.acked_more(500)
        await writers.judged()
        splits.append(program.log.read_text().count("splitting and retrying"))
        print("splits before the promote, until its end, and at the end of all", splits)
        assert not program.transcript.unacked
        assert splits[0] > 5
        assert splits[2] > splits[1] + 20
    finally:
        await writers.close()


async def test_a_mirror_is_made_anew_under_its_producers(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Another topic id, and leader epochs that begin again: the newest goes on by itself, the others restarted."""
    topic = unique_topic("anew")
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, topic, PARTITIONS, 2)
    await asyncio.to_thread(write, source_cluster.bootstrap, topic, 20)
    await mirrored(sidecar, topic)
    # Each start is a leader epoch, so that the second mirror's stay below the first one's for long.
    for _ in range(3):
        await sidecar.restart()
    writers, old = Writers(target_cluster, topic, tmp_path), Writers(target_cluster, topic, tmp_path)
    try:
        await writers.start(NEWEST)
        await old.start(BEFORE_12257, LIBRDKAFKA)
        await writers.acked_more(50)
        await old.acked_more(50)
        await sidecar.linker("mirror", "delete", topic, "--link", LINK, "--yes", "--force")
        await mirrored(sidecar, topic)
        anew = await writers.acked_more(200)
        print("went on after", anew)
        await (
            old.again()
        )  # they hold on to the leader of the higher epoch, the first at once, librdkafka at the promote
        await old.acked_more(50)
        await sidecar.linker("mirror", "promote", topic, "--link", LINK)
        print("and after the promote", await writers.acked_more(50), await old.acked_more(50))
        writers.programs += old.programs
        await writers.judged()
    finally:
        await writers.close()
        await old.close()


async def test_deliveries_that_time_out_while_the_sidecar_is_away(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """An application that waits for less than a start takes gets a timeout for it, and nothing else; it goes on."""
    topic = unique_topic("late")
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, topic, PARTITIONS, 2)
    await mirrored(sidecar, topic)
    writers = Writers(target_cluster, topic, tmp_path)
    try:
        await writers.start(
            NEWEST,
            **{"set.delivery.timeout.ms": "5000", "set.request.timeout.ms": "2000", "set.linger.ms": "5"},
        )
        await writers.start(LIBRDKAFKA, **{"set.message.timeout.ms": "5000"})
        await writers.acked_more(50)
        await sidecar.kill()
        for program in writers.programs:
            await program.until(
                lambda unacked=program.transcript.unacked: len(unacked) >= 50,  # type: ignore[misc]
                PATIENCE,
                "have 50 records that timed out",
            )
        await sidecar.start()
        took = await writers.acked_more(50)
        await writers.judged()
        print("went on after", took)
        for program in writers.programs:
            told = {one.error for one in program.transcript.unacked}
            print(program.name, len(program.transcript.unacked), sorted(told)[:3])
            assert all("imed out" in error or "TimeoutException" in error for error in told), told
    finally:
        await writers.close()
