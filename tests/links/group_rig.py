"""Two fake clusters with group coordinators, one link between them, and the link's groups as they run in a sidecar."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from controller.decide.groups import GroupRules
from controller.decide.mirrors import Leadership
from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupPolicy, MirrorGroup
from controller.state import MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from groups.bounds import TargetBounds
from groups.gate_keeper import GateKeeper
from groups.gates.coordinators import Coordinators
from groups.gates.settings import GateSettings
from groups.group_book import GroupBook
from groups.group_reader import GroupReader
from groups.manager import GroupManager
from groups.settings import GroupSettings
from groups.tools import TargetGates, Tools
from router.fetch.first_fetches import FirstFetches
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.fakes import FakeCluster
from tests.fakes.groups import FakeGroups
from tests.fakes.groups.clients import ClassicClient, ConsumerClient
from tests.links.conftest import client
from wire.client.cluster import Cluster
from wire.frames.types import TopicPartition

LINK = "old"
QUICK = GateSettings(operation_timeout=2.0, take_timeout=2.0, settle_time=0.05, classic_heartbeat=1.0)


@dataclass
class FakeCopy:
    log_start_offset: int = 0
    high_watermark: int = 100
    loaded: bool = True


def link_tools(
    controller: LinkController,
    clusters: Sequence[Cluster],
    coordinators: Coordinators,
    copies: Mapping[TopicPartition, FakeCopy],
    first_fetches: FirstFetches,
    settings: GateSettings,
) -> Tools:
    """Of the link, over its two clusters."""

    def partitions(topic: str) -> int:
        mirror = controller.image.mirrors.get((LINK, topic))
        return 0 if mirror is None else mirror.partitions

    source, target = clusters
    return Tools(
        book=GroupBook(LINK, controller),
        source=GroupReader(source),
        target=GroupReader(target),
        bounds=TargetBounds(LINK, controller, copies, source, target),
        gates=TargetGates(LINK, coordinators, settings),
        partitions=partitions,
        closing=asyncio.Semaphore(32),
        first_fetches=first_fetches.watch,
    )


async def mirrored(
    controller: LinkController, topic: str, partitions: int, source_id: bytes, target_id: bytes
) -> dict[TopicPartition, FakeCopy]:
    """A mirror that is copied already, and its copies."""
    await controller.create_mirror(
        MirrorTopic(
            link=LINK,
            topic=topic,
            topic_id=target_id,
            source_topic_id=source_id,
            partitions=partitions,
            target_replicas=((1,),) * partitions,
        )
    )
    copies = {TopicPartition(topic, partition): FakeCopy() for partition in range(partitions)}
    for tp in copies:
        await establish(
            controller, LINK, tp, leadership=Leadership(900, 1, (900,)), session_epoch=1, start_offset=0
        )
    return copies


class Rig:
    """`async with Rig() as rig:`; the topic orders with two partitions is mirrored, with a hundred records each."""

    def __init__(
        self,
        *,
        include: str = ".*",
        policy: GroupPolicy = GroupPolicy.MANUAL,
        gate: GateKind | None = None,
        consumer_protocol: bool = True,
        nodes: int = 1,
        interval: float = 0.05,
    ) -> None:
        self.source, self.target = FakeCluster(nodes=nodes), FakeCluster(nodes=nodes)
        self.at_source, self.at_target = FakeGroups(self.source), FakeGroups(self.target)
        self.store = MemoryStore()
        self.copies: dict[TopicPartition, FakeCopy] = {}
        self.settings = GroupSettings(
            GroupRules((re.compile(include),) if include else (), (re.compile("connect-.*"),), policy, gate),
            interval,
        )
        self.consumer_protocol = consumer_protocol
        self.first_fetches = FirstFetches()
        self.clients: list[ClassicClient | ConsumerClient] = []
        self.controller: LinkController
        self.manager: GroupManager
        self._stack = AsyncExitStack()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Rig:
        await self._stack.enter_async_context(self.source)
        await self._stack.enter_async_context(self.target)
        for cluster in (self.source, self.target):
            cluster.add_topic("orders", partitions=2)
            for partition in range(2):
                for _ in range(100):
                    cluster.add("orders", partition)
        self.clusters = [client(self.source, "source"), client(self.target, "target")]
        for cluster in self.clusters:
            self._stack.push_async_callback(cluster.close)
            await cluster.connect()
        await self.claim()
        await self.mirror("orders", 2)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.end()
        await self._stack.aclose()

    async def claim(self) -> None:
        """As the next link controller does: a new epoch, the state as the store has it."""
        self.controller = await StoredController.open(self.store)
        if LINK not in self.controller.image.links:
            await self.controller.create_link(LINK, "source", {})
        self.coordinators = Coordinators(self.clusters[1])
        self.tools = link_tools(
            self.controller, self.clusters, self.coordinators, self.copies, self.first_fetches, QUICK
        )
        self.manager = GroupManager(
            self.tools, self.settings, consumer_protocol=lambda: self.consumer_protocol
        )

    async def mirror(self, topic: str, partitions: int) -> None:
        ids = [cluster.topics[topic].topic_id for cluster in (self.source, self.target)]
        self.copies.update(await mirrored(self.controller, topic, partitions, *ids))

    # --- running --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._running = asyncio.create_task(self.manager.run())

    async def end(self) -> None:
        """The process ends, or another one becomes the link controller: gates stay as they are."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        await self.coordinators.close()

    async def restart(self) -> None:
        await self.end()
        await self.claim()
        self.run()

    # --- what a test does -----------------------------------------------------------------------------------------

    def commit(
        self, group: str, offset: int, *, partition: int = 0, topic: str = "orders", metadata: str = ""
    ) -> None:
        """At the source."""
        self.at_source.offsets.commit(group, (topic, partition), offset, metadata)

    def committed(self, group: str) -> dict[int, Committed]:
        """On the target, of the topic orders."""
        found = self.at_target.offsets.committed.get(group, {})
        return {
            index: Committed(one.offset, one.metadata)
            for (topic, index), one in found.items()
            if topic == "orders"
        }

    def source_member(self, group: str) -> ConsumerClient:
        member = ConsumerClient(self.at_source, group, ("orders",))
        member.step()
        member.step()
        return member

    def join(self, member: ClassicClient | ConsumerClient) -> None:
        self.clients.append(member)

    def group(self, name: str) -> MirrorGroup:
        return self.controller.image.groups[LINK, name]

    def run_of(self, name: str) -> GateKeeper:
        return self.manager.runs[name]

    async def until(self, what: str, condition: Callable[[], bool], timeout: float = 30) -> None:
        """While the clients on the target go on as clients do."""
        deadline = time.monotonic() + timeout
        while not condition():
            for member in self.clients:
                member.step()
            groups = {g.group: (g.phase, g.reason) for g in self.controller.image.link_groups(LINK)}
            troubles = {name: run.any_trouble for name, run in self.manager.runs.items() if run.any_trouble}
            if self._running is not None and self._running.done():
                self._running.result()
            assert time.monotonic() < deadline, f"{what}: {groups} {troubles} {self.manager.trouble}"
            await asyncio.sleep(0.01)

    async def phase(self, name: str, *phases: GroupPhase, timeout: float = 25) -> MirrorGroup:
        await self.until(
            f"{name} is {phases}",
            lambda: (LINK, name) in self.controller.image.groups and self.group(name).phase in phases,
            timeout,
        )
        return self.group(name)

    async def synced(self, name: str) -> None:
        await self.phase(name, GroupPhase.GATED)
        await self.until(
            f"{name} is synced",
            lambda: (
                name in self.manager.runs
                and self.run_of(name).synced_at is not None
                and self.committed(name)
                == {
                    tp.partition: self.run_of(name).wanted[tp]
                    for tp in self.run_of(name).wanted
                    if tp.topic == "orders"
                }
            ),
        )
