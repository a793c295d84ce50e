"""How soon the source is asked again: after an answer that brought little some milliseconds after the last request."""

from __future__ import annotations

import asyncio
import time

from fetcher.source_ports import FetchLimits
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually

BUSY = 1.5  # seconds


def rig_of(source: FakeCluster, interval: float, *, max_wait_ms: int = 1_000, **limits: int) -> Rig:
    chosen = FetchLimits(
        max_wait_ms=max_wait_ms,
        request_timeout=5.0,
        small_answer_interval=interval,
        quiet_after=60.0,
        **limits,
    )
    return Rig(source, replicas=(1,), limits=chosen)


async def asked_during_a_stream(interval: float) -> tuple[int, float]:
    """Fetches that the source got while small records came without a pause, and for how long they came."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = rig_of(source, interval)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            source.add("t", 0)
            await rig.settled()
            before, began = len(source.received("fetch")), time.monotonic()
            while time.monotonic() < began + BUSY:
                source.add("t", 0)
                await asyncio.sleep(0.002)
            asked, took = len(source.received("fetch")) - before, time.monotonic() - began
            await rig.settled()
            return asked, took


async def test_a_stream_of_small_records_is_copied_several_at_a_time() -> None:
    asked, took = await asked_during_a_stream(0.05)
    assert asked <= took / 0.05 + 2


async def test_without_an_interval_the_source_is_asked_at_once() -> None:
    asked, took = await asked_during_a_stream(0.0)
    assert asked > took / 0.05 + 2


async def test_a_record_that_comes_alone_is_not_held_up() -> None:
    """The request that waited for it had been sent long before."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = rig_of(source, 3.5, max_wait_ms=60_000)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await eventually(lambda: bool(source.received("fetch")), 25, rig.state)
            await asyncio.sleep(3.6)
            assert len(source.received("fetch")) == 1
            began = time.monotonic()
            for _ in range(2):  # the second is asked for at once as well
                source.add("t", 0)
                await rig.settled()
            assert time.monotonic() - began < 3.4


async def test_large_answers_follow_each_other_at_once() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        for _ in range(1500):
            source.add("t", 0)
        rig = rig_of(source, 5.0, partition_bytes=8 << 10, small_answer=2 << 10)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()  # which gives up before 12 intervals are over
            assert len(source.received("fetch")) >= 12
