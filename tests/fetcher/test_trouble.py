"""Things that go wrong at the source, and what followers and events show of it."""

from __future__ import annotations

import asyncio
import random

import pytest

from fetcher.source_ports import FetchLimits
from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FollowerLog
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually, fill
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


async def test_leader_moves_under_load() -> None:
    async with FakeCluster(3) as source:
        source.add_topic("t", 2)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            for replica in rig.replicas:
                rig.follow(replica)
            for turn in range(6):
                fill(source, 20, partition=0)
                fill(source, 20, partition=1)
                publish = turn % 2 == 0
                source.move_leader("t", turn % 2, 1 + (turn + 1) % 3, publish=publish)
                await asyncio.sleep(0.05)
                if not publish:
                    source.publish("t", turn % 2)
            await rig.settled()
            epochs = [e for tp, e, _ in rig.events.epochs if tp == TP]
            assert epochs == sorted(set(epochs))
            assert len(epochs) > 1
    assert rig.events.failures == {}


async def test_a_leader_whose_name_cannot_be_looked_up_stops_nobody_else() -> None:
    async with FakeCluster(2) as source:
        source.add_topic("t", 2)
        source.move_leader("t", 0, 1)
        source.move_leader("t", 1, 2)
        fill(source, 5, partition=0)
        fill(source, 5, partition=1)
        good_name, source.brokers[2].host = source.brokers[2].host, "broker-2..example"
        rig = Rig(source, replicas=(1,))
        rig.cluster.bootstrap = [("127.0.0.1", source.brokers[1].port)]
        async with rig.running():
            healthy, other = rig.mirror("t")
            rig.follow(1)
            await eventually(lambda: other.unavailable_since is not None)
            fill(source, 5, partition=0)
            await eventually(lambda: healthy.high_watermark == 20)
            source.brokers[2].host = good_name
            await rig.settled()
            assert other.unavailable_since is None
    assert rig.events.failures == {}


async def test_source_away_and_back() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            rig.followers[1].logs[mirror.spec.topic_id, 0].errors.clear()
            await source.brokers[1].stop()
            await eventually(lambda: mirror.unavailable_since is not None)
            assert rig.events.availability == [(TP, False)]
            assert rig.followers[1].logs[mirror.spec.topic_id, 0].errors == []
            await source.brokers[1].start()
            fill(source, 10)
            await rig.settled()
            assert mirror.unavailable_since is None
            assert rig.events.availability == [(TP, False), (TP, True)]


async def test_source_lost_data_and_grew_again() -> None:
    """Replicas that hold what the source lost truncate first, even one that was away meanwhile."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)  # offsets 0 to 39
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            away = rig.followers[2]
            away.running.clear()
            await asyncio.sleep(0.15)
            source.truncate("t", 0, 24)
            fill(source, 30, size=700)  # beyond the old end, with other bytes
            await eventually(lambda: rig.copied(rig.followers[1]), state=rig.state)
            rig.check(rig.followers[1])
            assert rig.followers[1].logs[mirror.spec.topic_id, 0].truncations == [24]
            assert dict(mirror.untruncated) == {2: 24}
            away.running.set()
            await rig.settled()
            assert away.logs[mirror.spec.topic_id, 0].truncations == [24]
            assert rig.events.truncations[0][1] == 24
            assert rig.events.truncations[-1] == (TP, 24, ())


async def test_truncation_is_remembered_across_a_restart() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            logs = list(rig.followers[1].logs.values())
        source.truncate("t", 0, 24)
        fill(source, 30, size=700)
        again = Rig(source, replicas=(1,))
        async with again.running():
            again.mirror("t", untruncated=((1, 24),), source_epochs=((0, 0), (1, 24)))
            again.follow_on(1, logs)
            await again.settled()
            assert logs[0].truncations == [24]


async def test_stale_tail_after_a_restart_is_found_by_the_sources_epochs() -> None:
    """The source lost and regrew while we were away: our persisted epoch history shows it."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            logs = list(rig.followers[1].logs.values())
        assert rig.events.epochs == [(TP, 0, 0)]
        source.truncate("t", 0, 24)
        fill(source, 30, size=700)
        again = Rig(source, replicas=(1,))
        async with again.running():
            again.mirror("t", source_epochs=((0, 0),))
            again.follow_on(1, logs)
            await again.settled()
            assert logs[0].truncations == [24]


async def test_recreated_topic_fails_and_is_never_mixed() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            before = rig.expected("t", 0)
            rig.followers[1].logs[mirror.spec.topic_id, 0].errors.clear()
            source.recreate_topic("t")
            fill(source, 50, size=300)
            await eventually(lambda: TP in rig.events.failures)
            assert "re-created" in rig.events.failures[TP]
            await asyncio.sleep(0.2)
            log = rig.followers[1].logs[mirror.spec.topic_id, 0]
            assert log.data() == before
            assert log.failed is None
            assert log.errors == []


async def test_a_batch_larger_than_the_targets_segments_is_given_to_nobody() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t", segment_bytes=4000)
            rig.follow(1)
            await rig.settled()
            before = rig.expected("t", 0)
            fill(source, 1, size=3000)
            await eventually(lambda: TP in rig.events.failures)
            assert "segment.bytes is 4000" in rig.events.failures[TP]
            await asyncio.sleep(0.2)
            log = rig.followers[1].logs[mirror.spec.topic_id, 0]
            assert log.data() == before
            assert log.failed is None


async def test_deleted_topic_fails_after_a_while() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            source.delete_topic("t")
            await eventually(lambda: TP in rig.events.failures)
            assert rig.events.failures[TP] == "t-0 does not exist at the source any more"


