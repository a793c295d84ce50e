"""What somebody says in a broker's name does not fail a mirror, and without the broker's epoch nobody has its name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fetcher.doubts import Doubts, LogEnds
from fetcher.followers import FollowerServer
from fetcher.progress import Behind
from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FakeFollower
from tests.fetcher.rig import BROKER_ID, Rig, eventually, fill
from wire.frames.fetch import FetchPartition, FetchRequest, encode_fetch_request, parse_fetch_response
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


def of_followers(followers: Mapping[int, FakeFollower], asked: list[Sequence[int]], topic_id: bytes) -> Any:
    """What the brokers say when they are asked: the truth."""

    async def ends(tp: TopicPartition, brokers: Sequence[int]) -> dict[int, LogEnds]:
        asked.append(brokers)
        await asyncio.sleep(0)
        logs = {broker: followers[broker].logs[topic_id, tp.partition] for broker in brokers}
        return {broker: LogEnds(max(log.log_start, 0), log.end) for broker, log in logs.items()}

    return ends


async def forged(rig: Rig, offset: int, *, version: int = 12, epoch: int = -1) -> Any:
    """One fetch in the name of broker 1."""
    key: str | bytes = "t" if version < 13 else rig.image.topics_by_name["t"].id
    part = FetchPartition(0, -1, offset, -1, 0, 1 << 20)
    request = FetchRequest(version=version, replica_id=1, replica_epoch=epoch, topics=[(key, [part])])
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        writer.write(encode_fetch_request(version, 1, "x", request))
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 25), "big")
        return parse_fetch_response(memoryview(await asyncio.wait_for(reader.readexactly(size), 25)), version)
    finally:
        writer.close()


@pytest.mark.parametrize("asks", [True, False])
async def test_one_forged_fetch_below_the_sources_log_start(asks: bool) -> None:
    """The only copy is complete; somebody says in its name that it ends where the source does not begin any more."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        source.partition("t").log.delete_until(30)
        rig = Rig(source, replicas=(1,))
        asked: list[Sequence[int]] = []
        async with rig.running():
            (mirror,) = rig.mirror("t")
            if asks:
                ends = of_followers(rig.followers, asked, mirror.spec.topic_id)
                rig.server._answers._doubts = Doubts(ends)
            rig.follow(1)
            await rig.settled()
            rig.followers[1].running.clear()
            await asyncio.sleep(0.15)
            for _ in range(5):
                await forged(rig, 20)
                await asyncio.sleep(0.05)
            if not asks:
                assert mirror.failed is not None  # what is shown here is the doubt, and nothing else
                return
            assert mirror.failed is None
            assert asked[0] == (1,)
            rig.followers[1].running.set()
            fill(source, 3)
            await eventually(lambda: rig.copied(rig.followers[1]), state=rig.state)
            assert mirror.failed is None


async def test_if_it_is_so_the_mirror_fails_all_the_same() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1, 2))
        asked: list[Sequence[int]] = []
        async with rig.running():
            (mirror,) = rig.mirror("t")
            ends = of_followers(rig.followers, asked, mirror.spec.topic_id)
            rig.server._answers._doubts = Doubts(ends)
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            for follower in rig.followers.values():
                follower.running.clear()
            await asyncio.sleep(0.15)
            fill(source, 20)
            source.partition("t").log.delete_until(60)
            for follower in rig.followers.values():
                follower.running.set()
            await eventually(lambda: mirror.failed is not None, state=rig.state)
            assert "outrun" in rig.events.failures[TP]
            assert asked


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({1: LogEnds(0, 40), 2: LogEnds(0, 50)}, Behind.FAIL),
        ({1: LogEnds(0, 40), 2: LogEnds(0, 60)}, Behind.MOVE),  # where the source begins: nothing is missing
        ({1: LogEnds(40, 40), 2: LogEnds(0, 0)}, Behind.MOVE),  # nobody has anything
        ({1: LogEnds(0, 40)}, Behind.FAIL),
        ({}, Behind.FAIL),  # nobody could be asked: followers are believed, as they said
    ],
)
async def test_what_brokers_say_of_their_logs(
    ends: dict[int, LogEnds], expected: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            await eventually(lambda: mirror.loaded)
            mirror.log_start_offset = 60
            mirror.follower_fetched(1, 40, 0, 0.0)
            mirror.follower_fetched(2, 40, 0, 0.0)

            async def told(tp: TopicPartition, brokers: Sequence[int]) -> dict[int, LogEnds]:
                if not ends:
                    raise OSError("no way")
                return ends

            doubts = Doubts(told)
            assert doubts.verdict(mirror, 1.0) is Behind.WAIT
            await asyncio.sleep(0.01)
            assert doubts.verdict(mirror, 1.1) is expected
            assert doubts.verdict(mirror, 100.0) is Behind.WAIT  # an old answer is none
            doubts.close()
            assert ("where the replicas of t-0 end is not told: no way" in caplog.text) is not bool(ends)


@pytest.mark.parametrize(
    ("level", "version", "epoch", "known"),
    [
        (9, 12, -1, True),  # 3.5-IV0: brokers have no version that tells it
        (10, 12, -1, False),
        (29, 17, -1, False),
        (29, 17, 101, True),
        (29, 17, 7, False),
        (0, 12, -1, True),
    ],
)
async def test_without_its_epoch_nobody_is_that_broker(
    level: int, version: int, epoch: int, known: bool
) -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 3)
        rig = Rig(source, replicas=(1,))
        rig.image.features["metadata.version"] = level
        async with rig.running():
            (mirror,) = rig.mirror("t")
            await eventually(lambda: mirror.loaded)
            answer = await forged(rig, 0, version=version, epoch=epoch)
            assert answer.partitions[0].error == (0 if known else 6)
            assert bool(mirror.followers) is known


def test_the_server_asks_where_it_can() -> None:
    async def ends(tp: TopicPartition, brokers: Sequence[int]) -> dict[int, LogEnds]:
        return {}

    assert FollowerServer(lambda *_: None, Rig, BROKER_ID, ends=ends)._answers._doubts is not None  # type: ignore[arg-type]
