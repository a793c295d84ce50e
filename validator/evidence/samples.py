"""A bounded number of looks out of many, for charts: the first, the last, and those between at even steps."""

from __future__ import annotations

from collections.abc import Sequence

from validator.evidence.model import MAX_SAMPLES, Sample

TOTAL = 40_000
"""Looks at all partitions together that one evidence carries; about 8 MB of JSON with three replicas."""


def budget(partitions: int) -> int:
    """How many samples each of that many partitions may keep; at least two, the beginning and the end."""
    return max(2, min(MAX_SAMPLES, TOTAL // max(1, partitions)))


def thin(samples: Sequence[Sample], limit: int = MAX_SAMPLES) -> tuple[Sample, ...]:
    """At most `limit` (at least 2) of the samples, in their order, the first and the last among them."""
    limit = max(2, limit)
    if len(samples) <= limit:
        return tuple(samples)
    last = len(samples) - 1
    return tuple(samples[index * last // (limit - 1)] for index in range(limit))
