"""The token bucket of a link: what is read on average, whoever reads and however large the answers are."""

from __future__ import annotations

import random

import pytest

from fetcher.throttle import LEAST_FETCH, LONGEST_DELAY, Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def read_for(throttle: Throttle, clock: Clock, seconds: float, sizes: list[int], rng: random.Random) -> int:
    """A reader that is as fast as it may be."""
    end, total = clock.now + seconds, 0
    while clock.now < end:
        wait = throttle.debt
        if wait:
            clock.now += wait
            continue
        size = rng.choice(sizes)
        throttle.spent(size)
        total += size
        clock.now += 0.0005
    return total


@pytest.mark.parametrize("rate", [1_000, 100_000, 5_000_000])
@pytest.mark.parametrize("sizes", [[100], [1 << 20], [10, 1000, 3 << 20]])
def test_the_rate_is_kept_on_average(rate: int, sizes: list[int]) -> None:
    clock = Clock()
    throttle = Throttle(clock, rate)
    seconds = 20 + 4 * max(sizes) / rate
    total = read_for(throttle, clock, seconds, sizes, random.Random(1))
    at_most = rate * (seconds + 1) + max(sizes)
    assert total <= at_most
    could = max(sizes) / 0.0005
    assert total >= min(rate, could) * seconds * 0.5


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    throttle.spent(1 << 40)
    assert throttle.debt == 0
    assert throttle.fetch_size(8 << 20) == 8 << 20


def test_a_long_debt_is_looked_at_again_and_a_raised_rate_holds_at_once() -> None:
    clock = Clock()
    throttle = Throttle(clock, 1000)
    throttle.spent(1_000_000)
    assert throttle.debt == LONGEST_DELAY
    throttle.set_rate(None)
    assert throttle.debt == 0
    throttle.set_rate(1000)
    assert throttle.debt == 0, "what was read without a limit is not charged"
    throttle.spent(500)
    assert throttle.debt == pytest.approx(0.5)


def test_the_same_rate_again_forgives_nothing() -> None:
    clock = Clock()
    throttle = Throttle(clock, 1000)
    throttle.spent(3000)
    throttle.set_rate(1000)
    assert throttle.debt == LONGEST_DELAY


def test_a_pause_saves_up_one_second_and_not_more() -> None:
    clock = Clock()
    throttle = Throttle(clock, 1000)
    clock.now += 3600
    throttle.spent(1000)
    assert throttle.debt == 0
    throttle.spent(1000)
    assert throttle.debt == pytest.approx(1.0)


def test_fetches_are_no_larger_than_a_moment_allows() -> None:
    throttle = Throttle(Clock(), 200_000)
    assert throttle.fetch_size(8 << 20) == 200_000
    assert throttle.fetch_size(1000) == 1000
    throttle.set_rate(10)
    assert throttle.fetch_size(8 << 20) == LEAST_FETCH


def test_less_may_be_saved_up() -> None:
    clock = Clock()
    throttle = Throttle(clock, 1_000_000, burst_seconds=0.1)
    clock.now += 3600
    throttle.spent(200_000)
    assert throttle.debt == pytest.approx(0.1)
    assert throttle.fetch_size(8 << 20) == 100_000


def test_a_rate_that_changes_forgives_nothing() -> None:
    clock = Clock()
    throttle = Throttle(clock, 1000)
    throttle.spent(2000)
    assert throttle.debt == pytest.approx(1.0)
    throttle.change_rate(2000)
    assert throttle.debt == pytest.approx(0.5)
    clock.now += 0.25
    throttle.change_rate(1000)
    assert throttle.debt == pytest.approx(0.5), "what was due at the rate before is paid for at that rate"


def test_without_a_rate_there_is_none_to_change() -> None:
    throttle = Throttle(Clock())
    throttle.change_rate(1000)
    assert throttle.rate is None
