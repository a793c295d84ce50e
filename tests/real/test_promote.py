"""Promotes on real clusters: what has to hold when all goes well, and when something is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio
from confluent_kafka.admin import AdminClient as KafkaAdmin

from linker.admin.models import PromotePhase
from linker.demo.kafka_cluster import KafkaCluster
from linker.demo.sidecar_process import SidecarProcess
from linker.demo.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import MakeScene, scenes


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        yield make


async def test_promote_under_load(make_scene: MakeScene, unique_topic: Callable[[str], str]) -> None:
    """Idempotent writers go on; replicas are equal, leadership is spread, forced configs are put back."""
    topics = [
        SourceTopic(unique_topic("plain"), 3, SourceFiller.history),
        SourceTopic(
            unique_topic("unclean"),
            3,
            SourceFiller.mixed,
            {"unclean.leader.election.enable": "true", "retention.ms": "86400000"},
        ),
    ]
    scene = await make_scene(topics)
    job = await scene.promoted()
    assert set(job.phases_ms) == {phase for phase in PromotePhase if phase is not PromotePhase.ABANDONED}
    await scene.acked_more()
    await scene.sidecar.linker("sidecar", "leave", str(scene.sidecar.spec.broker_id))
    assert await scene.sidecar.ended() == 0
    admin = KafkaAdmin({"bootstrap.servers": scene.target.bootstrap})
    metadata = await asyncio.to_thread(admin.list_topics, timeout=30)
    assert scene.sidecar.spec.broker_id not in metadata.brokers
    await scene.acked_more()
    verdict = await scene.judge()
    assert verdict.acked > 200
