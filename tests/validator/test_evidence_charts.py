"""Curves and axes of the page."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.validator.evidence_examples import partition, replica
from validator.evidence import series
from validator.evidence.charts import line_chart, nice_ticks, time_ticks
from validator.evidence.model import MAX_SAMPLES, PartitionEvidence, Sample
from validator.evidence.series import POINTS, SHOWN, Curve
from validator.evidence.text import duration, escaped, moment, number, rate, short, size


def looks(
    *samples: tuple[int, int | None, dict[int, int]],
    start: int = 0,
    index: int = 0,
    brokers: tuple[int, ...] = (1, 2),
) -> PartitionEvidence:
    made = tuple(Sample(at_ms=at, source_end=end, validated=validated) for at, end, validated in samples)
    return partition(*map(replica, brokers), start=start, index=index, samples=made)


def test_validated_offsets_are_summed_with_the_last_known_value_held() -> None:
    parts = [
        looks((10, 100, {1: 5, 2: 0}), (30, 120, {1: 50})),
        looks((20, 1010, {1: 1001}), (40, 1010, {1: 1010, 2: 1010}), start=1000, index=1),
    ]
    aim, first, second = series.validated(parts)
    assert (aim.dashed, aim.points) == (True, ((10, 100), (20, 110), (30, 130), (40, 130)))
    assert (first.name, first.points) == ("broker 1", ((10, 5), (20, 6), (30, 51), (40, 60)))
    assert (second.name, second.points) == ("broker 2", ((10, 0), (20, 0), (30, 0), (40, 10)))


def test_with_fewer_replicas_than_brokers_a_curve_reaches_the_source_end_when_all_is_validated() -> None:
    parts = [
        looks((10, 100, {1: 5}), (30, 100, {1: 100, 2: 100}), index=0, brokers=(1, 2)),
        looks((10, 300, {}), (30, 300, {2: 300, 3: 300}), index=1, brokers=(2, 3)),
        looks((20, 50, {3: 20, 1: 50}), (30, 50, {3: 50, 1: 50}), index=2, brokers=(3, 1)),
    ]
    aim, slowest, fastest = series.validated(parts)
    assert aim.points[-1] == (30, 450)
    assert (slowest.name, slowest.points) == (
        "slowest replica of each partition",
        ((10, 0), (20, 20), (30, 450)),
    )
    assert (fastest.name, fastest.points) == (
        "fastest replica of each partition",
        ((10, 5), (20, 55), (30, 450)),
    )


def test_the_highest_partitions_have_curves_of_their_own() -> None:
    parts = [
        partition(
            replica(),
            index=index,
            samples=(Sample(at_ms=1, lag=index, bytes_per_second=2.0 * index), Sample(at_ms=2, lag=0)),
        )
        for index in range(SHOWN + 3)
    ]
    others, *own = series.lag(parts)
    assert (others.muted, others.name, others.points) == (True, "highest of 3 others", ((1, 2), (2, 0)))
    assert [curve.name for curve in own] == [f"orders-{index}" for index in range(SHOWN + 2, 2, -1)]
    others, *own = series.throughput(parts)
    assert (others.name, others.points) == ("sum of 3 others", ((1, 6.0), (2, 6.0)))
    assert own[0].points == ((1, 16.0), (2, 16.0))


def test_no_more_points_than_can_be_seen() -> None:
    samples = tuple(Sample(at_ms=at, source_end=at, validated={1: at}) for at in range(MAX_SAMPLES))
    aim, _ = series.validated([partition(replica(), samples=samples)])
    assert len(aim.points) == POINTS
    assert (aim.points[0][0], aim.points[-1][0]) == (0, MAX_SAMPLES - 1)


def test_nothing_known_gives_no_curve() -> None:
    assert series.validated([]) == []
    assert series.lag([partition(replica(), samples=(Sample(at_ms=1),))]) == []


@given(st.floats(min_value=1e-3, max_value=1e18))
def test_ticks_begin_at_zero_are_even_and_reach_the_highest(highest: float) -> None:
    ticks = nice_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest * 0.999999
    assert 2 <= len(ticks) <= 6
    assert ticks[1] * (len(ticks) - 2) < highest


@pytest.mark.parametrize("highest", [0, -1, float("nan"), float("inf")])
def test_ticks_of_nothing(highest: float) -> None:
    assert nice_ticks(highest) == [0.0, 1.0]


def test_time_ticks() -> None:
    assert time_ticks(0, 0) == [(0, "00:00:00", "start")]
    assert [text for _, text, _ in time_ticks(0, 4000)] == [
        "00:00:00",
        "+1.0 s",
        "+2.0 s",
        "+3.0 s",
        "+4.0 s",
    ]
    assert time_ticks(0, 400_000_000)[-1][1] == "+4.6 d"


def test_every_point_lies_inside_the_chart() -> None:
    curves = [Curve("a", ((0, 0.0), (5, 7.0), (10, 3.0))), Curve("b", ((5, 7.0),))]
    svg = line_chart(curves, label="x", unit=str, mark_ms=12)
    for text in re.findall(r' d="M([^"h]*)', svg):
        for point in text.split("L"):
            x, y = map(float, point.split())
            assert 0 <= x <= 640
            assert 0 <= y <= 250
    assert 'class="mark"' in svg
    assert 'class="mark"' not in line_chart(curves, label="x", unit=str, mark_ms=1000)


def test_texts() -> None:
    assert (number(None), number(1234567), short(0), short(1500), short(2e9)) == (
        "–",
        "1,234,567",
        "0",
        "1.5k",
        "2G",
    )
    assert (size(0), size(1023), size(1024), size(None)) == ("0 B", "1023 B", "1 KiB", "–")
    assert (rate(12), rate(3e6)) == ("12 B/s", "3 MB/s")
    assert moment(1_700_000_000_123) == "2023-11-14 22:13:20.123 UTC"
    assert [duration(ms) for ms in (5, 1500, 61_000, 3_600_000)] == [
        "5 ms",
        "1.50 s",
        "1 min 01 s",
        "1 h 00 min",
    ]
    assert escaped("ä\u2066\ud800") == "ä\\u2066\\ud800"
