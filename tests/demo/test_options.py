"""What the demonstration says before it begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.demo import demo
from linker.cli.app import app
from wire.errors import LinkerError


def test_libraries_that_are_missing_are_installed_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name the package would come from whoever has registered that."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    told = demo._missing_libraries() or ""
    assert told.startswith("no aiokafka, confluent_kafka, kafka here; in the checkout, run: pip install ")
    assert told.endswith(" -r requirements-dev.lock")
    assert "kafka-linker" not in told


def test_the_installed_command_finds_the_lab_of_its_checkout(tmp_path: Path) -> None:
    """An editable installation does not map the lab, and `make demo` runs the command as it is installed."""
    command = Path(sys.executable).with_name("linker")
    done = subprocess.run(
        [command, "demo", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, "--out" in done.stdout) == (0, True), done


def test_a_package_without_a_checkout_says_where_the_demo_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linker.__file__", str(tmp_path / "linker" / "__init__.py"))
    with pytest.raises(LinkerError, match="clone the repository, and run `make demo` there"):
        CliRunner().invoke(app, ["demo"], catch_exceptions=False)
