"""A fleet of three sidecars switches a topic and back, under clients of both clusters that are never restarted, and while
sidecars are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from admin.client import AdminError
from admin.models import PromoteRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import placements
from lab.workload.source_data import SourceTopic
from tests.real.harness_fleet import Fleet
from tests.real.harness_fleet_scene import within
from tests.real.kafka_admin import kafka_admin
from tests.real.test_switch import LINK, Scene, judged, refused

pytestmark = pytest.mark.timeout(1200)
THERE = {1: 801, 2: 802, 3: 803}  # the broker ids at the source
PARTITIONS = 6

StartCluster = Callable[..., Awaitable[KafkaCluster]]


class FleetSwitch(Scene):
    """The scene of one sidecar, with a fleet in its place."""

    fleet: Fleet

    async def leaders(self, cluster: KafkaCluster) -> set[int]:
        placed = await asyncio.to_thread(placements, cluster.bootstrap, [self.topic])
        return {one.leader for one in placed.values()}

    async def acked_everywhere(self, since: float) -> None:
        """Every producer got an ack for a record that it sent to each partition after that moment."""
        wanted = {(one.name, index) for one in self.producers for index in range(PARTITIONS)}
        missing = wanted
        async with within(90, lambda: f"no acks for {sorted(missing)[:4]}"):
            while missing := wanted - {
                (ack.producer, ack.partition.partition) for ack in self.history.acks if ack.time > since
            }:
                await asyncio.sleep(0.05)

    async def switch(self, direction: str) -> None:
        """One that takes too long on a slow machine is given back, and asked for again."""
        for _ in range(5):
            found = await self.fleet.awake()[0].run("mirror", "switch", "orders", "--link", LINK)
            if not found.exit_code:
                break
            await self.until(state="ACTIVE")
        assert not found.exit_code, found
        owner = self.target if direction == "REVERSED" else self.source
        await self.owner_leads(owner)
        await self.until(direction=direction, state="ACTIVE")

    async def spread(self, cluster: KafkaCluster) -> None:
        """All three lead there."""
        found: set[int] = set()
        async with within(60, lambda: f"led by {found}"):
            while len(found) < 3:
                found = await self.leaders(cluster)
                await asyncio.sleep(0.2)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    start_cluster: StartCluster, tmp_path: Path, _numbers: Iterator[int]
) -> AsyncIterator[FleetSwitch]:
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=2), start_cluster(name="target", brokers=2)
    )
    store = {"type": "topic", "topic": "fleet-switch-state"}
    fleet = Fleet(target, [], tmp_path, store, {"lease.ms": 5000})
    try:
        for there in THERE.values():
            fleet.add(900 + next(_numbers), sources={LINK: {"broker.id": there}})
        await fleet.start()
        topic = SourceTopic("orders", PARTITIONS, lambda _filler, _topic: None)
        found = FleetSwitch(source, target, fleet, topic)  # type: ignore[arg-type]
        found.fleet = fleet
        await found.begin()
        await found.until(state="ACTIVE")
        await found.spread(target)
        yield found
    finally:
        await fleet.close()


async def test_there_and_back_by_three_sidecars(scene: FleetSwitch) -> None:
    """Twice each way; each sidecar leads a part. Afterwards all logs have the same bytes."""
    await scene.acked_more(50)
    configs = await scene.configs(scene.source)
    for _ in range(2):
        await scene.switch("REVERSED")
        await scene.spread(scene.source)
        await scene.acked_more(100)
        await scene.switch("FORWARD")
        await scene.spread(scene.target)
        await scene.acked_more(100)
    assert await scene.configs(scene.source) == configs
    await scene.fleet.linker("mirror", "sync", "orders", "--link", LINK, "--off")
    verdict = await scene.finish(scene.source, scene.target)
    assert verdict.ok, verdict.violations
    assert verdict.acked > 2000
    print(f"pauses in ms: {verdict.pauses_ms}")


MEMBER, HEAD = "one that leads", "the link controller"
#: Who is killed, and how long after the command to switch; None: nobody has asked for one.
KILLS = [(MEMBER, None), (HEAD, 0.3), (MEMBER, 0.1), (HEAD, None), (MEMBER, 0.5), (HEAD, 0.7), (MEMBER, None)]


@pytest.mark.slow
async def test_sidecars_that_are_killed(scene: FleetSwitch) -> None:
    """In sync, and on the way (a pause after the command). The others give back or go on without it, before it is back."""
    fleet = scene.fleet
    for who, pause in KILLS:
        began = (await scene.status())["direction"]
        await fleet.linker("mirror", "sync", "orders", "--link", LINK)
        await scene.until(sync="IN_SYNC")
        head = await fleet.head()
        victim = head if who == HEAD else next(n for n in fleet.ids if n != head)
        if pause is not None:
            await fleet.linker("mirror", "switch", "orders", "--link", LINK, "--no-wait")
            await asyncio.sleep(pause)
        killed = time.monotonic()
        await fleet.cars[victim].kill()
        fleet._stopped.add(victim)
        await scene.acked_everywhere(killed + 0.3)
        wrote = time.monotonic() - killed
        found = await scene.until(state="ACTIVE")
        print(
            f"{who} killed, {pause} s after a switch: {began} -> {found['direction']}; all producers went on after "
            f"{wrote:.1f} s, ACTIVE after {time.monotonic() - killed:.1f} s"
        )
        await scene.owner_leads(scene.source if found["direction"] == "FORWARD" else scene.target)
        fleet._stopped.discard(victim)
        await fleet.started(victim)
        await scene.spread(scene.target if found["direction"] == "FORWARD" else scene.source)
        await scene.acked_everywhere(time.monotonic())
    await scene.switch("FORWARD" if (await scene.status())["direction"] == "REVERSED" else "REVERSED")
    owner, other = scene.source, scene.target
    if (await scene.status())["direction"] == "REVERSED":
        owner, other = other, owner
    await fleet.linker("mirror", "sync", "orders", "--link", LINK, "--off")
    verdict = await scene.finish(owner, other)
    assert verdict.ok, verdict.violations
    print(f"pauses in ms: {verdict.pauses_ms}")


def finish_has_begun(car: SidecarProcess) -> bool:
    """The word is written down. False, too, where it is all over already."""
    with car.client() as client:
        try:
            plan = client.plan_switch(LINK, PromoteRequest(topics=["orders"]))
        except AdminError:
            return False
    return any("is being finished" in one for one in plan.blockers)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["CLOSED", "DELETED"])
@pytest.mark.parametrize("killed", [False, True], ids=["in peace", "the link controller dies"])
async def test_a_fleet_finishes(scene: FleetSwitch, ending: str, killed: bool) -> None:
    """Asked of one that is not the link controller; all three lead a part at the source. The link controller dies as soon as
    the word is written down, and the next one goes on with it unasked."""
    fleet = scene.fleet
    await scene.acked_more(20)
    await scene.switch("REVERSED")
    await scene.spread(scene.source)
    for producer in scene.producers:
        await producer.move(scene.target.bootstrap)
    for consumer in scene.consumers:
        await consumer.stop()
    head = await fleet.head()
    other = next(number for number in fleet.ids if number != head)
    options = ["--delete-source-topics"] if ending == "DELETED" else []
    asked = asyncio.create_task(
        fleet.cars[other].run("mirror", "finish", "orders", "--link", LINK, "--yes", *options)
    )
    if killed:
        while not asked.done() and not await asyncio.to_thread(finish_has_begun, fleet.cars[other]):
            await asyncio.sleep(0.05)  # a command has its own deadline
        await fleet.cars[head].kill()
        fleet._stopped.add(head)
    done = await asked
    print(f"{ending}, killed={killed}: {done.exit_code} {done.output} {done.errors}")
    assert killed or not done.exit_code, done

    left: object = None
    async with within(90, lambda: f"not finished: {left}"):
        while True:
            found = await fleet.awake()[0].run("mirror", "list", "--link", LINK, "-o", "json")
            left = found
            if not found.exit_code and found.json() == []:
                break
            await asyncio.sleep(0.5)
    await scene.acked_more(30)
    if ending == "CLOSED":
        await scene.owner_leads(scene.source)
        assert (await scene.configs(scene.source))["max.message.bytes"] == "0"
        assert await asyncio.to_thread(refused, scene.source.bootstrap)
    else:
        topics = await asyncio.to_thread(kafka_admin(scene.source.bootstrap).list_topics, timeout=30)
        assert "orders" not in topics.topics
    await scene.owner_leads(scene.target)
    await judged(scene, scene.target)
