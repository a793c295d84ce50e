"""`python -m bench.run --out DIR [--quick] [--case NAME ...]`: the whole benchmark on real clusters.

A full run exits with 1 if a goal is missed; a quick one only if something does not work. What a case does and
how it is measured stands in its own module.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench import followers, promote, replication, report, validate
from bench.results import CaseResult
from bench.settings import FULL, QUICK, Settings
from bench.stage import Source
from linker.demo.kafka_dist import ensure_distribution
from wire.errors import LinkerError

Say = Callable[[str], None]
Case = Callable[[Source, Settings, Say], Awaitable[CaseResult | list[CaseResult]]]

CASES: dict[str, Case] = {
    "replication": replication.run,
    "followers": followers.run,
    "promote": promote.run,
    "validate": validate.run,
}
OVERALL_TIMEOUT = 3600.0


async def measure(
    chosen: Sequence[str], directory: Path, settings: Settings, say: Say
) -> tuple[list[CaseResult], list[str]]:
    """All chosen cases one after the other; one that fails does not take the others with it."""
    results: list[CaseResult] = []
    failures: list[str] = []
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await ensure_distribution(progress=say)
    async with asyncio.timeout(OVERALL_TIMEOUT), Source(directory) as source:
        for name in chosen:
            say(f"{name} ...")
            try:
                outcome = await CASES[name](source, settings, lambda line, name=name: say(f"{name}: {line}"))  # type: ignore[misc]
            except* (LinkerError, OSError) as group:
                for error in group.exceptions:
                    logging.getLogger(__name__).exception("%s failed", name, exc_info=error)
                failures.append(f"{name}: {_reasons(group)}")
                say(f"{name} failed: {_reasons(group)}")
            else:
                results += outcome if isinstance(outcome, list) else [outcome]
    return results, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit code."""
    options = _options(arguments)
    settings = QUICK if options.quick else FULL
    out: Path = options.out.absolute()  # processes run in directories of their own
    console = Console()
    clusters = out / "clusters"
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(clusters, ignore_errors=True)
    clusters.mkdir()
    logging.basicConfig(
        filename=out / "bench.log",
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    machine = report.machine()
    try:
        cases, failures = asyncio.run(
            measure(
                options.case or list(CASES),
                clusters,
                settings,
                lambda line: console.print(line, highlight=False, soft_wrap=True),
            )
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("bench: interrupted\n")
        return 1
    except (LinkerError, OSError, TimeoutError, ExceptionGroup) as error:
        logging.getLogger(__name__).exception("the benchmark failed")
        sys.stderr.write(f"bench: {_reasons(error)}\nlogs: {out}\n")
        return 1
    document = report.as_json(
        cases,
        settings,
        quick=options.quick,
        started_at=started_at,
        machine_before=machine,
        failures=[*failures, *(problem for case in cases for problem in case.problems)],
    )
    report.write(document, out / "report.json")
    report.show(cases, console, quick=options.quick)
    console.print(f"report: {out / 'report.json'}", soft_wrap=True, highlight=False)
    if document["failures"]:
        return 1
    return 0 if options.quick or document["all_goals_met"] else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="directory of the report and of logs"
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round, nothing judged")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one; may be repeated")
    return parser.parse_args(arguments)


def _reasons(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reasons(one) for one in error.exceptions)
    if isinstance(error, TimeoutError):
        return str(error) or "not done in time"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
