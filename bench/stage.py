"""What a case runs on: a filled source cluster, a target cluster beside it, and the sidecar between them.

Brokers run with the JIT that they have in production (only a quick look starts them as the demonstration does), each cluster
has one controller inside its first broker, and both clusters get the same settings. A case uses a fresh target
and a fresh sidecar; the source is kept over all cases, because filling it is what takes long.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.load import build_batch, fill
from linker.admin.client import AdminError
from linker.admin.models import (
    CreateLinkRequest,
    CreateMirrorsRequest,
    MirrorState,
    Status,
    UpdateLinkRequest,
)
from linker.demo.kafka_cluster import KafkaCluster, KafkaClusterSpec
from linker.demo.sidecar_process import SidecarProcess, SidecarSpec
from wire.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.security import ClientSecurity
from wire.types import TopicPartition

LINK = "bench"
CALL_TIMEOUT = 30.0
ACTIVE_TIMEOUT = 60.0
GONE_TIMEOUT = 60.0
POLL = 0.02
UNKNOWN_TOPIC = 3
SOURCE_BROKERS = 4  # so that Kafka's own replication can make three copies too
HEAP_MB = 512
MEMORY_BUDGET = 128 << 20  # the sidecar's default `memory.bytes`

# Deleted copies make room at once: rounds repeat, and so does their gigabyte.
CLUSTER_PROPERTIES = {
    # Kafka's own move of leaders back to where they are preferred, every five minutes: in the middle of a measurement.
    "auto.leader.rebalance.enable": "false",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
}


class BenchError(LinkerError):
    """A measurement could not be taken."""


class BenchCluster(KafkaCluster):
    """A cluster with a client of our own wire protocol beside it."""

    def __init__(
        self,
        name: str,
        brokers: int,
        directory: Path,
        *,
        quick_start: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        spec = KafkaClusterSpec(
            name=name,
            brokers=brokers,
            properties={**CLUSTER_PROPERTIES, **(properties or {})},
            heap_mb=HEAP_MB,
            quick_start=quick_start,
        )
        super().__init__(spec, directory)
        self.client: Cluster | None = None

    async def start(self) -> None:
        await super().start()
        self.client = Cluster(
            self.spec.name,
            [("127.0.0.1", node.port()) for node in self.brokers],
            ClientSecurity.from_properties({}),
            client_id="bench",
        )
        await self.client.connect()

    async def close(self) -> None:
        if self.client is not None:
            client, self.client = self.client, None
            await client.close()
        await super().close()

    @property
    def connected(self) -> Cluster:
        """The client of the running cluster."""
        if self.client is None:
            raise BenchError(f"cluster {self.spec.name} is not running")
        return self.client

    async def call(self, api: str, fields: Mapping[str, object]) -> Any:
        return await self.connected.call(api, fields, timeout=CALL_TIMEOUT)

    async def create_topic(
        self, topic: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> None:
        """A topic with the given replicas per partition, ready for use."""
        response = await self.call(
            "create_topics",
            {
                "topics": [
                    {
                        "name": topic,
                        "num_partitions": -1,
                        "replication_factor": -1,
                        "assignments": [
                            {"partition_index": index, "broker_ids": list(replicas)}
                            for index, replicas in enumerate(assignment)
                        ],
                        "configs": [
                            {"name": name, "value": value} for name, value in (configs or {}).items()
                        ],
                    }
                ],
                "timeout_ms": int(CALL_TIMEOUT * 1000),
            },
        )
        for created in response.topics:
            if created.error_code:
                raise BrokerError(
                    int(created.error_code), message=f"creating {topic}: {created.error_message}"
                )
        client = self.client
        deadline = time.monotonic() + CALL_TIMEOUT
        tps = [TopicPartition(topic, index) for index in range(len(assignment))]
        while client is not None:
            await client.refresh([topic], timeout=CALL_TIMEOUT)
            if all(client.leader(tp) is not None for tp in tps):
                return
            if time.monotonic() > deadline:
                raise BenchError(f"topic {topic} has no leaders after {CALL_TIMEOUT:.0f} s")
            await asyncio.sleep(POLL)

    async def delete_topic(self, topic: str) -> None:
        """If it is there; returns before the brokers have cleaned up."""
        response = await self.call(
            "delete_topics",
            {
                "topics": [{"name": topic, "topic_id": None}],
                "topic_names": [topic],
                "timeout_ms": int(CALL_TIMEOUT * 1000),
            },
        )
        for deleted in response.responses:
            if deleted.error_code not in (0, UNKNOWN_TOPIC):
                raise BrokerError(int(deleted.error_code), message=f"deleting {topic}")

    async def wait_reassigned(self) -> None:
        """Until no reassignment is under way: undoing one that still runs leaves the replicas where they are."""
        deadline = time.monotonic() + GONE_TIMEOUT
        while True:
            response = await self.call(
                "list_partition_reassignments", {"timeout_ms": int(CALL_TIMEOUT * 1000), "topics": None}
            )
            if not response.topics:
                return
            if time.monotonic() > deadline:
                raise BenchError(f"a reassignment is still under way after {GONE_TIMEOUT:.0f} s")
            await asyncio.sleep(POLL)

    async def reassign(self, topic: str, partitions: int, replicas: Sequence[int]) -> None:
        """Ask for these replicas of every partition; the copying is the brokers' own."""
        await self.reassign_each(topic, [replicas] * partitions)

    async def reassign_each(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Ask for other replicas, or another order of them, partition by partition."""
        response = await self.call(
            "alter_partition_reassignments",
            {
                "timeout_ms": int(CALL_TIMEOUT * 1000),
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": index, "replicas": list(wanted)}
                            for index, wanted in enumerate(replicas)
                        ],
                    }
                ],
            },
        )
        codes = [int(part.error_code) for one in response.responses for part in one.partitions]
        _raise_first([int(response.error_code), *codes], f"reassigning {topic}")

    async def elect_preferred(self, topic: str, partitions: int) -> None:
        """Move every leadership to the first replica, in one request."""
        response = await self.call(
            "elect_leaders",
            {
                "election_type": 0,
                "topic_partitions": [{"topic": topic, "partitions": list(range(partitions))}],
                "timeout_ms": int(CALL_TIMEOUT * 1000),
            },
        )
        codes = [
            int(part.error_code) for one in response.replica_election_results for part in one.partition_result
        ]
        _raise_first([int(response.error_code), *codes], f"electing leaders of {topic}")

    def replica_dirs(self, topic: str, partitions: int, broker: int) -> list[Path]:
        """Where a broker keeps its replicas of a topic."""
        return [self.partition_dir(broker, TopicPartition(topic, index)) for index in range(partitions)]

    async def wait_gone(self, topic: str, broker: int) -> None:
        """Until a broker has really deleted its replicas, so that the next round does not pay for it."""
        deadline = time.monotonic() + GONE_TIMEOUT
        while any(path.name.startswith(f"{topic}-") for path in self.log_dir(broker).iterdir()):
            if time.monotonic() > deadline:
                raise BenchError(f"broker {broker} still has replicas of {topic} after {GONE_TIMEOUT:.0f} s")
            await asyncio.sleep(POLL)


def _raise_first(codes: Sequence[int], what: str) -> None:
    for code in codes:
        if code:
            raise BrokerError(code, message=what)


class Source:
    """`async with Source(directory) as source:` the source cluster; topics are filled once, by size."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "source",
        brokers: int = SOURCE_BROKERS,
        quick_start: bool = False,
    ) -> None:
        self.quick_start = quick_start
        self.cluster = BenchCluster(name, brokers, directory, quick_start=quick_start)
        self.directory = directory
        self._filled: dict[str, int] = {}

    async def filled(
        self,
        topic: str,
        partitions: int,
        total_bytes: int,
        record_bytes: int,
        batch_bytes: int,
        *,
        zstd: bool = False,
    ) -> int:
        """A topic on broker 1 with about that many bytes; returns how many there are exactly."""
        if topic not in self._filled:
            await self.cluster.create_topic(topic, [[1]] * partitions)
            batch = build_batch(record_bytes, batch_bytes, int(time.time() * 1000), zstd=zstd)
            self._filled[topic] = await fill(self.cluster.connected, topic, partitions, total_bytes, batch)
        return self._filled[topic]

    async def renew(self, brokers: Sequence[int]) -> None:
        """Restart brokers that will follow: a target's are new in each case, and a JVM gets faster with every round."""
        await asyncio.gather(*(self.cluster.nodes[broker].restart() for broker in brokers))

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cluster.__aexit__(kind, error, trace)
        discard_data(self.cluster)


