"""What measures has to measure right: growth of logs, goals, medians, memory, and the batches that fill topics."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.bench import report
from lab.bench.cluster import BenchError
from lab.bench.growth import GrowthWatch, log_bytes
from lab.bench.load import build_batch
from lab.bench.memory import MemoryWatch, bytes_read
from lab.bench.results import CaseResult, Goal, median_of, rounded
from lab.bench.run import main, measure
from lab.bench.settings import FULL, QUICK, Settings
from lab.bench.stage import require_disk
from lab.clusters.child_process import ChildProcess
from wire.frames.batch import iter_records, read_batch_header


def test_batches_are_valid_and_as_large_as_asked() -> None:
    batch = build_batch(1000, 128 * 1024, 1234)
    header = read_batch_header(batch, 0)
    records = list(iter_records(batch, header))
    assert header.end == len(batch)
    assert header.crc_ok(batch)
    assert 128 * 1024 - 1100 < len(batch) <= 128 * 1024
    assert len(records) == header.record_count
    assert all(len(record.value or b"") == 1000 for record in records)


def test_one_record_larger_than_the_batch_is_a_batch_of_its_own() -> None:
    batch = build_batch(5000, 1000, 0)
    assert read_batch_header(batch, 0).record_count == 1


def test_only_log_files_count_and_missing_directories_are_empty(tmp_path: Path) -> None:
    (tmp_path / "00.log").write_bytes(b"x" * 10)
    (tmp_path / "10.log").write_bytes(b"x" * 5)
    (tmp_path / "00.index").write_bytes(b"x" * 99)
    assert log_bytes([tmp_path, tmp_path / "not-there"]) == 15


async def test_growth_counts_from_the_first_bytes_to_the_last(tmp_path: Path) -> None:
    used = iter((1.0, 3.5))
    watch = GrowthWatch([tmp_path], 3000, {"process": lambda: next(used)})
    await asyncio.sleep(0.1)  # waiting for the first byte is not copying
    log = tmp_path / "0.log"
    log.write_bytes(b"x" * 1000)
    await asyncio.sleep(0.2)
    log.write_bytes(b"x" * 3000)
    growth = await watch.done()
    assert growth.bytes == 2000
    assert 0.15 < growth.seconds < 1.0
    assert growth.cpu_seconds == {"process": 2.5}
    assert growth.mb_per_second == pytest.approx(0.002 / growth.seconds)
    assert growth.cpu_per_gb("process") == pytest.approx(2.5 / 2e-6)


async def test_a_log_longer_than_the_leaders_is_an_error(tmp_path: Path) -> None:
    watch = GrowthWatch([tmp_path], 100, {})
    (tmp_path / "0.log").write_bytes(b"x" * 101)
    with pytest.raises(BenchError, match="101 bytes where the leader has 100"):
        await watch.done()


async def test_a_cancelled_watch_ends(tmp_path: Path) -> None:
    watch = GrowthWatch([tmp_path], 100, {})
    waiting = asyncio.create_task(watch.done())
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(BenchError, match="no longer watched"):
        await watch._task


class Child(ChildProcess):
    def start(self, command: list[str], directory: Path) -> None:
        self._launch(command, directory)


async def test_memory_peak_and_bytes_read_of_a_process(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "early = bytearray(200 << 20); del early\n"
        "open('ready', 'w').close()\n"
        "while not __import__('os').path.exists('go'): time.sleep(0.01)\n"
        "kept = bytearray(b'x') * (60 << 20)\n"
        "open('/dev/zero', 'rb', 0).read(5 << 20)\n"
        "open('done', 'w').close()\n"
        "time.sleep(60)\n"
    )
    child = Child("child", tmp_path / "log")
    child.start([sys.executable, "-c", script], tmp_path)
    try:
        await _exists(tmp_path / "ready")
        before = bytes_read(child)
        async with MemoryWatch(child) as memory:
            (tmp_path / "go").touch()
            await _exists(tmp_path / "done")
            await asyncio.sleep(0.1)
        assert 60 << 20 < memory.peak < 150 << 20  # what was held before does not count
        assert bytes_read(child) - before >= 5 << 20
        assert max(memory.every_second()) == max(size for _, size in memory.samples)
    finally:
        await child.kill()


async def _exists(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


def test_goals_are_met_at_their_bound() -> None:
    assert Goal("ratio", 0.85, 0.85, at_least=True).met
    assert not Goal("ratio", 0.8499, 0.85, at_least=True).met
    assert Goal("cpu", 0.8, 0.8, at_least=False).met
    assert not Goal("cpu", 0.8001, 0.8, at_least=False).met


def test_medians_and_rounding() -> None:
    assert median_of([{"a": 3.0}, {"a": 1.0}, {"a": 2.0}], "a") == 2.0
    assert rounded({"a": 0.12345, "b": [12.345, 1234.56], "c": None}) == {
        "a": 0.123,
        "b": [12.35, 1234.6],
        "c": None,
    }


@pytest.mark.parametrize(
    ("value", "failures", "met"), [(0.9, [], True), (0.8, [], False), (0.9, ["it broke"], False)]
)
def test_the_report_says_whether_all_goals_are_met(value: float, failures: list[str], met: bool) -> None:
    case = CaseResult("case", "what", {"link": [{"x": 1.0}]}, {"x": 1.0}, [Goal("g", value, 0.85, True)])
    document = report.as_json(
        [case],
        QUICK,
        quick=False,
        started_at="now",
        machine_before=report.machine(),
        versions_before=report.versions(),
        failures=failures,
    )
    assert document["all_goals_met"] is met
    assert json.loads(json.dumps(document))["cases"]["case"]["rounds"] == {"link": [{"x": 1.0}]}


def test_a_run_without_any_goal_meets_none() -> None:
    document = report.as_json([], QUICK, quick=False, started_at="now", machine_before={}, versions_before={})
    assert document["all_goals_met"] is False


@pytest.mark.parametrize(
    ("value", "problems", "quick", "code"),
    [(0.9, [], False, 0), (0.8, [], False, 1), (0.8, [], True, 0), (0.9, ["lost"], True, 1)],
)
def test_exit_code(
    value: float,
    problems: list[str],
    quick: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def measured(*_arguments: object) -> tuple[list[CaseResult], list[str]]:
        case = CaseResult("case", "what", goals=[Goal("g", value, 0.85, True)], problems=problems)
        return [case], []

    monkeypatch.setattr("lab.bench.run.measure", measured)
    arguments = ["--out", str(tmp_path), *(["--quick"] if quick else [])]
    assert main(arguments) == code
    assert json.loads((tmp_path / "report.json").read_text())["failures"] == [
        f"case: {problem}" for problem in problems
    ]


def test_a_run_of_some_partition_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    async def measured(
        _chosen: object, _directory: object, settings: Settings, _say: object
    ) -> tuple[list[CaseResult], list[str]]:
        seen.append(settings)
        return [], []

    monkeypatch.setattr("lab.bench.run.measure", measured)
    main(["--out", str(tmp_path), "--case", "switch", "--partitions", "1,100", "--rounds", "2"])
    assert seen == [replace(FULL, promoted=(1, 100), promotes=2, rounds=2)]


async def test_a_case_that_breaks_does_not_take_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoSource:
        def __init__(self, *_arguments: object, **_more: object) -> None: ...

        async def __aenter__(self) -> NoSource:
            return self

        async def __aexit__(self, *_error: object) -> None: ...

    async def broken(*_arguments: object) -> CaseResult:
        raise KeyError("figure")

    async def whole(*_arguments: object) -> CaseResult:
        return CaseResult("whole", "what")

    async def ready(**_more: object) -> None: ...

    monkeypatch.setattr("lab.bench.run.Source", NoSource)
    monkeypatch.setattr("lab.bench.run.ensure_distribution", ready)
    monkeypatch.setattr("lab.bench.run.CASES", {"broken": broken, "whole": whole})
    cases, failures = await measure(["broken", "whole"], tmp_path, QUICK, lambda _line: None)
    assert [case.name for case in cases] == ["whole"]
    assert failures == ["broken: 'figure'"]


def test_a_case_that_does_not_fit_on_the_disk_is_not_begun(tmp_path: Path) -> None:
    require_disk(tmp_path, 1, "little")
    with pytest.raises(BenchError, match=rf"^much writes 1000000 GB, and {tmp_path} has \d+ GB left$"):
        require_disk(tmp_path, 1e15, "much")
