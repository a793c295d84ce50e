"""How fast something may be read: a token bucket. Pure; the clock is passed in.

A fetch is charged when its answer is there, since nobody knows its size before; so the balance may go below zero, and
the next fetch waits until it is paid for. On average no more than the rate is read, whoever shares the bucket.

Not here: which rates a link has, and when they hold (source_rate.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

LEAST_FETCH: Final = 64 << 10
LONGEST_DELAY: Final = 1.0
"""A rate may be raised at any time: whoever waits looks again after so long."""


class Throttle:
    """Bytes per second, None for no limit. Of what was not read for a while, `burst_seconds` are saved up; of what was read
    beyond the rate, no more than `debt_seconds` are owed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        rate: float | None = None,
        *,
        burst_seconds: float = 1.0,
        debt_seconds: float = math.inf,
    ) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst_seconds
        self._most_debt = debt_seconds
        self._balance = 0.0 if rate is None else rate * burst_seconds
        self._at = clock()

    @property
    def rate(self) -> float | None:
        return self._rate

    def set_rate(self, rate: float | None) -> None:
        """From now on. Reads beyond the old rate are forgiven, and nothing was saved up."""
        if rate == self._rate:
            return
        self._rate = rate
        self.forgive()

    def forgive(self) -> None:
        """Forget both the debt of earlier reads and what was saved up."""
        self._at = self._clock()
        self._balance = 0.0

    def change_rate(self, rate: float) -> None:
        """From now on, and nothing is forgiven: for a rate that changes all the time."""
        if self._rate is not None:
            self._refill(self._rate)
            self._rate = rate

    def spent(self, size: int) -> None:
        """So many bytes were read."""
        if self._rate is not None:
            self._refill(self._rate)
            self._balance = max(self._balance - size, -self._rate * self._most_debt)

    @property
    def debt(self) -> float:
        """Seconds to wait until the reads so far are within the rate; 0 if they are, LONGEST_DELAY at the most."""
        if self._rate is None:
            return 0.0
        self._refill(self._rate)
        return 0.0 if self._balance > -1.0 else min(-self._balance / self._rate, LONGEST_DELAY)

    def fetch_size(self, size: int, readers: int = 1) -> int:
        """No more at once than the rate allows in a moment: megabytes would keep a slow link silent for long."""
        if self._rate is None:
            return size
        return min(size, max(LEAST_FETCH, int(self._rate * self._burst) // max(readers, 1)))

    def _refill(self, rate: float) -> None:
        now = self._clock()
        self._balance = min(rate * self._burst, self._balance + (now - self._at) * rate)
        self._at = now
