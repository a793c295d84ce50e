"""Transactions that are resumed by producer id and epoch, as Flink's sink does it from a checkpoint, over a promote."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.clients.build import Builder
from tests.clients.catalog import Library
from tests.clients.program import Program, Transcript
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import create_topic, linked_sidecar, mirrored

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac was not found: install a JDK"),
]
RESUMED = Library(name="resumed-4.3.1", kind="java", program="Resumed", version="4.3.1")
RECORDS = 4
PATIENCE = 60.0
#: Flink's committer takes the first one for known and goes on; at the others its job fails and starts again.
REFUSALS = ("ProducerFenced", "InvalidPidMapping", "InvalidProducerEpoch")


@pytest_asyncio.fixture(loop_scope="session")
async def sidecar(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, _numbers: Iterator[int]
) -> AsyncIterator[SidecarProcess]:
    async with linked_sidecar(
        source_cluster, target_cluster, 900 + next(_numbers), tmp_path / "sidecar"
    ) as running:
        yield running


class Sink:
    """What a job of Flink does with one topic, at either cluster."""

    def __init__(self, topic: str, directory: Path) -> None:
        self.topic, self.directory = topic, directory
        self.builder = Builder(directory / "programs")

    async def begin(self, cluster: KafkaCluster, name: str, transactional_id: str) -> tuple[str, str]:
        """Write and flush, and die: producer id and epoch, as the checkpoint has them."""
        program = await self._program(name, transactional_id, role="begin")
        try:
            await program.start(cluster.bootstrap, "source")
            await program.until(lambda: bool(self._said(program)), PATIENCE, "flush its records")
            producer_id, epoch = self._said(program)[0].split()
            return producer_id, epoch
        finally:
            await program.kill()

    async def write(self, cluster: KafkaCluster, name: str, transactional_id: str) -> None:
        """A transaction from its beginning to its end."""
        error = await self._run(
            cluster, await self._program(name, transactional_id, role="begin", commit="1")
        )
        assert error is None, error

    async def resume(
        self,
        cluster: KafkaCluster,
        name: str,
        transactional_id: str,
        known: tuple[str, str],
        *,
        records: int = 0,
    ) -> str | None:
        """Commit what a checkpoint knows of, or go on writing in it: the error of it."""
        producer_id, epoch = known
        program = await self._program(
            name,
            transactional_id,
            role="resume",
            producer_id=producer_id,
            epoch=epoch,
            records=str(records),
        )
        return await self._run(cluster, program)

    async def _program(self, name: str, transactional_id: str, **told: str) -> Program:
        arguments = {
            "topic": self.topic,
            "records": str(RECORDS),
            "transactional_id": transactional_id,
            **told,
        }
        command = await self.builder.command(RESUMED)
        return Program(command, Transcript(name, 2, self.topic), arguments, self.directory / f"{name}.log")

    async def _run(self, cluster: KafkaCluster, program: Program) -> str | None:
        said = program.transcript
        try:
            await program.start(cluster.bootstrap, "target")
            await program.until(lambda: said.closed or bool(said.errors), PATIENCE, "end")
        finally:
            await program.kill()
        return said.errors[0].error if said.errors else None

    @staticmethod
    def _said(program: Program) -> list[str]:
        assert not program.transcript.errors, program.transcript.errors
        return [one.error for one in program.transcript.notices]


def committed(bootstrap: str, topic: str) -> dict[str, int]:
    """Records by their writers, as one sees them who reads committed ones only; none may be held back for ever."""
    found: dict[str, int] = {}
    settings = {"bootstrap.servers": bootstrap, "group.id": f"judge-{topic}", "enable.partition.eof": True}
    stable = Consumer({**settings, "isolation.level": "read_committed"})
    every = Consumer({**settings, "isolation.level": "read_uncommitted"})
    try:
        for partition in range(2):
            here = KafkaPartition(topic, partition, 0)
            assert stable.get_watermark_offsets(here, timeout=30) == every.get_watermark_offsets(
                here, timeout=30
            ), "a transaction is open"
            stable.assign([here])
            while (message := stable.poll(30)) is not None and message.error() is None:
                writer = message.value().split(b"|")[1].decode()
                found[writer] = found.get(writer, 0) + 1
            assert message is not None, "no end of the partition"
    finally:
        stable.close()
        every.close()
    return found


async def test_transactions_of_a_checkpoint(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """The source commits them. The target knows none of them and says so, every time; it writes nothing for them."""
    topic = unique_topic("sink")
    first, second = f"first-{topic}", f"second-{topic}"
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, topic, 2, 2)
    await mirrored(sidecar, topic)
    sink = Sink(topic, tmp_path)
    done = await sink.begin(source_cluster, "done", first)
    early = await sink.resume(target_cluster, "early", first, done)
    assert await sink.resume(source_cluster, "commit", first, done) is None
    open_one = await sink.begin(source_cluster, "open", second)
    options = ("--abort-open-transactions", "--transaction-timeout-ms", "1000")
    await sidecar.linker("mirror", "promote", topic, "--link", LINK, *options)
    errors = {
        "before the promote": early,
        "after it": await sink.resume(target_cluster, "after", first, done),
        "an open one": await sink.resume(target_cluster, "aborted", second, open_one),
        "an open one that goes on": await sink.resume(
            target_cluster, "on", second, open_one, records=RECORDS
        ),
    }
    for name, transactional_id in (("fresh-1", first), ("fresh-2", second)):
        await sink.write(target_cluster, name, transactional_id)
    errors["under an id that began anew"] = await sink.resume(
        target_cluster, "again", second, open_one, records=RECORDS
    )
    print(errors)
    for when, error in errors.items():
        assert error is not None and any(word in error for word in REFUSALS), (when, error)
    found = await asyncio.to_thread(committed, target_cluster.bootstrap, topic)
    assert found == {"done": RECORDS, "fresh-1": RECORDS, "fresh-2": RECORDS}
