"""Where cursors read from, and for how long: leaders that were replaced, replicas that fall behind, connections that end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fetcher import link_fetcher, source_fetcher
from fetcher.partition_copy import PartitionCopy
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually, fill
from wire.client.connection import Connection
from wire.frames.fetch_response import FetchResponse
from wire.frames.types import Node


def nodes_of(mirror: PartitionCopy) -> list[int]:
    return [cursor.fetcher.node.id for cursor in mirror.cursors if cursor.fetcher is not None]


@asynccontextmanager
async def reading_near() -> AsyncIterator[tuple[FakeCluster, Rig, PartitionCopy]]:
    """A mirror that is read from node 2, in the sidecar's rack, while node 1 leads."""
    async with FakeCluster(3, racks={1: "a", 2: "b", 3: "c"}) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source, rack="b")
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            assert nodes_of(mirror) == [2]
            yield source, rig, mirror


async def test_a_near_replica_that_lags_is_left() -> None:
    """It answers as if we had diverged, or out of range: only the leader may say so."""
    async with reading_near() as (source, rig, mirror):
        source.inject("fetch", error=1, node=2)
        fill(source, 10)
        await rig.settled()
        await eventually(lambda: nodes_of(mirror) == [1])
        assert rig.events.truncations == []


async def test_a_near_replica_that_is_out_of_sync_is_left_without_an_error_of_its(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may answer without records for ever, and what the mirror knows of the end is what it says."""
    monkeypatch.setattr(link_fetcher, "_LOOK_AGAIN", 0.1)
    async with reading_near() as (source, rig, mirror):
        source.partition("t").isr = [1, 3]
        await rig.cluster.refresh(["t"], timeout=5)
        await eventually(lambda: nodes_of(mirror) == [1])
        assert rig.events.availability == []


async def test_a_leader_that_was_replaced_is_left_though_it_does_not_know_yet() -> None:
    async with FakeCluster(2) as source:
        source.add_topic("t", 1, leader_epoch=3)
        fill(source, 10)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            await eventually(lambda: mirror.source_leader_epoch == 3)
            await eventually(lambda: mirror not in rig.manager._queue)
            mirror.source_leader_epoch = 2  # as if the cursors had been placed before it was elected
            rig.manager._look_again(time.monotonic())
            assert mirror in rig.manager._queue
            await eventually(lambda: mirror.source_leader_epoch == 3)
            await eventually(lambda: mirror not in rig.manager._queue)
            rig.manager._look_again(time.monotonic())
            assert mirror not in rig.manager._queue, "and not again without need"


async def test_a_near_replica_gets_another_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """One restart of it, and its rack would be read across for ever."""
    monkeypatch.setattr(link_fetcher, "_LOOK_AGAIN", 0.1)
    monkeypatch.setattr(link_fetcher, "_LEADER_ONLY", 0.4)
    async with reading_near() as (source, rig, mirror):
        source.inject("fetch", error=1, node=2, times=1)
        fill(source, 10)
        await eventually(lambda: nodes_of(mirror) == [1])
        assert mirror.cursors[0].leader_only
        await eventually(lambda: nodes_of(mirror) == [2])
        fill(source, 10)
        await rig.settled()


async def test_a_session_that_is_about_to_end_is_followed_by_another_without_trouble() -> None:
    """connections.max.reauth.ms at the source."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        rig = Rig(source)
        opened: list[Connection] = []

        async def open_connection(node: Node) -> Connection:
            connection = await rig.cluster.open_connection(node)
            connection.expires_at = time.monotonic() + 0.6
            opened.append(connection)
            return connection

        rig.manager._open_connection = open_connection
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            for _ in range(20):
                fill(source, 2)
                fill(source, 2, partition=1)
                await asyncio.sleep(0.08)
            await rig.settled()
        assert len(opened) >= 4
        assert rig.events.availability == []
        assert all(connection.closed for connection in opened)


async def test_an_answer_that_a_quota_emptied_says_nothing_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    throttled = False
    parse = source_fetcher.parse_fetch_response

    def emptied(frame: memoryview, version: int) -> FetchResponse:
        response = parse(frame, version)
        return FetchResponse(response.error, response.session_id, 20, []) if throttled else response

    monkeypatch.setattr(source_fetcher, "parse_fetch_response", emptied)
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 5)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            await eventually(lambda: mirror.end_known)
            throttled = True
            mirror.forget_followers()
            assert not mirror.end_known
            asked = len(source.received("fetch"))
            await eventually(lambda: len(source.received("fetch")) > asked + 5)
            assert not mirror.end_known
            throttled = False
            await eventually(lambda: mirror.end_known)


async def test_what_a_follower_was_told_is_remembered_when_it_goes() -> None:
    """It may have taken the last answer, and come back with it when the source has lost that and gone on."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            follower = rig.follow(1)
            other = rig.follow(2)
            await rig.settled()
            asked = source.partition("t").log.high_watermark
            await eventually(lambda: mirror.followers[1].fetch_offset == asked)
            follower.pause = 30.0
            fill(source, 5)
            end = source.partition("t").log.high_watermark
            await eventually(lambda: rig.copied(other))
            await eventually(lambda: next(iter(follower.logs.values())).end > asked)
            rig.tasks[0].cancel()
            await eventually(lambda: mirror.followers[1].cursor is None)
            assert mirror.followers[1].fetch_offset == asked
            mirror.truncate(asked + 1)
            assert mirror.untruncated[1] == asked + 1
            assert mirror.may_copy_from(1, end) == asked + 1
