"""Real Kafka clusters as child processes: KRaft controllers and brokers on 127.0.0.1, each under control.

Nodes keep their ports for the life of the cluster object, so that one that was killed returns under the same
address.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lab.clusters.child_process import ChildError, ChildProcess
from lab.clusters.kafka_jars import (
    DEFAULT_VERSION,
    KafkaDistribution,
    ensure_distribution,
    random_uuid,
)
from lab.clusters.ports import PortReservation
from wire.frames.types import TopicPartition

START_TIMEOUT = 60.0
CONTROLLER = "CONTROLLER"
FIRST_CONTROLLER_ID = 101
STARTED = b"Kafka Server started"

# Small and quick instead of Kafka's defaults for large machines; nothing that a link could notice.
SMALL_CLUSTER_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.initial.task.delay.ms": "500",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaClusterSpec:
    """The shape of a cluster. With `controllers=0` the first broker is the controller too."""

    name: str
    brokers: int = 1
    controllers: int = 0
    version: str = DEFAULT_VERSION
    racks: Sequence[str] = ()  # per broker in order of id; none if shorter
    properties: Mapping[str, str] = field(default_factory=dict)  # of every node, over the defaults
    node_properties: Callable[[int], Mapping[str, str]] | None = None  # of one node, over all others
    # Listener name -> security protocol. The first is the one between brokers. Other settings of a
    # protocol (ssl.*, sasl.*, listener.name.*) are given in `properties`.
    listeners: Mapping[str, str] = field(default_factory=lambda: {"PLAINTEXT": "PLAINTEXT"})
    controller_protocol: str = "PLAINTEXT"
    # Of `format --release-version`; None is the newest that the version has.
    metadata_version: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    format_arguments: Sequence[str] = ()  # further ones for `kafka-storage format`, e.g. --add-scram
    cluster_id: str | None = None
    heap_mb: int = 350
    quick_start: bool = True  # C1 only: starts in half the time, but is slower under long load
    jvm_options: Sequence[str] = ()


def node_roles(spec: KafkaClusterSpec) -> dict[int, str]:
    """`process.roles` by node id."""
    roles = dict.fromkeys(range(1, spec.brokers + 1), "broker")
    if spec.controllers == 0:
        roles[1] = "broker,controller"
    return roles | {FIRST_CONTROLLER_ID + index: "controller" for index in range(spec.controllers)}


def node_properties(
    spec: KafkaClusterSpec,
    node_id: int,
    roles: str,
    *,
    listeners: Mapping[str, str],
    voters: str,
    log_dirs: str,
) -> dict[str, str]:
    """The properties of one node. `listeners`: host:port by listener name, as the node binds them."""
    copies = str(min(3, spec.brokers))
    quorum = str(min(2, spec.brokers))
    protocols = {**spec.listeners, CONTROLLER: spec.controller_protocol}
    is_broker = "broker" in roles
    has_rack = is_broker and node_id <= len(spec.racks)
    return {
        **SMALL_CLUSTER_PROPERTIES,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": quorum,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": quorum,
        **spec.properties,
        **({"broker.rack": spec.racks[node_id - 1]} if has_rack else {}),
        "process.roles": roles,
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": CONTROLLER,
        "listeners": ",".join(f"{listener}://{address}" for listener, address in listeners.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "log.dirs": log_dirs,
        **({"inter.broker.listener.name": next(iter(spec.listeners))} if is_broker else {}),
        **(spec.node_properties(node_id) if spec.node_properties else {}),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """The properties as a file of Java's."""
    lines = []
    for key, value in properties.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)


