"""Which failures get a second look, and what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import again

LATE = """
from pathlib import Path

def test_late():
    seen = Path("seen")
    before = seen.exists()
    seen.touch()
    assert before, "a broker did not come back"

def test_broken():
    assert Path("whole").exists()

def test_fine():
    pass
"""
DATA = """
def test_data():
    lost = ["a record"]
    assert not lost
"""


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str, *chosen: str) -> Path:
    """A run of such tests; its report."""
    monkeypatch.chdir(directory)
    (directory / "test_some.py").write_text(text)
    report = ["--junitxml=report.xml", "-o", "junit_family=xunit1"]
    tests = [f"test_some.py::{name}" for name in chosen] or ["test_some.py"]
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", *report, *tests], check=False).returncode
    assert code == 1
    return directory / "report.xml"


def test_what_passes_alone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path, monkeypatch, LATE, "test_late", "test_fine")
    assert [one.test for one in again.failures(report)] == ["test_some.py::test_late"]
    assert again.main([str(report)]) == 0
    assert (
        "UNSTABLE, failed beside others and passed alone: test_some.py::test_late" in capfd.readouterr().out
    )
    assert "a broker did not come back" in again.REPORT.read_text()


def test_what_fails_twice_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert again.main([str(run(tmp_path, monkeypatch, LATE))]) == 1
    assert not again.REPORT.exists()


def test_data_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert again.main([str(run(tmp_path, monkeypatch, DATA))]) == 1
    assert "test_some.py::test_data: what it says of data is no noise" in capfd.readouterr().err


def test_many_are_no_noise() -> None:
    some = [again.Failure(f"t{n}", "> assert ready") for n in range(again.FEW + 1)]
    assert again.refused(some[:-1]) is None
    assert again.refused(some) == "5 tests failed"
    assert again.refused([]) is not None


def test_the_text_of_an_error_is_no_data() -> None:
    told = again.Failure("told", '>       with pytest.raises(StoreError, match="lost on the way"):')
    held = again.Failure("held", ">       assert not lost")
    assert again.refused([told]) is None
    assert again.refused([held]) == "held: what it says of data is no noise"


def test_a_report_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the report"):
        again.failures(tmp_path / "none.xml")


def test_what_a_client_was_told_says_nothing_of_data() -> None:
    line = "    assert verdict.ok\n>   assert verdict.{} == 0"
    assert not again.Failure("t", line.format("unknown")).of_data
    assert not again.Failure("t", line.format("failed")).of_data
    assert again.Failure("t", ">   assert verdict.ok").of_data
    assert again.Failure("t", ">   assert_sound(verdict)\n>   assert not violations, violations").of_data
    assert not again.Failure("t", ">   assert_sound(verdict)\n>   assert not told, told").of_data
