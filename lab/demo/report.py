"""The demonstration's result: report.json, the table under it, and what makes it a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.demo.group_moves import GroupMoves
from lab.demo.switch_report import Unrestarted
from lab.workload.checker import MAX_EVIDENCE, Verdict
from lab.workload.log_compare import Comparison, ReplicaComparison

COMPACTED_NOTE = (
    "compacted topics are compared by records: the target's own cleaner lawfully rewrites closed segments, "
    "so the records that both clusters still hold and the last value of every key have to be equal"
)

NOT_SWITCHED: Mapping[str, Any] = {"switches": [], "unrestarted": None, "source_bytes_identical_after": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """All that was found out."""

    verdict: Verdict
    groups: GroupMoves
    unrestarted: Unrestarted | None  # None: the source cannot be joined, so nothing was switched
    comparisons: Sequence[ReplicaComparison]
    followers: Sequence[ReplicaComparison]  # target replicas against their new leader, after the promote
    leaders: Mapping[int, int]  # target broker -> partitions that it leads
    sidecar_id: int
    phases_ms: Mapping[str, int]
    more: Mapping[str, Any]  # what else belongs into the report

    @property
    def bytes_identical(self) -> bool:
        return bool(self.comparisons) and all(one.identical for one in self.comparisons)

    @property
    def offsets_identical(self) -> bool:
        verdict = self.verdict
        replicas = bool(self.comparisons) and all(one.offsets_identical for one in self.comparisons)
        return replicas and not verdict.misplaced and not verdict.misread

    @property
    def problems(self) -> list[str]:
        """One line for everything that is not as it should be."""
        lines = []
        for rule, evidence in self.verdict.violations.items():
            lines.append(f"{rule}: {len(evidence)}, first {evidence[0]}")
        lines += self.groups.problems
        lines += self.unrestarted.problems if self.unrestarted is not None else []
        if self.verdict.acked == 0:
            lines.append("no record was acknowledged at all")
        if self.verdict.unknown:
            lines.append(f"unknown: {self.verdict.unknown} records without an outcome")
        if not self.comparisons:
            lines.append("no replica was compared")
        for one in (*self.comparisons, *self.followers):
            if not (one.identical and one.offsets_identical):
                where = f"{one.partition.topic}-{one.partition.partition} on broker {one.broker}"
                lines.append(f"replica {where}: {one.difference}")
        proved = self.more
        if proved.get("mismatches"):
            lines.append(f"validation: {proved['mismatches']} replicas differ, see {proved.get('evidence')}")
        elif "validation_state" in proved and proved["validation_state"] != "CLOSED":
            lines.append(
                f"validation: the evidence is {proved['validation_state']}: {proved.get('validation_reason')}"
            )
        old = proved.get("records_of_last_year")
        if old is not None and (old["source"] == 0 or old["target"] != old["source"]):
            lines.append(
                f"of {old['source']} records of last year at the source {old['target']} are at the target"
            )
        if self.leaders.get(self.sidecar_id):
            lines.append(f"the sidecar still leads {self.leaders[self.sidecar_id]} partitions")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The report; counts are counts, what they are made of is apart."""
        verdict = self.verdict
        compared = [one for one in self.comparisons if one.comparison is Comparison.BYTES]
        return {
            "ok": not self.problems,
            "acked": verdict.acked,
            "lost": len(verdict.lost),
            "duplicated": len(verdict.duplicated),
            "reordered": len(verdict.reordered),
            "client_errors": len(verdict.client_errors),
            "offsets_identical": self.offsets_identical,
            "bytes_identical": self.bytes_identical,
            "promote_pause_ms": verdict.promote_pause_ms,
            "phases_ms": dict(self.phases_ms),
            "unknown": verdict.unknown,
            "failed": verdict.failed,
            "misplaced": len(verdict.misplaced),
            "phantom": len(verdict.phantom),
            "read": verdict.read,
            "reread": verdict.reread,
            "misread": len(verdict.misread),
            "skipped": len(verdict.skipped),
            "read_back": len(verdict.read_back),
            "unread": len(verdict.unread),
            "promote_pauses_ms": dict(verdict.pauses_ms),
            "usual_gap_ms": verdict.usual_gap_ms,
            **self.groups.as_json(),
            **(self.unrestarted.as_json() if self.unrestarted is not None else NOT_SWITCHED),
            "replicas_compared": len(self.comparisons),
            "batches_compared": sum(one.batches for one in self.comparisons),
            "bytes_compared": sum(one.compared_bytes for one in compared),
            "compacted": COMPACTED_NOTE,
            "compared_by_records": sorted(
                {one.partition.topic for one in self.comparisons if one.comparison is Comparison.RECORDS}
            ),
            "leaders": {str(broker): count for broker, count in sorted(self.leaders.items())},
            **self.more,
            "problems": self.problems[:MAX_EVIDENCE],
            "violations": {
                rule: [str(one) for one in evidence[:MAX_EVIDENCE]]
                for rule, evidence in verdict.violations.items()
            },
        }


