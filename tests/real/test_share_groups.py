"""Share groups (KIP-932) of Java clients on real clusters: named, not held, and promoted with their start offsets."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from admin.models import GroupState, PromoteRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.clients.build import Builder
from tests.clients.catalog import Library
from tests.clients.program import Program, Transcript
from tests.real.harness_groups import LINK, PATIENCE, GroupScene

PREFIX = "sharing."
SHARE = Library(name="java-4.3.1", kind="java", program="ShareClient", version="4.3.1")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac was not found: install a JDK"),
]


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


class Sharers:
    """Members of one share group, each a process."""

    def __init__(self, directory: Path, group: str, topic: str) -> None:
        self._directory, self._group, self._topic = directory, group, topic
        self.running: list[Program] = []

    async def start(self, cluster: KafkaCluster, where: str, **more: str) -> Program:
        name = f"{where}-{len(self.running)}"
        program = Program(
            await Builder(self._directory / "programs").command(SHARE),
            Transcript(name),
            {"group": self._group, "topic": self._topic, **more},
            self._directory / f"{name}.log",
        )
        self.running.append(program)
        await program.start(cluster.bootstrap, where)
        return program

    async def stop(self) -> None:
        for program in self.running:
            await program.kill()


def offsets(program: Program) -> list[int]:
    assert not program.transcript.errors
    return [one.offset for one in program.transcript.reads]


async def reads(program: Program, wanted: set[int]) -> None:
    """Until it was given all of these."""
    deadline = time.monotonic() + PATIENCE
    while not wanted <= set(offsets(program)):
        assert time.monotonic() < deadline, f"{program.name} was given {sorted(set(offsets(program)))}"
        await asyncio.sleep(0.1)


async def brought_over(scene: GroupScene, group: str) -> None:
    await scene.until(
        "its start was brought over",
        lambda client: client.describe_group(LINK, group),
        lambda one: one.sync_age_ms is not None and one.difference == 0,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def sharers(tmp_path: Path, unique_topic: Callable[[str], str]) -> AsyncIterator[Sharers]:
    topic = unique_topic("topic")
    made = Sharers(tmp_path, f"{PREFIX}{topic}", topic)
    try:
        yield made
    finally:
        await made.stop()


async def test_named_from_the_first_look_and_promoted_with_its_start_offsets(
    scene: GroupScene, sharers: Sharers
) -> None:
    """Record 25 was released, 26 to 29 were acknowledged: whatever its coordinator tells for a start (what is persisted is
    a write behind), it starts there on the target, and a word says how many are delivered again. A run on the target before
    that leaves nothing behind."""
    topic, group = sharers._topic, sharers._group
    await scene.link(f"{PREFIX}.*")
    await scene.topic(topic, 1)
    await scene.wait_active(topic)
    old = await sharers.start(scene.source, "source", leave="25", reset="earliest")
    await reads(old, set(range(20)))
    scene.write(topic, 1, 10)
    await reads(old, set(range(30)))
    listed = await scene.state(group, GroupState.REFUSED)
    assert (listed.protocol, listed.gate, listed.topics) == ("share", "none", [topic])
    assert "KIP-932" in (listed.reason or "")
    planned = await scene.sidecar.linker("mirror", "promote", topic, "--link", LINK, "--dry-run")
    assert f"share group {group} reads {topic}: " in " ".join(planned.output.split())
    await scene.ask(lambda client: client.promote(LINK, PromoteRequest(topics=[topic])))
    await scene.until(
        "the topic is promoted",
        lambda client: client.describe_mirror(LINK, topic),
        lambda one: one.state == "PROMOTED",
    )
    await brought_over(scene, group)  # a group that is not there yet starts at the end, as it is told to
    # A trial on the target: it acknowledges everything there.
    trial = await sharers.start(scene.target, "target", reset="latest")
    await reads(trial, {29})
    assert min(offsets(trial)) in (0, 20), (
        "where its start was brought over last, whatever share.auto.offset.reset says"
    )
    await trial.stop()
    await scene.promote(group, timeout_ms=1000)
    await scene.until(
        "the promote says who is there",
        lambda client: client.describe_group(LINK, group),
        lambda one: one.state is GroupState.REFUSED and "given up" in (one.reason or ""),
    )
    assert "source-0 at 127.0.0.1" in ((await scene.state(group, GroupState.REFUSED)).reason or "")
    await scene.promote(group)
    await scene.state(group, GroupState.DRAINING)
    await old.stop()
    done = await scene.until(
        "the group is promoted, and said to be",
        lambda client: client.describe_group(LINK, group),
        lambda one: one.state is GroupState.PROMOTED and "on the target" in (one.reason or ""),
    )
    (row,) = done.partition_status
    start = row.source_offset
    assert row.target_offset == start <= 25
    assert (
        f"its members can be started there; {29 - start} records beyond its start offsets" in done.reason
    ), done.reason
    assert "share.auto.offset.reset is earliest at the source and latest on the target" in done.reason, (
        done.reason
    )
    new = await sharers.start(scene.target, "target")
    scene.write(topic, 1, 10, scene.target.bootstrap)
    await reads(new, set(range(start, 40)))
    assert min(offsets(new)) == start


async def test_a_member_on_the_target_is_in_the_way_and_said_to_be(
    scene: GroupScene, sharers: Sharers
) -> None:
    topic, group = sharers._topic, sharers._group
    await scene.link(f"{PREFIX}.*")
    await scene.topic(topic, 1)
    await scene.wait_active(topic)
    old = await sharers.start(scene.source, "source", reset="earliest")
    await reads(old, set(range(20)))
    await old.stop()
    await scene.state(group, GroupState.REFUSED)
    await scene.ask(lambda client: client.promote(LINK, PromoteRequest(topics=[topic])))
    await scene.until(
        "the topic is promoted",
        lambda client: client.describe_mirror(LINK, topic),
        lambda one: one.state == "PROMOTED",
    )
    scene.write(topic, 1, 5, scene.target.bootstrap)
    await brought_over(scene, group)
    early = await sharers.start(scene.target, "target")
    await reads(early, {24})
    await scene.promote(group)
    refused = await scene.until(
        "the promote is given up",
        lambda client: client.describe_group(LINK, group),
        lambda one: one.state is GroupState.REFUSED and "given up" in (one.reason or ""),
    )
    assert "runs on the target already: target-1 at 127.0.0.1" in (refused.reason or "")
    await early.stop()
    await scene.promote(group)
    (row,) = (await scene.state(group, GroupState.PROMOTED)).partition_status
    new = await sharers.start(scene.target, "target")
    await reads(new, set(range(row.source_offset, 25)))
    assert min(offsets(new)) == row.source_offset
