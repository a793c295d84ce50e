"""How fast a link may read its source: a token bucket. Pure; the clock is passed in.

A fetch is charged when its answer is there, since nobody knows its size before; so the balance may go below zero, and
the next fetch waits until it is paid for. On average no more than the rate is read, whoever shares the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BURST_SECONDS: Final = 1.0
LEAST_FETCH: Final = 64 << 10
LONGEST_DELAY: Final = 1.0
"""A rate may be raised at any time: whoever waits looks again after so long."""


class Throttle:
    """Bytes per second, None for no limit. `lifted` is for as long as somebody waits for the last bytes."""

    def __init__(self, clock: Callable[[], float], rate: float | None = None) -> None:
        self._clock = clock
        self._rate = rate
        self._balance = 0.0 if rate is None else rate * BURST_SECONDS
        self._at = clock()
        self.lifted = False
        #: Seconds that fetches were put off for; for people.
        self.waited = 0.0

    @property
    def rate(self) -> float | None:
        return self._rate

    def set_rate(self, rate: float | None) -> None:
        """From now on. What was read beyond the old rate is forgiven, and nothing was saved up."""
        if rate == self._rate:
            return
        self._rate = rate
        self._at = self._clock()
        self._balance = 0.0

    def spent(self, size: int) -> None:
        """So many bytes were read."""
        if self._rate is not None and not self.lifted:
            self._refill(self._rate)
            self._balance -= size

    @property
    def debt(self) -> float:
        """Seconds until what was read is within the rate, 0 if it is; never more than LONGEST_DELAY."""
        if self._rate is None or self.lifted:
            return 0.0
        self._refill(self._rate)
        return 0.0 if self._balance > -1.0 else min(-self._balance / self._rate, LONGEST_DELAY)

    def delay(self) -> float:
        """Seconds until the next fetch may be sent, which is put off for so long."""
        wait = self.debt
        self.waited += wait
        return wait

    def fetch_size(self, size: int) -> int:
        """No more at once than the rate allows in a moment: megabytes would keep a slow link silent for long."""
        if self._rate is None or self.lifted:
            return size
        return min(size, max(LEAST_FETCH, int(self._rate * BURST_SECONDS)))

    def _refill(self, rate: float) -> None:
        now = self._clock()
        self._balance = min(rate * BURST_SECONDS, self._balance + (now - self._at) * rate)
        self._at = now
