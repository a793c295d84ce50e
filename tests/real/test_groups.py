"""Consumer groups move between real clusters: synced, held, opened at the very record where they stopped, and taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import pytest_asyncio

from admin.models import DemoteGroupsRequest, GroupState, PromoteRequest
from groups.gates.base import OffsetAndMetadata
from groups.gates.coordinators import Coordinators
from groups.gates.requests import offset_commit
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_groups import LINK, GroupScene
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition

PREFIX = "moving."


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
) -> AsyncIterator[GroupScene]:
    sidecar = await start_sidecar(target_cluster.bootstrap)
    made = GroupScene(source_cluster, target_cluster, sidecar)
    try:
        yield made
    finally:
        await made.close()


async def test_held_while_it_is_at_the_source_then_opened_at_its_offsets(
    scene: GroupScene, unique_topic: Callable[[str], str]
) -> None:
    """Group first, topic later; a rolling restart of two members; the sidecar is killed while it holds them."""
    topic, group = unique_topic("topic"), unique_topic(f"{PREFIX}g")
    await scene.link(f"{PREFIX}.*")
    await scene.topic(topic)
    old = [
        scene.reader(scene.source, group, [topic], f"app-{n}", **{"auto.offset.reset": "earliest"})
        for n in range(2)
    ]
    await scene.all_read(old, topic)
    await scene.wait_active(topic)
    found = await scene.gated(group)
    assert found.source_members == 2
    assert {one.client_id for one in found.members_at_source} == {"app-0", "app-1"}
    # One member moves: it is in the group on the target and gets nothing, while the other reads on at the source.
    await old[0].close()
    new = [scene.reader(scene.target, group, [topic], "app-0")]
    await scene.waits(group, "app-0")
    scene.write(topic, 3, 20)
    await scene.all_read(old, topic)
    await scene.sidecar.kill()
    await scene.sidecar.start()
    scene.write(topic, 3, 20)
    await scene.all_read(old, topic)
    # Still somebody there: the promote is given up and says who.
    await scene.promote(group, timeout_ms=1000)
    waiting = await scene.state(group, GroupState.DRAINING)
    assert "app-1 at 127.0.0.1" in (waiting.reason or "")
    given_up = await scene.state(group, GroupState.GATED)
    assert "app-1" in (given_up.reason or "")
    await scene.promote(group)
    await old[1].close()
    new.append(scene.reader(scene.target, group, [topic], "app-1"))
    assert not new[0].got
    scene.write(topic, 3, 20)
    done = await scene.state(group, GroupState.PROMOTED)
    await scene.all_read([*old, *new], topic)
    assert scene.repeated([*old, *new]) == []
    assert not done.waiting_for
    # The topic afterwards, under the running group.
    await scene.ask(lambda client: client.promote(LINK, PromoteRequest(topics=[topic])))
    await scene.until(
        "the topic is promoted",
        lambda client: client.describe_mirror(LINK, topic),
        lambda one: one.state == "PROMOTED",
    )
    scene.write(topic, 3, 20, scene.target.bootstrap)
    await scene.all_read([*old, *new], topic)
    assert scene.repeated([*old, *new]) == []


async def test_topic_first_then_the_group(scene: GroupScene, unique_topic: Callable[[str], str]) -> None:
    """A group with lag moves with its lag, after its topic; somebody on the target beforehand is refused by name."""
    topic, group = unique_topic("topic"), unique_topic(f"{PREFIX}g")
    await scene.topic(topic, mirror=False)
    old = [scene.reader(scene.source, group, [topic], "app", **{"auto.offset.reset": "earliest"})]
    await scene.all_read(old, topic)
    await old[0].close()
    scene.write(topic, 3, 30)  # its lag
    await scene.link(f"{PREFIX}.*")
    await scene.sidecar.linker("mirror", "create", topic, "--link", LINK, "--replication-factor", "2")
    await scene.wait_active(topic)
    await scene.gated(group)
    await scene.ask(lambda client: client.promote(LINK, PromoteRequest(topics=[topic])))
    await scene.until(
        "the topic is promoted",
        lambda client: client.describe_mirror(LINK, topic),
        lambda one: one.state == "PROMOTED",
    )
    new = [scene.reader(scene.target, group, [topic], "app-0")]
    await scene.waits(group, "app-0")
    await asyncio.sleep(3)  # it is in the group, and there is something to read
    assert not new[0].got
    await scene.promote(group)
    await scene.state(group, GroupState.PROMOTED)
    await scene.all_read([*old, *new], topic)
    assert scene.repeated([*old, *new]) == []


async def test_there_and_back(scene: GroupScene, unique_topic: Callable[[str], str]) -> None:
    """Demote: what was read on the target is not read at the source again. And a group that runs on the target already."""
    topic, group = unique_topic("topic"), unique_topic(f"{PREFIX}g")
    taken = f"{group}.taken"
    await scene.topic(topic, mirror=False)
    seen = [
        scene.reader(scene.source, name, [topic], "app", **{"auto.offset.reset": "earliest"})
        for name in (group, taken)
    ]
    for reader in seen:
        await scene.all_read([reader], topic)
        await reader.close()
    own = unique_topic("own")  # a client does not join a group for topics that are not there
    await scene.create(scene.target, own)
    stranger = scene.reader(scene.target, taken, [own], "stranger", **{"auto.offset.reset": "latest"})
    await scene.joined(stranger)
    await scene.link(f"{PREFIX}.*")
    await scene.sidecar.linker("mirror", "create", topic, "--link", LINK, "--replication-factor", "2")
    await scene.wait_active(topic)
    refused = await scene.state(taken, GroupState.REFUSED)
    assert "stranger at 127.0.0.1" in (refused.reason or "")
    await scene.gated(group)
    await scene.promote(group)
    await scene.state(group, GroupState.PROMOTED)
    scene.write(topic, 3, 10)
    there = scene.reader(scene.target, group, [topic], "app")
    await scene.all_read([seen[0], there], topic)
    await scene.ask(lambda client: client.demote_groups(LINK, DemoteGroupsRequest(groups=[group])))
    await scene.until(
        "the demote waits for who is there",
        lambda client: client.describe_group(LINK, group),
        lambda one: one.state is GroupState.DEMOTING and "app at 127.0.0.1" in (one.reason or ""),
    )
    await there.close()
    await scene.gated(group)
    scene.write(topic, 3, 10)
    back = scene.reader(scene.source, group, [topic], "app")
    await scene.all_read([seen[0], there, back], topic)
    assert scene.repeated([seen[0], there, back]) == []
    # The stranger goes: now it can be held.
    await stranger.close()
    await scene.gated(taken)


async def test_by_force_while_somebody_is_at_the_source(
    scene: GroupScene, unique_topic: Callable[[str], str]
) -> None:
    """It does not wait: what the member at the source reads after its last commit is read again, and nothing is missed."""
    topic, group = unique_topic("topic"), unique_topic(f"{PREFIX}g")
    await scene.link(f"{PREFIX}.*")
    await scene.topic(topic)
    old = scene.reader(scene.source, group, [topic], "app-0", **{"auto.offset.reset": "earliest"})
    await scene.all_read([old], topic)
    await scene.wait_active(topic)
    await scene.gated(group)
    new = scene.reader(scene.target, group, [topic], "app-1")
    await scene.waits(group, "app-1")
    assert not new.got
    await scene.sidecar.linker("group", "promote", group, "--link", LINK, "--force")
    done = await scene.state(group, GroupState.PROMOTED)
    assert {one.client_id for one in done.members_at_source} == {"app-0"}
    before = len(old.got)
    scene.write(topic, 3, 20)
    await scene.all_read([new], topic, since=20)  # all of it, although somebody reads at the source
    await scene.all_read([old], topic)
    assert {(tp, offset) for tp, offset, _ in old.got[before:]} <= {(tp, offset) for tp, offset, _ in new.got}
    assert scene.repeated([new]) == []


async def test_groups_of_odd_ids(scene: GroupScene, unique_topic: Callable[[str], str]) -> None:
    """Offsets committed under any id that Kafka takes: held and opened at them, or named as left out."""
    topic = unique_topic("topic")
    kept = [
        f"{PREFIX}{name}-{topic}" for name in ("of one/../two", "line\nbreak", "gr\u00fcn", "%2F#?", "l" * 90)
    ]
    left_out = {"": "its id is empty", f"{PREFIX}{'x' * 300}": "bytes, and the state store takes"}
    await scene.topic(topic, mirror=False)
    wanted = {TopicPartition(topic, n): OffsetAndMetadata(5 + n) for n in range(3)}
    await at_the_source(scene, [*kept, *left_out], wanted)
    await scene.link(f"({PREFIX}.*)?")
    await scene.sidecar.linker("mirror", "create", topic, "--link", LINK, "--replication-factor", "2")
    await scene.wait_active(topic)
    for group in kept:
        await scene.gated(group)
    shown = (await scene.sidecar.linker("status", "-o", "json")).output
    assert all(why in shown for why in left_out.values()), shown
    await scene.promote(*kept)
    for group in kept:
        await scene.state(group, GroupState.PROMOTED)
        found = await asyncio.to_thread(scene.committed, scene.target, group, topic)
        assert found == {0: 5, 1: 6, 2: 7}, group


async def at_the_source(
    scene: GroupScene, groups: Sequence[str], offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """The offsets of groups without members."""
    cluster = Cluster(
        "source", parse_bootstrap_servers(scene.source.bootstrap), ClientSecurity.plaintext(), "odd-groups"
    )
    await cluster.connect()
    coordinators = Coordinators(cluster)
    try:
        for group in groups:
            assert await offset_commit(coordinators, group, offsets, timeout=30) == {}
    finally:
        await coordinators.close()
        await cluster.close()
