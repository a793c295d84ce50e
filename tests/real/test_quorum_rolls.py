"""The target's controllers are replaced one by one (KIP-853) under a link: the sidecar follows, and starts again."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import CONTROLLER, KafkaCluster, KafkaClusterSpec, KafkaNode
from lab.clusters.kafka_jars import ensure_distribution
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import Scene
from tests.real.harness_tools import kafka_tool
from tests.real.harness_trouble import PATIENCE, active_controller, operator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def quorum(cluster: KafkaCluster, broker: KafkaNode) -> tuple[int, list[int]]:
    """Leader (-1 where there is none) and voters, as a broker hears of it from the controller that it follows."""
    async with operator(cluster) as client:
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = await client.call(
            "describe_quorum", {"topics": topics}, node_id=broker.node_id, timeout=PATIENCE
        )
        if not answer.topics or int(answer.topics[0].partitions[0].error_code):
            return -1, []  # a controller that leads no more, or not yet
        [partition] = answer.topics[0].partitions
        return int(partition.leader_id), [int(voter.replica_id) for voter in partition.current_voters]


class Replacement:
    """Controllers that join by themselves, and ones that are taken out, as an operator does it."""

    def __init__(self, target: KafkaCluster) -> None:
        self.target = target

    async def dynamic(self) -> None:
        """Controllers that were named one by one in a list become ones that may change."""
        said = await kafka_tool(
            self.target.bootstrap, "kafka-features", "upgrade", "--feature", "kraft.version=1"
        )
        assert said.exit_code == 0, said

    async def add(self, node: KafkaNode) -> None:
        dist = await ensure_distribution()
        node.prepare(self.target.cluster_id, "", await dist.bootstrap_checkpoint())
        written = (node.directory / "server.properties").read_text().splitlines()
        properties = dict(line.split("=", 1) for line in written)
        del properties["controller.quorum.voters"]
        node.write_properties({**properties, "controller.quorum.auto.join.enable": "true"})
        await node.start()
        await self.voters_have(node.node_id)

    async def remove(self, node: KafkaNode) -> None:
        """A leader that is taken out resigns; then it is stopped for good."""
        meta = (node.data / "meta.properties").read_text()
        [directory_id] = re.findall(r"directory\.id=(\S+)", meta)
        said = await kafka_tool(
            self.target.bootstrap,
            "kafka-metadata-quorum",
            "remove-controller",
            *("--controller-id", str(node.node_id), "--controller-directory-id", directory_id),
        )
        assert said.exit_code == 0, said
        for broker in self.target.brokers:
            await self.leads_no_more(node.node_id, broker)
        await node.stop()
        node.release_ports()

    async def leads_no_more(self, controller: int, broker: KafkaNode) -> None:
        deadline = time.monotonic() + PATIENCE
        while (found := (await quorum(self.target, broker))[0]) in (controller, -1):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.2)

    async def voters_have(self, node_id: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while node_id not in (found := (await quorum(self.target, self.target.brokers[0]))[1]):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.2)


@pytest_asyncio.fixture(loop_scope="session")
async def clusters_nodes(tmp_path: Path) -> AsyncIterator[tuple[KafkaCluster, list[KafkaNode]]]:
    """A target of one controller, and two more for later, whose addresses its nodes have been told."""
    dist = await ensure_distribution()
    added: list[KafkaNode] = []

    def told(_: int) -> dict[str, str]:
        nodes = [*target.controllers, *added]
        return {"controller.quorum.bootstrap.servers": ",".join(node.address(CONTROLLER) for node in nodes)}

    spec = KafkaClusterSpec(name="target", brokers=2, controllers=1, node_properties=told)
    target = KafkaCluster(spec, tmp_path)
    added += [KafkaNode(spec, dist, id_, "controller", tmp_path / f"node-{id_}") for id_ in (102, 103)]
    try:
        async with target:
            yield target, added
    finally:
        for node in added:
            if node.running:
                await node.kill()
            node.release_ports()


async def test_no_controller_of_before_is_left(
    source_cluster: KafkaCluster,
    clusters_nodes: tuple[KafkaCluster, list[KafkaNode]],
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    """The sidecar's file names the first one only; it follows while it runs, starts again, and promotes."""
    target, (second, third) = clusters_nodes
    [first] = target.controllers
    sidecar = await start_sidecar(
        target.bootstrap, target={"controller.quorum.bootstrap.servers": first.address(CONTROLLER)}
    )
    scene = Scene(source_cluster, target, sidecar, [SourceTopic(unique_topic("t"), 3, SourceFiller.history)])
    replacement = Replacement(target)
    try:
        await scene.begin()
        await replacement.dynamic()
        await replacement.add(second)
        await replacement.remove(first)
        await scene.acked_more(50)
        await replacement.add(third)
        await replacement.remove(second)
        assert await active_controller(target) == third.node_id
        await scene.acked_more(50)
        await sidecar.restart()
        await scene.wait_active()
        await scene.acked_more(50)
        await scene.promoted()
        await scene.judge()
    finally:
        await scene.close()
