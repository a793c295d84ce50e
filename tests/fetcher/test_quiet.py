"""Partitions without records have a fetcher of their own, and changing over loses no time and no record."""

from __future__ import annotations

import dataclasses
import time

import pytest

from fetcher.source_fetcher import FetchLimits, SourceFetcher, sibling_slot
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually

POLL_MS = 2_000
LIMITS = FetchLimits(
    max_wait_ms=POLL_MS,
    request_timeout=5.0,
    reconnect_backoff=(0.02, 0.2),
    quiet_after=0.3,
    busy_partitions=4,
)
COUNT = 12


def fetchers(rig: Rig) -> tuple[SourceFetcher, SourceFetcher]:
    """Busy and quiet."""
    return rig.manager.fetchers[1, 0], rig.manager.fetchers[1, sibling_slot(0)]


def numbers(fetcher: SourceFetcher) -> set[int]:
    return {lane.mirror.spec.partition for lane in fetcher.lanes.values()}


async def divided(rig: Rig, source: FakeCluster) -> None:
    """Keep one partition moving until all the others are with the quiet fetcher."""

    def done() -> bool:
        source.add("t", 0)
        quiet = rig.manager.fetchers.get((1, sibling_slot(0)))
        return quiet is not None and numbers(quiet) == set(range(1, COUNT))

    await eventually(done, 10, rig.state)


async def copied_within(rig: Rig, seconds: float) -> None:
    began = time.monotonic()
    await rig.settled(10)
    took = time.monotonic() - began
    assert took < seconds, f"{took:.2f} s\n{rig.state()}"


@pytest.fixture
def source() -> FakeCluster:
    return FakeCluster(1)


async def test_what_does_not_move_is_asked_for_apart(source: FakeCluster) -> None:
    async with source:
        source.add_topic("t", COUNT)
        rig = Rig(source, replicas=(1,), limits=LIMITS)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await divided(rig, source)
            busy, quiet = fetchers(rig)
            assert numbers(busy) == {0}
            await rig.settled()
            asked = quiet.requests
            for _ in range(20):
                source.add("t", 0)
                await rig.settled()
            assert quiet.requests <= asked + 1, (
                "the quiet ones were asked for again with each record of the busy one"
            )


async def test_one_that_wakes_is_not_waited_for_and_changes_over(source: FakeCluster) -> None:
    async with source:
        source.add_topic("t", COUNT)
        rig = Rig(source, replicas=(1,), limits=LIMITS)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await divided(rig, source)
            busy, quiet = fetchers(rig)
            for _ in range(5):
                source.add("t", 7)
                await copied_within(rig, POLL_MS / 4000)
            source.add("t", 0)  # ends the busy one's poll
            await eventually(lambda: 7 in numbers(busy) and 7 not in numbers(quiet), 5, rig.state)
            for partition in (7, 0, 3, 7):
                source.add("t", partition)
                await copied_within(rig, POLL_MS / 4000)


async def test_one_that_falls_asleep_is_read_until_the_quiet_one_asks(source: FakeCluster) -> None:
    async with source:
        source.add_topic("t", COUNT)
        rig = Rig(source, replicas=(1,), limits=dataclasses.replace(LIMITS, busy_partitions=1))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await divided(rig, source)
            busy, quiet = fetchers(rig)
            source.add("t", 7)
            await rig.settled()
            source.add("t", 0)
            await eventually(lambda: 7 in numbers(busy), 5, rig.state)
            # Idle again and offered, but the quiet one's poll has most of its time to go.
            asked, until = quiet.requests, time.monotonic() + 3 * LIMITS.quiet_after
            while time.monotonic() < until:
                source.add("t", 0)
                await rig.settled()
            assert numbers(busy) == {0, 7}
            assert quiet.requests <= asked + 1
            source.add("t", 7)
            await copied_within(rig, POLL_MS / 4000)


async def test_few_partitions_are_not_divided(source: FakeCluster) -> None:
    async with source:
        source.add_topic("t", LIMITS.busy_partitions)
        rig = Rig(source, replicas=(1,), limits=LIMITS)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            until = time.monotonic() + 4 * LIMITS.quiet_after
            while time.monotonic() < until:
                source.add("t", 0)
                await rig.settled()
            assert list(rig.manager.fetchers) == [(1, 0)]


async def test_a_quiet_fetcher_that_loses_its_connection_gives_its_lanes_back(source: FakeCluster) -> None:
    async with source:
        source.add_topic("t", COUNT)
        rig = Rig(source, replicas=(1,), limits=LIMITS)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await divided(rig, source)
            await source.brokers[1].stop()
            for partition in range(COUNT):
                source.add("t", partition)
            await source.brokers[1].start()
            await rig.settled()
            assert rig.events.failures == {}


async def test_both_end_when_their_last_partition_goes(source: FakeCluster) -> None:
    async with source:
        source.add_topic("t", COUNT)
        rig = Rig(source, replicas=(1,), limits=LIMITS)
        async with rig.running():
            mirrors = rig.mirror("t")
            rig.follow(1)
            await divided(rig, source)
            rig.manager.remove([mirror.tp for mirror in mirrors[1:]])
            # The quiet one stays as long as the busy one has something: its connection is there when it is wanted.
            await eventually(lambda: not fetchers(rig)[1].lanes, 5, rig.state)
            rig.manager.remove([mirrors[0].tp])
            await eventually(lambda: rig.manager.fetchers == {}, 5, rig.state)
