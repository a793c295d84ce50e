"""What a link may read: its limit always, and less while clients write, as long as that is enough to catch up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fetcher.partition_copy import PartitionCursor
from fetcher.source_rate import LATELY, LogGrowth, SourceRate

MB = 1_000_000
PARTITION_BYTES = 1 << 20
REQUEST_BYTES = 8 << 20
RATE = 200 * MB
FULL = 600 * MB  # bytes per second of a copy that nothing holds back


class Partition:
    """As much of a mirror partition as matters here."""

    def __init__(self, record: int, *, cursors: int = 1) -> None:
        self.record = record
        self.high_watermark = 0
        self.end = 0  # as the source knows it
        self.cursors = [Reading(self) for _ in range(cursors)]


class Reading:
    """As much of a cursor."""

    def __init__(self, mirror: Partition) -> None:
        self.mirror = mirror
        self.position = 0
        self.appended = 0
        self.offset_bytes = 0.0
        self.growth: object = None

    def read(self, records: int) -> None:
        self.position += records
        self.appended += records * self.mirror.record

    @property
    def behind(self) -> int:
        return (self.mirror.end - self.position) * self.mirror.record


@dataclass
class Copy:
    """A fetcher that is as fast as it may be, and clients that write `growth` bytes per second to each partition."""

    growth: tuple[float, ...]
    records: tuple[int, ...]
    backlog: float = 0.0
    now: float = 100.0
    writes: int = 0
    partitions: list[Partition] = field(init=False)
    rate: SourceRate = field(init=False)

    def __post_init__(self) -> None:
        self.partitions = [Partition(record) for record in self.records]
        self.rate = SourceRate(lambda: self.now, lambda: self.writes)
        self.rate.set_beside_writes(RATE)
        self._grown = [0.0] * len(self.partitions)
        for partition in self.partitions:
            partition.end = partition.high_watermark = int(
                self.backlog / len(self.partitions) / partition.record
            )

    @property
    def cursors(self) -> list[Reading]:
        return [cursor for partition in self.partitions for cursor in partition.cursors]

    @property
    def behind(self) -> int:
        return sum(cursor.behind for cursor in self.cursors)

    def pass_time(self, seconds: float, *, writing: bool = True) -> None:
        self.now += seconds
        self.writes += writing
        for number, partition in enumerate(self.partitions):
            self._grown[number] += self.growth[number] * seconds
            more = int(self._grown[number] / partition.record)
            self._grown[number] -= more * partition.record
            partition.end += more

    def run(self, seconds: float, *, writing: bool = True) -> int:
        """The bytes that were read. As a broker answers, cursors that wait longest come first."""
        end, total = self.now + seconds, 0
        waiting = self.cursors
        while self.now < end:
            if wait := self.rate.put_off(0.0):
                self.pass_time(wait, writing=writing)
                continue
            left = self.rate.fetch_size(REQUEST_BYTES)
            answer: list[tuple[Reading, int]] = []
            for cursor in list(waiting):
                records = min(PARTITION_BYTES, left, cursor.behind) // cursor.mirror.record
                answer.append((cursor, records))
                left -= records * cursor.mirror.record
                if records:
                    waiting.remove(cursor)
                    waiting.append(cursor)
            size = sum(records * cursor.mirror.record for cursor, records in answer)
            growth = self.rate.spent(size)
            for cursor, records in answer:
                before = cursor.mirror.high_watermark, cursor.position, cursor.appended
                cursor.mirror.high_watermark = cursor.mirror.end
                cursor.read(records)
                if growth is not None:
                    growth.note(cast("PartitionCursor", cursor), *before)
            total += size
            self.pass_time(size / FULL if size else 0.005, writing=writing)
        return total


def test_a_copy_gives_way_while_clients_write() -> None:
    copy = Copy((20 * MB,), (1000,), backlog=1e12)
    assert copy.run(10) / 10 == pytest.approx(RATE, rel=0.05)
    assert copy.rate.waited_for_writes == pytest.approx(10 * (1 - RATE / FULL), rel=0.1)
    assert copy.rate.waited_for_limit == 0
    assert copy.run(10, writing=False) / 10 > 0.9 * FULL


def test_it_goes_on_giving_way_for_a_second() -> None:
    copy = Copy((0.0,) * 8, (1000,) * 8, backlog=1e12)
    copy.run(5)
    assert copy.run(0.8 * LATELY, writing=False) / (0.8 * LATELY) < 1.1 * RATE
    copy.pass_time(0.3 * LATELY, writing=False)
    assert copy.rate.debt == 0
    assert copy.run(5, writing=False) / 5 > 0.9 * FULL


def test_what_was_read_too_much_is_forgotten_when_they_have_ended() -> None:
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.rate.set_beside_writes(MB // 10)
    copy.pass_time(0.01)
    copy.rate.spent(4 * MB)
    assert copy.rate.debt == 1.0
    copy.pass_time(1.1 * LATELY, writing=False)
    assert copy.rate.debt == 0
    copy.pass_time(0.01)
    assert copy.rate.debt == 0


def test_no_more_than_some_seconds_are_owed() -> None:
    """An answer that was asked for before: how much comes is to be seen again soon."""
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.rate.set_beside_writes(MB // 10)
    copy.pass_time(0.01)
    copy.rate.spent(40 * MB)
    for _ in range(49):
        copy.pass_time(0.1)
        assert copy.rate.debt > 0
    copy.pass_time(0.2)
    assert copy.rate.debt == 0


def test_clients_that_write_now_and_then_hold_nothing_up() -> None:
    """One write in 1.1 s, and others write much to the source: it gives way, and what comes is known."""
    copy = Copy((40 * MB, 40 * MB), (1000, 1000), backlog=500e6)
    copy.rate.set_beside_writes(10 * MB)
    for _ in range(30):
        copy.run(0.05)
        copy.run(1.05, writing=False)
    assert copy.behind < 80 * MB


def test_one_that_is_forgotten_begins_anew() -> None:
    copy = Copy((100 * MB,) * 4, (1000,) * 4, backlog=1e12)
    copy.run(5)
    assert copy.rate.beside_writes.rate == pytest.approx(800 * MB, rel=0.1)
    copy.run(20, writing=False)
    copy.run(0.5)
    assert copy.rate.beside_writes.rate == RATE


def test_several_fetchers_ask_for_less_each() -> None:
    copy = Copy((0.0,), (1000,))
    copy.pass_time(0.1)
    assert copy.rate.fetch_size(REQUEST_BYTES) == REQUEST_BYTES
    for number in range(5):
        copy.rate.waiters.add(lambda number=number: None)
    assert copy.rate.fetch_size(REQUEST_BYTES) == 2 * MB
    copy.rate.set_beside_writes(MB)
    assert copy.rate.fetch_size(REQUEST_BYTES) == 64 << 10
    copy.pass_time(2, writing=False)
    assert copy.rate.fetch_size(REQUEST_BYTES) == REQUEST_BYTES


def test_what_a_link_was_told_not_to_mind_it_does_not() -> None:
    copy = Copy((20 * MB,) * 8, (1000,) * 8, backlog=1e12)
    copy.rate.set_beside_writes(None)
    assert copy.run(5) / 5 > 0.9 * FULL


def test_the_limit_holds_besides() -> None:
    copy = Copy((20 * MB,), (1000,), backlog=1e12)
    copy.rate.limit.set_rate(100 * MB)
    copy.run(5)
    assert copy.run(10) / 10 == pytest.approx(100 * MB, rel=0.05)
    assert copy.rate.waited_for_limit > 5
    assert copy.run(10, writing=False) / 10 == pytest.approx(100 * MB, rel=0.05)


@pytest.mark.parametrize("partitions", [1, 16, 200])
@pytest.mark.parametrize("growth", [90 * MB, 120 * MB, 190 * MB, 250 * MB])
def test_a_copy_that_gives_way_catches_up_and_stays_there(growth: int, partitions: int) -> None:
    copy = Copy((growth / partitions,) * partitions, (1000,) * partitions, backlog=2e9)
    copy.run(2e9 / growth + 5)
    assert copy.behind <= 0.3 * growth
    for _ in range(10):
        copy.run(0.5)
        assert copy.behind <= 0.5 * growth


def test_partitions_that_do_not_fit_into_an_answer_grow_as_well() -> None:
    copy = Copy((30 * MB / 16,) * 16, (1000,) * 16, backlog=300e6)
    copy.rate.set_beside_writes(20 * MB)  # answers of a megabyte, of one partition
    copy.run(30)
    assert copy.behind < 30 * MB


def test_a_cursor_of_its_own_is_no_growth() -> None:
    """One replica follows what is written, another one was away: what is read for it did not come just now."""
    copy = Copy((5 * MB,), (1000,))
    (partition,) = copy.partitions
    partition.cursors.append(behind := Reading(partition))
    partition.end = partition.high_watermark = 10**9
    partition.cursors[0].position = 10**9
    copy.run(5)
    before = behind.behind
    copy.run(10)
    assert before - behind.behind == pytest.approx(10 * (RATE - 10 * MB), rel=0.1)
    assert copy.rate.beside_writes.rate == RATE


def test_every_cursor_has_to_read_what_comes() -> None:
    copy = Copy((0.0,), (1000,))
    growth = LogGrowth(100.0)
    (partition,) = copy.partitions
    partition.cursors.append(Reading(partition))
    for cursor in partition.cursors:
        growth.note(cast("PartitionCursor", cursor), 0, 0, 0)
    for cursor in partition.cursors:
        before = partition.high_watermark, cursor.position, cursor.appended
        partition.high_watermark = 500
        cursor.read(100)
        growth.note(cast("PartitionCursor", cursor), *before)
    assert growth.per_second(100.9) == 0
    assert growth.per_second(102.0) == 500 * 1000 * 2 / 2.0


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 100 * MB), st.sampled_from([50, 1000, 20_000])), min_size=1, max_size=8
    ).filter(lambda partitions: sum(growth for growth, _ in partitions) <= 150 * MB)
)
def test_whatever_writes_come_where_the_backlog_shrinks(partitions: list[tuple[int, int]]) -> None:
    copy = Copy(
        tuple(growth for growth, _ in partitions), tuple(record for _, record in partitions), backlog=4e9
    )
    copy.run(2)
    before = copy.behind
    copy.run(5)
    comes = sum(copy.growth)
    assert copy.behind < max(before - 5 * 0.9 * min(RATE - comes, comes or RATE), 100 * MB)


def test_nobody_who_waits_for_the_last_bytes_is_held_back() -> None:
    copy = Copy((20 * MB,) * 8, (1000,) * 8, backlog=1e12)
    copy.rate.limit.set_rate(MB)
    copy.run(5)
    copy.rate.spent(5 * MB)
    woken = 0

    def wake() -> None:
        nonlocal woken
        assert copy.rate.debt == 0
        woken += 1

    assert copy.rate.debt > 0
    copy.rate.waiters.add(wake)
    copy.rate.lift(lifted=True)
    copy.rate.lift(lifted=True)
    assert woken == 1
    assert copy.rate.fetch_size(REQUEST_BYTES) == REQUEST_BYTES
    assert copy.run(5) / 5 > 0.9 * FULL
    copy.rate.lift(lifted=False)
    copy.pass_time(5)
    assert copy.rate.debt == 0, "what was read meanwhile is free"
    assert woken == 1


def test_what_is_said_again_changes_nothing() -> None:
    """Any record of a link or a sidecar sets the rates anew."""
    copy = Copy((120 * MB,) * 8, (1000,) * 8, backlog=1e12)
    copy.run(5)
    raised, debt = copy.rate.beside_writes.rate, copy.rate.debt
    assert raised == pytest.approx(2 * 8 * 120 * MB, rel=0.1)
    copy.rate.set_beside_writes(RATE)
    assert (copy.rate.beside_writes.rate, copy.rate.debt) == (raised, debt)


def test_only_what_nothing_else_put_off_is_counted() -> None:
    copy = Copy((0.0,), (1000,))
    copy.rate.limit.set_rate(MB)
    copy.pass_time(1.0)
    copy.rate.spent(MB + MB // 10)
    assert copy.rate.put_off(0.5) == 0.5
    assert copy.rate.waited_for_limit == 0
    assert copy.rate.put_off(0.04) == pytest.approx(0.1)
    assert copy.rate.waited_for_limit == pytest.approx(0.06)
    assert copy.rate.put_off(-3.0) == pytest.approx(0.1)
    assert copy.rate.waited_for_limit == pytest.approx(0.16)


def test_fetches_are_smaller_where_little_may_be_read() -> None:
    copy = Copy((0.0,), (1000,))
    copy.rate.set_beside_writes(MB)
    assert copy.rate.fetch_size(REQUEST_BYTES) == REQUEST_BYTES
    copy.pass_time(0.1)
    assert copy.rate.fetch_size(REQUEST_BYTES) == 64 << 10
    copy.rate.limit.set_rate(1000)
    assert copy.rate.fetch_size(32 << 10) == 32 << 10


def test_a_partition_that_appears_is_no_growth() -> None:
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.run(2)
    copy.partitions.append(new := Partition(1000))
    new.end, new.high_watermark, new.cursors[0].position = 10**9, 0, 10**9 - 5
    copy.growth = (0.0, 0.0)
    copy._grown.append(0.0)
    assert copy.run(3) / 3 == pytest.approx(RATE, rel=0.1)


def test_what_came_while_nobody_looked_is_no_growth() -> None:
    """A mirror that was paused, a limit that was taken away, a source that was away for a while."""
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.partitions[0].high_watermark = 0
    copy.run(3)
    assert copy.rate.beside_writes.rate == RATE


def test_of_a_partition_that_was_not_read_the_others_tell_the_size() -> None:
    growth = LogGrowth(100.0)
    read, unread = Partition(1000), Partition(1000)
    for partition in (read, unread):
        growth.note(cast("PartitionCursor", partition.cursors[0]), 0, 0, 0)
    unread.high_watermark = 7
    growth.note(cast("PartitionCursor", unread.cursors[0]), 0, 0, 0)  # nobody knows yet
    read.cursors[0].read(100)
    growth.note(cast("PartitionCursor", read.cursors[0]), 0, 0, 0)
    unread.high_watermark = 57
    growth.note(cast("PartitionCursor", unread.cursors[0]), 7, 0, 0)
    assert growth.per_second(101.0) == 50_000
    read.cursors[0].position = 0  # truncated: nothing was read
    growth.note(cast("PartitionCursor", read.cursors[0]), 90, 100, 50_000)
    assert read.cursors[0].offset_bytes == 1000
    assert growth.per_second(102.0) == 0
