"""A group of a source that dies: its gate stands although the sidecar is killed too, and behind the failover it is promoted
at its committed offsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import GroupState, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_groups import LINK, GroupScene
from tests.real.harness_tools import kafka_tool
from tests.real.kafka_admin import kafka_admin

pytestmark = pytest.mark.timeout(300)
PREFIX = "orphaned."
SESSION = 25.0  # consumer.session.timeout.ms of the group, in which a killed sidecar has to be back


class DyingScene(GroupScene):
    """Its source is one broker."""

    async def create(self, cluster: KafkaCluster, topic: str, partitions: int = 3) -> None:
        admin = await asyncio.to_thread(kafka_admin, cluster.bootstrap)
        [made] = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
        await asyncio.to_thread(made.result, 20)

    def gates(self, group: str) -> set[str]:
        """Member ids of the gates in a group on the target, as its coordinator tells."""
        admin = AdminClient({"bootstrap.servers": self.target.bootstrap})
        found = admin.describe_consumer_groups([group], request_timeout=10)[group].result(15)
        return {one.member_id for one in found.members if one.client_id.startswith("kafka-linker-")}


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
) -> AsyncIterator[DyingScene]:
    source = await start_cluster(name="doomed", brokers=1)
    made = DyingScene(source, target_cluster, await start_sidecar(target_cluster.bootstrap))
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.slow
async def test_held_through_it_and_promoted_behind_the_fail_over(
    scene: DyingScene, unique_topic: Callable[[str], str]
) -> None:
    topic, group, other = unique_topic("topic"), unique_topic(f"{PREFIX}g"), unique_topic(f"{PREFIX}h")
    await scene.link(f"{PREFIX}.*")
    await scene.topic(topic)
    given = ("--entity-type", "groups", "--entity-name", group, "--add-config")
    session = f"consumer.session.timeout.ms={round(SESSION * 1000)}"
    configured = await kafka_tool(scene.target.bootstrap, "kafka-configs", "--alter", *given, session)
    assert configured.exit_code == 0, configured
    old = [
        scene.reader(scene.source, name, [topic], "app-0", **{"auto.offset.reset": "earliest"})
        for name in (group, other)
    ]
    for reader in old:
        await scene.all_read([reader], topic)
        await reader.close()
    scene.write(topic, 3, 20)  # what they have not read yet
    await scene.wait_active(topic)
    for name in (group, other):
        await scene.gated(name)
    new = scene.reader(scene.target, group, [topic], "app-1")
    await scene.waits(group, "app-1")
    await scene.until(
        "all is copied", lambda client: client.describe_mirror(LINK, topic), lambda one: one.lag == 0
    )
    gates = await asyncio.to_thread(scene.gates, group)
    assert len(gates) == 1
    # The source dies, and the sidecar: the next one never reaches it.
    for node in scene.source.nodes.values():
        await node.kill()
    await scene.sidecar.kill()
    killed = time.monotonic()
    await scene.sidecar.start()
    await asyncio.sleep(SESSION + 10 - (time.monotonic() - killed))
    assert await asyncio.to_thread(scene.gates, group) == gates, "nobody has looked after the gate"
    found = await scene.state(group, GroupState.GATED)
    assert "cannot be read at the source" in (found.reason or "")
    assert not new.got
    # What is left out is let go, without the source.
    await scene.sidecar.linker("link", "update", LINK, "--option", f"groups_exclude={other}")
    await scene.until(
        "it is let go",
        lambda client: client.list_groups(LINK),
        lambda groups: [one.group for one in groups] == [group],
    )
    # The promote is asked for first, and waits.
    await scene.promote(group)
    await scene.state(group, GroupState.DRAINING)
    await scene.sidecar.linker("mirror", "failover", topic, "--link", LINK, "--yes")
    await scene.until(
        "the topic is failed over",
        lambda client: client.describe_mirror(LINK, topic),
        lambda one: one.state is MirrorState.FAILED_OVER,
    )
    done = await scene.state(group, GroupState.PROMOTED)
    assert "promoted without its source" in (done.reason or "")
    assert "its topics are failed over" in (done.reason or "")
    scene.write(topic, 3, 10, scene.target.bootstrap)
    await scene.all_read([old[0], new], topic)
    assert scene.repeated([old[0], new]) == []
    assert not new.errors
    assert await asyncio.to_thread(scene.gates, group) == set()
