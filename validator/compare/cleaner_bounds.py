"""Where no log cleaner can have been: what is missing there was lost. Pure.

A cleaner leaves the active segment alone, what is younger than min.compaction.lag.ms, and tombstones for
delete.retention.ms after it first met them (LogCleanerManager.cleanableOffsets, MemoryRecords.filterTo). Segment borders
are not told over the protocol, so a log is known to have had one segment only, or nothing is known of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from validator.messages import PartitionPlan
from validator.read.ranges import PartitionBounds, ReplicaBounds

CLOCK_SLACK_MS = 60_000
"""Brokers' clocks and ours differ a little."""
NO_LIMIT = (1 << 63) - 1
RECORD_OVERHEAD = 100
"""A record's fields, and the header of a batch that holds it alone."""


@dataclass(frozen=True, slots=True)
class SourceLog:
    """The source's part of the range that a replica has to hold."""

    offsets: int = 0  # records, those of markers included where they are seen
    bytes: int = 0  # at least what they take in the log
    oldest: int | None = None  # timestamps
    newest: int = -1


@dataclass(frozen=True, slots=True)
class CleanerBounds:
    """The records that a replica's cleaner cannot have taken: records with a later timestamp than `clean`, tombstones with a
    later one than `expired`, anything at all if the log is one segment."""

    clean: int = NO_LIMIT
    expired: int = NO_LIMIT
    one_segment: bool = False


def cleaner_bounds(
    plan: PartitionPlan, bounds: PartitionBounds, found: ReplicaBounds, source: SourceLog, now_ms: int
) -> CleanerBounds:
    """Out of the target topic's settings. A tombstone is written before it is cleaned and kept for delete.retention.ms from
    then on, so its timestamp tells the earliest moment it can be gone."""
    return CleanerBounds(
        _before(plan.min_compaction_lag_ms, now_ms),
        _before(plan.delete_retention_ms, now_ms),
        one_segment(plan, bounds, found, source),
    )


def _before(age_ms: int | None, now_ms: int) -> int:
    return now_ms - age_ms + CLOCK_SLACK_MS if age_ms else NO_LIMIT


def one_segment(
    plan: PartitionPlan, bounds: PartitionBounds, found: ReplicaBounds, source: SourceLog
) -> bool:
    """Whether the replica's log cannot have rolled: all that was ever in it is still at the source, and is less than half
    of what fills a segment, in bytes as in time. Records without a timestamp: brokers go by their own clocks then."""
    if plan.segment_bytes is None or plan.segment_ms is None or source.oldest is None or source.oldest < 0:
        return False
    whole = found.begin == found.missing_from == plan.start and not found.starts_late
    dense = source.offsets == bounds.end - found.begin
    small = source.bytes < plan.segment_bytes // 2 and source.newest - source.oldest < plan.segment_ms // 2
    return whole and dense and small


TOO_YOUNG = "too_young"
ONE_SEGMENT = "one_segment"
UNSETTLED = "unsettled"
TOMBSTONE_TOO_YOUNG = "tombstone_too_young"


def refusal(why: str | None, plan: PartitionPlan) -> str | None:
    """Why a cleaner is not believed, for a person; None if there is nothing to say."""
    return {
        TOO_YOUNG: (
            f"it is younger than min.compaction.lag.ms={plan.min_compaction_lag_ms}, within which nothing is cleaned"
        ),
        ONE_SEGMENT: (
            "the log never had enough for a second segment, and a log cleaner leaves the active one alone"
        ),
        UNSETTLED: "it lies behind an open transaction, where nothing is cleaned",
        TOMBSTONE_TOO_YOUNG: (
            f"its key ends with a tombstone younger than delete.retention.ms={plan.delete_retention_ms}, which has"
            " to be there still"
        ),
    }.get(why or "")
