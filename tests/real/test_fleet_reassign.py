"""Replicas of mirrors that a fleet leads are moved: by request, by another tool, and past the link controller's death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.inspection import placements
from tests.real import harness_store_zookeeper as rig
from tests.real.harness_fleet import Fleet
from tests.real.harness_fleet_scene import FleetScene, MakeFleetScene
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import reassign
from tests.real.harness_zookeeper_server import ZooKeeperServer
from tests.real.test_reassign import staying

pytestmark = pytest.mark.timeout(400)
server = rig.server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    target_cluster: KafkaCluster,
    server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    _numbers: Iterator[int],
) -> AsyncIterator[Fleet]:
    ids = [900 + next(_numbers) for _ in range(3)]
    store = {"type": "zookeeper", "connect": f"{server.address}/reassigns", "session.timeout.ms": 3000}
    fleet = Fleet(target_cluster, ids, tmp_path_factory.mktemp("fleet"), store, {"lease.ms": 5000})
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


async def held(scene: FleetScene, wanted: dict[int, set[int]], timeout: float = 30) -> None:
    """Until the mirror has these replicas."""
    async with asyncio.timeout(timeout):
        while True:
            found = staying(await scene.describe(scene.names[0]))
            if {partition: set(brokers) for partition, brokers in found.items()} == wanted:
                return
            await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_replicas_of_a_fleet_are_moved_and_the_link_controller_dies(
    make_scene: MakeFleetScene, fleet: Fleet
) -> None:
    scene = await make_scene()
    everywhere = {tp.partition: {1, 2, 3} for tp in scene.tps}
    await held(scene, everywhere)
    command = ["mirror", "reassign", *scene.names, "--link", LINK]
    await fleet.linker(*command, "--away-from", "2", "--fewer-replicas")
    await held(scene, {tp.partition: {1, 3} for tp in scene.tps})
    await scene.acked_everywhere()
    await fleet.linker(*command, "--away-from", "3", "--to", "2")
    wanted = {tp.partition: {1, 2} for tp in scene.tps}
    await held(scene, wanted)
    # A tool moves two of them, one back to where it was; and the link controller dies at that moment.
    head = await fleet.controller()
    await reassign(scene.target, {scene.tps[0]: [3, 1], scene.tps[1]: [3, 2]})
    await fleet.cars[head.id].kill()
    wanted |= {0: {1, 3}, 1: {2, 3}}
    await held(scene, wanted, 60)
    await fleet.started(head.id)
    await scene.balanced()  # a plan that meets the fleet's own change of its replicas may be lost
    await reassign(scene.target, {scene.tps[1]: [2, 1]})
    wanted[1] = {1, 2}
    await held(scene, wanted)
    await scene.balanced()
    await scene.acked_everywhere()
    assert staying(await scene.describe(scene.names[0])).keys() == wanted.keys()
    await held(scene, wanted)
    await scene.finish()
    placed = await asyncio.to_thread(placements, scene.target.bootstrap, scene.topics)
    assert {tp.partition: set(one.replicas) for tp, one in placed.items()} == wanted
