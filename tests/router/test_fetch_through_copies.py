"""Consumers of what a real fetcher copies, as in the sidecar: fetcher, windows and router on one source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.link_fetcher import LinkFetcher
from fetcher.partition_copy import PartitionCopy
from fetcher.spec import MirrorSpec
from tests.fakes.batches import parse_batches
from tests.fetcher.rig import Events
from tests.router.rig import E0, Rig, eventually
from tests.router.test_consumer_fetch import fetch
from wire.frames.types import TopicPartition


def asked_by_clients(rig: Rig) -> int:
    return sum(request.client_id == "app" for request in rig.source.received("fetch"))


async def follow(mirror: PartitionCopy) -> None:
    """A follower that takes what comes, and asks for more a moment later: whoever was told of it has looked by then."""
    taken = 0
    while True:
        mirror.follower_fetched(1, taken, 0, time.monotonic())
        taken = mirror.cursors[0].position if mirror.cursors else 0
        await asyncio.sleep(0.002)


@asynccontextmanager
async def copies() -> AsyncIterator[tuple[Rig, PartitionCopy, LinkFetcher]]:
    """Partition 0 of "orders" is copied by a fetcher, from a source of one node."""
    async with Rig(source_nodes=1) as rig:
        rig.source.add("orders", 0, 3)
        manager = LinkFetcher(
            "east",
            rig.cluster,
            MemoryBudget(32 << 20),
            MirrorDirectory(),
            Events(),
            open_connection=rig.cluster.open_connection,
            client_id="linker",
        )
        topic = rig.directory.mirrors["orders"]
        spec = MirrorSpec(
            link="east",
            topic="orders",
            partition=0,
            topic_id=topic.topic_id,
            source_topic_id=topic.source_topic_id,
            session_epoch=E0,
            start_offset=0,
            target_replicas=(1,),
        )
        (mirror,) = manager.add([spec])
        rig.logs[TopicPartition("orders", 0)] = cast(Any, mirror)
        tasks = [asyncio.create_task(manager.run())]
        try:
            await eventually(lambda: mirror.loaded)
            tasks.append(asyncio.create_task(follow(mirror)))
            await eventually(lambda: mirror.read(3, 100) == ([], 0))
            yield rig, mirror, manager
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_consumer_at_the_end_costs_the_source_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with copies() as (rig, mirror, _):
        client = await rig.client()
        offset = 3
        for _ in range(5):
            waiting = fetch(client, rig, {0: offset}, max_wait_ms=60_000)
            await eventually(lambda: len(mirror.listeners) > 0)
            rig.source.add("orders", 0, 2)
            answer = await asyncio.wait_for(waiting, 25)
            assert [at for at, _ in answer.values()] == [offset, offset + 1]
            assert {batch.leader_epoch for batch in parse_batches(answer.records())} == {E0}
            assert answer.partitions[0].high_watermark == offset + 2
            offset += 2
        assert asked_by_clients(rig) == 0


async def test_what_was_let_go_is_read_from_the_source_and_the_end_in_memory_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with copies() as (rig, mirror, _):
        client = await rig.client()
        await eventually(lambda: mirror.read(0, 100) is None)  # the follower has it, and has said so
        assert len((await fetch(client, rig, {0: 0})).values()) == 3
        assert asked_by_clients(rig) == 1
        waiting = fetch(client, rig, {0: 3}, max_wait_ms=60_000)
        await eventually(lambda: len(mirror.listeners) > 0)
        rig.source.add("orders", 0, 1)
        assert len((await asyncio.wait_for(waiting, 25)).values()) == 1
        assert asked_by_clients(rig) == 1


async def test_a_removed_copy_sends_its_readers_to_the_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with copies() as (rig, mirror, manager):
        tp = TopicPartition("orders", 0)
        waiting = fetch(await rig.client(), rig, {0: 3}, max_wait_ms=60_000)
        await eventually(lambda: len(mirror.listeners) > 0)
        rig.hand_over("orders", 0, leader=2)
        rig.router.handed_over([tp])
        manager.remove([tp])
        part = (await asyncio.wait_for(waiting, 25)).partitions[0]
        assert (part.error, part.current_leader) == (6, (2, E0 + 1))


async def test_a_copy_that_hangs_does_not_hold_up_its_readers() -> None:
    """Its fetcher's connection is stuck; a consumer has one of its own."""
    async with copies() as (rig, _, _):
        client = await rig.client()
        rig.source.inject("fetch", drop=True, times=None, match=lambda request: request.session_epoch >= 0)
        for offset in (3, 4):  # the first may come with what was asked before
            await asyncio.sleep(0.1)
            rig.source.add("orders", 0, 1)
            async with asyncio.timeout(25):
                while not (await fetch(client, rig, {0: offset}, max_wait_ms=500)).values():
                    pass
