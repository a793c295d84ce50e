"""Results of validation, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns, duration, one_line, pairs, size

if TYPE_CHECKING:
    from admin.models import PromoteJobStatus
    from admin.validation_models import (
        LinkValidation,
        LinkValidationDescription,
        PromoteValidation,
        ValidationRun,
    )


def run(one: ValidationRun) -> str:
    head = pairs(
        [
            ("validation", one.id),
            ("link", one.link),
            ("mode", one.mode),
            ("state", one.state),
            ("reason", one.reason),
            ("topics", one.topics),
            ("started", one.started_at.isoformat(timespec="seconds")),
            ("finished", one.finished_at and one.finished_at.isoformat(timespec="seconds")),
            ("compared", f"{one.partitions} partitions, {one.replicas} replicas"),
            ("validated", f"{one.batches} batches, {one.records} records, {size(one.bytes)}"),
            ("mismatches", one.mismatches),
        ]
    )
    parts = [head]
    if one.findings:
        parts.append(
            columns(
                ("TOPIC", "PARTITION", "BROKER", "OFFSET", "KIND", "DETAIL", "SOURCE", "REPLICA"),
                [
                    (f.topic, f.partition, f.broker, f.offset, f.kind, f.detail, f.source, f.replica)
                    for f in one.findings
                ],
            )
        )
    parts += [f"not compared: {one_line(line)}" for line in one.left_out]
    return "\n\n".join(parts)


def summary(one: LinkValidation) -> str:
    """One line."""
    every = f"every {duration(one.interval_ms)}" if one.continuous else "not continuous"
    parts = [every, f"{one.proved} of {one.replicas} replicas proved to their end"]
    if one.unproved_offsets:
        parts.append(f"at most {one.unproved_offsets} offsets behind")
    if one.age_ms:
        parts.append(f"oldest watermark {duration(one.age_ms)} old")
    if one.trouble:
        parts.append(f"trouble: {one.trouble}")
    if one.mismatches:
        parts.append(f"{len(one.mismatches)} PARTITIONS DIFFER, first {one.mismatches[0]}")
    if one.late_starts:
        parts.append(f"{len(one.late_starts)} REPLICAS START LATE, first {one.late_starts[0]}")
    return one_line(", ".join(parts))


def description(one: LinkValidationDescription) -> str:
    process = one.validator
    spark = process.state if process.spark is None else f"{process.state}, Spark {process.spark}"
    head = pairs(
        [
            ("link", one.link),
            ("continuous", f"every {duration(one.interval_ms)}" if one.continuous else "no"),
            ("proved", f"{one.proved} of {one.replicas} replicas, up to the source's end"),
            ("furthest behind", None if one.unproved_offsets is None else f"{one.unproved_offsets} offsets"),
            ("oldest watermark", duration(one.age_ms)),
            ("trouble", one.trouble),
            ("validator", f"{spark} on {process.master}"),
            ("its UI", process.ui),
            ("its trouble", process.trouble),
            ("its log", process.log),
        ]
    )
    runs = columns(
        ("RUN", "KIND", "MODE", "STATE", "STARTED", "REPLICAS", "BATCHES", "BYTES", "MISMATCHES", "REASON"),
        [
            (
                *(r.id, r.kind, r.mode, r.state, r.started_at.isoformat(timespec="seconds"), r.replicas),
                *(r.batches, size(r.bytes), r.mismatches, r.reason),
            )
            for r in one.runs
        ],
        empty="no runs yet",
    )
    return "\n\n".join(
        [
            head,
            *(f"DIFFERS: {one_line(line)}" for line in one.mismatches),
            *(f"STARTS LATE: {one_line(line)}" for line in one.late_starts),
            runs,
        ]
    )


def promote_lines(one: PromoteValidation | None) -> list[tuple[str, object]]:
    """For the table of a promote."""
    if one is None:
        return [("validation", "skipped")]
    state = {None: "before the hand-over", "PENDING": "the last run, with exact ends, is under way"}
    told = state.get(one.state) or (one.state or "")
    if one.final:
        told = f"{one.state}: {one.replicas} replicas, {one.batches} batches, {one.mismatches} mismatches"
        if one.missing_records:
            told += f", {one.missing_records} RECORDS MISSING before late starts"
    return [
        ("validation", f"{one.policy}; {told}" + (f" ({one.reason})" if one.reason else "")),
        *(("proved", one_line(line)) for line in one.proved_by),
        ("evidence", one.html),
    ]


def evidence(found: Iterable[PromoteJobStatus]) -> str:
    return columns(
        (
            "PROMOTE",
            "PHASE",
            "VALIDATION",
            "STATE",
            "REPLICAS",
            "BATCHES",
            "MISMATCHES",
            "EVIDENCE",
            "REASON",
        ),
        [
            (job.id, job.phase, *("skip", *[None] * 6))
            if (proved := job.validation) is None
            else (
                *(job.id, job.phase, proved.policy, proved.state, proved.replicas, proved.batches),
                *(proved.mismatches, proved.html, proved.reason),
            )
            for job in found
        ],
        empty="no promotes",
    )