async def test_retention_outruns_the_mirror() -> None:
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
            for follower in rig.followers.values():
                follower.running.set()
            await eventually(lambda: mirror.failed is not None, state=rig.state)
            reason = rig.events.failures[TP]
            assert "60" in reason
            assert "40" in reason
            await asyncio.sleep(0.2)
            for follower in rig.followers.values():
                log = follower.logs[mirror.spec.topic_id, 0]
                assert log.data() == before
                assert log.failed is None


@pytest.mark.parametrize("log_start", [60, 70])
async def test_what_followers_have_of_an_earlier_session_outruns_nothing(log_start: int) -> None:
    """A broker that was away when the copies were dropped has them still: also if that is every one."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            rig.manager.remove([TP])
            fill(source, 20)
            source.partition("t").log.delete_until(log_start)
            rig.mirror("t", start_offset=60)
            await eventually(lambda: all(rig.copied(f) for f in rig.followers.values()), state=rig.state)
            assert rig.events.failures == {}
            for follower in rig.followers.values():
                (log,) = follower.logs.values()
                assert log.failed is None
                assert log.log_start == log_start
                assert log.data() == rig.expected("t", 0, log_start)


async def test_one_outrun_follower_of_several_begins_again_at_the_log_start() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1, 2), window_bytes=6000)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            rig.followers[2].running.clear()
            await asyncio.sleep(0.15)
            fill(source, 20)
            await eventually(lambda: rig.copied(rig.followers[1]))
            source.partition("t").log.delete_until(60)
            fill(source, 5)
            await eventually(lambda: rig.copied(rig.followers[1]))
            rig.followers[2].running.set()
            await eventually(lambda: rig.copied(rig.followers[2]), state=rig.state)
            log = next(iter(rig.followers[2].logs.values()))
            assert rig.events.failures == {}
            assert log.failed is None
            assert log.errors[-1] == 1
            assert log.log_start == 60
            assert log.data() == rig.expected("t", 0, 60)


@pytest.mark.parametrize("start", [0, 10, 11])
async def test_new_follower_of_a_mirror_that_starts_later(start: int) -> None:
    """11 is in the middle of a batch."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t", start_offset=start)
            follower = rig.follow(1)
            await eventually(lambda: rig.copied(follower), state=rig.state)
            log = next(iter(follower.logs.values()))
            assert log.failed is None
            assert log.log_start == start
            assert log.data() == rig.expected("t", 0, start)


async def test_source_cut_at_every_answer_length() -> None:
    """A connection that ends inside an answer costs a retry, nothing else."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 30)
        rig = Rig(source)
        for cut in (0, 3, 4, 20, 60, 100, 900, 5000):
            source.inject("fetch", close_after=cut)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
    assert rig.events.failures == {}


@pytest.mark.parametrize("seed", range(3))
async def test_garbage_from_the_source(seed: int) -> None:
    chance = random.Random(seed)
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 30)
        rig = Rig(source)
        source.inject("fetch", raw=chance.randbytes(400))
        source.inject("fetch", raw=(300).to_bytes(4, "big") + chance.randbytes(300))
        source.inject("fetch", raw=b"\x7f\xff\xff\xff" + chance.randbytes(10))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            assert rig.budget.used <= 1 << 20 << 3
    assert rig.events.failures == {}


async def test_silent_source_is_given_up_on() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 30)
        rig = Rig(
            source, limits=FetchLimits(max_wait_ms=50, request_timeout=0.3, reconnect_backoff=(0.02, 0.2))
        )
        source.inject("fetch", drop=True)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            assert (TP, False) in rig.events.availability


@pytest.mark.parametrize("error", [70, 71, 106])
async def test_source_forgets_the_session(error: int) -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 4)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            for _ in range(3):
                source.inject("fetch", error=error)
                for partition in range(4):
                    fill(source, 3, partition=partition)
                await rig.settled()
    assert rig.events.availability == []


@pytest.mark.parametrize("error", [2, 3, 5, 6, 7, 9, 29, 56, 74, 75, 78, 100, 103, -1, 999 % 120])
async def test_partition_errors_pass(error: int) -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            fill(source, 3)
            await rig.settled()
            source.inject("fetch", error=error, times=2)
            fill(source, 3, partition=1)
            fill(source, 3)
            await rig.settled()
    assert rig.events.failures == {}


async def test_leader_redirects_to_a_near_replica() -> None:
    async with FakeCluster(2, racks={1: "a", 2: "b"}) as source:
        source.add_topic("t", 1)
        source.partition("t").isr = [1]
        fill(source, 10)
        rig = Rig(source, rack="b")
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            source.follower_fetching = True
            source.partition("t").isr = [1, 2]
            fill(source, 10)
            await rig.settled()
            await eventually(lambda: [x.fetcher.node.id for x in mirror.cursors if x.fetcher] == [2])


async def test_source_without_topic_ids() -> None:
    async with FakeCluster(1, api_versions={"fetch": (4, 12)}) as source:
        source.add_topic("t", 3)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t", source_topic_id=None)
            rig.follow(1)
            for partition in range(3):
                fill(source, 5, partition=partition)
            await rig.settled()


async def test_epoch_of_a_new_leader_is_stamped_over() -> None:
    """A source epoch above the target's leader epoch would be skipped by the follower without an error."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1, leader_epoch=SESSION_EPOCH + 50)
        fill(source, 5)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            log: FollowerLog = next(iter(rig.followers[1].logs.values()))
            assert {batch[2] for batch in log.batches} == {SESSION_EPOCH}
