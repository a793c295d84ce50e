"""Partitions that the source adds under a fleet: several sidecars share them, and the link controller dies in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from admin.models import PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.live_producers import LibrdkafkaProducer
from tests.real import harness_store_zookeeper as rig
from tests.real.harness_fleet import Fleet
from tests.real.harness_fleet_scene import PARTITIONS, MakeFleetScene
from tests.real.harness_promote import LINK
from tests.real.harness_stalls import PATIENCE
from tests.real.harness_zookeeper_server import ZooKeeperServer
from tests.real.test_growth import INTERVAL_MS, grow, grown, write_at_source

pytestmark = pytest.mark.timeout(400)
LEASE_MS = 5000
server = rig.server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    target_cluster: KafkaCluster,
    server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    _numbers: Iterator[int],
) -> AsyncIterator[Fleet]:
    ids = [900 + next(_numbers) for _ in range(3)]
    store = {"type": "zookeeper", "connect": f"{server.address}/growth", "session.timeout.ms": 3000}
    fleet = Fleet(target_cluster, ids, tmp_path_factory.mktemp("fleet"), store, {"lease.ms": LEASE_MS})
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


async def test_a_fleet_shares_what_is_added_and_outlives_its_link_controller(
    make_scene: MakeFleetScene, fleet: Fleet
) -> None:
    scene = await make_scene()
    await fleet.linker("link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}")
    total = PARTITIONS + 3
    await grow(scene, total)
    stayed = await write_at_source(scene, total)
    await grown(scene, total)
    added = {led.leader for tp, led in (await scene.led()).items() if tp.partition >= PARTITIONS}
    assert added == set(fleet.ids), "each of the three leads one of the three"
    await grow(scene, total + 2)
    also_stayed = await write_at_source(scene, total + 2)
    deadline = time.monotonic() + PATIENCE
    while len((await scene.describe(scene.names[0])).partition_status) < total + 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    head = await fleet.controller()
    await fleet.cars[head.id].kill()
    await fleet.next_head(head)
    await grown(scene, total + 2)
    await stayed.stop()
    await also_stayed.stop()
    await fleet.started(head.id)
    late = LibrdkafkaProducer("late", scene.names[0], total + 2, 100.0, scene.history)
    scene.producers.append(late)
    await late.start(scene.target.bootstrap)
    await fleet.whole()
    await scene.acked_more()
    job = await scene.settled(await scene.start_promote())
    assert job.phase is PromotePhase.PROMOTED, job
    await scene.acked_more()
    await scene.judge()
