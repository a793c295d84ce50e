"""Every client library through link, move and promote, judged library by library. Exit 0 only if all is well."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linker.demo.kafka_dist import DEFAULT_VERSION, ensure_distribution
from tests.clients.build import Builder
from tests.clients.catalog import GROUPS, PRODUCERS
from tests.clients.plain import plain_groups, plain_producers
from tests.clients.producers import producers
from tests.clients.stage import stage

BOOKKEEPING = ("version", "ok", "error_texts", "evidence", "skipped", "broke")


async def matrix(options: argparse.Namespace) -> int:
    """Run what was asked for and write the report; the exit code."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    await ensure_distribution(progress=print)
    wanted = [name for name in (options.only or "").split(",") if name]
    some_producers = [
        case
        for case in PRODUCERS
        if (any(name in case.name for name in wanted) if wanted else case.quick or options.all)
    ]
    some_groups = [
        case
        for case in GROUPS
        if (any(name in case.name for name in wanted) if wanted else case.quick or options.all)
    ]
    began = time.monotonic()
    builder = Builder(out / "programs")
    report: dict[str, Any] = {"kafka": DEFAULT_VERSION}
    with tempfile.TemporaryDirectory(prefix="linker-clients-") as scratch:
        async with stage(Path(scratch), builder, out / "logs", link=not options.plain) as made:
            if "producers" in options.parts:
                run = plain_producers if options.plain else producers
                report["producers"] = await run(made, some_producers)
                show("producers", report["producers"])
            if "groups" in options.parts and options.plain:
                report["groups"] = await plain_groups(made, some_groups)
                show("groups", report["groups"])
    rows = [row for part in ("producers", "groups") for row in report.get(part, {}).values()]
    report["seconds"] = round(time.monotonic() - began)
    report["ok"] = bool(rows) and all(row.get("ok", "skipped" in row) for row in rows)
    name = "plain.json" if options.plain else "report.json"
    (out / name).write_text(json.dumps(report, indent=2) + "\n")
    print(f"{'ok' if report['ok'] else 'NOT OK'} after {report['seconds']} s, see {out / name}")
    return 0 if report["ok"] else 1


def show(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """One line per client, its skipping or breaking included."""
    print(f"{title}:")
    for name, row in rows.items():
        if "skipped" in row:
            print(f"  {name}: SKIPPED, {row['skipped']}")
            continue
        figures = ", ".join(f"{key} {value}" for key, value in row.items() if key not in BOOKKEEPING)
        print(f"  {'ok    ' if row['ok'] else 'NOT OK'} {name} {row.get('version', '')}: {figures}")
        for text in [
            *row.get("error_texts", []),
            *row.get("evidence", []),
            *([row["broke"]] if "broke" in row else []),
        ]:
            print(f"           {text}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--out", default="build/clients")
    parser.add_argument("--all", action="store_true", help="the whole matrix instead of the short one")
    parser.add_argument("--only", help="cases whose names hold one of these, with commas between")
    parser.add_argument("--parts", default="producers,groups", type=lambda text: text.split(","))
    parser.add_argument(
        "--plain", action="store_true", help="the programs alone, on one cluster without a link"
    )
    return asyncio.run(matrix(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
