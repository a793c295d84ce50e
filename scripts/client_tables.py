"""Fill the tables of docs/ that say what client libraries did, from reports of `make clients`; --check compares.

    python scripts/client_tables.py build/clients/report.json    # take in a report, write the tables
    python scripts/client_tables.py build/clients/plain.json     # the same of --plain --parts standbys
    python scripts/client_tables.py --check

Measurements are kept in tests/clients/measured.json, row by row, the newest run of each case; a table is the
text between `<!-- clients: NAME -->` and `<!-- end -->`. Nobody writes a figure into either by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = Path(__file__).parents[1] / "tests" / "clients" / "measured.json"
LONGEST_TEXT = 60
CRASHED = r" with a crash$"
ALLOWED_MS = 1000.0
WAYS = ("there", "back")
PAGES = ("benchmarks/clients.md",)

Row = Mapping[str, Any]
Column = tuple[str, Callable[[str, Row], object]]


def figure(key: str, unit: str = "") -> Callable[[str, Row], object]:
    def read(_name: str, row: Row) -> object:
        value = row.get(key)
        if value is None:
            return "-"
        return f"{round(value) if isinstance(value, float) else value}{unit}"

    return read


def client(name: str, row: Row) -> str:
    name = re.sub(rf"(-transactions)?({CRASHED})?$", "", name)
    version = str(row.get("version", ""))
    return name if version in name else f"{name} {version}"


def errors(_name: str, row: Row) -> str:
    texts = "; ".join(short(str(text)) for text in row.get("error_texts", []))
    counts = sorted(row.get("errors_at", {}).items())
    when = ", ".join(f"{count} at the {'switch ' * (event in WAYS)}{event}" for event, count in counts)
    own = f"{row['own_errors']} its own" if row.get("own_errors") else ""
    why = "; ".join(text for text in (own, when, texts) if text)
    return f"{row['errors']}{f' ({why})' if why else ''}"


def short(text: str) -> str:
    """Enough of an error to look it up: the whole text stands in the kept row."""
    text = re.sub(r"\b(?:[a-z]+\.)+([A-Z]\w+)", r"\1", text)  # Java's packages
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT].rstrip()}..."


def wrong(_name: str, row: Row) -> str:
    return " / ".join(str(row[key]) for key in ("lost", "duplicated", "reordered"))


def several(*keys: str) -> Callable[[str, Row], object]:
    def read(name: str, row: Row) -> object:
        return " / ".join(str(figure(key)(name, row)) for key in keys)

    return read


def longest(*keys: str) -> Callable[[str, Row], object]:
    def read(_name: str, row: Row) -> object:
        return round(max((row.get(key) or 0.0 for key in keys), default=0.0))

    return read


def switched(name: str, row: Row) -> object:
    """Of the same client: the longest gaps there and back, in ms, and whatever was wrong."""
    at = row.get("switched")
    if at is None:
        return "-"
    if "broke" in at:
        return "did not end"
    gaps = several("there_gap_ms", "back_gap_ms")(name, at)
    wrong = {
        "errors": "errors",
        "lost": "lost",
        "duplicated": "doubled",
        "reordered": "out of order",
        "missed": "missed",
    }
    found = ", ".join(f"{at[key]} {word}" for key, word in wrong.items() if at[key])
    return f"{gaps} ({found})" if found else gaps


def unasked(row: Row) -> bool:
    return "skipped" in row


def goal(key: str) -> Callable[[str, Row], object]:
    def read(_name: str, row: Row) -> object:
        return "-" if key not in row else "met" if row[key] else "missed"

    return read


PRODUCERS: Sequence[Column] = (
    ("client", client),
    ("acknowledged", figure("acked")),
    ("errors", errors),
    ("unknown", figure("unknown")),
    ("lost / doubled / out of order", wrong),
    ("longest gap between acks, ms", figure("largest_ack_gap_ms")),
    ("at the roll", figure("roll_gap_ms")),
    ("at the kill", figure("kill_gap_ms")),
    ("at the promote", figure("promote_gap_ms")),
    ("goal: 1 s", goal("gap_goal_met")),
    ("switched under it at the source, and back: gap, ms", switched),
    ("load", figure("load_average")),
)
SWITCHES: Sequence[Column] = (
    ("client", client),
    ("acknowledged", figure("acked")),
    ("errors", errors),
    ("unknown", figure("unknown")),
    ("lost / doubled / out of order", wrong),
    ("longest gap between acks, ms: before", figure("before_gap_ms")),
    ("join, mirror, sync", longest("join_gap_ms", "mirror_gap_ms", "sync_gap_ms")),
    ("switch there", figure("there_gap_ms")),
    ("switch back", figure("back_gap_ms")),
    ("of one partition, there / back", several("there_partition_gap_ms", "back_partition_gap_ms")),
    ("records", figure("records")),
    ("missed / repeated / joined its group again", several("missed", "repeated", "rejoins")),
    (
        "longest pause of a partition's reader, ms, there / back",
        several("there_read_pause_ms", "back_read_pause_ms"),
    ),
    ("load", figure("load_average")),
)
TRANSACTIONS: Sequence[Column] = (
    ("client", client),
    ("committed", figure("acked")),
    ("before the promote", figure("acked_before_promote")),
    ("errors", errors),
    ("lost / doubled / out of order", wrong),
    ("held, ms", figure("held_ms")),
    ("first commit after the promote was asked for, ms", figure("resumed_ms")),
    ("load", figure("load_average")),
)
GROUPS: Sequence[Column] = (
    ("members", client),
    ("sidecar killed", lambda name, _row: "yes" if name.endswith("with a crash") else "no"),
    ("held by", figure("gate")),
    ("records", figure("records")),
    ("missed", figure("missed")),
    ("repeated", figure("repeated")),
    ("too early", figure("too_early")),
    ("last partition read after opening, ms", figure("opening_ms")),
    ("after a demote and a second promote", figure("reopening_ms")),
    ("demote, ms", figure("demote_ms")),
    ("own time to join, ms", figure("join_ms")),
    ("own time to take over, ms", figure("takeover_ms")),
    ("goal: 1 s more than its own time", goal("within_own_time")),
    ("longest pause, ms", figure("longest_pause_ms")),
    ("errors", errors),
    ("load", figure("load_average")),
)
HELD: Sequence[Column] = (
    ("members", client),
    ("held by", figure("gate")),
    ("gate closed, minutes", lambda _name, row: round(row["held_ms"] / 60_000, 1)),
    ("looks at it", figure("looks_at_gate")),
    ("records", figure("records")),
    ("missed", figure("missed")),
    ("repeated", figure("repeated")),
    ("too early", figure("too_early")),
    ("promote, ms", figure("promote_ms")),
    ("of it until the sidecar was asked", figure("command_ms")),
    ("last partition read after opening, ms", figure("opening_ms")),
    ("demote, ms", figure("demote_ms")),
    ("second promote, ms", figure("promote_again_ms")),
    ("last partition read after it, ms", figure("reopening_ms")),
    ("errors", errors),
    ("load", figure("load_average")),
)


def tables(measured: Mapping[str, Mapping[str, Row]]) -> dict[str, str]:
    """The tables by name."""
    writers = measured.get("producers", {})
    transactional = {name: row for name, row in writers.items() if name.endswith("-transactions")}
    switches = measured.get("switches", {})
    plain = {
        name: {**row, "switched": switches.get(name)}
        for name, row in writers.items()
        if name not in transactional
    }
    return {
        "producers": _table(PRODUCERS, plain),
        "transactions": _table(TRANSACTIONS, transactional),
        "groups": _table(GROUPS, _with_own_times(measured)),
        "switches": _table(SWITCHES, switches),
        "held": _table(HELD, measured.get("held", {})),
    }


def _with_own_times(measured: Mapping[str, Mapping[str, Row]]) -> dict[str, Row]:
    """A group's opening beside the longer of what its members need on stock Kafka: to join when they start, and, where that
    was looked at, to take over from a member that leaves while they wait.
    """
    rows = {}
    for name, row in measured.get("groups", {}).items():
        waiting = measured.get("standbys", {}).get(re.sub(CRASHED, "", name), {}).get("takeover_ms")
        own = max(row.get("join_ms") or 0.0, waiting or 0.0)
        opening = row.get("opening_ms")
        met = {} if opening is None else {"within_own_time": opening <= own + ALLOWED_MS}
        rows[name] = {**row, "takeover_ms": waiting, **met}
    return rows


def _table(columns: Sequence[Column], rows: Mapping[str, Row]) -> str:
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    for name, row in sorted(rows.items()):
        if "broke" in row:  # the case did not come to its end, so there are no figures of it
            lines.append(
                [client(name, row), f"did not end: {short(str(row['broke']))}", *["-"] * (len(columns) - 2)]
            )
        else:
            lines.append([str(read(name, row)) for _, read in columns])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def filled(text: str, made: Mapping[str, str]) -> str:
    """The page with its tables."""

    def replace(found: re.Match[str]) -> str:
        return f"{found[1]}\n{made[found[2]]}\n{found[3]}"

    return re.sub(r"(<!-- clients: (\w+) -->)\n.*?(<!-- end -->)", replace, text, flags=re.DOTALL)


def merge(measured: dict[str, dict[str, Row]], report: Mapping[str, Any]) -> None:
    """Take in a report: rows that ran, each with how busy the machine was."""
    load = report.get("load_average_after")
    for part in ("producers", "groups", "switches", "standbys"):
        for name, row in report.get(part, {}).items():
            if not unasked(row):
                # A gate that was closed for minutes is another run of the same case, on fewer records per second.
                kept = "held" if part == "groups" and "held_ms" in row else part
                measured.setdefault(kept, {})[name] = {**row, "load_average": load, "kafka": report["kafka"]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="*", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="exit 1 if a page does not say what was measured"
    )
    options = parser.parse_args(arguments)
    measured = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    for report in options.reports:
        merge(measured, json.loads(report.read_text(encoding="utf-8")))
    if options.reports:
        MEASURED.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    stale = []
    for page in (DOCS / name for name in PAGES):
        if not page.exists():
            continue
        before = page.read_text(encoding="utf-8")
        after = filled(before, tables(measured))
        if before != after:
            stale.append(page.name)
            if not options.check:
                page.write_text(after, encoding="utf-8")
    if options.check and stale:
        print(f"not what was measured: {', '.join(stale)}; run scripts/client_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
