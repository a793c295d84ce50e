"""A sidecar that is killed in each phase of a promote and started again: it finishes, or the mirror is ACTIVE again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

import pytest
import pytest_asyncio

from admin.models import MirrorState, PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK, MakeScene, Scene, scenes
from tests.real.harness_stalls import brokers_back, open_transaction, stopped, without_alter_configs

pytestmark = pytest.mark.timeout(300)
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        yield make


async def abandoned_by_restart(scene: Scene, job: str, phase: str) -> None:
    """The job ended with the reason, produces are forwarded again, and the second promote works."""
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.ABANDONED
    assert f"restarted while it was {phase}" in (ended.reason or "")
    await brokers_back(scene.target)
    await scene.wait_active()
    await finish(scene)


async def finish(scene: Scene) -> None:
    """Writes flow; promote if that is still to be done; everything is judged."""
    await scene.acked_more()
    mirrors = await scene.ask(lambda client: client.list_mirrors(LINK))
    if {mirror.state for mirror in mirrors} != {MirrorState.PROMOTED}:
        await scene.promoted()
        await scene.acked_more()
    await scene.judge()


@pytest.mark.slow
async def test_killed_while_catching_up(make_scene: MakeScene) -> None:
    """An open transaction at the source keeps the promote from its fence."""
    scene = await make_scene()
    with open_transaction(scene.source, scene.tps[1]):
        job = await scene.start_promote()
        await scene.reach(job, PromotePhase.CATCHING_UP, "a transaction is open at the source")
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"CATCHING_UP"}
        await scene.sidecar.start()
        assert (await scene.settled(job)).phase is PromotePhase.ABANDONED
        await scene.acked_more()
    await abandoned_by_restart(scene, job, "CATCHING_UP")


async def test_killed_while_fenced(make_scene: MakeScene) -> None:
    """A stopped broker keeps the replicas apart."""
    scene = await make_scene()
    async with scene.standing_in(PromotePhase.FENCED, scene.target.nodes[3]) as job:
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"FENCED"}
    await scene.sidecar.start()
    await abandoned_by_restart(scene, job, "FENCED")


@pytest.mark.slow
async def test_killed_while_aligned(make_scene: MakeScene) -> None:
    """All replicas are known to be at the end, but a stopped broker does not show its last batch."""
    scene = await make_scene()
    await scene.hush()
    async with scene.standing_in(PromotePhase.ALIGNED, scene.target.nodes[3]) as job:
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"ALIGNED"}
    scene.speak()
    await scene.sidecar.start()
    await abandoned_by_restart(scene, job, "ALIGNED")


@pytest.mark.parametrize("first", [pytest.param("controller", marks=pytest.mark.slow), "sidecar"])
async def test_killed_while_validated(make_scene: MakeScene, first: str) -> None:
    """A stopped controller has the hand-over in its socket: whether it is carried out, its log alone tells."""
    scene = await make_scene()
    with stopped(scene.target.controllers[0]):
        job = await scene.start_promote()
        await scene.reach(job, PromotePhase.VALIDATED)
        await asyncio.sleep(0.3)  # the AlterPartition leaves
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"VALIDATED"}
        if first == "sidecar":
            scene.sidecar.launch()
            await asyncio.sleep(1.0)
    if first == "controller":
        scene.sidecar.launch()
    await scene.sidecar.wait_ready()
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.PROMOTED or "restarted" in (ended.reason or ""), ended
    await brokers_back(scene.target)
    await finish(scene)


async def test_killed_after_the_hand_over(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    """A right that is taken away keeps the configs from being put back: clients go on, and the next start ends it."""
    target = await start_cluster(name="target", brokers=1, controllers=1, properties=AUTHORIZED)
    async with scenes(source_cluster, target, start_sidecar, unique_topic) as make:
        scene = await make()
        with ExitStack() as until_now, ExitStack() as afterwards:
            until_now.enter_context(open_transaction(scene.source, scene.tps[0]))
            job = await scene.start_promote()  # looks at the rights
            await scene.reach(job, PromotePhase.CATCHING_UP, "a transaction is open at the source")
            afterwards.enter_context(without_alter_configs(target, scene.names[0]))
            until_now.close()
            await scene.reach(job, PromotePhase.HANDED_OVER, "putting the configs")
            await scene.acked_more()
            refused = await scene.sidecar.run("sidecar", "leave", str(scene.sidecar.spec.broker_id))
            assert refused.exit_code == 1
            assert f"promote {job} is not over yet" in refused.errors
            await scene.sidecar.kill()
            assert scene.stored_phases() == {"HANDED_OVER"}
            await scene.sidecar.start()
            await scene.reach(job, PromotePhase.HANDED_OVER, "putting the configs")
        assert (await scene.settled(job)).phase is PromotePhase.PROMOTED
        await finish(scene)


@pytest.mark.slow
async def test_killed_while_mirroring(make_scene: MakeScene) -> None:
    """Within its session, and after it was fenced: E0, followers and writers go on where they were."""
    scene = await make_scene()
    before = await scene.describe(scene.names[0])
    for away in (0.0, 8.0):  # the session is over after 5 s
        await scene.sidecar.kill()
        await asyncio.sleep(away)
        await scene.sidecar.start()
        await scene.wait_active()
        await scene.acked_more()
    after = await scene.describe(scene.names[0])
    for old, new in zip(before.partition_status, after.partition_status, strict=True):
        assert new.session_epoch == old.session_epoch, "E0 is for ever"
        assert (new.leader_epoch or 0) > (old.leader_epoch or 0), "it was fenced meanwhile"
    refused = await scene.sidecar.run("sidecar", "leave", str(scene.sidecar.spec.broker_id))
    assert refused.exit_code == 1
    assert scene.names[0] in refused.errors
    assert scene.sidecar.running
    await scene.acked_more()
    await finish(scene)
