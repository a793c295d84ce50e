"""How long records take from the source to a replica: from a batch's timestamp to the fetch that shows that it is there.

The timestamp is that of the batch's header, which is never compressed: the source's clock where the topic has
LogAppendTime, the producer's else. It is compared with this machine's clock. Where that one is behind, a record would
arrive before it was made: it counts as zero, and as clamped.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wire.histogram import LatencyHistogram


class ReplicationLatency:
    """The replication latency of one link."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.histogram = LatencyHistogram()
        self.clamped = 0
        self._clock = clock

    def arrived(self, newest: int) -> None:
        """A replica has taken an answer whose last batch has this timestamp, in milliseconds."""
        seconds = self._clock() - newest / 1000
        if seconds < 0:
            self.clamped += 1
            seconds = 0.0
        self.histogram.observe(seconds)
