"""Followers that lag, stall, restart, come and go; memory stays within the budget."""

from __future__ import annotations

import asyncio
import gc

import pytest

from fetcher.source_ports import FetchLimits
from fleet.progress import copy_lag
from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FakeFollower, FollowerLog
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually
from wire.frames.types import TopicPartition

SMALL = FetchLimits(
    max_bytes=256 << 10,
    partition_bytes=64 << 10,
    max_wait_ms=100,
    request_timeout=2.0,
    reconnect_backoff=(0.02, 0.2),
)


def fill(source: FakeCluster, total: int, *, partition: int = 0, batch: int = 16000) -> None:
    for _ in range(total // batch):
        source.add("t", partition, records=4, value_size=batch // 4)


async def test_a_stalled_follower_is_let_go_and_comes_back() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 100_000)
        rig = Rig(source, replicas=(1, 2), limits=SMALL, window_bytes=256 << 10, budget=2 << 20)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            rig.followers[2].running.clear()
            await asyncio.sleep(0.15)
            fill(source, 3_000_000)
            await eventually(lambda: rig.copied(rig.followers[1]), state=rig.state)
            rig.check(rig.followers[1])
            assert mirror.cursors[0].followers.keys() == {1}
            rig.followers[2].running.set()
            fill(source, 500_000)
            await rig.settled()
            fill(source, 100_000)
            await rig.settled()
            assert len(mirror.cursors) == 1
            assert mirror.cursors[0].followers.keys() == {1, 2}
            assert rig.budget.peak <= rig.budget.limit


async def test_a_slow_follower_does_not_slow_the_others_down() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 4_000_000)
        rig = Rig(source, replicas=(1, 2), limits=SMALL, window_bytes=256 << 10)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            slow = rig.follow(2, partition_bytes=64 << 10)
            slow.pause = 0.05
            await eventually(lambda: rig.copied(rig.followers[1]), state=rig.state)
            assert not rig.copied(slow)
            slow.pause = 0.0
            await rig.settled()
            assert mirror.bytes_fetched <= 2 * mirror.bytes_mirrored + (1 << 20)
            await asyncio.sleep(0.3)
            fill(source, 100_000)
            await rig.settled()
            assert len(mirror.cursors) == 1


async def test_a_follower_that_is_slower_but_works_is_waited_for() -> None:
    """To let it go would mean to read the source once more, all the way, for it alone."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 8_000_000)
        rig = Rig(source, replicas=(1, 2), limits=SMALL, window_bytes=128 << 10, detach_after=0.8)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            rig.follow(2, partition_bytes=64 << 10).pause = 0.01
            await rig.settled()
            assert mirror.bytes_fetched <= 1.05 * mirror.bytes_mirrored


async def test_follower_that_lost_its_disk_copies_from_the_start() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        fill(source, 500_000)
        fill(source, 500_000, partition=1)
        rig = Rig(source, replicas=(1, 2), limits=SMALL, window_bytes=256 << 10)
        async with rig.running():
            mirrors = rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            for mirror in mirrors:
                key = (mirror.spec.topic_id, mirror.spec.partition)
                rig.followers[2].logs[key] = FollowerLog(
                    "t", mirror.spec.topic_id, mirror.spec.partition, SESSION_EPOCH
                )
            rig.followers[2].restart()
            await rig.settled()
            assert all(mirror.bytes_fetched <= 2 * mirror.bytes_mirrored for mirror in mirrors)
            fill(source, 100_000)
            await rig.settled()


async def test_all_followers_stall_and_memory_stays() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 8)
        for partition in range(8):
            fill(source, 600_000, partition=partition)
        rig = Rig(source, limits=SMALL, window_bytes=1 << 20, budget=1 << 20)
        async with rig.running():
            rig.mirror("t")
            for replica in rig.replicas:
                rig.follow(replica, max_bytes=300_000)
            await asyncio.sleep(0.3)
            for follower in rig.followers.values():
                follower.running.clear()
            await asyncio.sleep(1.0)
            assert rig.budget.peak <= rig.budget.limit
            for follower in rig.followers.values():
                follower.running.set()
            await rig.settled(20)
            assert rig.budget.peak <= rig.budget.limit
        gc.collect()
        await eventually(lambda: rig.budget.used == 0, 25)


@pytest.mark.parametrize(
    ("replicas", "batch", "least", "most"),
    [
        ((1,), 16_000, 64 << 10, 160 << 10),
        ((1, 2), 16_000, 512 << 10, 600 << 10),
        ((1,), 100_000, 512 << 10, 640 << 10),  # larger than an answer: two of them would not be read ahead
    ],
)
async def test_a_single_replica_needs_no_more_than_what_it_takes_and_what_comes_next(
    replicas: tuple[int, ...], batch: int, least: int, most: int
) -> None:
    """What the window holds while its follower takes nothing more; then all of it arrives all the same."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 200_000, batch=batch)
        rig = Rig(source, replicas=replicas, limits=SMALL, window_bytes=512 << 10, detach_after=30.0)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            for replica in replicas:
                rig.follow(replica)
            await rig.settled()
            for follower in rig.followers.values():
                follower.running.clear()
            fill(source, 3_000_000, batch=batch)
            window = mirror.cursors[0].window
            await eventually(lambda: window.bytes >= least, state=rig.state)
            seen = mirror.cursors[0].appended
            await asyncio.sleep(0.3)
            assert mirror.cursors[0].full
            assert window.bytes <= most
            assert mirror.cursors[0].appended - seen <= most
            for follower in rig.followers.values():
                follower.running.set()
            await rig.settled()


