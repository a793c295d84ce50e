"""Promotes and failovers, planned and under way, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from linker.cli import validation_tables
from linker.cli.output import columns, duration, pairs, prose
from linker.manual_steps import undo_source_fence

if TYPE_CHECKING:
    from admin.models import (
        FailoverPartition,
        FailoverPlan,
        PromoteJobStatus,
        PromotePlan,
        SourceProducer,
    )


_MOST_UNPROVED = 10


def plan(one: PromotePlan) -> str:
    now = datetime.now(UTC)
    table = columns(
        ("TOPIC", "PARTITIONS", "LAG", "BY PATTERN", "NOTE"),
        [
            (
                *(t.topic, t.partitions, t.lag),
                None
                if t.by_pattern_since is None
                else f"{duration(int((now - t.by_pattern_since).total_seconds() * 1000))} ago",
                t.reason,
            )
            for t in one.topics
        ],
    )
    lines = [f"blocked: {line}" for line in one.blockers] + [f"warning: {line}" for line in one.warnings]
    lines += [f"config: {line}" for line in one.configs]
    parts = [table, prose(lines)] if lines else [table]
    lines = []
    if one.producers:
        parts.append(source_producers(one.producers))
    if one.validation != "skip":
        lines += [
            f"to be validated first ({one.validation}): {line}" for line in one.unproved[:_MOST_UNPROVED]
        ]
        more = len(one.unproved) - _MOST_UNPROVED
        lines += [f"... and {more} more partitions"] if more > 0 else []
    end = "a promote would be refused now" if one.blockers else "a promote could start now"
    if one.warnings and not one.blockers:
        end += ", with what is warned of above"
    return "\n".join([*parts, prose([*lines, f"{end}; nothing was changed (--dry-run)"])])


def source_producers(found: Iterable[SourceProducer]) -> str:
    return columns(
        ("TOPIC", "PARTITION", "PRODUCER", "EPOCH", "TRANSACTIONAL ID", "LAST WRITE", "OPEN SINCE", "MOVED"),
        [
            (
                *(p.topic, p.partition, p.producer_id, p.producer_epoch, p.transactional_id),
                None if p.last_write_ms is None else f"{duration(p.last_write_ms)} ago",
                None if p.open_since_offset is None else f"offset {p.open_since_offset}",
                "no" if p.direct else "yes",
            )
            for p in found
        ],
    )


def job(one: PromoteJobStatus) -> str:
    # After an abandoned one it was opened, and is looked after for a while.
    fenced = "source may refuse writes to" if one.phase == "ABANDONED" else "source refuses writes to"
    head = pairs(
        [
            ("promote", one.id),
            ("link", one.link),
            ("phase", one.phase),
            ("reason", one.reason),
            ("started", one.started_at.isoformat()),
            ("finished", one.finished_at and one.finished_at.isoformat()),
            ("time", ", ".join(f"{phase} {duration(spent)}" for phase, spent in one.phases_ms.items())),
            *validation_tables.promote_lines(one.validation),
            *(("warning", line) for line in one.warnings),
            *((fenced, topic) for topic in one.source_fenced),
            *([("that is undone with", undo_source_fence(one.source_fenced))] if one.source_fenced else []),
        ]
    )
    table = columns(
        ("TOPIC", "PHASE", "PARTITIONS", "LAG", "REASON"),
        [(t.topic, t.phase, t.partitions, t.lag, t.reason) for t in one.topics],
    )
    parts = [head, table]
    if one.failover is not None:
        parts.append(taken_over(one.failover))
    return "\n\n".join(parts)


def taken_over(partitions: Iterable[FailoverPartition]) -> str:
    """Offsets as people count them: the last one that is there, and how many are not."""
    return columns(
        ("TOPIC", "PARTITION", "STATE", "LAST MIRRORED", "SOURCE END", "NOT COPIED", "ABORTED", "NOTE"),
        [
            (
                *(p.topic, p.partition, p.state, None if p.end is None else p.end - 1),
                max((e for e in (p.source_end, p.acked_end) if e is not None), default="not known"),
                "not known" if p.missing is None else p.missing,
                ", ".join(f"{t.producer_id}:{t.producer_epoch} from {t.start_offset}" for t in p.aborted),
                p.reason,
            )
            for p in partitions
        ],
        empty="no partitions",
    )


def failover_plan(one: FailoverPlan) -> str:
    lines = [f"blocked: {line}" for line in one.blockers] + [f"warning: {line}" for line in one.warnings]
    end = "a failover would be refused now" if one.blockers else "a failover could start now"
    return "\n".join([taken_over(one.partitions), prose([*lines, f"{end}; nothing was changed (--dry-run)"])])
