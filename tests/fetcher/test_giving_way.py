"""A whole fetcher beside clients that write: slower, but never so slow that it falls behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from fetcher.source_ports import FetchLimits
from fetcher.source_rate import SourceRate
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually, fill

RATE = 1_000_000


def beside_writes(rate: int) -> SourceRate:
    written = 0

    def writes() -> int:
        nonlocal written
        written += 1
        return written

    found = SourceRate(time.monotonic, writes)
    found.set_beside_writes(rate)
    return found


async def test_a_backlog_is_copied_at_the_rate_that_is_left() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 200, size=5_000)  # two records each
        rate = beside_writes(RATE)
        rig = Rig(source, replicas=(1,), rate=rate)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            began = time.monotonic()
            await rig.settled()
            took = time.monotonic() - began
            assert mirror.bytes_fetched >= 2_000_000
            assert took > 1.5, "read at full speed"
            assert rate.waited_for_writes > 1.0


async def test_what_comes_faster_than_that_is_copied_all_the_same() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(source, replicas=(1,), rate=beside_writes(4 * RATE // 10))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            fill(source, 1)
            await rig.settled()
            began = time.monotonic()
            while time.monotonic() < began + 3.0:
                fill(source, 1, size=2_500)
                await asyncio.sleep(0.005)
            (cursor,) = mirror.cursors
            brought, read = mirror.high_watermark, cursor.position
            seconds = time.monotonic() - began
            assert mirror.bytes_fetched > 6 * RATE // 10 * seconds, "no more than the rate was read"
            assert brought - read < brought / 2, f"{read} of {brought} records"
            await rig.settled()


async def test_who_waits_for_the_last_bytes_does_not_wait_for_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fetcher.throttle.LONGEST_DELAY", 60.0)  # nobody looks again by itself
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rate = SourceRate(time.monotonic)
        rig = Rig(source, replicas=(1,), rate=rate)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            fill(source, 1)
            await rig.settled()
            rate.limit.set_rate(1000)
            rate.spent(1_000_000)
            fill(source, 1)
            await eventually(lambda: rate.waited_for_limit > 0)
            before = mirror.high_watermark
            fill(source, 1)
            rate.lift(lifted=True)
            await rig.settled()
            assert mirror.high_watermark > before
        assert not rate.waiters


async def test_a_batch_that_the_source_cut_off_is_not_counted() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(
            source,
            replicas=(1,),
            rate=beside_writes(RATE),
            limits=FetchLimits(max_wait_ms=100, request_timeout=2.0, partition_bytes=5_000),
        )
        fill(source, 20, size=1_000)  # two batches of two records, and half a batch
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            (cursor,) = mirror.cursors
            assert 1_000 < cursor.offset_bytes < 1_100


async def test_what_came_while_a_mirror_was_paused_is_no_growth() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        rate = beside_writes(RATE)
        rig = Rig(source, replicas=(1,), rate=rate)
        async with rig.running():
            first, second = rig.mirror("t", 2)
            rig.follow(1)
            fill(source, 2, partition=0)
            fill(source, 2, partition=1)
            await rig.settled()
            fill(source, 2, partition=0)
            fill(source, 2, partition=1)
            await rig.settled()
            (cursor,) = first.cursors
            assert cursor.growth is not None
            assert cursor.growth is second.cursors[0].growth
            first.pause()
            fill(source, 1, partition=1)
            await eventually(lambda: cursor.growth is None)
            first.resume()
            fill(source, 1, partition=0)
            await rig.settled()
            assert cursor.growth is second.cursors[0].growth
            await source.brokers[1].disconnect_all()
            await eventually(lambda: cursor.growth is None)
