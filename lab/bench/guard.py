"""The regression guard: a ratio that was recorded and has fallen by a quarter fails the benchmark. Pure but for its files.

Ratios compare two things of one run, larger is better, so they hold between machines better than any figure in MB/s.
`python -m lab.bench.guard --record build/bench` takes the page of a full run into `docs/benchmarks/`, and its ratios,
as those
to be held, into `lab/bench/recorded.json`. Raw rounds stay in `build/`: a repository is no place for them. A run that
failed is
not recorded; one that failed for fallen ratios alone is if somebody says why they are right as they are (`--because`),
which is kept beside them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FALLEN = 0.75
RECORDED = Path(__file__).with_name("recorded.json")
PAGES = Path(__file__).parents[1] / "docs" / "benchmarks"

Ratios = Mapping[str, Mapping[str, float]]  # by case, by name


def fallen(recorded: Ratios, measured: Ratios) -> list[str]:
    """A sentence for each recorded ratio that is now below three quarters of what it was; cases that did not run are
    not judged, a ratio that is missing from a case that did run is.
    """
    problems = []
    for case, ratios in recorded.items():
        if case not in measured:
            continue
        for name, was in ratios.items():
            now = measured[case].get(name)
            if now is None:
                problems.append(f"{case}: {name} was recorded as {was:.3g} and is not measured any more")
            elif not now >= FALLEN * was:  # NaN has fallen too
                problems.append(f"{case}: {name} has fallen from {was:.3g} to {now:.3g}")
    return problems


def load(path: Path = RECORDED) -> Ratios:
    """The recorded ratios; none if none were recorded."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    ratios: Ratios = document["ratios"]
    return ratios


def recorded_from(
    report: Mapping[str, Any], before: Ratios, lowered: Sequence[str] = (), because: str | None = None
) -> dict[str, Any]:
    """The document to keep: the report's ratios; those of cases that it lacks stay as they were. `lowered`: sentences about
    ratios that fell, and `because` why that is right.
    """
    ratios = {case: dict(of) for case, of in before.items()}
    ratios |= {name: dict(case["ratios"]) for name, case in report["cases"].items() if case["ratios"]}
    return {
        "recorded_at": report["started_at"],
        "machine": report["machine"],
        "versions": report["versions"],
        **({"lowered": list(lowered), "because": because} if lowered else {}),
        "ratios": ratios,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.guard", description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="directory of a full run")
    parser.add_argument("--because", help="why ratios that fell are right as they are now")
    options = parser.parse_args(arguments)
    directory: Path = options.record
    report = json.loads((directory / "report.json").read_text())
    before = load()
    measured = {name: case["ratios"] for name, case in report["cases"].items() if case["ratios"]}
    lowered = fallen(before, measured)
    if report["quick"] or set(report["failures"]) - set(lowered if options.because else ()):
        sys.stderr.write(
            "guard: a quick run, or one that failed, is not recorded (for fallen ratios alone: --because)\n"
        )
        return 1
    document = recorded_from(report, before, lowered, options.because)
    RECORDED.write_text(json.dumps(document, indent=2) + "\n")
    shutil.copyfile(directory / "report.html", PAGES / "report.html")
    sys.stdout.write(f"recorded in {RECORDED}, page in {PAGES}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
