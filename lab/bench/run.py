"""`python -m lab.bench.run --out DIR [--quick] [--case NAME ...]`: the whole benchmark on real clusters.

A full run exits with 1 if a goal is missed, or if a recorded ratio has fallen by a quarter (guard.py); a quick one only
if something does not work. A case and its
measuring stand in a module of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from lab.bench import (
    catch_up,
    followers,
    forward,
    forward_client,
    groups,
    guard,
    latency,
    many_partitions,
    many_topics,
    page,
    promote,
    replication,
    report,
    reverse_ways,
    soak,
    stalls,
    switch,
    validate,
)
from lab.bench.results import CaseResult
from lab.bench.settings import FULL, QUICK, Settings
from lab.bench.stage import Source
from lab.clusters.kafka_jars import ensure_distribution
from wire.errors import LinkerError

Say = Callable[[str], None]
Case = Callable[[Source, Settings, Say], Awaitable[CaseResult | list[CaseResult]]]

CASES: dict[str, Case] = {
    **{
        work.name: replication.case(work) for work in (replication.LARGE, replication.SMALL, replication.ZSTD)
    },
    "followers": followers.run,
    "many_partitions": many_partitions.run,
    "many_topics": many_topics.run,
    "stalls": stalls.run,
    "catch_up": catch_up.run,
    "groups": groups.run,
    "forward": forward.run,
    "forward_client": forward_client.run,
    "latency": latency.run,
    "promote": promote.run,
    "promote_many": promote.run_many,
    "switch": switch.run,
    "sync_latency": switch.run_sync,
    "reversed": reverse_ways.run,
    "validate": validate.run,
    "soak": soak.run,
}
ON_REQUEST = ("soak",)  # half an hour by itself
LONG_ON_REQUEST = ("validate",)  # not part of a quick look
OVERALL_TIMEOUT = 2 * 3600.0


def default_cases(*, quick: bool) -> list[str]:
    """The cases that run when none is named."""
    left_out = (*ON_REQUEST, *(LONG_ON_REQUEST if quick else ()))
    return [name for name in CASES if name not in left_out]


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
    async with (
        asyncio.timeout(OVERALL_TIMEOUT),
        Source(directory, quick_start=settings.quick_start) as source,
    ):
        for name in chosen:
            say(f"{name} ...")
            try:
                outcome = await CASES[name](source, settings, lambda line, name=name: say(f"{name}: {line}"))  # type: ignore[misc]
            except* Exception as group:  # whatever it is: what the others measured in half an hour is kept
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
    if options.partitions is not None:
        settings = replace(settings, promoted=tuple(options.partitions))
    if options.largest_topic is not None:
        settings = replace(settings, largest_topic=options.largest_topic)
    if options.rounds is not None:
        settings = replace(settings, rounds=options.rounds, promotes=options.rounds)
    if options.soak_minutes is not None:
        settings = replace(settings, soak_seconds=60.0 * options.soak_minutes)
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
    # Before the run: somebody may go on committing meanwhile.
    machine, versions = report.machine(), report.versions()
    try:
        cases, failures = asyncio.run(
            measure(
                options.case or default_cases(quick=options.quick),
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
    problems = [f"{case.name}: {problem}" for case in cases for problem in case.problems]
    measured = {case.name: case.ratios for case in cases if case.ratios}
    regressions = [] if options.quick else guard.fallen(guard.load(), measured)
    document = report.as_json(
        cases,
        settings,
        quick=options.quick,
        started_at=started_at,
        machine_before=machine,
        versions_before=versions,
        failures=[*failures, *problems, *regressions],
    )
    report.write(document, out / "report.json")
    (out / "report.html").write_text(page.page(document, cases))
    report.show(cases, console, quick=options.quick)
    console.print(
        f"report: {out / 'report.json'}, page: {out / 'report.html'}", soft_wrap=True, highlight=False
    )
    if document["failures"]:
        for line in document["failures"]:
            console.print(f"wrong: {line}", soft_wrap=True, highlight=False)
        return 1
    return 0 if options.quick or document["all_goals_met"] else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.run", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="directory of the report and of logs"
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round, nothing judged")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one; may be repeated")
    parser.add_argument(
        "--partitions",
        type=lambda text: [int(one) for one in text.split(",")],
        help="of the topics that are promoted or switched: 1,100",
    )
    parser.add_argument(
        "--largest-topic", type=int, help="partitions of the topics that are switched together"
    )
    parser.add_argument("--rounds", type=int, help="of latencies, promotes and switches")
    parser.add_argument("--soak-minutes", type=float, help="how long the case soak lasts")
    return parser.parse_args(arguments)


def _reasons(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reasons(one) for one in error.exceptions)
    if isinstance(error, TimeoutError):
        return str(error) or "not done in time"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
