"""Late starts whose records at the source cannot be read any more: they are counted anew, or told as not readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.log import FakeLog
from tests.validator import logs
from tests.validator.without_spark import END, Runner, damage, found
from validator import batch_run
from validator.compare.columns import MOVED
from validator.compare.verdict import Judge, LogSide, RangeSpec, RangeVerdict
from validator.messages import Checked
from validator.read.spans import SOURCE


def before_reading(monkeypatch: pytest.MonkeyPatch, *edits: Callable[[], object]) -> None:
    """Each before one job of the run."""
    real, left = batch_run.compare, iter(edits)

    def compare(*args: Any) -> Any:
        next(left, lambda: None)()
        return real(*args)

    monkeypatch.setattr(batch_run, "compare", compare)


@pytest.mark.parametrize("late", [(2,), (1, 2, 3)], ids=["one", "all"])
async def test_a_source_that_moves_while_a_late_start_is_counted_is_counted_anew(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, late: tuple[int, ...]
):
    for node in late:
        damage(runner, lambda log: log.delete_until(80), node)
    before_reading(monkeypatch, lambda: runner.source.partition("t").log.delete_until(40))
    results = await runner.run(runner.plan(end=END))
    for one in results:
        assert one.through == END
        if one.broker_id in late:
            assert one.missing is not None
            assert (one.missing.start, one.missing.end, one.missing.records) == (40, 80, 40)
            assert found(one) == [("late_start", 40)]
            assert one.lawful == {"expired_at_source_offsets": 40}
        else:
            assert (one.missing, found(one)) == (None, [])
    assert runner.finished.mismatches == len(late)
    told = [one for event in runner.events if isinstance(event, Checked) for one in event.results]
    assert all(found(one) for one in told if one.broker_id in late), "nothing is told before it is counted"


async def test_a_source_that_moves_beyond_the_late_start_excuses_it(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    for node in (1, 2, 3):
        damage(runner, lambda log: log.delete_until(80), node)
    before_reading(monkeypatch, lambda: runner.source.partition("t").log.delete_until(85))
    results = await runner.run(runner.plan(end=END))
    assert [(one.through, found(one), one.missing) for one in results] == [(END, [], None)] * 3


async def test_a_source_that_keeps_moving_leaves_a_late_start_unproved(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    for node in (1, 2, 3):
        damage(runner, lambda log: log.delete_until(80), node)
    log = runner.source.partition("t").log
    moves = [lambda until=until: log.delete_until(until) for until in range(5, 80, 5)]  # type: ignore[misc]
    before_reading(monkeypatch, *moves)
    assert await runner.run(runner.plan(end=END)) == []
    assert "kept moving away" in runner.failed.reason


async def test_a_source_whose_batch_cannot_be_read_before_a_late_start_is_told(runner: Runner):
    for node in (1, 2, 3):
        damage(runner, lambda log: log.delete_until(80), node)
    logs.change(runner.source.partition("t").log, 20, logs.break_length)
    for one in await runner.run(runner.plan(end=END)):
        assert found(one) == [("late_start", 0), ("corrupt", 20)]
        assert one.findings[1].detail.startswith("at the source: ")
        assert one.missing is not None
        assert (one.missing.records, one.missing.exact) == (80, False), "as many as there are offsets"
        assert (one.start, one.through, one.records) == (80, END, END - 80)


async def test_a_source_that_moves_at_an_early_end_is_looked_at_again(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    short: FakeLog = damage(runner, lambda log: setattr(log, "high_watermark", 60))

    def move() -> None:
        runner.source.partition("t").log.delete_until(70)
        short.hold_high_watermark = False

    monkeypatch.setattr(batch_run, "make_groups", lambda all_: [[one] for one in all_])
    before_reading(monkeypatch, lambda: None, move)
    results = await runner.run(runner.plan())
    assert [(one.through, found(one)) for one in results] == [(END, [])] * 3


def test_the_marker_of_the_source_survives_json():
    judge = Judge(RangeSpec(3, 0, 10, ()))
    judge.group({SOURCE: [LogSide(4, *[0] * 10, marker=MOVED, note="gone")]})
    verdict = judge.finish()
    assert verdict.source_cut is not None
    assert RangeVerdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