class KafkaNode(ChildProcess):
    """One process of a cluster."""

    def __init__(
        self, spec: KafkaClusterSpec, dist: KafkaDistribution, node_id: int, roles: str, directory: Path
    ) -> None:
        super().__init__(f"{spec.name} node {node_id}", directory / "server.log")
        self.spec = spec
        self.node_id = node_id
        self.roles = roles
        self.directory = directory
        self.data = directory / "data"
        self._dist = dist
        self._ports: dict[str, PortReservation] = {}
        try:
            for listener in [
                *(spec.listeners if self.is_broker else ()),
                *([CONTROLLER] if self.is_controller else ()),
            ]:
                self._ports[listener] = PortReservation()
        except OSError:
            self.release_ports()
            raise

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.roles

    def address(self, listener: str | None = None) -> str:
        """host:port of a listener; of the first one if not named."""
        reservation = self._ports[listener or next(iter(self._ports))]
        return f"127.0.0.1:{reservation.port}"

    def port(self, listener: str | None = None) -> int:
        """The port of a listener; of the first one if not named."""
        return self._ports[listener or next(iter(self._ports))].port

    def prepare(self, cluster_id: str, voters: str, checkpoint: bytes) -> None:
        """Format the data directory and write the node's properties."""
        self.data.mkdir(parents=True)
        (self.data / "meta.properties").write_text(
            f"version=1\nnode.id={self.node_id}\ncluster.id={cluster_id}\ndirectory.id={random_uuid()}\n"
        )
        (self.data / "bootstrap.checkpoint").write_bytes(checkpoint)
        properties = node_properties(
            self.spec,
            self.node_id,
            self.roles,
            listeners={listener: self.address(listener) for listener in self._ports},
            voters=voters,
            log_dirs=str(self.data),
        )
        self.write_properties(properties)

    def write_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the node's properties; they hold from its next start."""
        (self.directory / "server.properties").write_text(properties_text(properties))

    async def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start the node and wait until it serves; a broker only says so once it is unfenced."""
        self.launch()
        await self.wait_started(timeout)

    def launch(self) -> None:
        """Start the process without waiting for it to serve."""
        command = self._dist.command(
            "kafka.Kafka",
            str(self.directory / "server.properties"),
            heap_mb=self.spec.heap_mb,
            quick_start=self.spec.quick_start,
            jvm_options=self.spec.jvm_options,
        )
        self._launch(command, self.directory)

    async def wait_started(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until the process that was launched says that it serves."""
        deadline = time.monotonic() + timeout
        while STARTED not in self._log_since_start():
            await self._nap("starting", deadline, timeout)

    async def restart(self, timeout: float = START_TIMEOUT) -> None:
        """Controlled shutdown and start."""
        await self.stop()
        await self.start(timeout)

    def release_ports(self) -> None:
        """Give the ports back; the node cannot be started any more."""
        for reservation in self._ports.values():
            reservation.release()


class KafkaCluster:
    """`async with KafkaCluster(spec, directory) as cluster:` a running cluster, gone with the block.

    Data directories stay; the caller that gave the directory removes them.
    """

    def __init__(self, spec: KafkaClusterSpec, base_dir: Path) -> None:
        if spec.brokers < 1:
            raise ChildError(f"cluster {spec.name} needs at least one broker")
        self.spec = spec
        self.directory = base_dir.absolute() / spec.name  # nodes run in directories of their own
        self.cluster_id = spec.cluster_id or random_uuid()
        self.nodes: dict[int, KafkaNode] = {}

    @property
    def brokers(self) -> list[KafkaNode]:
        return [node for node in self.nodes.values() if node.is_broker]

    @property
    def controllers(self) -> list[KafkaNode]:
        return [node for node in self.nodes.values() if node.is_controller]

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers` of the first listener."""
        return self.bootstrap_for(next(iter(self.spec.listeners)))

    @property
    def inside(self) -> str:
        """`bootstrap.servers` for a sidecar: on loopback the same as for clients."""
        return self.bootstrap

    @property
    def controller_bootstrap(self) -> str:
        """`controller.quorum.bootstrap.servers`, so to say."""
        return ",".join(node.address(CONTROLLER) for node in self.controllers)

    def bootstrap_for(self, listener: str) -> str:
        """`bootstrap.servers` of the listener with that name."""
        return ",".join(node.address(listener) for node in self.brokers)

    def log_dir(self, broker: int) -> Path:
        """`log.dirs` of a broker; there is one each."""
        return self.nodes[broker].data

    def partition_dir(self, broker: int, partition: TopicPartition) -> Path:
        """Where a broker keeps its replica of a partition."""
        return self.log_dir(broker) / f"{partition.topic}-{partition.partition}"

    async def start(self) -> None:
        """Format and start everything at once."""
        spec = self.spec
        dist = await ensure_distribution(spec.version)
        checkpoint = await dist.bootstrap_checkpoint(
            spec.metadata_version, spec.features, spec.format_arguments
        )
        if self.directory.exists():
            raise ChildError(f"{self.directory} exists already: give each cluster a directory of its own")
        for node_id, role in node_roles(spec).items():
            self.nodes[node_id] = KafkaNode(spec, dist, node_id, role, self.directory / f"node-{node_id}")
        voters = ",".join(f"{node.node_id}@{node.address(CONTROLLER)}" for node in self.controllers)
        for node in self.nodes.values():
            node.prepare(self.cluster_id, voters, checkpoint)
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            await node.wait_started()

    async def close(self) -> None:
        """End every node at once: a controlled shutdown would only write files that are not read any more."""
        for node in self.nodes.values():
            if node.running:
                await node.kill()
            node.release_ports()

    def remove(self) -> None:
        """Delete the data of a closed cluster."""
        shutil.rmtree(self.directory, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.shield(self.close())
