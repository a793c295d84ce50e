"""A limit on what a link reads: kept, raised while it runs, and nothing that producers would notice. One that holds while
clients write ends with their writes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka import Producer

from admin.models import Traffic
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK, MakeScene, Scene, scenes
from tests.real.harness_stalls import PATIENCE

RATE = 200_000
RECORD, COUNT = 1_000, 8_000
BULK = RECORD * COUNT


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


async def bulk(scene: Scene) -> None:
    """Straight to the source."""
    producer = Producer({"bootstrap.servers": scene.source.bootstrap, "acks": "all"})
    failed: list[object] = []
    for _ in range(COUNT):
        producer.produce(
            scene.names[0],
            os.urandom(RECORD),
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
    assert await asyncio.to_thread(producer.flush, 60) == 0
    assert not failed


async def kept(scene: Scene, base: int, *, times: float = 1.0) -> None:
    """The limit is, or so many times of it, for some seconds in which forwarded writes go on."""
    # The seconds go from before the first look to after the last one: what is read in between was read in them.
    started = time.monotonic()
    before = await fetched(scene)
    await scene.acked_more(100, timeout=20.0)
    await asyncio.sleep(max(0.0, started + 8 - time.monotonic()))
    read = await fetched(scene) - before
    seconds = time.monotonic() - started
    # Beyond the rate: what may be saved up (a second's worth), and one answer for each of the source's brokers.
    ahead = 1 + len(scene.source.brokers)
    assert read <= RATE * (times * seconds + ahead), f"{read} bytes in {seconds:.1f} s"
    assert read >= RATE * seconds * 0.3, f"{read} bytes in {seconds:.1f} s"
    assert await fetched(scene) - base < BULK, "the limit was never felt"


async def all_read(scene: Scene, base: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while await fetched(scene) - base < BULK:
        assert time.monotonic() < deadline, f"{await fetched(scene) - base} of {BULK} bytes without a limit"
        await asyncio.sleep(0.2)


async def test_a_limit_is_kept_and_producers_do_not_notice(make_scene: MakeScene) -> None:
    scene = await make_scene()
    limit = ("link", "update", LINK, "--replication-bytes-per-second")
    await scene.sidecar.linker(*limit, str(RATE))
    base = await fetched(scene)
    await bulk(scene)
    await kept(scene, base)
    await scene.sidecar.linker(*limit, "0")
    await scene.hush()
    await all_read(scene, base)
    scene.speak()
    await scene.promoted()
    await scene.judge()


@pytest.mark.slow
async def test_a_copy_gives_way_to_writes_until_they_end(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await scene.acked_more(10, timeout=20.0)
    base = await fetched(scene)
    limit = ("link", "update", LINK, "--replication-bytes-per-second")
    await scene.sidecar.linker(*limit, str(RATE))
    await bulk(scene)
    await scene.sidecar.linker(*limit, "0", "--replication-bytes-per-second-beside-writes", str(RATE))
    await kept(scene, base, times=2)  # twice what comes may be read, if that is more
    await scene.hush()
    await all_read(scene, base)
    scene.speak()
    await scene.promoted()
    await scene.judge()
