"""Streams groups (KIP-1071) of Kafka Streams on real clusters: held, and promoted with their offsets and their state."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import confluent_kafka
import pytest
import pytest_asyncio

from admin.models import GroupState, PromoteRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.clients.build import Builder
from tests.clients.catalog import Library
from tests.clients.program import Program, Transcript
from tests.real.harness_groups import LINK, PATIENCE, GroupScene

PREFIX = "counting."
COUNTING = Library(name="streams-4.3.1", kind="streams", program="CountingStreams", version="4.3.1")
PARTITIONS = 2
HELD_FOR = 60.0
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac was not found: install a JDK"),
]


class Counting:
    """One application, at one cluster after the other, with new local state each time."""

    def __init__(self, scene: GroupScene, directory: Path, topic: str, guarantee: str) -> None:
        self.scene, self.topic = scene, topic
        self.group, self.output = f"{PREFIX}{topic}", f"{topic}-counts"
        self.internal = [f"{self.group}-counts-changelog", f"{self.group}-digits-repartition"]
        self._directory, self._guarantee = directory, guarantee
        self.running: list[Program] = []

    async def start(self, cluster: KafkaCluster, where: str) -> Program:
        name = f"{where}-{len(self.running)}"
        told = {"group": self.group, "topic": self.topic, "output": self.output, "guarantee": self._guarantee}
        program = Program(
            await Builder(self._directory / "programs").command(COUNTING),
            Transcript(name),
            {**told, "state": str(self._directory / f"state-{name}")},
            self._directory / f"{name}.log",
        )
        self.running.append(program)
        await program.start(cluster.bootstrap, where)
        return program

    async def stop(self) -> None:
        for program in self.running:
            await program.kill()

    def wanted(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for tp, count in self.scene.produced.items():
            if tp.topic == self.topic:
                counts.update(str(number)[-1] for number in range(count))
        return counts

    def counted(self, cluster: KafkaCluster) -> dict[str, list[int]]:
        """Every count that it wrote, by digit."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "none",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(self.output, n, 0) for n in range(PARTITIONS)])
        found: dict[str, list[int]] = defaultdict(list)
        ended, deadline = 0, time.monotonic() + PATIENCE
        while ended < PARTITIONS and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                found[message.key().decode()].append(int(message.value()))
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended += 1
        consumer.close()
        return found

    async def all_counted(self, cluster: KafkaCluster) -> None:
        """Until each digit was counted 1, 2, 3, ... to the end, each once: nothing missed, doubled, or begun anew."""
        wanted = {digit: list(range(1, count + 1)) for digit, count in self.wanted().items()}
        deadline = time.monotonic() + PATIENCE
        while (found := await asyncio.to_thread(self.counted, cluster)) != wanted:
            assert time.monotonic() < deadline, {key: (found.get(key), wanted[key]) for key in wanted}
            for program in self.running:
                assert not program.transcript.errors
            await asyncio.sleep(0.5)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
) -> AsyncIterator[GroupScene]:
    made = GroupScene(source_cluster, target_cluster, await start_sidecar(target_cluster.bootstrap))
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize(
    "guarantee", [pytest.param("at_least_once", marks=pytest.mark.slow), "exactly_once_v2"]
)
async def test_held_from_the_mirror_of_its_state_on_and_promoted_with_it(
    scene: GroupScene, tmp_path: Path, unique_topic: Callable[[str], str], guarantee: str
) -> None:
    topic = unique_topic("topic")
    app = Counting(scene, tmp_path, topic, guarantee)
    try:
        await scene.topic(topic, PARTITIONS, mirror=False)
        await scene.create(scene.source, app.output, PARTITIONS)
        old = await app.start(scene.source, "source")
        await app.all_counted(scene.source)
        await scene.link(f"{PREFIX}.*")
        topics = [topic, app.output]
        await scene.sidecar.linker("mirror", "create", *topics, "--link", LINK, "--replication-factor", "2")
        await scene.wait_active(*topics)
        listed = await scene.state(app.group, GroupState.REFUSED)
        deadline = time.monotonic() + PATIENCE
        while sorted(listed.unmirrored) != app.internal and time.monotonic() < deadline:
            await asyncio.sleep(1)  # the first look may have come before the last internal topic was read
            listed = await scene.state(app.group, GroupState.REFUSED)
        assert (listed.protocol, listed.gate, listed.topics) == ("streams", "none", [topic])
        assert "while the link does not mirror" in (listed.reason or "")
        without = await scene.sidecar.run("group", "promote", app.group, "--link", LINK)
        assert without.exit_code == 1 and "the state that is in its changelogs" in " ".join(
            (without.output + without.errors).split()
        )
        planned = await scene.sidecar.linker("mirror", "promote", topic, "--link", LINK, "--dry-run")
        assert f"streams group {app.group} reads {topic}: " in " ".join(planned.output.split())
        await scene.sidecar.linker(
            "mirror", "create", *app.internal, "--link", LINK, "--replication-factor", "2"
        )
        topics += app.internal
        await scene.wait_active(*topics)
        held = await scene.gated(app.group)
        assert (held.protocol, held.gate, held.unmirrored) == ("streams", "streams", [])
        new = await app.start(scene.target, "target")
        await scene.until(
            "the application waits on the target",
            lambda client: client.describe_group(LINK, app.group),
            lambda one: bool(one.members_at_target),
        )
        await scene.sidecar.kill()
        await scene.sidecar.start()  # takes the gate over
        until = time.monotonic() + HELD_FOR
        while time.monotonic() < until:  # longer than any session
            scene.write(topic, PARTITIONS, 5)
            await app.all_counted(scene.source)
            shown = await scene.ask(lambda client: client.describe_group(LINK, app.group))
            assert [one.partitions for one in shown.members_at_target] == [[]]
            assert (shown.state, shown.unheld) == (GroupState.GATED, [])
            await asyncio.sleep(2)
        assert not new.transcript.errors
        if guarantee == "exactly_once_v2":  # a transaction cannot be in two clusters
            await old.stop()
            await scene.ask(lambda client: client.promote(LINK, PromoteRequest(topics=topics)))
            await scene.until(
                "its topics are promoted",
                lambda client: client.list_mirrors(LINK),
                lambda found: {one.topic for one in found if one.state == "PROMOTED"} >= set(topics),
            )
            await scene.promote(app.group)
        else:
            await scene.promote(app.group)
            waiting = await scene.until(
                "the promote says who is there",
                lambda client: client.describe_group(LINK, app.group),
                lambda one: one.state is GroupState.DRAINING and "still in the group" in (one.reason or ""),
            )
            assert "at 127.0.0.1" in waiting.reason
            scene.write(topic, PARTITIONS, 50)  # some of it is left to the target
            await old.stop()
        done = await scene.until(
            "the group is promoted, and said to run",
            lambda client: client.describe_group(LINK, app.group),
            lambda one: one.state is GroupState.PROMOTED and "on the target" in (one.reason or ""),
        )
        assert "runs on the target: 1 members, 1 with partitions" in done.reason
        scene.write(
            topic, PARTITIONS, 50, *([scene.target.bootstrap] if guarantee == "exactly_once_v2" else [])
        )
        await app.all_counted(scene.target)
    finally:
        await app.stop()
