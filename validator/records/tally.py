"""One replica's result of a comparison by records: sums, watermark, findings, and what is lawful. Pure.

A log start means the same as in tally.py, in records instead of batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row

from validator.compare import digest
from validator.compare.cleaner_bounds import refusal
from validator.compare.facts import MAX_FINDINGS, Finding, FindingKind, Missing
from validator.compare.tally import late_start, why_late
from validator.messages import PartitionPlan, ReplicaResult
from validator.read.ranges import PartitionBounds, ReplicaBounds
from validator.records import frames
from validator.records.second_look import Suspect


@dataclass(slots=True)
class Explained:
    """The records of a compacted partition that only the source or only a replica holds."""

    lawful: dict[str, int] = field(default_factory=dict)
    unexplained: list[Suspect] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    """offset -> why no log cleaner can have been there, where that is known."""
    not_listed: int = 0
    """More of `unexplained`."""

    def take(self, suspect: Suspect, why: str | None) -> None:
        if why in LAWFUL:
            self.count(suspect.kind, why, 1)
            return
        self.unexplained.append(suspect)
        if why is not None:
            self.refused[suspect.offset] = why

    def more(self, found: int, limit: int) -> None:
        """`found` could not be explained at first, and so many more than `limit` are no cleaner's doing."""
        if found > limit:
            self.not_listed = max(0, found - limit - 1)

    def count(self, kind: str, why: str, number: int) -> None:
        where = "on_replica" if kind == "record_missing" else "at_source"
        name = f"{LAWFUL[why]}_{where}"
        self.lawful[name] = self.lawful.get(name, 0) + number


LAWFUL = {
    "superseded": "compacted",
    "tombstone": "tombstones_expired",
    "keyless": "keyless_removed",
    "aborted": "aborted_removed",
}


