"""Kafka clusters and the sidecar in containers: Kafka's official images, and the image of deploy/Dockerfile.

All containers share one network. A broker has a listener for that network (INSIDE) and one that is published on
this machine (HOST), so the sidecar has both, too: Kafka looks a leader up under the listener name that a client
came in by. Node properties are those of the clusters on loopback, only addresses differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import docker.errors
import yaml
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.image import DockerImage
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy, LogMessageWaitStrategy

from lab.clusters.child_process import ChildError
from lab.clusters.kafka_cluster import (
    CONTROLLER,
    STARTED,
    KafkaClusterSpec,
    node_properties,
    node_roles,
    properties_text,
)
from lab.clusters.kafka_jars import random_uuid
from lab.clusters.makers import SIDECAR_ID, AnyCluster
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import COMMAND_TIMEOUT, CommandError, CommandResult

ROOT = Path(__file__).parents[2]
KAFKA_IMAGE = "apache/kafka"
SIDECAR_IMAGE = "kafka-linker:containers-test"
INSIDE = "INSIDE"
HOST = "HOST"
PORTS = {INSIDE: 19092, HOST: 9092, CONTROLLER: 29093}
SIDECAR_HOST = "linker"
LOG_DIRS = "/var/lib/kafka/data"
# KafkaDockerWrapper takes this file whole, and adds to it only what stands in KAFKA_* variables.
MOUNTED_PROPERTIES = "/mnt/shared/config/server.properties"
SIDECAR_CONFIG = "/etc/linker/linker.yaml"
START_TIMEOUT = 120.0
MAKE_TIMEOUT = 900.0  # images are pulled and built in it


def missing_engine() -> str | None:
    """The reason why no container can be started here; None if a Docker engine answers."""
    try:
        client = DockerClient().client
    except docker.errors.DockerException as error:
        return f"no Docker engine answers here ({str(error)[:200]})"
    client.close()
    return None


def _check(spec: KafkaClusterSpec) -> None:
    """Refuse a spec of which the containers would leave something out."""
    plain = KafkaClusterSpec(name=spec.name)
    for name in (
        "listeners",
        "controller_protocol",
        "metadata_version",
        "features",
        "format_arguments",
        "jvm_options",
    ):
        if getattr(spec, name) != getattr(plain, name):
            raise ChildError(f"cluster {spec.name}: {name} is for clusters on loopback only; leave it out")


def container_spec(spec: KafkaClusterSpec) -> KafkaClusterSpec:
    """The spec with the two listeners that brokers in containers have."""
    _check(spec)
    return replace(spec, listeners={INSIDE: "PLAINTEXT", HOST: "PLAINTEXT"})


def container_properties(
    spec: KafkaClusterSpec, node_id: int, roles: str, voters: str, outside: str | None
) -> dict[str, str]:
    """The properties of one node. `outside`: host:port of a broker for clients on this machine."""
    host = node_host(spec, node_id)
    # By name, not 0.0.0.0: nodes are told the controllers' addresses as these bind them.
    listeners = {CONTROLLER: f"{host}:{PORTS[CONTROLLER]}"} if "controller" in roles else {}
    advertised = {}
    if outside is not None:
        listeners |= {INSIDE: f"{host}:{PORTS[INSIDE]}", HOST: f"0.0.0.0:{PORTS[HOST]}"}
        advertised["advertised.listeners"] = f"{INSIDE}://{host}:{PORTS[INSIDE]},{HOST}://{outside}"
    properties = node_properties(spec, node_id, roles, listeners=listeners, voters=voters, log_dirs=LOG_DIRS)
    return properties | advertised


def node_host(spec: KafkaClusterSpec, node_id: int) -> str:
    """The name of a node's container in the network."""
    return f"{spec.name}-{node_id}"


def sidecar_config(target_bootstrap: str, outside: str) -> dict[str, Any]:
    """The sidecar's configuration file. `outside`: its host:port for clients on this machine."""
    return {
        "sidecar": {
            "broker.id": SIDECAR_ID,
            "listeners": [f"{name}://0.0.0.0:{PORTS[name]}" for name in (INSIDE, HOST)],
            "advertised.listeners": [
                f"{INSIDE}://{SIDECAR_HOST}:{PORTS[INSIDE]}",
                f"{HOST}://{outside}",
            ],
            "listener.security.protocol.map": f"{INSIDE}:PLAINTEXT,{HOST}:PLAINTEXT",
            "state.dir": "/var/lib/linker",
        },
        "target": {"bootstrap.servers": target_bootstrap},
        "validation": {"policy": "skip"},
    }


