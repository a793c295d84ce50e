"""report.json and the table under it: where it was measured, what came out, which goals are met."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import linker
from lab.bench.results import CaseResult, rounded
from lab.bench.settings import Settings
from lab.clusters.kafka_jars import DEFAULT_VERSION

_ADDITIONS = 2_000_000


def machine() -> dict[str, Any]:
    """The machine that the figures depend on."""
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _first_value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
        "python_seconds": python_seconds(),
    }


def python_seconds() -> float:
    """Processor seconds of ten million additions, the best of five: how fast the host is just now. A shared one may take
    half as long again on another day, and with it every figure in seconds.
    """
    best = float("inf")
    for _ in range(5):
        began, total = time.process_time(), 0
        for number in range(_ADDITIONS):
            total += number
        best = min(best, time.process_time() - began)
    return round(best * 10_000_000 / _ADDITIONS, 3)


def python_in_a_shared_library() -> bool:
    """Whether the interpreter is in libpython instead of in the executable: one way in which builds of Python differ, whose
    speed differs as well.
    """
    return "/libpython3" in Path("/proc/self/maps").read_text()


def versions() -> dict[str, Any]:
    return {
        "linker": linker.__version__,
        "revision": _output(["git", "describe", "--always", "--dirty"]),
        "kafka": DEFAULT_VERSION,
        "java": (_output(["java", "-version"]) or "").partition("\n")[0] or None,
        "python": platform.python_version(),
        "python_in_a_shared_library": python_in_a_shared_library(),
        "uvloop": version("uvloop"),
    }


def as_json(
    cases: Sequence[CaseResult],
    settings: Settings,
    *,
    quick: bool,
    started_at: str,
    machine_before: dict[str, Any],
    versions_before: dict[str, Any],
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    goals = [goal for case in cases for goal in case.goals]
    return {
        "quick": quick,
        "started_at": started_at,
        "machine": machine_before,
        "load_average_at_the_end": [round(one, 2) for one in os.getloadavg()],
        "python_seconds_at_the_end": python_seconds(),
        "versions": versions_before,
        "settings": asdict(settings),
        "all_goals_met": bool(goals) and not failures and all(goal.met for goal in goals),
        "failures": list(failures),
        "cases": {case.name: case.as_json() for case in cases},
    }


def write(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n")


def show(cases: Sequence[CaseResult], console: Console, *, quick: bool) -> None:
    """Every goal in one line, figures without a goal below them."""
    table = Table(title="quick look, nothing is judged" if quick else None)
    for heading in ("what", "measured", "goal", "met"):
        table.add_column(heading)
    for case in cases:
        for goal in case.goals:
            shown = goal.as_json()
            table.add_row(
                goal.name, f"{shown['value']} {goal.unit}".strip(), shown["goal"], "yes" if goal.met else "no"
            )
    console.print(table)
    for case in cases:
        figures = ", ".join(f"{name} {rounded(value)}" for name, value in case.figures.items())
        console.print(f"{case.name}: {figures}", soft_wrap=True, highlight=False)
        for problem in case.problems:
            console.print(f"  wrong: {problem}", soft_wrap=True, highlight=False)


def _first_value(path: str, key: str) -> str | None:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=20,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
