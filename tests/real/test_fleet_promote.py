"""The link controller is killed in each phase of a promote: the next one finishes it or takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from admin.models import ControllerDescription, PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster
from tests.real import harness_store_zookeeper as rig
from tests.real.harness_fleet import Fleet
from tests.real.harness_fleet_scene import FleetScene, MakeFleetScene
from tests.real.harness_stalls import brokers_back, open_transaction, stopped
from tests.real.harness_zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.timeout(400)
LEASE_MS = 5000
# Not the topic store: brokers of the target are stopped here, and it would stop with them.
server = rig.server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    target_cluster: KafkaCluster,
    server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    _numbers: Iterator[int],
) -> AsyncIterator[Fleet]:
    ids = [900 + next(_numbers) for _ in range(3)]
    store = {"type": "zookeeper", "connect": f"{server.address}/promotes", "session.timeout.ms": 3000}
    fleet = Fleet(target_cluster, ids, tmp_path_factory.mktemp("fleet"), store, {"lease.ms": LEASE_MS})
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


async def head_killed(scene: FleetScene) -> ControllerDescription:
    """Who was the link controller."""
    head = await scene.fleet.controller()
    await scene.fleet.cars[head.id].kill()
    return head


async def taken_back(scene: FleetScene, job: str, head: ControllerDescription, phase: str) -> None:
    """The next one has made everything ACTIVE again, with the reason, and a later promote works."""
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.ABANDONED, ended
    assert f"restarted while it was {phase}" in (ended.reason or ""), ended
    await scene.acked_everywhere()
    await whole_again(scene, head)


async def whole_again(scene: FleetScene, head: ControllerDescription) -> None:
    await brokers_back(scene.target)
    await scene.fleet.started(head.id)
    assert (await scene.fleet.controller()).controller_epoch > head.controller_epoch
    await scene.finish()


@pytest.mark.slow
async def test_killed_while_catching_up(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """An open transaction at the source keeps the promote from its fence."""
    scene = await make_scene()
    with open_transaction(scene.source, scene.tps[1]):
        job = await scene.start_promote()
        await scene.reach(job, PromotePhase.CATCHING_UP, "a transaction is open at the source")
        head = await head_killed(scene)
        following = await fleet.next_head(head)
        assert following.id != head.id
        await scene.nothing_led_by(head.id)
        await scene.acked_everywhere()
    await taken_back(scene, job, head, "CATCHING_UP")


async def test_killed_while_fenced(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """A stopped broker keeps the replicas apart, and every sidecar holds its producers."""
    scene = await make_scene()
    async with scene.standing_in(PromotePhase.FENCED, scene.target.nodes[3]) as job:
        head = await head_killed(scene)
        following = await fleet.next_head(head)
        assert following.id != head.id
        # No acks are waited for here: a client that asked the stopped broker for metadata waits for its own timeout.
        await scene.nothing_led_by(head.id)
    await taken_back(scene, job, head, "FENCED")


@pytest.mark.parametrize("first", [pytest.param("controller", marks=pytest.mark.slow), "sidecar"])
async def test_killed_while_validated(make_scene: MakeFleetScene, fleet: Fleet, first: str) -> None:
    """A stopped controller of the target has the hand-over in its socket: whether it is carried out, its log alone
    tells, and the next link controller has to wait for that."""
    scene = await make_scene()
    with stopped(scene.target.controllers[0]):
        job = await scene.start_promote()
        await scene.reach(job, PromotePhase.VALIDATED)
        await asyncio.sleep(0.3)  # the AlterPartition leaves
        head = await head_killed(scene)
        if first == "sidecar":
            assert (await fleet.next_head(head)).id != head.id
    assert (await fleet.next_head(head)).id != head.id
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.PROMOTED or "restarted" in (ended.reason or ""), ended
    await scene.acked_everywhere()
    await whole_again(scene, head)
