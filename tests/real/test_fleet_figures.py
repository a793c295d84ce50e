"""How long producers wait when sidecars die, drain and come back; nothing is lost, doubled or reordered by it.

Bounds are loose here; `make fleet-figures` runs this file on a machine that does nothing else, with the goals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.fleet_figures import STRICT, figure
from tests.real.harness_fleet import Fleet
from tests.real.harness_fleet_scene import FleetScene, MakeFleetScene
from tests.real.harness_promote import LINK, scenes
from tests.real.harness_stalls import stopped

pytestmark = pytest.mark.timeout(400)
RATE = 200.0
AFTERWARDS = 2.0  # producers with an old leader in their metadata are noticed
CONTROLLER_AWAY = 8.0
SESSION = 5.0  # conftest.QUICK_FENCING


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    target_cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory, _numbers: Iterator[int]
) -> AsyncIterator[Fleet]:
    ids = [900 + next(_numbers) for _ in range(3)]
    store = {"type": "topic", "topic": f"__state_{ids[0]}"}
    fleet = Fleet(target_cluster, ids, tmp_path_factory.mktemp("fleet"), store)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


async def measured(scene: FleetScene, name: str, since: float, **more: object) -> None:
    """From the event until every producer has gone on, everywhere, for a while."""
    await scene.acked_everywhere()
    await asyncio.sleep(AFTERWARDS)
    await scene.acked_everywhere()
    figure(name, scene.history, since, scene.history.clock(), more)


async def test_a_leader_is_killed(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """One that is not the link controller."""
    scene = await make_scene(rate=RATE)
    begin = scene.history.mark("nothing")
    await measured(scene, "usual", begin)
    head = await fleet.controller()
    victim = next(n for n in fleet.ids if n != head.id)
    before = await scene.led()
    assert sum(one.leader == victim for one in before.values()) == 2
    since = scene.history.mark("killed")
    await fleet.cars[victim].kill()
    await scene.nothing_led_by(victim)
    moved = time.monotonic() - since
    await measured(scene, "crash", since, leadership_moved=round(moved, 3))
    await fleet.started(victim)
    await scene.balanced()
    assert (await fleet.controller()).controller_epoch == head.controller_epoch
    await scene.finish()


@pytest.mark.slow
async def test_the_link_controller_is_killed(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """It leads partitions too."""
    scene = await make_scene(rate=RATE)
    head = await fleet.controller()
    assert len(await scene.led_by(head.id)) == 2
    since = scene.history.mark("killed")
    await fleet.cars[head.id].kill()
    following = await fleet.next_head(head)
    taken = time.monotonic() - since
    assert following.id != head.id
    await scene.nothing_led_by(head.id)
    moved = time.monotonic() - since
    more = {"seat_taken": round(taken, 3), "leadership_moved": round(moved, 3)}
    await measured(scene, "crash_of_head", since, **more)
    await fleet.started(head.id)
    await scene.balanced()
    await scene.finish()


@pytest.mark.slow
async def test_draining(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """Leadership leaves, the sidecar is started anew, leadership comes back."""
    scene = await make_scene(rate=RATE)
    head = await fleet.head()
    drained = next(n for n in fleet.ids if n != head)
    assert len(await scene.led_by(drained)) == 2
    since = scene.history.mark("drain")
    await fleet.linker("sidecar", "drain", str(drained))
    took = time.monotonic() - since
    assert await scene.led_by(drained) == []
    assert (await fleet.sidecars())[drained].draining
    await measured(scene, "drain", since, took=round(took, 3))
    since = scene.history.mark("restart")
    assert await fleet.cars[drained].stop() == 0
    await fleet.started(drained)
    assert not (await fleet.sidecars())[drained].draining
    await scene.balanced()
    await measured(scene, "drained_restart", since)
    await scene.finish()


@pytest.mark.slow
async def test_the_targets_controller_stands_still(
    make_scene: MakeFleetScene, fleet: Fleet, target_cluster: KafkaCluster
) -> None:
    """Leases are the link controller's: producers notice nothing."""
    scene = await make_scene(rate=RATE)
    before = await scene.led()
    since = scene.history.mark("stopped")
    with stopped(target_cluster.controllers[0]):
        await asyncio.sleep(CONTROLLER_AWAY)
        await scene.acked_everywhere()
    await measured(scene, "target_controller", since)
    await fleet.whole()
    await scene.balanced()
    if STRICT:
        assert {tp: one.leader for tp, one in (await scene.led()).items()} == {
            tp: one.leader for tp, one in before.items()
        }
    await scene.finish()


async def test_the_only_sidecar_is_killed(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    """Started again at once it goes on as the same broker: nobody else may lead, and nothing has to be elected."""
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        scene = await make()
        before = await scene.describe(scene.names[0])
        since = scene.history.mark("killed")
        await scene.sidecar.kill()
        await scene.sidecar.start(90)
        away = time.monotonic() - since
        await scene.acked_more()
        await asyncio.sleep(AFTERWARDS)
        until = scene.history.clock()
        await scene.wait_active()
        after = await scene.describe(scene.names[0])
        epochs = [
            (old.leader_epoch, new.leader_epoch)
            for old, new in zip(before.partition_status, after.partition_status, strict=True)
        ]
        figure("restart", scene.history, since, until, {"ready_after": round(away, 3)})
        if STRICT or away < SESSION - 1.0:  # else its session at the target may have ended
            assert all(old == new for old, new in epochs), epochs
        await scene.promoted()
        await scene.acked_more()
        await scene.judge()
        assert {one.state for one in await scene.ask(lambda client: client.list_mirrors(LINK))} == {
            "PROMOTED"
        }
