"""Every client library through link, move and promote, judged library by library. Exit 0 only if all is well."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.clusters.kafka_jars import DEFAULT_VERSION, ensure_distribution
from tests.clients.build import Builder
from tests.clients.catalog import GROUPS, PRODUCERS, SWITCHES, GroupCase, ProducerCase, SwitchCase
from tests.clients.hand_over import AT_ONCE, Plan, hand_overs
from tests.clients.leaders import leader_changes
from tests.clients.plain import plain_groups, plain_producers, standbys
from tests.clients.producers import HELD_SECONDS, producers
from tests.clients.stage import stage
from tests.clients.switches import COPIES, QUICK_SECONDS, SECONDS, switches

PARTS = ("producers", "groups", "switches", "standbys", "leaders")
BOOKKEEPING = ("version", "ok", "error_texts", "evidence", "skipped", "broke")


async def matrix(options: argparse.Namespace) -> int:
    """Run what was asked for and write the report; the exit code."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    await ensure_distribution(progress=print)
    wanted = [name for name in (options.only or "").split(",") if name]

    def chosen(case: ProducerCase | GroupCase | SwitchCase) -> bool:
        return any(name in case.name for name in wanted) if wanted else case.quick or options.all

    some_producers = [case for case in PRODUCERS if chosen(case)]
    some_groups = [case for case in GROUPS if chosen(case)]
    some_switches = [case for case in SWITCHES if chosen(case)] if "switches" in options.parts else []
    began = time.monotonic()
    builder = Builder(out / "programs")
    await builder.build(
        [
            *(case.library for case in [*some_producers, *some_groups]),
            *(library for case in some_switches for library in case.libraries),
        ]
    )
    report: dict[str, Any] = {"kafka": DEFAULT_VERSION, "load_average_before": round(os.getloadavg()[0], 1)}
    try:
        with tempfile.TemporaryDirectory(prefix="linker-clients-") as scratch:
            if "leaders" in options.parts:
                rows = report["leaders"] = {}
                await leader_changes(
                    Path(scratch), builder, out / "logs", [*some_producers, *some_groups], rows, show
                )
            async with stage(
                Path(scratch),
                builder,
                out / "logs",
                link=not options.plain,
                gate=options.gate,
                source_brokers=COPIES if some_switches else 1,
            ) as made:
                if "producers" in options.parts:
                    rows = report["producers"] = {}
                    if options.plain:
                        await plain_producers(made, some_producers, rows, show)
                    else:
                        await producers(made, some_producers, rows, show, options.hold, options.events)
                if "groups" in options.parts:
                    rows = report["groups"] = {}
                    if options.plain:
                        await plain_groups(made, some_groups, rows, show)
                    else:
                        plan = Plan(
                            at_once=options.at_once, gate_minutes=options.gate_minutes, demote=options.demote
                        )
                        await hand_overs(made, _crashes(some_groups, options.crash), rows, show, plan)
                if some_switches:
                    await switches(
                        made, some_switches, report.setdefault("switches", {}), show, options.switch_seconds
                    )
                if "standbys" in options.parts:
                    await standbys(made, some_groups, report.setdefault("standbys", {}), show)
    except BaseException as error:
        report["broke"] = repr(error)
        raise
    finally:  # what was seen until then is worth keeping
        every = [row for part in PARTS for row in report.get(part, {}).values()]
        report["load_average_after"] = round(os.getloadavg()[0], 1)
        report["seconds"] = round(time.monotonic() - began)
        report["ok"] = (
            bool(every) and "broke" not in report and all(row.get("ok", "skipped" in row) for row in every)
        )
        written = out / ("plain.json" if options.plain else "report.json")
        written.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{'ok' if report['ok'] else 'NOT OK'} after {report['seconds']} s, see {written}")
    return 0 if report["ok"] else 1


def _crashes(cases: Sequence[GroupCase], which: str) -> list[tuple[GroupCase, bool]]:
    """Each case with or without the death of the sidecar; half: every second one with it."""
    if which == "both":
        return [(case, crash) for case in cases for crash in (False, True)]
    return [
        (case, which == "yes" or (which == "half" and bool(index % 2))) for index, case in enumerate(cases)
    ]


def show(name: str, row: dict[str, Any]) -> None:
    """One line for a client as soon as it is through, its skipping or breaking included."""
    if "skipped" in row:
        print(f"SKIPPED {name}: {row['skipped']}", flush=True)
        return
    figures = ", ".join(f"{key} {value}" for key, value in row.items() if key not in BOOKKEEPING)
    print(f"{'ok     ' if row['ok'] else 'NOT OK '} {name} {row.get('version', '')}: {figures}", flush=True)
    broke = [row["broke"]] if "broke" in row else []
    for text in [*row.get("error_texts", []), *row.get("evidence", []), *broke]:
        print(f"        {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--out", default="build/clients")
    parser.add_argument("--all", action="store_true", help="the whole matrix instead of the short one")
    parser.add_argument("--only", help="cases whose names hold one of these, with commas between")
    parser.add_argument("--parts", type=lambda text: text.split(","), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--crash",
        choices=("half", "both", "yes", "no"),
        help="which groups are moved while the sidecar is killed; both with --all, else half of them",
    )
    parser.add_argument(
        "--gate", default="auto", help="what holds the groups, as the link's option groups_gate"
    )
    parser.add_argument(
        "--hold", type=float, default=HELD_SECONDS, help="seconds that transactions wait for the promote"
    )
    parser.add_argument(
        "--events",
        choices=("every", "first", "none"),
        help="in which waves of producers the target is rolled and the sidecar killed; every with --all, else none",
    )
    parser.add_argument(
        "--gate-minutes", type=float, default=0.0, help="how long groups are held on the target"
    )
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="groups that are moved together")
    parser.add_argument(
        "--demote",
        action=argparse.BooleanOptionalAction,
        help="whether the promote of a group is taken back and made again; it is with --all",
    )
    parser.add_argument("--switch-seconds", type=float, help="of traffic after each switch; more with --all")
    parser.add_argument(
        "--plain", action="store_true", help="the programs alone, on one cluster without a link"
    )
    options = parser.parse_args(arguments)
    options.parts = options.parts or ["producers", "groups", *([] if options.plain else ["switches"])]
    if unknown := set(options.parts).difference(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    if options.plain and "switches" in options.parts:
        parser.error("switches: nothing is switched without a link")
    if not options.plain and (alone := {"standbys", "leaders"}.intersection(options.parts)):
        parser.error(f"{', '.join(sorted(alone))}: looked at without a link: --plain")
    if options.switch_seconds is None:
        options.switch_seconds = SECONDS if options.all else QUICK_SECONDS
    options.crash = options.crash or ("both" if options.all else "half")
    options.events = options.events or ("every" if options.all else "none")
    options.demote = options.all if options.demote is None else options.demote
    return asyncio.run(matrix(options))


if __name__ == "__main__":
    sys.exit(main())
