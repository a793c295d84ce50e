"""Where the matrix takes place: two real clusters, a sidecar, topics, programs; taken down with the block."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from tests.clients.build import Builder
from tests.clients.catalog import Library
from tests.clients.program import Program, ProgramError, Transcript

LINK = "matrix"
CAUGHT_UP_TIMEOUT = 120.0
CAUGHT_UP_LAG = 200
TOPIC_TIMEOUT = 30.0
BROKERS = 3  # of the target
LINK_BROKER_AT_SOURCE = 800


@dataclass
class Stage:
    """What a scenario works with. `sidecar` is None on a stage without a link."""

    source: KafkaCluster
    target: KafkaCluster
    sidecar: SidecarProcess | None
    builder: Builder
    logs: Path
    copies: int = 1  # of a topic at the source
    _programs: list[Program] = field(default_factory=list)

    def bootstrap(self, cluster: str) -> str:
        return (self.source if cluster == "source" else self.target).bootstrap

    async def linker(self, *arguments: str) -> Any:
        """`linker ARGUMENTS -o json`, which has to succeed; its answer."""
        if self.sidecar is None:
            raise ProgramError("this stage has no sidecar")
        return (await self.sidecar.linker(*arguments, "-o", "json")).json()

    async def program(
        self, library: Library, name: str, arguments: Mapping[str, str], *, partitions: int = 1
    ) -> Program:
        """An application of that library, not started yet.

        Raises:
            CannotBuildError: This machine lacks what it needs.
        """
        command = await self.builder.command(library)
        transcript = Transcript(name, partitions, arguments["topic"])
        told = {"partitions": str(partitions), **arguments}
        program = Program(command, transcript, told, self.logs / f"{name}.log")
        self._programs.append(program)
        return program

    async def topic(
        self, name: str, partitions: int, cluster: str = "source", copies: int | None = None
    ) -> None:
        """Create a topic and wait until every partition has a leader."""
        await asyncio.to_thread(_create, self.bootstrap(cluster), name, partitions, copies or self.copies)

    async def mirror(self, *topics: str) -> None:
        """`linker mirror create`, and wait until each is caught up."""
        await self.linker("mirror", "create", *topics, "--link", LINK, "--replication-factor", "3")
        await self.mirrors_are(
            topics, lambda one: one["state"] == "ACTIVE" and (one["lag"] or 0) < CAUGHT_UP_LAG, "caught up"
        )

    async def mirrors_are(
        self, topics: Collection[str], well: Callable[[Mapping[str, Any]], bool], what: str
    ) -> None:
        """Wait until that is so of the mirror of each topic, by `linker mirror list`.

        Raises:
            ProgramError: It took too long.
        """
        deadline = time.monotonic() + CAUGHT_UP_TIMEOUT
        while True:
            listed = [
                one for one in await self.linker("mirror", "list", "--link", LINK) if one["topic"] in topics
            ]
            if len(listed) == len(topics) and all(map(well, listed)):
                return
            if time.monotonic() > deadline:
                late = [one for one in listed if not well(one)]
                raise ProgramError(f"not {what} after {CAUGHT_UP_TIMEOUT:.0f} s: {late}")
            await asyncio.sleep(0.3)

    async def promote(self, *topics: str) -> Any:
        """`linker mirror promote`; what it did. Without Spark: clients are looked at here, logs by the judges."""
        return await self.linker("mirror", "promote", *topics, "--link", LINK, "--validation", "skip")

    async def forget(self) -> None:
        """End every program that still runs, whatever it does."""
        for program in self._programs:
            await program.kill()
        self._programs.clear()


@contextlib.asynccontextmanager
async def stage(
    directory: Path,
    builder: Builder,
    logs: Path,
    *,
    link: bool = True,
    gate: str = "auto",
    source_brokers: int = 1,
) -> AsyncIterator[Stage]:
    """Both clusters and a sidecar with one link, by what its groups are held; without a link one cluster like the target.

    The sidecar may join the source, and has not.
    """
    logs.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        target = KafkaCluster(KafkaClusterSpec(name="target", brokers=BROKERS, controllers=1), directory)
        source = target
        if link:
            source = KafkaCluster(KafkaClusterSpec(name="source", brokers=source_brokers), directory)
        clusters = [source, target] if link else [target]
        await asyncio.gather(*(stack.enter_async_context(cluster) for cluster in clusters))
        sidecar = None
        if link:
            spec = SidecarSpec(
                target_bootstrap=target.bootstrap, sources={LINK: {"broker.id": LINK_BROKER_AT_SOURCE}}
            )
            sidecar = await stack.enter_async_context(SidecarProcess(spec, directory / "sidecar"))
            stack.callback(shutil.copy, sidecar.log, logs / "sidecar.log")
        made = Stage(source, target, sidecar, builder, logs, 1 if link else BROKERS)
        stack.push_async_callback(made.forget)
        if link:
            for cluster in clusters:
                for node in cluster.brokers:
                    stack.callback(shutil.copy, node.log, logs / f"{cluster.spec.name}-{node.node_id}.log")
            await made.linker(
                *("link", "create", LINK, "--bootstrap-servers", source.bootstrap),
                *("--option", f"groups_gate={gate}"),
            )
        yield made


def _create(bootstrap: str, name: str, partitions: int, copies: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(
        [NewTopic(name, partitions, copies)], operation_timeout=TOPIC_TIMEOUT
    ).values():
        future.result(TOPIC_TIMEOUT)
    deadline = time.monotonic() + TOPIC_TIMEOUT
    while True:
        listed = admin.list_topics(timeout=10).topics.get(name)
        if (
            listed
            and len(listed.partitions) == partitions
            and all(p.leader >= 0 for p in listed.partitions.values())
        ):
            return
        if time.monotonic() > deadline:
            raise ProgramError(f"topic {name} has no leaders after {TOPIC_TIMEOUT:.0f} s")
        time.sleep(0.05)
