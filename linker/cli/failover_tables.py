"""The partitions of a failover, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns, prose

if TYPE_CHECKING:
    from admin.models import FailoverPartition, FailoverPlan


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
