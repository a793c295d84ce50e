"""What a link may read: its limit always, and less while clients write, as long as that is enough to catch up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetcher.mirror_partition import MirrorPartition
from fetcher.source_rate import LATELY, Growth, SourceRate

MB = 1_000_000
ANSWER = 4 * MB
RATE = 200 * MB
FULL = 600 * MB  # bytes per second of a copy that nothing holds back
TICK = 0.2


class Partition:
    """As much of a mirror partition as matters here."""

    def __init__(self, record: int) -> None:
        self.record = record
        self.high_watermark = 0
        self.lane = SimpleNamespace(position=0)
        self.lanes = [self.lane]
        self.bytes_fetched = 0

    @property
    def behind(self) -> int:
        return (self.high_watermark - self.lane.position) * self.record


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
        self._ticked = self.now
        for partition in self.partitions:
            partition.high_watermark = int(self.backlog / len(self.partitions) / partition.record)

    @property
    def behind(self) -> int:
        return sum(partition.behind for partition in self.partitions)

    def pass_time(self, seconds: float, *, writing: bool = True) -> None:
        self.now += seconds
        self.writes += writing
        for number, partition in enumerate(self.partitions):
            self._grown[number] += self.growth[number] * seconds
            more = int(self._grown[number] / partition.record)
            self._grown[number] -= more * partition.record
            partition.high_watermark += more
        while self.now - self._ticked >= TICK:
            self._ticked += TICK
            self.rate.look(cast("Iterable[MirrorPartition]", self.partitions))

    def run(self, seconds: float, *, writing: bool = True) -> int:
        """The bytes that were read."""
        end, total = self.now + seconds, 0
        while self.now < end:
            if wait := self.rate.delay():
                self.pass_time(wait, writing=writing)
                continue
            size = 0
            for partition in self.partitions:
                share = min(ANSWER // len(self.partitions), partition.behind) // partition.record
                partition.lane.position += share
                partition.bytes_fetched += share * partition.record
                size += share * partition.record
            self.rate.spent(size)
            total += size
            self.pass_time(max(size / FULL, 0.005), writing=writing)
        return total


def test_a_copy_gives_way_while_clients_write() -> None:
    copy = Copy((20 * MB,), (1000,), backlog=1e12)
    assert copy.run(10) / 10 == pytest.approx(RATE, rel=0.05)
    assert copy.rate.waited_for_writes == pytest.approx(10 * (1 - RATE / FULL), rel=0.1)
    assert copy.rate.waited_for_limit == 0
    assert copy.run(10, writing=False) / 10 > 0.9 * FULL


def test_it_goes_on_giving_way_for_a_second() -> None:
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.run(5)
    assert copy.run(0.8 * LATELY, writing=False) < 1.1 * RATE
    copy.pass_time(0.2 * LATELY, writing=False)
    assert copy.rate.debt == 0


def test_what_was_read_too_much_is_forgotten_when_they_have_ended() -> None:
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.rate.set_beside_writes(MB // 10)
    copy.pass_time(0.01)
    copy.rate.spent(4 * MB)
    assert copy.rate.debt == 1.0
    copy.pass_time(1.1 * LATELY, writing=False)
    assert copy.rate.debt == 0


def test_what_a_link_was_told_not_to_mind_it_does_not() -> None:
    copy = Copy((20 * MB,), (1000,), backlog=1e12)
    copy.rate.set_beside_writes(None)
    assert copy.run(5) / 5 > 0.9 * FULL


def test_the_limit_holds_besides() -> None:
    copy = Copy((20 * MB,), (1000,), backlog=1e12)
    copy.rate.limit.set_rate(100 * MB)
    copy.run(5)
    assert copy.run(10) / 10 == pytest.approx(100 * MB, rel=0.05)
    assert copy.rate.waited_for_limit > 5
    assert copy.run(10, writing=False) / 10 == pytest.approx(100 * MB, rel=0.05)


@pytest.mark.parametrize("growth", [20 * MB, 120 * MB, 190 * MB, 250 * MB, 290 * MB])
def test_a_copy_that_gives_way_catches_up_and_stays_there(growth: int) -> None:
    copy = Copy((growth,), (1000,), backlog=5e9)
    copy.run(5e9 / growth + 5)
    assert copy.behind <= 0.2 * growth
    for _ in range(50):
        copy.run(0.5)
        assert copy.behind <= 0.5 * growth


@given(
    st.lists(
        st.tuples(st.integers(0, 100 * MB), st.sampled_from([50, 1000, 20_000])), min_size=1, max_size=4
    ).filter(lambda partitions: sum(growth for growth, _ in partitions) <= 250 * MB)
)
def test_whatever_writes_come_where_the_backlog_shrinks(partitions: list[tuple[int, int]]) -> None:
    copy = Copy(
        tuple(growth for growth, _ in partitions), tuple(record for _, record in partitions), backlog=4e9
    )
    copy.run(2)
    before = copy.behind
    copy.run(5)
    assert copy.behind < max(before - 5 * RATE / 3, 100 * MB)


def test_nobody_who_waits_for_the_last_bytes_is_held_back() -> None:
    copy = Copy((20 * MB,), (1000,), backlog=1e12)
    copy.rate.limit.set_rate(MB)
    copy.run(5)
    assert copy.rate.debt > 0
    copy.rate.lifted = True
    assert copy.rate.debt == 0
    assert copy.rate.fetch_size(8 << 20) == 8 << 20
    assert copy.run(5) / 5 > 0.9 * FULL
    copy.rate.lifted = False
    copy.pass_time(5)
    assert copy.rate.debt == 0, "what was read meanwhile is free"


def test_fetches_are_smaller_where_little_may_be_read() -> None:
    copy = Copy((0.0,), (1000,))
    copy.rate.set_beside_writes(MB)
    assert copy.rate.fetch_size(8 << 20) == 8 << 20
    copy.pass_time(0.1)
    assert copy.rate.fetch_size(8 << 20) == 64 << 10
    copy.rate.limit.set_rate(1000)
    assert copy.rate.fetch_size(32 << 10) == 32 << 10


def test_a_partition_that_appears_or_vanishes_is_no_growth() -> None:
    copy = Copy((0.0,), (1000,), backlog=1e12)
    copy.run(2)
    new: Any = Partition(1000)
    new.high_watermark, new.lane.position, new.bytes_fetched = 10**9, 10**9 - 5, 10**12
    copy.partitions.append(new)
    copy.growth, copy._grown = (0.0, 0.0), [0.0, 0.0]
    assert copy.run(2) / 2 == pytest.approx(RATE, rel=0.1)
    copy.partitions.pop(0)
    copy.run(1)
    assert copy.rate.beside_writes.rate == RATE


def test_a_partition_that_nobody_read_before_tells_nothing_yet() -> None:
    growth = Growth()
    partition = Partition(1000)
    partition.high_watermark, partition.lanes = 10**6, []
    mirrors = cast("list[MirrorPartition]", [partition])
    assert growth.look(100.0, mirrors) == 0
    partition.lanes, partition.lane.position = [partition.lane], 10**6 - 100
    partition.high_watermark, partition.bytes_fetched = 10**6 + 50, 100_000
    assert growth.look(101.0, mirrors) == 0
    partition.high_watermark += 50
    partition.lane.position += 100
    partition.bytes_fetched += 100_000
    assert growth.look(102.0, mirrors) == 50_000


def test_nobody_looks_while_little_is_read() -> None:
    copy = Copy((0.0,), (1000,))
    looked = 0

    def mirrors() -> Iterator[MirrorPartition]:
        nonlocal looked
        looked += 1
        yield from ()

    for read in (0, RATE // 3, RATE, 10 * RATE):
        copy.now += 1
        copy.writes += 1
        copy.rate.spent(read)
        copy.rate.look(mirrors())
    assert looked == 2
