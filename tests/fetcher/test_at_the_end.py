"""What a consumer may rely on at the end of a window: that the source has nothing more, and that it would hear of it."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from fetcher.partition_copy import PartitionCursor
from fetcher.source_ports import FetchLimits
from fetcher.source_rate import SourceRate
from tests.fakes.cluster import FakeCluster
from tests.fetcher.pure import append, pure_mirror
from tests.fetcher.rig import Rig, eventually, fill


class Source:
    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers

    def follows(self, cursor: PartitionCursor) -> bool:
        return self.answers


@pytest.mark.parametrize(
    "why", ["paused", "failed", "suspended", "full", "nobody fetches", "silent", "no follower", "more there"]
)
def test_the_end_only_where_it_is_known_and_watched(why: str) -> None:
    mirror, _, _ = pure_mirror()
    mirror.load(10, 10, 0, 0.0)
    mirror.follower_fetched(1, 10, 0, 1.0)
    (cursor,) = mirror.cursors
    assert mirror.read(10, 100) is None, "it was never asked for"
    source = Source()
    cursor.fetcher = cast(Any, source)
    assert mirror.read(10, 100) == ([], 0)
    assert mirror.read(9, 100) is None
    assert mirror.read(11, 100) is None, "out of range is for the source to say"
    if why == "paused":
        mirror.pause()
    elif why == "failed":
        mirror.fail("for a test")
    elif why == "suspended":
        cursor.suspended = True
    elif why == "full":
        cursor.limit = 0
    elif why == "nobody fetches":
        cursor.fetcher = None
    elif why == "silent":
        source.answers = False
    elif why == "no follower":
        mirror.follower_gone(1)
    else:
        mirror.note_answer(11, 11, 0)
    assert mirror.read(10, 100) is None


def test_the_end_moves_with_the_window() -> None:
    mirror, _, _ = pure_mirror()
    mirror.load(10, 10, 0, 0.0)
    mirror.follower_fetched(1, 10, 0, 1.0)
    (cursor,) = mirror.cursors
    cursor.fetcher = cast(Any, Source())
    mirror.note_answer(20, 20, 0)
    append(mirror, cursor, 100)
    assert mirror.read(20, 100) == ([], 0)
    mirror.truncate(10)
    assert mirror.read(20, 100) is None
    mirror.note_answer(20, 20, 0)
    assert mirror.read(cursor.position, 100) is None, "the high watermark is beyond it"


async def test_a_node_that_answers_is_relied_on_and_one_that_falls_silent_is_not() -> None:
    # Its connection stays open for longer than the test waits: silence alone has to tell.
    limits = FetchLimits(max_wait_ms=100, request_timeout=60.0, reconnect_backoff=(0.02, 0.2))
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 3)
        rig = Rig(source, replicas=(1,), limits=limits)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            await eventually(lambda: mirror.read(6, 100) == ([], 0))
            (cursor,) = mirror.cursors
            cursor.generation += 1
            assert mirror.read(6, 100) is None, "the source was asked when the cursor stood elsewhere"
            cursor.generation -= 1
            fault = source.inject("fetch", drop=True, times=None)
            await eventually(lambda: fault.hits > 0)
            await eventually(lambda: mirror.read(6, 100) is None)
            source.clear_faults()
            await source.brokers[1].disconnect_all()
            await eventually(lambda: mirror.read(6, 100) == ([], 0))
            await source.brokers[1].stop()
            await eventually(lambda: mirror.read(6, 100) is None)


async def test_a_link_that_is_held_back_by_its_rate_is_not_relied_on() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 3)
        rate = SourceRate(time.monotonic)
        rate.limit.set_rate(1e9)
        rig = Rig(source, replicas=(1,), rate=rate)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            await eventually(lambda: mirror.read(6, 100) == ([], 0))
            rate.limit.set_rate(1e8)
            rate.spent(4_000_000)
            assert rate.debt > 0
            assert mirror.read(6, 100) == ([], 0), "nobody minds 40 ms"
            rate.limit.set_rate(1e9)
            rate.spent(3_000_000_000)
            waited = rate.waited_for_limit
            assert mirror.read(6, 100) is None
            assert rate.waited_for_limit == waited, "nobody waited"
            rate.limit.set_rate(None)
            await eventually(lambda: mirror.read(6, 100) == ([], 0))


async def test_a_node_that_refuses_is_not_relied_on() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 3)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            await eventually(lambda: mirror.read(6, 100) == ([], 0))
            source.inject("fetch", error=-1, times=None)
            await eventually(lambda: mirror.read(6, 100) is None)
