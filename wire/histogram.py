"""Counts of latencies in buckets, for a metrics page. The buckets are those of every histogram of the sidecar."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LatencyHistogram:
    """Counts per bucket; `observe` is two list operations and an addition."""

    __slots__ = ("counts", "total_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.total_seconds += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it: (upper bound, observations at or below it), the last one +Inf."""
        rows = []
        count = 0
        for bound, here in zip([*map(str, LATENCY_BUCKETS), "+Inf"], self.counts, strict=True):
            count += here
            rows.append((bound, float(count)))
        return rows
