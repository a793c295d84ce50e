"""When the source is asked again, by a clock that the test moves."""

from __future__ import annotations

import pytest

from fetcher.pace import Pace
from fetcher.source_ports import FetchLimits

LIMITS = FetchLimits(max_wait_ms=500, small_answer_interval=0.005, small_answer=1000)
ASKED = 1 << 20


def after(size: int, *, asked: int = ASKED, took: float = 0.001, throttle_ms: int = 0) -> float:
    """The delay that is left when an answer of that size is there."""
    pace = Pace(LIMITS)
    pace.sent(10.0, asked)
    pace.answered(10.0 + took, size, throttle_ms)
    return pace.delay(10.0 + took)


@pytest.mark.parametrize(
    ("size", "asked", "took", "delay"),
    [
        (999, ASKED, 0.001, 0.004),
        (999, ASKED, 0.4, 0.0),  # it had been waited for
        (1000, ASKED, 0.001, 0.0),
        (999, 1500, 0.001, 0.0),  # more than half of what was asked for: there may be more
    ],
)
def test_after_a_small_answer(size: int, asked: int, took: float, delay: float) -> None:
    assert max(after(size, asked=asked, took=took), 0.0) == pytest.approx(delay)


@pytest.mark.parametrize("size", [10, 5000])
def test_a_broker_that_throttles_is_obeyed(size: int) -> None:
    assert after(size, throttle_ms=200) == pytest.approx(0.2)
    assert after(size, throttle_ms=1) == pytest.approx(0.004 if size == 10 else 0.001)


def test_a_refused_request_waits_a_tenth_of_a_second_or_as_long_as_it_is_throttled() -> None:
    pace = Pace(LIMITS)
    pace.sent(10.0, ASKED)
    pace.answered(10.0, 5000, 0)
    pace.refused(10.0)
    assert pace.delay(10.0) == pytest.approx(0.1)
    pace.answered(10.0, 5000, 3000)
    pace.refused(10.0)
    assert pace.delay(10.0) == pytest.approx(3.0)


def test_polls_are_short_while_cursors_have_no_room() -> None:
    pace = Pace(LIMITS)
    assert pace.max_wait_ms(some_full=False) == 500
    assert [pace.max_wait_ms(some_full=True) for _ in range(6)] == [5, 10, 20, 40, 50, 50]
    pace.records_came()
    assert pace.max_wait_ms(some_full=True) == 5
    assert pace.max_wait_ms(some_full=False) == 500
    assert pace.max_wait_ms(some_full=True) == 5
    assert Pace(FetchLimits(max_wait_ms=3)).max_wait_ms(some_full=True) == 3