class Stage:
    """A target cluster, the sidecar beside it, and one link to the source."""

    def __init__(self, source: Source, target: BenchCluster, sidecar: SidecarProcess) -> None:
        self.source = source.cluster
        self.filler = source
        self.target = target
        self.sidecar = sidecar

    async def create_link(self) -> None:
        properties = {"bootstrap.servers": self.source.bootstrap}
        await self._ask(lambda admin: admin.create_link(CreateLinkRequest(name=LINK, properties=properties)))

    async def update_link(self, request: UpdateLinkRequest) -> None:
        await self._ask(lambda admin: admin.update_link(LINK, request))

    async def create_mirror(self, topic: str, replication_factor: int) -> None:
        await self.create_mirrors([topic], replication_factor)

    async def create_mirrors(self, topics: Sequence[str], replication_factor: int) -> None:
        """All of them in one request."""
        request = CreateMirrorsRequest(topics=list(topics), replication_factor=replication_factor)
        deadline = time.monotonic() + CALL_TIMEOUT
        while True:
            try:
                await self._ask(lambda admin: admin.create_mirrors(LINK, request))
                return
            except BenchError as error:
                # The link is new, and on a busy machine it has not reached the source yet.
                if "not reached yet" not in str(error) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(5 * POLL)

    async def delete_mirror(self, topic: str) -> None:
        """With its copies, until they are gone from every disk."""
        await self._ask(lambda admin: admin.delete_mirror(LINK, topic))
        for node in self.target.brokers:
            await self.target.wait_gone(topic, node.node_id)

    async def discard(self, topic: str, *, mirror: bool = True) -> None:
        """Delete a topic that is not needed any more, at the target and, if it is there, at the source."""
        if mirror:
            await self.delete_mirror(topic)
        for cluster in (self.target, self.source):
            await cluster.delete_topic(topic)

    async def pause_mirror(self, topic: str) -> None:
        """Its followers get nothing more; writes are forwarded as before."""
        await self._ask(lambda admin: admin.pause_mirror(LINK, topic))

    async def resume_mirror(self, topic: str) -> None:
        await self._ask(lambda admin: admin.resume_mirror(LINK, topic))

    async def wait_all_active(self, topics: Sequence[str], timeout: float = ACTIVE_TIMEOUT) -> None:
        """Until all of them are ACTIVE without lag."""
        wanted, deadline = set(topics), time.monotonic() + timeout
        while True:
            mirrors = await self._ask(lambda admin: admin.list_mirrors(LINK))
            done = {one.topic for one in mirrors if one.state is MirrorState.ACTIVE and one.lag == 0}
            if wanted <= done:
                return
            if time.monotonic() > deadline:
                raise BenchError(f"{len(wanted - done)} mirrors are not active after {timeout:.0f} s")
            await asyncio.sleep(5 * POLL)

    async def wait_active(self, topic: str, max_lag: int = 0) -> None:
        """Until the mirror is ACTIVE with at most that lag."""
        deadline = time.monotonic() + ACTIVE_TIMEOUT
        while True:
            mirror = await self._ask(lambda admin: admin.describe_mirror(LINK, topic))
            if mirror.state is MirrorState.ACTIVE and mirror.lag is not None and mirror.lag <= max_lag:
                return
            if mirror.state is MirrorState.FAILED or time.monotonic() > deadline:
                raise BenchError(f"mirror {topic} is {mirror.state}, lag {mirror.lag}: {mirror.reason}")
            await asyncio.sleep(POLL)

    async def status(self) -> Status:
        status: Status = await self._ask(lambda admin: admin.status())
        return status

    async def _ask(self, request: Any) -> Any:
        def ask() -> Any:
            with self.sidecar.client() as admin:
                return request(admin)

        try:
            return await asyncio.to_thread(ask)
        except AdminError as error:
            raise BenchError(f"the sidecar refused: {error}") from error


