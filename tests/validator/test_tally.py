"""One replica's ranges added up while its log moves away under the run: nothing is called proved that nobody compared."""

from __future__ import annotations

from typing import Any

import pytest

from validator.batch_run import _planned_anew
from validator.compare.facts import FindingKind
from validator.compare.tally import ReplicaTally
from validator.compare.verdict import RangeSpec, RangeVerdict, ReplicaVerdict
from validator.messages import PartitionPlan, ReplicaPlan
from validator.read.ranges import PartitionBounds, Range, ReplicaBounds
from wire.frames.types import TopicPartition

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)


class Stretch:
    """A partition with one replica, whose ranges are offered one by one."""

    def __init__(self, *, log_start: int = 0, end: int, high_watermark: int, **limits: Any) -> None:
        found = ReplicaBounds(1, 7, 0, log_start, high_watermark)
        self.bounds = PartitionBounds("t", 0, 0, end, (found,))
        plan = PartitionPlan(topic="t", partition=0, replicas=(ReplicaPlan(broker_id=7),), **limits)
        self.tally = ReplicaTally(plan, plan.replicas[0], self.bounds, found, NOW_MS)

    def take(self, start: int, end: int, *, moved_at: int | None = None, held: bool = True) -> None:
        slots = (1,) if held else ()
        size = end - start
        verdict = RangeVerdict(
            start,
            {},
            source_batches=size,
            source_records=size,
            source_reached=end - 1,
            source_max_timestamp=NOW_MS,
        )
        if held:
            read = size if moved_at is None else moved_at - start
            verdict.replicas[1] = ReplicaVerdict(read, read, 100 * read, read, read, moved_at=moved_at)
        self.tally.take(Range(RangeSpec(start, start, end, slots), self.bounds, 1), verdict)

    def finish(self) -> tuple[int, list[FindingKind], list[int | None]]:
        """The watermark, what was found, and where the next round begins."""
        self.tally.finish()
        result = self.tally.result(1.0)
        anew = [one.through for plan in _planned_anew({TP: [self.tally]}) for one in plan.replicas]
        return result.through, [one.kind for one in result.findings], anew


def test_an_early_end_is_not_judged_across_offsets_that_moved_away() -> None:
    stretch = Stretch(end=1000, high_watermark=900)
    stretch.take(0, 300)
    stretch.take(300, 600, moved_at=300)
    stretch.take(600, 900)
    stretch.take(900, 1000, held=False)
    assert stretch.finish() == (300, [], [300])


def test_an_early_end_of_a_log_that_stays_is_found_at_once() -> None:
    stretch = Stretch(end=1000, high_watermark=900)
    stretch.take(0, 900)
    stretch.take(900, 1000, held=False)
    assert stretch.finish() == (900, [FindingKind.SHORT], [])


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("limits", [{}, {"retention_ms": 0}, {"retention_bytes": 15_000}])
def test_a_late_start_is_counted_before_it_is_told_and_ends_nothing(
    moved: bool, limits: dict[str, int]
) -> None:
    stretch = Stretch(log_start=100, end=300, high_watermark=300, **limits)
    assert not stretch.tally.tellable
    stretch.take(0, 100, held=False)
    stretch.take(100, 200, moved_at=150 if moved else None)
    assert stretch.tally.tellable
    stretch.take(200, 300)
    late = [FindingKind.LATE_START]
    assert stretch.finish() == ((150, late, [150]) if moved else (300, late, []))
    result = stretch.tally.result(1.0)
    assert (result.start, result.batches) == (100, 50 if moved else 200)
    assert result.missing is not None and (result.missing.batches, result.missing.records) == (100, 100)


def test_where_the_source_holds_nothing_before_a_late_start_nothing_is_missing() -> None:
    stretch = Stretch(log_start=100, end=300, high_watermark=300)
    stretch.tally.take(Range(RangeSpec(0, 0, 100, ()), stretch.bounds, 1), None)
    stretch.take(100, 300)
    assert stretch.finish() == (300, [], [])
    assert stretch.tally.result(1.0).missing is None
