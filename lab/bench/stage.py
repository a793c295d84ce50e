"""The stage of a case: a filled source cluster, a target cluster beside it, and the sidecar between them.

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
from typing import Any, Self

from admin.client import AdminError
from admin.models import (
    CreateLinkRequest,
    CreateMirrorsRequest,
    LinkOptions,
    MirrorState,
    Status,
    SyncRequest,
    SyncState,
    UpdateLinkRequest,
)
from lab.bench.cluster import CALL_TIMEOUT, POLL, BenchCluster, BenchError, discard_data, nap
from lab.bench.load import build_batch, fill
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec

LINK = "bench"
ACTIVE_TIMEOUT = 60.0
SYNC_TIMEOUT = 180.0
SOURCE_BROKERS = 4  # so that Kafka's own replication can make three copies too
MEMORY_BUDGET = 128 << 20  # the sidecar's default `memory.bytes`


class Source:
    """`async with Source(directory) as source:` the source cluster; topics are filled once, by size."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "source",
        brokers: int = SOURCE_BROKERS,
        quick_start: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.quick_start = quick_start
        self.cluster = BenchCluster(name, brokers, directory, quick_start=quick_start, properties=properties)
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

    @asynccontextmanager
    async def topic(self, name: str, partitions: int) -> AsyncIterator[None]:
        """A topic on broker 1. Its files are gone with the block: the cases that follow have the disk, and nobody beside
        them takes them away."""
        await self.cluster.create_topic(name, [[1]] * partitions)
        try:
            yield
        finally:
            await self.cluster.delete_topic(name)
            await self.cluster.wait_gone(name, 1)

    async def renew(self, brokers: Sequence[int]) -> None:
        """Restart brokers that will follow: a target's are new in each case, and a JVM gets faster with every round."""
        await asyncio.gather(*(self.cluster.nodes[broker].restart() for broker in brokers))

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.cluster.__aexit__(*error)
        discard_data(self.cluster)


class Stage:
    """A target cluster, the sidecar beside it, and one link to the source."""

    def __init__(self, source: Source, target: BenchCluster, sidecar: SidecarProcess) -> None:
        self.source = source.cluster
        self.filler = source
        self.target = target
        self.sidecar = sidecar

    async def create_link(self) -> None:
        request = CreateLinkRequest(
            name=LINK,
            properties={"bootstrap.servers": self.source.bootstrap},
            options=LinkOptions(join_source=bool(self.sidecar.spec.sources)),
        )
        await self._ask(lambda admin: admin.create_link(request))

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

    async def sync(self, topic: str) -> None:
        """Until link brokers are in the ISR of all its partitions in the cluster that is mirrored."""
        deadline = time.monotonic() + SYNC_TIMEOUT
        asked = False
        while True:
            try:
                if not asked:
                    await self._ask(lambda admin: admin.sync_mirrors(LINK, SyncRequest(topics=[topic])))
                asked = True
                mirror = await self._ask(lambda admin: admin.describe_mirror(LINK, topic))
                if mirror.sync is SyncState.IN_SYNC:
                    return
            except BenchError:  # the sidecar is yet to be a broker of the source
                if asked or time.monotonic() > deadline:
                    raise
            await nap(deadline, f"{topic} is not in sync after {SYNC_TIMEOUT:.0f} s", 5 * POLL)

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

    async def wait_all_active(
        self, topics: Sequence[str], timeout: float = ACTIVE_TIMEOUT, *, pause: float = 5 * POLL
    ) -> None:
        """Until all of them are ACTIVE without lag; `pause`: between two looks, each of which costs the sidecar."""
        wanted, deadline = set(topics), time.monotonic() + timeout
        while True:
            mirrors = await self._ask(lambda admin: admin.list_mirrors(LINK))
            done = {one.topic for one in mirrors if one.state is MirrorState.ACTIVE and one.lag == 0}
            if wanted <= done:
                return
            await nap(deadline, f"{len(wanted - done)} mirrors are not active after {timeout:.0f} s", pause)

    async def wait_active(self, topic: str) -> None:
        """Until the mirror is ACTIVE without lag: for as long as the lag goes down now and then."""
        deadline = time.monotonic() + ACTIVE_TIMEOUT
        least: int | None = None
        while True:
            mirror = await self._ask(lambda admin: admin.describe_mirror(LINK, topic))
            if mirror.lag is not None and (least is None or mirror.lag < least):
                least, deadline = mirror.lag, time.monotonic() + ACTIVE_TIMEOUT
            if mirror.state is MirrorState.ACTIVE and mirror.lag == 0:
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


def require_disk(directory: Path, size: float, what: str) -> None:
    """BenchError if that much does not fit: brokers whose disk is full end, and what was measured with them."""
    free = shutil.disk_usage(directory).free
    if free < size:
        raise BenchError(f"{what} writes {size / 1e9:.0f} GB, and {directory} has {free / 1e9:.0f} GB left")


@asynccontextmanager
async def stage(
    source: Source,
    name: str,
    target_brokers: int,
    properties: Mapping[str, str] | None = None,
    *,
    joined: int | None = None,
) -> AsyncIterator[Stage]:
    """A running stage, gone with the block as its target is. `properties`: further ones of the target's brokers.
    `joined`: the sidecar's broker id in the source, if it is to be one."""
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(target_cluster(source, name, target_brokers, properties))
        sources = {} if joined is None else {LINK: {"broker.id": joined}}
        sidecar = SidecarProcess(
            SidecarSpec(target_bootstrap=target.bootstrap, sources=sources),
            source.directory / f"sidecar-{name}",
        )
        stack.push_async_callback(sidecar.close)
        await sidecar.start()
        made = Stage(source, target, sidecar)
        await made.create_link()
        yield made
