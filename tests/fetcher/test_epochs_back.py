"""A source whose leader epochs once went back (its metadata were lost, its logs kept): copied as it is, by whoever comes
when, and nobody is told to truncate what the source still has. A source that lost data is still noticed.
"""

from __future__ import annotations

import itertools
import random

import pytest

from fetcher.epochs import EpochHistory, EpochNoted
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually, fill
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


def under(source: FakeCluster, epoch: int, count: int) -> None:
    source.partition("t").leader_epoch = epoch
    fill(source, count)


async def test_epochs_that_went_back_before_the_mirror_was_made() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        for epoch, count in ((0, 5), (5, 40), (0, 30), (1, 10)):
            under(source, epoch, count)
        rig = Rig(source)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            rig.follow(1, partition_bytes=10_000)
            rig.follow(2)
            await rig.settled(20)
            rig.follow(3)  # begins when the others are through
            await rig.settled(20)
            under(source, 2, 10)
            under(source, 7, 10)
            await rig.settled(20)
            assert rig.events.failures == {}
            # A replica that has not asked yet is only remembered.
            assert all(replicas in ((3,), ()) for _, _, replicas in rig.events.truncations)
            assert rig.events.losses == [], "nothing is said to be lost because a log has epochs"
            assert mirror.source_epochs == ((0, 0), (5, 10), (0, 90), (1, 150), (2, 170), (7, 190))
            assert all(not log.truncations for one in rig.followers.values() for log in one.logs.values())


async def test_the_epochs_passed_the_old_ones_again() -> None:
    """Then the source does not say that it does not know the old epoch, but that smaller ones go further."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        for epoch, count in ((5, 40), (0, 10), (4, 10), (6, 10)):
            under(source, epoch, count)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1, partition_bytes=10_000)
            await rig.settled(20)
            assert (rig.events.failures, rig.events.truncations) == ({}, [])


async def test_a_restart_before_the_place_where_they_went_back() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        under(source, 5, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            logs = list(rig.followers[1].logs.values())
        under(source, 0, 20)
        again = Rig(source, replicas=(1,))
        async with again.running():
            again.mirror("t", source_epochs=((5, 0),))
            again.follow_on(1, logs)
            await again.settled()
            assert (again.events.failures, again.events.truncations) == ({}, [])
            assert logs[0].truncations == []


async def test_a_source_that_lost_both_its_metadata_and_records_is_refused() -> None:
    """What was copied and what is there now differ where the copy ends: neither is mixed with the other, nor dropped."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        under(source, 5, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            logs = list(rig.followers[1].logs.values())
            before = logs[0].data()
        source.partition("t").log.truncate(20)
        for _ in range(30):
            source.partition("t").log.add(3, leader_epoch=0, value_size=50)
        source.partition("t").leader_epoch = 0
        again = Rig(source, replicas=(1,))
        async with again.running():
            again.mirror("t", source_epochs=((5, 0),))
            again.follow_on(1, logs)
            await eventually(lambda: TP in again.events.failures, 25)
            assert "replaced what was there" in again.events.failures[TP]
            assert (logs[0].data(), logs[0].truncations) == (before, [])


def cleaned(source: FakeCluster, first: int, behind: int) -> None:
    """The source's cleaner takes whole batches, from one offset up to another."""
    log = source.partition("t").log
    log.batches = [one for one in log.batches if not first <= one.info.base_offset < behind]


@pytest.mark.parametrize(
    ("first", "behind", "log_start"),
    [(18, 20, 0), (8, 26, 0), (2, 36, 0), (0, 20, 0), (0, 50, 0), (0, 0, 20)],
)
async def test_the_cleaner_has_taken_the_batch_before_the_place(
    first: int, behind: int, log_start: int
) -> None:
    """Or retention all that was before it: what is left, if anything, tells that the log is the one that was copied."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        under(source, 3, 5)
        under(source, 5, 5)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            logs = list(rig.followers[1].logs.values())
        before = logs[0].data()
        under(source, 0, 20)
        cleaned(source, first, behind)
        if log_start:
            source.partition("t").log.delete_until(log_start)
        again = Rig(source, replicas=(1,))
        async with again.running():
            again.mirror("t", source_epochs=((3, 0), (5, 10)))
            again.follow_on(1, logs)
            log = source.partition("t").log
            await eventually(lambda: logs[0].end == log.log_end_offset or again.events.failures, 25)
            assert (again.events.failures, again.events.truncations) == ({}, [])
            assert logs[0].truncations == []
            assert log_start or logs[0].data().startswith(before)


async def test_what_the_cleaner_has_left_is_not_what_was_copied() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        under(source, 5, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
            logs = list(rig.followers[1].logs.values())
        before = logs[0].data()
        source.partition("t").log.truncate(20)
        for _ in range(30):
            source.partition("t").log.add(2, leader_epoch=0, value_size=50)
        source.partition("t").leader_epoch = 0
        cleaned(source, 26, 50)
        again = Rig(source, replicas=(1,))
        async with again.running():
            again.mirror("t", source_epochs=((5, 0),))
            again.follow_on(1, logs)
            await eventually(lambda: TP in again.events.failures, 25)
            assert (
                "replaced what was there: its batch there has offsets 24 to 25" in again.events.failures[TP]
            )
            assert (logs[0].data(), logs[0].truncations) == (before, [])


def test_the_history_is_the_log() -> None:
    history = EpochHistory([(5, 0), (0, 1000), (1, 2000)])
    assert history.note(5, 0) is EpochNoted.KNOWN
    assert history.note(5, 999) is EpochNoted.KNOWN
    assert history.note(0, 1500) is EpochNoted.KNOWN
    assert history.entries == ((5, 0), (0, 1000), (1, 2000))
    assert [history.end_of(epoch) for epoch in (0, 1, 5)] == [2000, None, None]
    assert history.note(2, 1500) is EpochNoted.REPLACED
    assert history.entries == ((5, 0), (0, 1000), (2, 1500))


@pytest.mark.parametrize("seed", range(200))
def test_no_reader_of_an_unchanged_log_finds_anything_replaced(seed: int) -> None:
    """Whatever epochs a log has, and in whichever order its parts are read again."""
    chance = random.Random(seed)
    batches, offset, epoch = [], chance.randrange(5), chance.randrange(5)
    for _ in range(chance.randrange(1, 60)):
        if chance.random() < 0.3:
            epoch = chance.randrange(8)
        batches.append((epoch, offset))
        offset += chance.randrange(1, 5)
    history = EpochHistory()
    front = 0
    while front < len(batches):
        step = chance.randrange(1, 9)
        for one in batches[front : front + step]:
            known = history.entries
            told = history.note(*one)
            assert told is EpochNoted.KNOWN or not known or known[-1][1] < one[1]
        front += step
        if chance.random() < 0.3:
            history = EpochHistory(history.entries)  # a restart
        begin = chance.randrange(len(batches))
        for one in batches[begin : min(front, len(batches))]:
            assert history.note(*one) is EpochNoted.KNOWN
    for (before, _), (_, start) in itertools.pairwise(batches):
        assert history.before(start) == before
