"""`linker demo`: live clients move from one real cluster to another, and every record is accounted for.

Options, exit code and report; what happens in between is scenario.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from admin.client import AdminError
from lab.clusters.kafka_jars import DEFAULT_VERSION
from lab.demo.report import DemoResult, show_report, write_report
from wire.errors import LinkerError

if TYPE_CHECKING:
    from lab.demo.scenario import Demo

OVERALL_TIMEOUT = 1800.0
CLIENT_LIBRARIES = ("aiokafka", "confluent_kafka", "kafka")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="linker demo",
        description="Start two real Kafka clusters, move live clients between them, check every record."
        " Needs Java 17 or 21, and Maven.",
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where report and logs go")
    parser.add_argument("--source-version", default=DEFAULT_VERSION, help="Kafka of the source")
    parser.add_argument("--target-version", default=DEFAULT_VERSION, help="Kafka of the target")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long clients run between two steps")
    parser.add_argument("--rate", type=float, default=1.0, help="times the usual 700 records per second")
    parser.add_argument("--keep", action="store_true", help="keep the clusters' data")
    chosen = parser.parse_args(arguments)
    chosen.out = chosen.out.absolute()
    return chosen


def _missing_libraries() -> str | None:
    """The client libraries are no dependency of the sidecar."""
    missing = [name for name in CLIENT_LIBRARIES if find_spec(name) is None]
    # Not by its name: it is on no index, and whoever registered the name there would be installed.
    how = "in the checkout, run: pip install --require-hashes --no-build-isolation -r requirements-dev.lock"
    return f"no {', '.join(missing)} here; {how}" if missing else None


def _scenario(chosen: argparse.Namespace, console: Console) -> Demo:
    from lab.demo.scenario import Demo, DemoOptions

    options = DemoOptions(
        out=chosen.out,
        source_version=chosen.source_version,
        target_version=chosen.target_version,
        seconds=chosen.seconds,
        rate=chosen.rate,
    )
    return Demo(options, console)


def _prepare(out: Path) -> None:
    """An empty place for this run; only what an earlier run made is removed."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("clusters", "sidecar"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("report.json", "clients.log"):
        (out / name).unlink(missing_ok=True)
    logging.basicConfig(
        filename=out / "clients.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.captureWarnings(True)


async def _run(demo: Demo) -> DemoResult:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(OVERALL_TIMEOUT):
        return await demo.run()


def _reasons(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reasons(one) for one in error.exceptions)
    if isinstance(error, TimeoutError):
        return str(error) or f"not done within {OVERALL_TIMEOUT:.0f} s"
    return str(error) or type(error).__name__


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration; the exit code."""
    chosen = _options(arguments)
    out: Path = chosen.out
    if missing := _missing_libraries():
        sys.stderr.write(f"linker demo: {missing}\n")
        return 1
    console = Console()
    _prepare(out)
    demo = _scenario(chosen, console)
    path = out / "report.json"
    try:
        with demo.progress.shown():
            result = asyncio.run(_run(demo))
    except (LinkerError, AdminError, OSError, ExceptionGroup, TimeoutError) as error:
        logging.getLogger(__name__).exception("the demonstration failed")
        failure = {"ok": False, "problems": [_reasons(error)], "phases_ms": demo.progress.phases_ms}
        path.write_text(json.dumps(failure, indent=2) + "\n")
        sys.stderr.write(f"linker demo: {_reasons(error)}\nlogs and data: {out}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("linker demo: interrupted\n")
        return 1
    write_report(result, path)
    show_report(result, console, path)
    if result.problems:
        console.print(f"logs and data: {out}", soft_wrap=True)
        return 1
    if not chosen.keep:
        shutil.rmtree(out / "clusters", ignore_errors=True)
    return 0