class RecordTally:
    """One replica's result in the making."""

    def __init__(
        self, plan: PartitionPlan, bounds: PartitionBounds, found: ReplicaBounds, now_ms: int
    ) -> None:
        self.plan, self.bounds, self.found, self.now_ms = plan, bounds, found, now_ms
        self.replica = next(one for one in plan.replicas if one.broker_id == found.broker_id)
        self.findings: list[Finding] = []
        self.count = 0
        self.first: int | None = None  # the first difference
        self.lawful: dict[str, int] = {}
        self.missing: Missing | None = None
        self.refused: dict[int, str] = {}
        self.row: Row | None = None
        self.read_records = 0
        self.read_bytes = 0
        known = self.replica.through is not None and self.replica.through > 0
        self.start = (
            (plan.start if self.replica.start is None else self.replica.start) if known else found.begin
        )
        self.through = found.begin
        expected = max(plan.start, self.replica.through or 0)
        if found.begin > expected:
            self.lawful["expired_at_source_offsets"] = found.begin - expected

    def take(self, row: Row | None, explained: Explained | None, compacted: bool) -> None:
        self.recount(row)
        if row is not None:
            self.read_records, self.read_bytes = row.records, row.bytes or 0
        bounds, found = self.bounds, self.found
        self._log_start(row)
        if found.high_watermark < bounds.end:
            at = max(found.high_watermark, found.begin)
            detail = (
                f"broker {found.broker_id} ends at offset {found.high_watermark}, it has to hold everything below"
                f" {bounds.end}"
            )
            self._add(FindingKind.SHORT, at, detail)
        if row is not None and not compacted and row["first"] is not None:
            self.count += row.record_missing + row.record_extra + row.record_differing
            self._differs_at(row["first"])
        if row is not None and compacted:
            self.count += row.record_differing
            self._differs_at(row.first_differing)
            if explained is not None:
                self.lawful |= explained.lawful
                self.count += len(explained.unexplained) + explained.not_listed
                self.refused = explained.refused
                for suspect in explained.unexplained:
                    self._differs_at(suspect.offset)
        self.through = max(found.begin, min(bounds.end, found.high_watermark))
        if self.first is not None:
            self.through = min(self.through, self.first)

    def recount(self, row: Row | None) -> None:
        """Sums of what lies in the validated range."""
        self.row = row

    def _log_start(self, row: Row | None) -> None:
        """A late start is told, and does not end what is proved (tally.py)."""
        found = self.found
        gone = row.prefix_records if row is not None else 0
        missing_to = min(found.log_start, self.bounds.end)
        if missing_to <= found.begin:
            return
        if self.start == found.begin:
            self.start = missing_to
        if not gone or row is None:
            return
        why = why_late(self.plan, row.prefix_time, self.now_ms)
        self.missing = Missing(start=found.begin, end=missing_to, batches=0, records=gone, why=why)
        self.findings.append(late_start(found.broker_id, self.missing))
        self.count += 1

    def _add(self, kind: FindingKind, offset: int, detail: str) -> None:
        self.findings.append(Finding(kind=kind, offset=offset, detail=detail))
        self.count += 1
        self._differs_at(offset)

    def _differs_at(self, offset: int | None) -> None:
        if offset is not None:
            self.first = offset if self.first is None else min(self.first, offset)

    def tell(self, row: Row) -> None:
        """How an offset differs."""
        because = refusal(self.refused.get(row.offset), self.plan) if row.r is None else None
        detail = describe(row) + (f": {because}" if because else "")
        self.findings.append(Finding(kind=FindingKind(row.kind), offset=row.offset, detail=detail))

    def result(self, seconds: float) -> ReplicaResult:
        replica, row = self.replica, self.row
        sums: dict[str, Any] = {
            "records": replica.records,
            "bytes": replica.bytes,
            "digest": digest.from_hex(replica.digest),
            "source_digest": digest.from_hex(replica.source_digest),
        }
        if row is not None:
            sums["records"] += row.records
            sums["bytes"] += row.bytes or 0
            sums["digest"] = digest.add(sums["digest"], frames.combine(row, "r"))
            sums["source_digest"] = digest.add(sums["source_digest"], frames.combine(row, "s"))
        self.findings.sort(key=lambda one: one.offset)
        return ReplicaResult(
            topic=self.plan.topic,
            partition=self.plan.partition,
            broker_id=replica.broker_id,
            start=min(self.start, self.through),
            through=self.through,
            source_end=self.bounds.end,
            source_start=self.bounds.log_start,
            replica_start=self.found.log_start,
            replica_end=self.found.high_watermark,
            batches=replica.batches,
            records=sums["records"],
            bytes=sums["bytes"],
            digest=digest.to_hex(sums["digest"]),
            source_digest=digest.to_hex(sums["source_digest"]),
            seconds=seconds,
            findings=tuple(self.findings[:MAX_FINDINGS]),
            findings_count=max(self.count, len(self.findings)),
            lawful={kind: count for kind, count in self.lawful.items() if count},
            missing=self.missing,
        )


def describe(row: Row) -> str:
    """One line for a person: what is where, in sizes and timestamps, never contents."""
    s, r = row.s, row.r
    if r is None:
        return f"the source's record is not there ({_sizes(s)})"
    if s is None:
        return f"the source has no record at this offset, the replica has one ({_sizes(r)})"
    if row.twice:
        return "the replica has the record more than once"
    parts = []
    for name, size in (("key", "key_size"), ("value", "value_size")):
        if s[name] != r[name]:
            mine, theirs = _size(s[size]), _size(r[size])
            sizes = (
                f"{mine} on both sides"
                if mine == theirs
                else f"{mine} at the source, {theirs} on the replica"
            )
            parts.append(f"{name}: {sizes}")
    if s["headers"] != r["headers"]:
        parts.append(f"headers: {s.header_count} at the source, {r.header_count} on the replica")
    if s.time != r.time:
        parts.append(f"timestamp: {s.time} at the source, {r.time} on the replica")
    if s.time_type != r.time_type:
        parts.append(f"timestamp type: {s.time_type} at the source, {r.time_type} on the replica")
    return "; ".join(parts) or "its hash differs"


def _sizes(record: Any) -> str:
    return f"key {_size(record.key_size)}, value {_size(record.value_size)}, timestamp {record.time}"


def _size(size: int) -> str:
    return "null" if size < 0 else f"{size} bytes"
