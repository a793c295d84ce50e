"""A sidecar that is killed in each phase of a promote and started again: it finishes, or the mirror is ACTIVE again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio

from linker.admin.models import PromotePhase
from linker.demo.kafka_cluster import KafkaCluster
from linker.demo.sidecar_process import SidecarProcess
from tests.real.harness_promote import MakeScene, brokers_back, scenes, stopped


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        yield make


async def test_killed_while_fenced(make_scene: MakeScene) -> None:
    """A stopped broker keeps the replicas apart: FENCED is undone, and the second promote works."""
    scene = await make_scene()
    with stopped(scene.target.nodes[3]):
        job = await scene.start_promote()
        await scene.reach(job, PromotePhase.FENCED)
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"FENCED"}
    await scene.sidecar.start()
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.ABANDONED
    assert "restarted while it was FENCED" in (ended.reason or "")
    await brokers_back(scene.target)
    await scene.wait_active()
    await scene.acked_more()
    await scene.promoted()
    await scene.acked_more()
    await scene.judge()