async def test_a_batch_larger_than_every_limit_arrives_whole() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        source.add("t", 0, records=1, value_size=3_000_000)
        fill(source, 200_000)
        source.add("t", 1, records=1, value_size=2_000_000)
        fill(source, 200_000, partition=1)
        rig = Rig(source, limits=SMALL, window_bytes=128 << 10, budget=1 << 20)
        async with rig.running():
            (mirror, _) = rig.mirror("t")
            rig.follow(1, partition_bytes=100_000, max_bytes=200_000)
            await rig.settled()
            assert mirror.largest_batch > 3_000_000


async def test_never_more_than_the_targets_segment_in_one_answer() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 400_000)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t", segment_bytes=40_000)
            rig.follow(1)
            await rig.settled()


@pytest.mark.parametrize(("version", "use_session"), [(12, True), (13, False), (15, True), (17, False)])
async def test_versions_and_full_fetches(version: int, use_session: bool) -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 3)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1, version=version, use_session=use_session)
            for _ in range(3):
                for partition in range(3):
                    fill(source, 50_000, partition=partition)
                await rig.settled()


async def test_many_idle_partitions_cost_nothing() -> None:
    async with FakeCluster(2) as source:
        source.add_topic("t", 400)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            follower = rig.follow(1)
            await eventually(lambda: rig.server.sessions.all() != [] and len(follower.logs) == 400)
            for partition in range(400):
                source.add("t", partition, records=1)
            await rig.settled(20)
            await asyncio.sleep(0.6)
            sent, told, fetches = follower.partitions_sent, follower.partitions_told, follower.fetches
            for _ in range(10):
                source.add("t", 17, records=1)
                await asyncio.sleep(0.03)
            await rig.settled()
            await asyncio.sleep(0.3)
            assert follower.partitions_sent - sent <= 12
            assert follower.partitions_told - told <= 30
            assert follower.fetches - fetches <= 40
            fetched = [
                sum(len(topic.partitions) for topic in request.entity.topics)
                for request in source.received("fetch")[-20:]
            ]
            assert sum(fetched) <= 20
            assert follower.session_errors == []


async def test_session_lost_at_the_server() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 3)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            follower = rig.follow(1)
            fill(source, 50_000)
            await rig.settled()
            for session in rig.server.sessions.all():
                rig.server.sessions.remove(session.id)
            fill(source, 50_000, partition=2)
            await rig.settled()
            assert follower.session_errors == [70]


