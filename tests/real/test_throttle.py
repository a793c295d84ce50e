"""A limit on what a link reads: kept, raised while it runs, and nothing that producers would notice."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio
from confluent_kafka import Producer

from linker.admin.models import Traffic
from linker.demo.kafka_cluster import KafkaCluster
from linker.demo.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK, MakeScene, Scene, scenes

RATE = 200_000


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        yield make


async def fetched(scene: Scene) -> int:
    found: Traffic = (await scene.ask(lambda client: client.describe_link(LINK))).traffic
    return found.fetched_bytes


async def test_a_limit_is_kept_and_producers_do_not_notice(make_scene: MakeScene) -> None:
    scene = await make_scene()
    limit = ("link", "update", LINK, "--replication-bytes-per-second")
    await scene.sidecar.linker(*limit, str(RATE))
    bulk = Producer({"bootstrap.servers": scene.source.bootstrap, "acks": "all"})
    for _ in range(400):
        bulk.produce(scene.names[0], os.urandom(20_000), partition=0)
    assert await asyncio.to_thread(bulk.flush, 60) == 0
    before, started = await fetched(scene), time.monotonic()
    await scene.acked_more(100, timeout=20.0)
    await asyncio.sleep(max(0.0, started + 8 - time.monotonic()))
    seconds, read = time.monotonic() - started, await fetched(scene) - before
    assert read <= RATE * (seconds + 2.5), f"{read} bytes in {seconds:.1f} s"
    assert read >= RATE * seconds * 0.3, f"{read} bytes in {seconds:.1f} s"
    await scene.sidecar.linker(*limit, "0")
    await scene.hush()
    assert await fetched(scene) - before > read, "the rest came when the limit was gone"
    scene.speak()
    await scene.promoted()
    await scene.judge()
