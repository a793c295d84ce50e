"""How long a copy will still take, from how its lag went down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from linker.links.copy_rates import CopyRates
from linker.links.status import copy_progress, link_progress
from tests.links.link_context import context
from wire.frames.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Rig:
    def __init__(self, remote: bool = False) -> None:
        self.now = 100.0
        self.copies: dict[TopicPartition, Any] = {}
        self.lags: dict[TopicPartition, int | None] = {}
        fleet = SimpleNamespace(members={1: None, 2: None} if remote else {1: None})
        image = SimpleNamespace(
            link_partitions=lambda _link: [SimpleNamespace(tp=tp, phase=None) for tp in self.lags]
        )
        self.rates = CopyRates(
            context("l", controller=SimpleNamespace(image=image), head=fleet),
            lambda: self.copies,
            lambda _tp: (1, 2),
            lambda tp: self.lags[tp],
            lambda: self.now,
        )

    def at(self, seconds: float, tp: TopicPartition, end: int, *offsets: int) -> None:
        """The moment at which these replicas ask from there."""
        self.now = 100.0 + seconds
        followers = {
            broker: SimpleNamespace(fetch_offset=offset) for broker, offset in enumerate(offsets, start=1)
        }
        self.copies[tp] = SimpleNamespace(
            loaded=True, end_known=True, high_watermark=end, log_start_offset=0, followers=followers
        )
        self.rates.look()


def test_the_slowest_replica_sets_the_rate_and_growth_of_the_source_counts_against_it() -> None:
    rig = Rig()
    rig.at(0, T0, 1000, 0, 500)
    assert rig.rates.rate([T0]) is None  # one look is no rate
    rig.at(10, T0, 1100, 300, 1100)
    assert rig.rates.rate([T0]) == pytest.approx(20)  # 1000 were left, and now 800 are


def test_a_copy_that_does_not_gain_ends_nobody_knows_when() -> None:
    rig = Rig()
    rig.at(0, T0, 1000, 500, 500)
    rig.at(10, T0, 1100, 600, 600)
    assert rig.rates.rate([T0]) is None
    rig.at(12, T0, 1200, 600, 600)
    assert rig.rates.rate([T0]) is None


def test_only_the_last_half_minute_counts() -> None:
    rig = Rig()
    rig.at(0, T0, 1000, 0, 0)
    rig.at(1, T0, 1000, 900, 900)
    for second in range(2, 40, 2):
        rig.at(second, T0, 1000, 900, 900)
    assert rig.rates.rate([T0]) is None


def test_a_partition_at_its_end_is_forgotten() -> None:
    rig = Rig()
    rig.at(0, T0, 1000, 0, 0)
    rig.at(2, T0, 1000, 1000, 1000)
    assert rig.rates._lags == {}


def test_copies_of_other_sidecars_count_too() -> None:
    rig = Rig(remote=True)
    rig.lags = {T1: 100}
    rig.rates.look()
    rig.now += 5
    rig.lags = {T1: 50}
    rig.rates.look()
    assert rig.rates.rate([T0, T1]) == pytest.approx(10)


def test_what_people_are_told() -> None:
    assert copy_progress(800, 20.0).eta_ms == 40_000
    assert copy_progress(800, None).eta_ms is None
    assert copy_progress(None, 20.0).eta_ms is None
    mirrors = [
        SimpleNamespace(lag=100, copying=copy_progress(100, 10.0)),
        SimpleNamespace(lag=300, copying=copy_progress(300, 30.0)),
        SimpleNamespace(lag=3, copying=None),
    ]
    both = link_progress(mirrors)  # type: ignore[arg-type]
    assert both is not None
    assert (both.offsets_per_second, both.eta_ms) == (40.0, 10_000)
    mirrors.append(SimpleNamespace(lag=None, copying=copy_progress(None, None)))
    both = link_progress(mirrors)  # type: ignore[arg-type]
    assert both is not None
    assert both.eta_ms is None
    assert link_progress([]) is None