async def test_pause_and_resume() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        rig = Rig(source)
        async with rig.running():
            mirrors = rig.mirror("t")
            follower = rig.follow(1)
            fill(source, 100_000)
            await rig.settled()
            rig.manager.pause([TopicPartition("t", 0)])
            await asyncio.sleep(0.15)
            fill(source, 100_000)
            fill(source, 100_000, partition=1)
            await asyncio.sleep(0.3)
            ends = {log.index: log.end for log in follower.logs.values()}
            assert ends[1] == source.partition("t", 1).log.high_watermark
            assert ends[0] < source.partition("t", 0).log.high_watermark
            # What the source has by now nobody knows: it is no lag of nothing.
            assert copy_lag(mirrors[0], [1]) is None
            assert copy_lag(mirrors[1], [1]) == 0
            rig.manager.resume([m.tp for m in mirrors])
            assert copy_lag(mirrors[0], [1]) is None
            await rig.settled()
            # The follower has it all; that it has is told by its next Fetch.
            async with asyncio.timeout(25):
                while copy_lag(mirrors[0], [1]) != 0:
                    await asyncio.sleep(0.01)


async def test_after_a_pause_in_which_nothing_was_written_the_lag_is_known_again() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            fill(source, 100_000)
            await rig.settled()
            for pause in (0.0, 0.7):
                rig.manager.pause([mirror.tp])
                await asyncio.sleep(pause)
                assert copy_lag(mirror, [1]) is None
                rig.manager.resume([mirror.tp])
                async with asyncio.timeout(25):
                    while copy_lag(mirror, [1]) is None:
                        await asyncio.sleep(0.01)
                assert copy_lag(mirror, [1]) == 0


async def test_under_a_new_leader_epoch_the_source_has_to_be_heard_again() -> None:
    """Idle or not. Who led before may have been told of more than we were."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            fill(source, 100_000)
            await rig.settled()
            assert mirror.heard
            mirror.forget_followers()
            assert not mirror.heard
            assert copy_lag(mirror, [1]) is None
            await eventually(lambda: mirror.heard)
            await rig.settled()
            assert copy_lag(mirror, [1]) == 0


async def test_partition_removed_while_it_is_fetched_and_added_again() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        fill(source, 500_000)
        fill(source, 500_000, partition=1)
        rig = Rig(source, limits=SMALL)
        async with rig.running():
            mirrors = rig.mirror("t")
            follower = rig.follow(1)
            log = follower.logs[mirrors[0].spec.topic_id, 0]
            await eventually(lambda: log.end > 0)
            rig.manager.remove([mirrors[0].tp])
            end = log.end
            await asyncio.sleep(0.2)
            assert log.end - end <= 80
            assert log.errors[-1] == 6
            rig.manager.add([mirrors[0].spec])
            await rig.settled()


async def test_unknown_follower_and_wrong_epoch_are_refused() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 50_000)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            follower = rig.follow(1, start=False)
            follower.broker_epoch = 5
            rig.start(follower)
            await asyncio.sleep(0.3)
            (log,) = follower.logs.values()
            assert set(log.errors) == {6}
            assert log.end == 0
            follower.broker_epoch = 101
            await rig.settled()


@pytest.mark.parametrize(("epoch", "error"), [(SESSION_EPOCH - 1, 6), (SESSION_EPOCH + 1, 75)])
async def test_leader_epochs(epoch: int, error: int) -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 50_000)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            follower = rig.follow(1, start=False)
            (log,) = follower.logs.values()
            log.leader_epoch = epoch
            rig.start(follower)
            await eventually(lambda: error in log.errors)
            assert log.failed is None
            log.leader_epoch = SESSION_EPOCH
            await rig.settled()


async def test_memory_held_for_a_follower_that_hangs_does_not_starve_the_others_for_good() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        source.add_topic("u", 1)
        fill(source, 3_000_000)
        rig = Rig(
            source, replicas=(1, 2), limits=SMALL, window_bytes=8 << 20, budget=1 << 20, detach_after=0.5
        )
        async with rig.running():
            rig.mirror("t", target_replicas=(2, 3))  # a single one would not fill the budget
            hung = rig.follow(2, partition_bytes=16 << 10)
            hung.pause = 0.02
            await eventually(lambda: rig.budget.limit - rig.budget.used < 256 << 10, state=rig.state)
            hung.running.clear()
            rig.mirror("u", target_replicas=(1,))
            source.add("u", 0, records=4, value_size=1000)
            healthy = FakeFollower(
                rig.port, 1, 101, [FollowerLog("u", rig.image.topics_by_name["u"].id, 0, SESSION_EPOCH)]
            )
            rig.start(healthy)
            log = next(iter(healthy.logs.values()))
            await eventually(lambda: log.end == 4)
