"""Topics whose records are deleted at the source while they are copied, as Kafka Streams purges what it has
repartitioned."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually, fill
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


async def test_a_purge_during_the_first_copy_lets_the_replicas_begin_again() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 100)
        rig = Rig(source, window_bytes=16_000)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            for replica in rig.replicas:
                rig.follow(replica, partition_bytes=3000).pause = 0.05
            logs = [one.logs[mirror.spec.topic_id, 0] for one in rig.followers.values()]
            for _ in range(4):
                await eventually(lambda: all(log.end > log.log_start for log in logs), state=rig.state)
                gone = min(max(log.end for log in logs) + 25, source.partition("t").log.log_end_offset)
                source.partition("t").log.delete_until(gone)  # in the middle of a batch, half of the time
                fill(source, 10)
                await eventually(
                    lambda gone=gone: all(log.log_start >= gone - 1 for log in logs), state=rig.state
                )
            for follower in rig.followers.values():
                follower.pause = 0.0
            await eventually(lambda: all(rig.copied(one) for one in rig.followers.values()), state=rig.state)
            assert rig.events.failures == {}
            start = source.partition("t").log.log_start_offset
            assert all(log.data() == rig.expected("t", 0, start) for log in logs)
            assert all(log.failed is None for log in logs)


@pytest.mark.parametrize("restart", [False, True])
async def test_copies_that_were_whole_are_not_dropped(restart: bool) -> None:
    """Also by a process that finds them as they are and knows nothing of before."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            for follower in rig.followers.values():
                follower.running.clear()
            await asyncio.sleep(0.15)
            before = rig.expected("t", 0)
            fill(source, 20)
            source.partition("t").log.delete_until(60)
            if restart:
                rig.manager.remove([TP])
                (mirror,) = rig.mirror("t", source_epochs=((0, 0),))
            for follower in rig.followers.values():
                follower.running.set()
            await eventually(lambda: mirror.failed is not None, state=rig.state)
            assert "outrun" in rig.events.failures[TP]
            assert all(log.data() == before for one in rig.followers.values() for log in one.logs.values())