def write_report(result: DemoResult, path: Path) -> None:
    """report.json, whole or not at all."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(result.as_json(), indent=2) + "\n")
    scratch.replace(path)


def show_report(result: DemoResult, console: Console, path: Path) -> None:
    """The short table at the end."""
    report = result.as_json()
    table = Table(title="The clients and the logs", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def row(name: str, value: object, good: bool | None, note: str = "") -> None:
        style = "default" if good is None else "green" if good else "bold red"
        table.add_row(name, Text(str(value), style=style), Text(note, style="dim"))

    row("records acknowledged", report["acked"], report["acked"] > 0)
    for key in ("lost", "duplicated", "reordered", "client_errors", "unknown"):
        row(key.replace("_", " "), report[key], report[key] == 0)
    row("records read", report["read"], report["misread"] + report["skipped"] + report["unread"] == 0)
    for key in ("consumer_missed", "consumer_repeated"):
        row(f"{key.removeprefix('consumer_')} by consumer groups", report[key], report[key] == 0)
    longest = report["consumer_pause_ms"]
    row("pause of consumers at their move", f"{longest:.0f} ms" if longest is not None else "?", None)
    replicas = f"{report['replicas_compared']} replicas, {report['bytes_compared'] / 1e6:.1f} MB"
    row(
        "offsets identical",
        "yes" if report["offsets_identical"] else "NO",
        report["offsets_identical"],
        replicas,
    )
    by_records = ", ".join(report["compared_by_records"])
    row(
        "bytes identical",
        "yes" if report["bytes_identical"] else "NO",
        report["bytes_identical"],
        f"{by_records} (compacted): by records" if by_records else "",
    )
    if "validated_replicas" in report:
        good = report["mismatches"] == 0 and report["validation_state"] == "CLOSED"
        row(
            "validated by Spark",
            f"{report['validated_replicas']} replicas",
            good,
            f"{report['validated_batches']} batches, {report['mismatches']} mismatches",
        )
    if "records_of_last_year" in report:
        old = report["records_of_last_year"]
        row(
            "records of last year",
            f"{old['target']} of {old['source']}",
            0 < old["source"] == old["target"],
            "the target keeps a week, the source for ever",
        )
    pause = report["promote_pause_ms"]
    usual = report["usual_gap_ms"]
    row("pause at promote", f"{pause:.0f} ms" if pause is not None else "?", None, f"else {usual} ms (p99.9)")
    if report["unrestarted"] is not None:
        _show_switches(report, row)
    leaders = ", ".join(f"{broker}: {count}" for broker, count in report["leaders"].items())
    row("partitions led, by broker", leaders, None)
    console.print(table)
    for problem in result.problems[:MAX_EVIDENCE]:
        console.print(Text(f"not as it should be: {problem}", style="bold red"), soft_wrap=True)
    if report.get("evidence"):
        console.print(Text(f"evidence: {report['evidence']}"), soft_wrap=True)
    console.print(Text(f"report: {path}"), soft_wrap=True)


def _show_switches(report: Mapping[str, Any], row: Callable[[str, object, bool | None, str], None]) -> None:
    told = report["unrestarted"]
    row(
        "clients never restarted: acknowledged",
        told["acked"],
        told["acked"] > 0,
        "at the source all the time",
    )
    wrong = {name: count for name, count in told.items() if name != "acked" and count}
    rules = ", ".join(name.replace("_", " ") for name in told if name != "acked")
    row(
        "of these",
        ", ".join(f"{name} {n}" for name, n in wrong.items()) or "0",
        not wrong,
        f"any of: {rules}",
    )
    for one in report["switches"]:
        pause = one["pause_ms"]
        row(
            f"pause at the switch {one['direction']}",
            f"{pause:.0f} ms" if pause is not None else "?",
            None,
            "",
        )
    same = report["source_bytes_identical_after"]
    row("source's bytes = target's, after it", "yes" if same else "NO", same, "all replicas")