@asynccontextmanager
async def target_cluster(
    source: Source, name: str, brokers: int, properties: Mapping[str, str] | None = None
) -> AsyncIterator[BenchCluster]:
    """A running cluster beside the source, gone with the block; logs of its brokers stay, data does not."""
    target = BenchCluster(
        f"target-{name}", brokers, source.directory, quick_start=source.quick_start, properties=properties
    )
    try:
        async with target:
            yield target
    finally:
        discard_data(target)


@asynccontextmanager
async def stage(
    source: Source, name: str, target_brokers: int, properties: Mapping[str, str] | None = None
) -> AsyncIterator[Stage]:
    """A running stage, gone with the block as its target is. `properties`: further ones of the target's brokers."""
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(target_cluster(source, name, target_brokers, properties))
        sidecar = SidecarProcess(
            SidecarSpec(target_bootstrap=target.bootstrap), source.directory / f"sidecar-{name}"
        )
        stack.push_async_callback(sidecar.close)
        await sidecar.start()
        made = Stage(source, target, sidecar)
        await made.create_link()
        yield made


def discard_data(cluster: KafkaCluster) -> None:
    """Gigabytes go, logs of the processes stay."""
    for node in cluster.nodes.values():
        shutil.rmtree(node.data, ignore_errors=True)
