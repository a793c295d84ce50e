"""Where a log cleaner cannot have been, by the target topic's settings and what the source holds."""

from __future__ import annotations

from typing import Any

import pytest

from linker.validation.planner import TopicRules
from validator.compare.cleaner_bounds import (
    CLOCK_SLACK_MS,
    NO_LIMIT,
    CleanerBounds,
    SourceLog,
    cleaner_bounds,
)
from validator.messages import PartitionPlan, ReplicaPlan
from validator.read.ranges import PartitionBounds, ReplicaBounds

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
WEEK = {"segment_bytes": 1 << 30, "segment_ms": 7 * DAY_MS}
SMALL = SourceLog(offsets=100, bytes=1 << 20, oldest=NOW_MS - DAY_MS, newest=NOW_MS)


def bounds_of(
    source: SourceLog = SMALL, *, log_start: int = 0, replica_start: int = 0, **changes: Any
) -> CleanerBounds:
    plan = PartitionPlan(topic="t", partition=0, replicas=(ReplicaPlan(broker_id=2),), **changes)
    begin = max(plan.start, log_start)
    replica = ReplicaBounds(1, 2, begin, replica_start, 100, begin)
    partition = PartitionBounds("t", 0, log_start, 100, (replica,), compacted=True)
    return cleaner_bounds(plan, partition, replica, source, NOW_MS)


def test_what_is_not_known_is_no_bound() -> None:
    assert bounds_of() == CleanerBounds(NO_LIMIT, NO_LIMIT, False)


def test_ages_are_counted_from_now() -> None:
    made = bounds_of(min_compaction_lag_ms=1000, delete_retention_ms=DAY_MS)
    assert made.clean == NOW_MS - 1000 + CLOCK_SLACK_MS
    assert made.expired == NOW_MS - DAY_MS + CLOCK_SLACK_MS


def test_the_target_topics_settings_are_taken() -> None:
    rules = TopicRules.of({"cleanup.policy": "compact", "delete.retention.ms": "86400000"})
    assert (rules.compacted, rules.delete_retention_ms) == (True, DAY_MS)


@pytest.mark.parametrize(
    ("configs", "full"),
    [
        ({}, 1 << 30),
        ({"segment.index.bytes": "10485760", "index.interval.bytes": "4096"}, 1 << 30),
        ({"segment.index.bytes": "65536", "index.interval.bytes": "4096"}, 5460 * 4096),
        ({"segment.index.bytes": "65536", "index.interval.bytes": "0"}, 5460 * 61),
        ({"segment.index.bytes": "4", "index.interval.bytes": "4096"}, 0),
    ],
)
def test_small_indexes_close_a_segment_before_its_size_does(configs: dict[str, str], full: int) -> None:
    rules = TopicRules.of({"cleanup.policy": "compact", "segment.bytes": str(1 << 30), **configs})
    assert rules.segment_bytes == full


@pytest.mark.parametrize(
    ("configs", "after"),
    [
        ({}, 7 * DAY_MS),
        ({"max.compaction.lag.ms": str(DAY_MS)}, DAY_MS),
        ({"segment.jitter.ms": str(6 * DAY_MS)}, DAY_MS),
        ({"max.compaction.lag.ms": str(DAY_MS), "segment.jitter.ms": str(6 * DAY_MS)}, 0),
    ],
)
def test_the_jitter_closes_a_segment_sooner(configs: dict[str, str], after: int) -> None:
    assert TopicRules.of({"segment.ms": str(7 * DAY_MS), **configs}).segment_ms == after
    assert TopicRules.of({"segment.jitter.ms": "1"}).segment_ms is None


def test_a_log_that_its_indexes_may_have_rolled_is_not_one_segment() -> None:
    rules = TopicRules.of(
        {"segment.bytes": str(1 << 30), "segment.index.bytes": "65536", "index.interval.bytes": "4096"}
    )
    held = SourceLog(offsets=100, bytes=40 << 20, oldest=NOW_MS, newest=NOW_MS)
    assert bounds_of(held, **WEEK).one_segment
    assert not bounds_of(held, **{**WEEK, "segment_bytes": rules.segment_bytes}).one_segment


@pytest.mark.parametrize(
    ("changes", "one_segment"),
    [
        ({}, True),
        ({"start": 30, "source": SourceLog(70, 1, NOW_MS, NOW_MS)}, True),
        (
            {"source": SourceLog(99, 1, NOW_MS, NOW_MS)},
            False,
        ),  # one is gone at the source too: by its cleaner?
        ({"source": SourceLog(100, 1 << 29, NOW_MS, NOW_MS)}, False),
        ({"source": SourceLog(100, 1, NOW_MS - 4 * DAY_MS, NOW_MS)}, False),
        ({"source": SourceLog()}, False),
        ({"source": SourceLog(100, 1, -1, -1)}, False),
        ({"replica_start": 10}, False),
        ({"segment_ms": None}, False),
        # The replica had what the source has dropped since: with it the log may have rolled.
        ({"log_start": 30, "source": SourceLog(70, 1, NOW_MS, NOW_MS)}, False),
    ],
)
def test_a_log_is_one_segment_only_if_nothing_can_have_rolled_it(
    changes: dict[str, Any], one_segment: bool
) -> None:
    assert bounds_of(**{**WEEK, **changes}).one_segment is one_segment
