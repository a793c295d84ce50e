"""One replica's ranges added up while its log moves away under the run: nothing is called proved that nobody compared."""

from __future__ import annotations

from typing import Any

import pytest

from validator.batch_run import _planned_anew
from validator.facts import FindingKind
from validator.messages import PartitionPlan, ReplicaPlan
from validator.ranges import PartitionBounds, Range, ReplicaBounds
from validator.tally import ReplicaTally
from validator.verdict import RangeSpec, RangeVerdict, ReplicaVerdict
from wire.types import TopicPartition

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
        verdict = RangeVerdict(start, {}, source_batches=size, source_max_timestamp=NOW_MS)
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
def test_a_late_start_that_only_the_whole_size_may_explain_waits_for_the_whole(moved: bool) -> None:
    stretch = Stretch(log_start=100, end=300, high_watermark=300, retention_bytes=15_000)
    stretch.take(0, 100, held=False)
    stretch.take(100, 200, moved_at=150 if moved else None)
    assert not stretch.tally.tellable
    stretch.take(200, 300)
    assert stretch.finish() == ((0, [], [0]) if moved else (300, [], []))
    assert stretch.tally.result(1.0).batches == (0 if moved else 200)


def test_a_late_start_that_its_age_explains_is_lawful_though_the_log_moved() -> None:
    stretch = Stretch(log_start=100, end=300, high_watermark=300, retention_ms=0)
    stretch.take(0, 100, held=False)
    stretch.take(100, 200, moved_at=150)
    stretch.take(200, 300)
    assert stretch.finish() == (150, [], [150])
