"""One interface for a laboratory's clusters and sidecar, and the maker that takes jars on loopback.

A story that is written against `Maker` runs on jars, where it needs Java and Maven, and in containers
(`kafka_containers`), where it needs a Docker engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.clusters.sidecar_process import COMMAND_TIMEOUT, CommandResult, SidecarProcess, SidecarSpec

SIDECAR_ID = 900


class Started(Protocol):
    """Runs within `async with`, gone with the block."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AnyCluster(Started, Protocol):
    """A Kafka cluster, wherever its nodes run."""

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers` for clients on this machine."""
        ...

    @property
    def inside(self) -> str:
        """`bootstrap.servers` for a sidecar of the same maker."""
        ...


class AnySidecar(Started, Protocol):
    """A sidecar that is a broker of its target, and its command line."""

    async def linker(self, *arguments: str, timeout: float = COMMAND_TIMEOUT) -> CommandResult:
        """Run `linker ARGUMENTS`, which has to succeed."""
        ...


class Maker(Started, Protocol):
    """Makes clusters and sidecars of one kind. Leave those before you leave their maker."""

    def cluster(self, spec: KafkaClusterSpec) -> AnyCluster:
        """A cluster that is not started yet."""
        ...

    def sidecar(self, target: AnyCluster) -> AnySidecar:
        """A sidecar of that target, not started yet. A promote through it asks for no proof by Spark."""
        ...


@dataclass
class JarMaker:
    """Child processes on 127.0.0.1, all files below one directory."""

    directory: Path

    def cluster(self, spec: KafkaClusterSpec) -> KafkaCluster:
        return KafkaCluster(spec, self.directory)

    def sidecar(self, target: AnyCluster) -> SidecarProcess:
        return SidecarProcess(
            SidecarSpec(target_bootstrap=target.inside, broker_id=SIDECAR_ID), self.directory / "sidecar"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Nothing is left: each cluster and sidecar ends its own processes."""
