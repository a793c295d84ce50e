"""The report: the keys that others read, and that nothing that is off ends as a success."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lab.demo.demo import main
from lab.demo.group_moves import GroupMoves
from lab.demo.progress import Progress
from lab.demo.report import DemoResult, show_report, write_report
from lab.demo.switch_report import Switch, Unrestarted
from lab.workload.checker import Finding, Verdict
from lab.workload.log_compare import Comparison, ReplicaComparison
from lab.workload.source_data import CODECS, LIVE_TOPICS, TOPICS
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)
FINDING = Finding(TP, 7, "p record 3 was acknowledged and is in no log")
GOOD_VERDICT = Verdict(
    acked=10, failed=0, unknown=0, read=20, reread=0, promote_pause_ms=120.5, usual_gap_ms=9
)
GOOD_REPLICA = ReplicaComparison(
    partition=TP,
    broker=1,
    comparison=Comparison.BYTES,
    start=0,
    end=10,
    batches=3,
    compared_bytes=300,
    offsets_identical=True,
    identical=True,
    difference=None,
)
SWITCHED = Unrestarted(
    switches=[Switch("there", (1.0, 2.0), {"FENCED": 31})],
    pauses_ms=[456.7],
    verdict=GOOD_VERDICT,
    groups=GroupMoves([], [], {}, {}),
    comparisons=[GOOD_REPLICA],
)
GOOD = DemoResult(
    verdict=GOOD_VERDICT,
    groups=GroupMoves([], [], {"a": 900.0}, {"a": 40.0}),
    unrestarted=SWITCHED,
    comparisons=[GOOD_REPLICA],
    followers=[GOOD_REPLICA],
    leaders={1: 4, 2: 4, 3: 4},
    sidecar_id=900,
    phases_ms={"fill": 12},
    more={"promote_ms": {"FENCED": 3}},
)


def test_the_keys_of_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(GOOD, path)
    report = json.loads(path.read_text())
    wanted = {
        "acked": 10,
        "lost": 0,
        "duplicated": 0,
        "reordered": 0,
        "client_errors": 0,
        "offsets_identical": True,
        "bytes_identical": True,
        "promote_pause_ms": 120.5,
        "consumer_missed": 0,
        "consumer_repeated": 0,
        "consumer_pause_ms": 900.0,
        "phases_ms": {"fill": 12},
        "switches": [{"direction": "there", "pause_ms": 456.7, "phases_ms": {"FENCED": 31}}],
        "source_bytes_identical_after": True,
        "ok": True,
        "problems": [],
    }
    assert {key: report[key] for key in wanted} == wanted
    assert "compacted" in report
    assert list(tmp_path.iterdir()) == [path]


BAD_REPLICA = dataclasses.replace(GOOD_REPLICA, identical=False, difference="batch at offset 4")
MOVED_REPLICA = dataclasses.replace(BAD_REPLICA, offsets_identical=False)


@pytest.mark.parametrize(
    "bad",
    [
        *(
            dataclasses.replace(GOOD, verdict=dataclasses.replace(GOOD_VERDICT, **{rule: [FINDING]}))  # type: ignore[arg-type]
            for rule in ("lost", "misplaced", "duplicated", "reordered", "phantom")
        ),
        *(
            dataclasses.replace(GOOD, verdict=dataclasses.replace(GOOD_VERDICT, **{rule: [FINDING]}))  # type: ignore[arg-type]
            for rule in ("misread", "skipped", "read_back", "unread")
        ),
        dataclasses.replace(GOOD, verdict=dataclasses.replace(GOOD_VERDICT, client_errors=["c: no"])),
        dataclasses.replace(GOOD, verdict=dataclasses.replace(GOOD_VERDICT, unknown=1)),
        dataclasses.replace(GOOD, groups=GroupMoves([FINDING], [], {}, {})),
        dataclasses.replace(GOOD, groups=GroupMoves([], [FINDING], {}, {})),
        dataclasses.replace(GOOD, verdict=dataclasses.replace(GOOD_VERDICT, acked=0)),
        dataclasses.replace(GOOD, comparisons=[GOOD_REPLICA, BAD_REPLICA]),
        dataclasses.replace(GOOD, comparisons=[MOVED_REPLICA]),
        dataclasses.replace(GOOD, comparisons=[]),
        dataclasses.replace(GOOD, followers=[BAD_REPLICA]),
        dataclasses.replace(GOOD, unrestarted=dataclasses.replace(SWITCHED, comparisons=[BAD_REPLICA])),
        dataclasses.replace(
            GOOD,
            unrestarted=dataclasses.replace(
                SWITCHED, verdict=dataclasses.replace(GOOD_VERDICT, lost=[FINDING])
            ),
        ),
        dataclasses.replace(GOOD, leaders={1: 4, 900: 1}),
        dataclasses.replace(GOOD, more={"records_of_last_year": {"source": 9, "target": 8}}),
        dataclasses.replace(GOOD, more={"records_of_last_year": {"source": 0, "target": 0}}),
    ],
)
def test_whatever_is_off_is_a_problem(bad: DemoResult, tmp_path: Path) -> None:
    report = bad.as_json()
    assert report["ok"] is False
    assert report["problems"]
    output = io.StringIO()
    show_report(bad, Console(file=output, width=100), tmp_path / "report.json")
    assert "not as it should be" in output.getvalue()


def test_replicas_that_differ_show_in_the_two_keys() -> None:
    by_bytes = dataclasses.replace(GOOD, comparisons=[GOOD_REPLICA, BAD_REPLICA])
    assert (by_bytes.bytes_identical, by_bytes.offsets_identical) == (False, True)
    by_offset = dataclasses.replace(GOOD, comparisons=[GOOD_REPLICA, MOVED_REPLICA])
    assert (by_offset.bytes_identical, by_offset.offsets_identical) == (False, False)
    nothing = dataclasses.replace(GOOD, comparisons=[])
    assert (nothing.bytes_identical, nothing.offsets_identical) == (False, False)


def test_a_good_result_shows_no_problem(tmp_path: Path) -> None:
    output = io.StringIO()
    show_report(GOOD, Console(file=output, width=100), tmp_path / "report.json")
    assert "not as it should be" not in output.getvalue()
    assert "120 ms" in output.getvalue()
    assert "457 ms" in output.getvalue()


def test_a_source_that_cannot_be_joined_is_left_without_a_switch(tmp_path: Path) -> None:
    left = dataclasses.replace(GOOD, unrestarted=None)
    report = left.as_json()
    assert (report["ok"], report["switches"], report["unrestarted"]) == (True, [], None)
    show_report(left, Console(file=io.StringIO(), width=100), tmp_path / "report.json")


def test_progress_without_a_terminal_is_lines() -> None:
    output = io.StringIO()
    progress = Progress(Console(file=output, width=40))
    with progress.shown():
        with progress.phase("one", "first thing") as now:
            now.detail = "a detail that is longer than the console is wide"
        with pytest.raises(RuntimeError), progress.phase("two", "second thing"):
            raise RuntimeError
    lines = output.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["...", "ok", "...", "!!"]
    assert now.detail in lines[1]
    assert set(progress.phases_ms) == {"one", "two"}


def test_progress_on_a_terminal_shows_phase_and_clients() -> None:
    output = io.StringIO()
    progress = Progress(Console(file=output, width=80, force_terminal=True), lambda: "17 acknowledged")
    with progress.shown(), progress.phase("one", "first thing"):
        progress.say("a line")
    assert "17 acknowledged" in output.getvalue()
    assert "first thing" in output.getvalue()


def test_the_source_holds_what_real_topics_hold() -> None:
    assert {3, 12} <= {topic.partitions for topic in TOPICS}
    assert all(3 <= topic.partitions <= 12 for topic in TOPICS)
    assert [topic.name for topic in TOPICS if topic.compacted] == ["accounts"]
    events = next(topic for topic in TOPICS if topic.name == "events")
    assert events.partitions == len(CODECS) + 1, "one codec each, and one that stays empty"
    assert {topic.name for topic in LIVE_TOPICS} == {topic.name for topic in TOPICS if topic.live}


def test_what_cannot_be_started_is_one_line_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert "java was not found" in capsys.readouterr().err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["ok"] is False
    assert "java was not found" in report["problems"][0]


def test_wrong_use_is_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as wrong:
        main(["--out", str(tmp_path), "--colour", "blue"])
    assert wrong.value.code == 2


def test_an_unknown_version_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "out"), "--target-version", "4.3.1; rm -rf /"]) == 1
    assert "is no Kafka version" in json.loads((tmp_path / "out" / "report.json").read_text())["problems"][0]
