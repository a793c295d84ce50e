"""The regression guard and the page: what fell is told, what did not run is not, and the page holds what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench import guard, report
from lab.bench.page import draw, page
from lab.bench.results import CaseResult, Goal, Line, Strip
from lab.bench.run import CASES, default_cases, main
from lab.bench.settings import QUICK


def test_a_ratio_that_fell_by_a_quarter_is_told() -> None:
    recorded = {"replication": {"link / stock": 1.0, "other": 4.0}}
    told = guard.fallen(recorded, {"replication": {"link / stock": 0.74, "other": 3.0}})
    assert told == ["replication: link / stock has fallen from 1 to 0.74"]


def test_a_ratio_just_above_three_quarters_is_not_told() -> None:
    assert guard.fallen({"a": {"r": 1.0}}, {"a": {"r": 0.7501}}) == []


def test_cases_that_did_not_run_are_not_judged_but_missing_ratios_are() -> None:
    recorded = {"a": {"r": 1.0}, "b": {"r": 1.0}}
    assert guard.fallen(recorded, {"a": {}}) == ["a: r was recorded as 1 and is not measured any more"]
    assert guard.fallen(recorded, {}) == []


def test_no_number_is_no_good_number() -> None:
    assert guard.fallen({"a": {"r": 1.0}}, {"a": {"r": float("nan")}})


@pytest.mark.parametrize(("ratio", "quick", "code"), [(0.8, False, 0), (0.7, False, 1), (0.7, True, 0)])
def test_a_fallen_ratio_fails_the_benchmark(
    ratio: float, quick: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measured(*_arguments: object) -> tuple[list[CaseResult], list[str]]:
        return [CaseResult("case", "what", goals=[Goal("g", 1.0, 0.85, True)], ratios={"r": ratio})], []

    monkeypatch.setattr("lab.bench.run.measure", measured)
    monkeypatch.setattr("lab.bench.guard.load", lambda: {"case": {"r": 1.0}})
    assert main(["--out", str(tmp_path), *(["--quick"] if quick else [])]) == code
    failures = json.loads((tmp_path / "report.json").read_text())["failures"]
    assert failures == (["case: r has fallen from 1 to 0.7"] if code else [])


def test_recording_keeps_cases_that_were_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = tmp_path / "docs" / "recorded.json"
    recorded.parent.mkdir()
    recorded.write_text(json.dumps({"ratios": {"old": {"r": 2.0}, "case": {"r": 9.0}}}))
    monkeypatch.setattr(guard, "RECORDED", recorded)
    monkeypatch.setattr(guard, "PAGES", recorded.parent)
    monkeypatch.setattr(guard.load, "__defaults__", (recorded,))
    cases = [CaseResult("case", "what", ratios={"r": 1.5})]
    document = report.as_json(
        cases, QUICK, quick=False, started_at="now", machine_before={}, versions_before={}
    )
    (tmp_path / "report.json").write_text(json.dumps(document))
    (tmp_path / "report.html").write_text("page")
    assert guard.main(["--record", str(tmp_path)]) == 0
    assert guard.load() == {"old": {"r": 2.0}, "case": {"r": 1.5}}
    assert recorded.with_name("report.html").read_text() == "page"
    assert not recorded.with_name("report.json").exists()  # raw rounds stay where they were made


def test_quick_or_failed_runs_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RECORDED", tmp_path / "recorded.json")
    for quick, failures in ((True, []), (False, ["it broke"])):
        document = report.as_json(
            [], QUICK, quick=quick, started_at="now", machine_before={}, versions_before={}, failures=failures
        )
        (tmp_path / "report.json").write_text(json.dumps(document))
        assert guard.main(["--record", str(tmp_path)]) == 1
    assert not (tmp_path / "recorded.json").exists()


def test_fallen_ratios_are_recorded_only_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "docs" / "recorded.json"
    recorded.parent.mkdir()
    recorded.write_text(json.dumps({"ratios": {"case": {"r": 9.0}}}))
    monkeypatch.setattr(guard, "RECORDED", recorded)
    monkeypatch.setattr(guard, "PAGES", recorded.parent)
    monkeypatch.setattr(guard.load, "__defaults__", (recorded,))
    (tmp_path / "report.html").write_text("page")

    def record(failures: list[str], *more: str) -> int:
        document = report.as_json(
            [CaseResult("case", "what", ratios={"r": 1.5})],
            QUICK,
            quick=False,
            started_at="now",
            machine_before={},
            versions_before={},
            failures=failures,
        )
        (tmp_path / "report.json").write_text(json.dumps(document))
        return guard.main(["--record", str(tmp_path), *more])

    fell = "case: r has fallen from 9 to 1.5"
    assert record([fell]) == 1
    assert record([fell, "case: a copy differs"], "--because", "another host") == 1
    assert guard.load() == {"case": {"r": 9.0}}
    assert record([fell], "--because", "another host") == 0
    kept = json.loads(recorded.read_text())
    assert (kept["lowered"], kept["because"]) == ([fell], "another host")
    assert guard.load() == {"case": {"r": 1.5}}


def test_the_page_holds_goals_plots_and_problems_and_no_foreign_markup() -> None:
    case = CaseResult(
        "case",
        "what <b>",
        figures={"some_figure": 12.345},
        goals=[Goal("a goal", 0.5, 0.85, True)],
        plots=[
            Strip("speed", "MB/s", {"link": [1.0, 3.0, 2.0]}),
            Line("memory", "MiB", {"it": [(0, 1), (9, 2)]}),
        ],
        problems=["lost <script>"],
        checked={"batches": 7},
    )
    document = report.as_json(
        [case],
        QUICK,
        quick=True,
        started_at="now",
        machine_before=report.machine(),
        versions_before=report.versions(),
    )
    text = page(document, [case])
    for part in (
        "a goal",
        "some figure",
        "12.35",
        "lost &lt;script&gt;",
        "7 batches",
        "what &lt;b&gt;",
        "A quick look",
    ):
        assert part in text
    assert "<script" not in text
    assert text.count("<circle") == 3
    assert "median 2.0 MB/s" in text


def test_plots_without_anything_to_draw_are_sentences() -> None:
    assert draw(Strip("speed", "MB/s", {"link": []})) == "<p>No rounds.</p>"
    assert draw(Line("memory", "MiB", {})) == "<p>No samples.</p>"


def test_the_soak_runs_only_when_it_is_asked_for() -> None:
    assert set(CASES) - set(default_cases(quick=False)) == {"soak"}
    assert "soak" not in default_cases(quick=True)