class _Containers:
    """Containers that start together and are removed together; their logs are kept."""

    def __init__(self, network: Network, logs: Path) -> None:
        self._network = network
        self._logs = logs
        self._all: dict[str, DockerContainer] = {}
        self._ports: dict[str, PortReservation] = {}

    async def _start(self) -> None:
        raise NotImplementedError

    def _publish(self, host: str) -> str:
        """host:port by which this machine will reach the HOST listener of a container."""
        self._ports[host] = PortReservation()
        engine = DockerClient()
        try:
            return f"{engine.host()}:{self._ports[host].port}"
        finally:
            engine.client.close()

    def _add(
        self, host: str, image: str, files: Mapping[str, str], environment: Mapping[str, str]
    ) -> DockerContainer:
        container = DockerContainer(image, env=dict(environment), hostname=host)
        container = container.with_network(self._network).with_network_aliases(host)
        if host in self._ports:
            container = container.with_bind_ports(PORTS[HOST], self._ports[host].port)
        for path, text in files.items():
            container = container.with_copy_into_container(text.encode(), path)
        self._all[host] = container
        return container

    def _launch(self, host: str) -> None:
        if host in self._ports:
            self._ports[host].release()  # the engine binds it from here on
        self._all[host].start()

    async def close(self) -> None:
        """Keep the logs and remove the containers."""
        for port in self._ports.values():
            port.release()
        for host, container in self._all.items():
            await asyncio.to_thread(self._remove, host, container)

    def _remove(self, host: str, container: DockerContainer) -> None:
        try:
            if container.status != "not_started":
                self._logs.mkdir(parents=True, exist_ok=True)
                (self._logs / f"{host}.log").write_bytes(b"".join(container.get_logs()))
        finally:
            container.stop()

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(MAKE_TIMEOUT):
                await self._start()
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.shield(self.close())


class ContainerCluster(_Containers):
    """A Kafka cluster: one container for each node."""

    def __init__(self, spec: KafkaClusterSpec, network: Network, logs: Path) -> None:
        super().__init__(network, logs)
        self.spec = container_spec(spec)
        self.cluster_id = spec.cluster_id or random_uuid()
        self._outside: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self._outside.values())

    @property
    def inside(self) -> str:
        return ",".join(f"{node_host(self.spec, node)}:{PORTS[INSIDE]}" for node in self._outside)

    async def _start(self) -> None:
        spec, all_roles = self.spec, node_roles(self.spec)
        voters = ",".join(
            f"{node}@{node_host(spec, node)}:{PORTS[CONTROLLER]}"
            for node, roles in all_roles.items()
            if "controller" in roles
        )
        for node, roles in all_roles.items():
            host = node_host(spec, node)
            if "broker" in roles:
                self._outside[node] = await asyncio.to_thread(self._publish, host)
            properties = container_properties(spec, node, roles, voters, self._outside.get(node))
            self._add(
                host,
                f"{KAFKA_IMAGE}:{spec.version}",
                {MOUNTED_PROPERTIES: properties_text(properties)},
                {"CLUSTER_ID": self.cluster_id, "KAFKA_HEAP_OPTS": f"-Xmx{spec.heap_mb}m"},
            )
        # No broker is unfenced before the quorum stands, so all are launched before any is waited for.
        for host in self._all:
            await asyncio.to_thread(self._launch, host)
        started = LogMessageWaitStrategy(STARTED.decode()).with_startup_timeout(int(START_TIMEOUT))
        for container in self._all.values():
            await asyncio.to_thread(started.wait_until_ready, container)


class ContainerSidecar(_Containers):
    """The sidecar of deploy/Dockerfile, built from this checkout."""

    def __init__(self, target: AnyCluster, network: Network, logs: Path) -> None:
        super().__init__(network, logs)
        self._target = target

    async def _start(self) -> None:
        image = DockerImage(path=ROOT, dockerfile_path="deploy/Dockerfile", tag=SIDECAR_IMAGE, clean_up=False)
        await asyncio.to_thread(image.build)
        outside = await asyncio.to_thread(self._publish, SIDECAR_HOST)
        config = yaml.safe_dump(sidecar_config(self._target.inside, outside), sort_keys=False)
        container = self._add(SIDECAR_HOST, SIDECAR_IMAGE, {SIDECAR_CONFIG: config}, {"NO_COLOR": "1"})
        await asyncio.to_thread(self._launch, SIDECAR_HOST)
        healthy = HealthcheckWaitStrategy().with_startup_timeout(int(START_TIMEOUT))
        await asyncio.to_thread(healthy.wait_until_ready, container)

    async def linker(self, *arguments: str, timeout: float = COMMAND_TIMEOUT) -> CommandResult:
        """Run `linker ARGUMENTS` in the container, which has to succeed."""
        run: Callable[..., Any] = self._all[SIDECAR_HOST].get_wrapped_container().exec_run
        try:
            async with asyncio.timeout(timeout):
                code, (output, errors) = await asyncio.to_thread(run, ["linker", *arguments], demux=True)
        except TimeoutError:
            raise CommandError(f"linker {' '.join(arguments)} took longer than {timeout:.0f} s") from None
        result = CommandResult(
            int(code), (output or b"").decode(errors="replace"), (errors or b"").decode(errors="replace")
        )
        return result.succeeded(arguments)


@dataclass
class ContainerMaker:
    """Containers in a network of their own; their logs are kept below one directory."""

    directory: Path
    _network: Network = field(default_factory=Network, init=False)

    def cluster(self, spec: KafkaClusterSpec) -> ContainerCluster:
        return ContainerCluster(spec, self._network, self.directory)

    def sidecar(self, target: AnyCluster) -> ContainerSidecar:
        return ContainerSidecar(target, self._network, self.directory)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._network.create)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self._network.remove)
