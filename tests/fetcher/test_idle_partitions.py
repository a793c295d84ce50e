"""Partitions without records have a fetcher of their own, and changing over loses no time and no record."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

from fetcher.idle_partitions import sibling_slot
from fetcher.source_fetcher import SourceFetcher
from fetcher.source_ports import FetchLimits
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually

POLL_MS = 20_000
LIMITS = FetchLimits(
    max_wait_ms=POLL_MS,
    request_timeout=30.0,
    reconnect_backoff=(0.02, 0.2),
    quiet_after=0.3,
    quiet_again_after=0.3,
    busy_partitions=4,
)
COUNT = 12


@contextlib.asynccontextmanager
async def mirrored(count: int = COUNT, limits: FetchLimits = LIMITS) -> AsyncIterator[Rig]:
    """That many partitions of one source node, with one follower."""
    async with FakeCluster(1) as source:
        source.add_topic("t", count)
        rig = Rig(source, replicas=(1,), limits=limits)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            yield rig


@contextlib.asynccontextmanager
async def divided(limits: FetchLimits = LIMITS) -> AsyncIterator[tuple[Rig, SourceFetcher, SourceFetcher]]:
    """Partition 0 moves and is with the busy fetcher, all the others are with the quiet one."""
    async with mirrored(limits=limits) as rig:

        def done() -> bool:
            rig.source.add("t", 0)
            quiet = rig.fetchers.get((1, sibling_slot(0)))
            return quiet is not None and numbers(quiet) == set(range(1, COUNT))

        await eventually(done, 25, rig.state)
        await rig.settled()
        yield rig, rig.fetchers[1, 0], rig.fetchers[1, sibling_slot(0)]


def numbers(fetcher: SourceFetcher) -> set[int]:
    return {cursor.mirror.spec.partition for cursor in fetcher.cursors.values()}


async def copied_at_once(rig: Rig) -> None:
    """Without having waited for a poll to end."""
    began = time.monotonic()
    await rig.settled()
    took = time.monotonic() - began
    assert took < POLL_MS / 4000, f"{took:.2f} s\n{rig.state()}"


async def test_what_does_not_move_is_asked_for_apart() -> None:
    async with divided() as (rig, busy, quiet):
        assert numbers(busy) == {0}
        asked = quiet.requests
        for _ in range(20):
            rig.source.add("t", 0)
            await rig.settled()
        assert quiet.requests <= asked + 1, (
            "the quiet ones were asked for again with each record of the busy one"
        )


async def test_one_that_wakes_is_not_waited_for_and_changes_over() -> None:
    async with divided() as (rig, busy, quiet):
        for _ in range(5):
            rig.source.add("t", 7)
            await copied_at_once(rig)
        rig.source.add("t", 0)  # ends the busy one's poll
        await eventually(lambda: 7 in numbers(busy) and 7 not in numbers(quiet), 25, rig.state)
        for partition in (7, 0, 3, 7):
            rig.source.add("t", partition)
            await copied_at_once(rig)


async def test_one_that_falls_asleep_is_read_until_the_quiet_one_asks() -> None:
    async with divided(dataclasses.replace(LIMITS, busy_partitions=1)) as (rig, busy, quiet):
        rig.source.add("t", 7)
        await rig.settled()
        rig.source.add("t", 0)
        await eventually(lambda: 7 in numbers(busy), 25, rig.state)
        # Idle again and offered, but the quiet one's poll has most of its time to go.
        asked, until = quiet.requests, time.monotonic() + 3 * LIMITS.quiet_after
        while time.monotonic() < until:
            rig.source.add("t", 0)
            await rig.settled()
        assert numbers(busy) == {0, 7}
        assert quiet.requests <= asked + 1
        rig.source.add("t", 7)
        await copied_at_once(rig)


async def test_one_that_has_woken_stays_awake_for_longer() -> None:
    poll = 2.0
    limits = dataclasses.replace(
        LIMITS, busy_partitions=1, quiet_again_after=60.0, max_wait_ms=int(poll * 1000)
    )
    async with divided(limits) as (rig, busy, quiet):
        rig.source.add("t", 7)
        await rig.settled()
        rig.source.add("t", 0)
        await eventually(lambda: 7 in numbers(busy), 25, rig.state)
        asked, until = quiet.requests, time.monotonic() + poll + 3 * LIMITS.quiet_after
        while time.monotonic() < until:
            rig.source.add("t", 0)
            await rig.settled()
        assert quiet.requests > asked, "it could have taken cursors over"
        assert numbers(busy) == {0, 7}


async def test_few_partitions_are_not_divided() -> None:
    async with mirrored(LIMITS.busy_partitions) as rig:
        until = time.monotonic() + 4 * LIMITS.quiet_after
        while time.monotonic() < until:
            rig.source.add("t", 0)
            await rig.settled()
        assert list(rig.fetchers) == [(1, 0)]


async def test_a_quiet_fetcher_that_loses_its_connection_gives_its_cursors_back() -> None:
    async with divided() as (rig, _busy, _quiet):
        await rig.source.brokers[1].stop()
        for partition in range(COUNT):
            rig.source.add("t", partition)
        await rig.source.brokers[1].start()
        await rig.settled()
        assert rig.events.failures == {}


async def test_both_end_when_their_last_partition_goes() -> None:
    async with divided() as (rig, _busy, quiet):
        tps = [mirror.tp for mirror in rig.directory]
        rig.manager.remove([tp for tp in tps if tp.partition])
        # The quiet one stays as long as the busy one has something: its connection is there when it is wanted.
        await eventually(lambda: not quiet.cursors, 25, rig.state)
        await asyncio.sleep(1.0)
        assert set(rig.fetchers) == {(1, 0), (1, sibling_slot(0))}
        rig.manager.remove([tp for tp in tps if not tp.partition])
        await eventually(lambda: rig.fetchers == {}, 25, rig.state)
