"""One topic, mirrored by a fleet, with live producers at the target and a judge at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from admin.models import PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_fleet import Fleet, within
from tests.real.harness_promote import LINK, POLL, RATE, Scene
from tests.real.harness_stalls import PATIENCE, brokers_back
from wire.frames.types import TopicPartition

PARTITIONS = 6


class Led(NamedTuple):
    """By whom a partition is led, as the target has it."""

    leader: int | None
    epoch: int
    isr: frozenset[int]


class FleetScene(Scene):
    """One topic of a test, mirrored by a fleet and written to by live producers."""

    def __init__(self, source: KafkaCluster, fleet: Fleet, topic: str) -> None:
        topics = [SourceTopic(topic, PARTITIONS, SourceFiller.history)]
        super().__init__(source, fleet.target, next(iter(fleet.cars.values())), topics)
        self.fleet = fleet

    async def ask(self, call: Callable[[Any], Any]) -> Any:
        return await self.fleet.ask(call)

    async def begin(self, *, rate: float = RATE) -> None:
        filler = SourceFiller(self.source.bootstrap, scale=0.05)
        await asyncio.to_thread(filler.create, self.topics, min(2, len(self.source.brokers)))
        await asyncio.to_thread(filler.fill, self.topics)
        links = await self.ask(lambda client: client.list_links())
        if LINK not in {link.name for link in links}:
            await self.fleet.linker("link", "create", LINK, "--bootstrap-servers", self.source.bootstrap)
        await self.fleet.linker(
            "mirror", "create", *self.names, "--link", LINK, "--replication-factor", str(self.copies)
        )
        await self.wait_active()
        await self.balanced()
        self.add_writers(rate)
        for producer in self.producers:
            await producer.start(self.target.bootstrap)
        await self.acked_everywhere()  # not all sidecars begin to forward at once

    # --- who leads

    async def led(self) -> dict[TopicPartition, Led]:
        mirror = await self.describe(self.names[0])
        return {
            TopicPartition(one.topic, one.partition): Led(
                one.leader, one.leader_epoch or 0, frozenset(one.isr)
            )
            for one in mirror.partition_status
        }

    async def led_by(self, broker_id: int) -> list[TopicPartition]:
        return [tp for tp, one in (await self.led()).items() if one.leader == broker_id]

    async def balanced(self, ids: Sequence[int] | None = None, timeout: float = PATIENCE) -> None:
        """Every ISR holds these sidecars (all, if not named), and each of them leads as much as the others."""
        wanted = sorted(ids or self.fleet.ids)
        share = PARTITIONS // len(wanted)
        found: dict[TopicPartition, Led] = {}
        async with within(timeout, lambda: f"not balanced over {wanted}: {found}"):
            while True:
                found = await self.led()
                counts = Counter(one.leader for one in found.values())
                if counts == dict.fromkeys(wanted, share) and all(
                    one.isr == set(wanted) for one in found.values()
                ):
                    return
                await asyncio.sleep(0.1)

    async def nothing_led_by(self, broker_id: int, timeout: float = PATIENCE) -> None:
        """Others lead what it led."""
        found: dict[TopicPartition, Led] = {}
        async with within(timeout, lambda: f"{broker_id} still leads, or nobody does: {found}"):
            while True:
                found = await self.led()
                if all(one.leader not in (broker_id, None, -1) for one in found.values()):
                    return
                await asyncio.sleep(POLL)

    async def acked_everywhere(self, since: float | None = None, timeout: float = PATIENCE) -> None:
        """Until every producer got an ack for every partition, after that moment (now)."""
        moment = self.history.clock() if since is None else since
        wanted = {(producer.name, tp) for producer in self.producers for tp in self.tps}
        missing = wanted
        async with within(timeout, lambda: f"no acks for {sorted(missing)[:4]}"):
            while True:
                missing = wanted - {
                    (ack.producer, ack.partition) for ack in self.history.acks if ack.time > moment
                }
                if not missing:
                    return
                await asyncio.sleep(POLL)

    # --- the end

    async def finish(self) -> None:
        """Promote what is not promoted, and judge."""
        await self.fleet.whole()
        await self.acked_everywhere()
        mirrors = await self.ask(lambda client: client.list_mirrors(LINK))
        if {one.state for one in mirrors if one.topic in self.names} != {"PROMOTED"}:
            job = await self.settled(await self.start_promote())
            assert job.phase is PromotePhase.PROMOTED, job
            await self.acked_everywhere()
        await self.judge()

    async def forgotten(self) -> None:
        """What a failed test has left weighs no more in the next one's balance."""
        mirrors = await self.ask(lambda client: client.list_mirrors(LINK))
        left = [one.topic for one in mirrors if one.topic in self.names and one.state != "PROMOTED"]
        for topic in left:
            await self.fleet.linker("mirror", "delete", topic, "--link", LINK, "--yes")

    def check_placement(self, placed: Mapping[TopicPartition, Any]) -> None:
        """Other tests' topics weigh too, so that no more is known than who may be a replica."""
        real = {node.node_id for node in self.target.brokers}
        assert all(set(one.replicas) <= real and one.leader in real for one in placed.values()), placed


MakeFleetScene = Callable[..., Awaitable[FleetScene]]


@asynccontextmanager
async def fleet_scenes(
    source: KafkaCluster, fleet: Fleet, unique_topic: Callable[[str], str]
) -> AsyncIterator[MakeFleetScene]:
    """`await make()`: a scene that is set, on a fleet that is whole."""
    made: list[FleetScene] = []

    async def make(*, rate: float = RATE) -> FleetScene:
        for broker_id, car in fleet.cars.items():
            fleet.resume(broker_id)
            if not car.running:  # a test before this one has failed
                car.launch()
        await brokers_back(fleet.target)
        await fleet.whole()
        made.append(FleetScene(source, fleet, unique_topic("fleet")))
        await made[-1].begin(rate=rate)
        return made[-1]

    try:
        yield make
    finally:
        for broker_id in fleet.cars:
            fleet.resume(broker_id)  # else no producer there could end
        for scene in made:
            await scene.close()
            await scene.forgotten()
