"""The clusters that many runs share, with a proxy on every way that a sidecar may take into them.

A broker of either cluster has two listeners: PLAINTEXT for applications and other brokers, which is direct, and LINK,
which is advertised as a proxy's address and is what sidecars are given. The controller of either cluster is known to
everybody by a proxy's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient as KafkaAdmin

from lab.clusters.kafka_cluster import (
    CONTROLLER,
    FIRST_CONTROLLER_ID,
    KafkaCluster,
    KafkaClusterSpec,
    KafkaNode,
)
from lab.workload.live_producers import CLIENT_LOG
from tests.chaos.plan import SESSION
from tests.chaos.proxy import Proxy
from tests.real.harness_zookeeper_server import ZooKeeperServer

LINK = "LINK"
LISTENERS = {"PLAINTEXT": "PLAINTEXT", LINK: "PLAINTEXT"}
SOURCE_BROKERS, TARGET_BROKERS = 2, 3
HEALTHY_TIMEOUT = 60.0
PROPERTIES = {
    "broker.session.timeout.ms": str(round(SESSION * 1000)),
    "broker.heartbeat.interval.ms": "1000",
    "log.segment.delete.delay.ms": "500",
    "replica.lag.time.max.ms": "5000",  # a stopped follower holds acks=all up for so long
}


class Stage:
    """`async with Stage(directory)`: both clusters, and ZooKeeper, running."""

    def __init__(self, directory: Path, *, zookeeper: bool = True) -> None:
        self.directory = directory
        self.source_gates = {n: Proxy(f"source broker {n}") for n in range(1, SOURCE_BROKERS + 1)}
        self.target_gates = {n: Proxy(f"target broker {n}") for n in range(1, TARGET_BROKERS + 1)}
        self.controller_gate = Proxy("target controller")
        self.source_controller_gate = Proxy("source controller")
        self.source = KafkaCluster(
            KafkaClusterSpec(
                name="source",
                brokers=SOURCE_BROKERS,
                controllers=1,
                listeners=LISTENERS,
                properties=PROPERTIES,
                node_properties=self._source_properties,
            ),
            directory,
        )
        self.target = KafkaCluster(
            KafkaClusterSpec(
                name="target",
                brokers=TARGET_BROKERS,
                controllers=1,
                listeners=LISTENERS,
                properties=PROPERTIES,
                node_properties=self._target_properties,
            ),
            directory,
        )
        self.zookeeper: ZooKeeperServer | None = None
        self._with_zookeeper = zookeeper
        self._stack = AsyncExitStack()

    def _source_properties(self, node_id: int) -> Mapping[str, str]:
        node = self.source.nodes[node_id]
        return _behind_gates(node, self.source_gates.get(node_id), self.source_controller_gate)

    def _target_properties(self, node_id: int) -> Mapping[str, str]:
        node = self.target.nodes[node_id]
        return _behind_gates(node, self.target_gates.get(node_id), self.controller_gate)

    @property
    def gates(self) -> list[Proxy]:
        controllers = [self.controller_gate, self.source_controller_gate]
        return [*self.source_gates.values(), *self.target_gates.values(), *controllers]

    @property
    def source_link(self) -> str:
        """`bootstrap.servers` of the source for a link."""
        return ",".join(gate.address for gate in self.source_gates.values())

    @property
    def target_link(self) -> str:
        """`bootstrap.servers` of the target for a sidecar."""
        return ",".join(gate.address for gate in self.target_gates.values())

    @property
    def nodes(self) -> list[KafkaNode]:
        return [*self.source.nodes.values(), *self.target.nodes.values()]

    async def __aenter__(self) -> Stage:
        try:
            for gate in self.gates:
                self._stack.push_async_callback(gate.close)
                await gate.start()
            if self._with_zookeeper:
                self.zookeeper = await ZooKeeperServer.prepared(self.directory / "zookeeper")
                self._stack.push_async_callback(self.zookeeper.close)
                await self.zookeeper.start()
            clusters = [self._stack.enter_async_context(one) for one in (self.source, self.target)]
            for outcome in await asyncio.gather(*clusters, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await asyncio.shield(self._stack.aclose())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.shield(self._stack.aclose())

    async def healthy(self, timeout: float = HEALTHY_TIMEOUT) -> bool:
        """Whether every process runs and every real broker is in its cluster again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while loop.time() < deadline:
            processes = [*self.nodes, *([self.zookeeper] if self.zookeeper else [])]
            if not all(process.running for process in processes):
                return False
            seen = await asyncio.gather(
                *(asyncio.to_thread(_all_there, cluster) for cluster in (self.source, self.target))
            )
            if all(seen):
                return True
            await asyncio.sleep(0.3)
        return False


def _behind_gates(node: KafkaNode, gate: Proxy | None, controller: Proxy) -> Mapping[str, str]:
    """`gate`: None for the controller itself."""
    voters = {"controller.quorum.voters": f"{FIRST_CONTROLLER_ID}@{controller.address}"}
    if gate is None:
        controller.upstream = ("127.0.0.1", node.port(CONTROLLER))
        return voters
    gate.upstream = ("127.0.0.1", node.port(LINK))
    advertised = f"PLAINTEXT://{node.address('PLAINTEXT')},{LINK}://{gate.address}"
    return {**voters, "advertised.listeners": advertised}


def _all_there(cluster: KafkaCluster) -> bool:
    admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap}, logger=CLIENT_LOG)
    try:
        found = admin.list_topics(timeout=5).brokers
    except Exception as error:  # KafkaException: nobody answers yet
        CLIENT_LOG.info("%s: %s", cluster.spec.name, error)
        return False
    return {node.node_id for node in cluster.brokers} <= set(found)
