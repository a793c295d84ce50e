"""When a source fetcher sends its next request, and for how long the source may wait with the answer. Pure: times are
passed in, in seconds of one clock.

Not here: what is asked for (cursor_session.py), a link's rate (source_rate.py), memory (budget.py).
"""

from __future__ import annotations

from typing import Final

from fetcher.source_ports import FetchLimits

#: A window may get room any moment, and a long poll for other cursors would keep it waiting.
_LONGEST_SHORT_POLL_MS: Final = 50
#: After an answer that refuses the request as a whole.
_REFUSED: Final = 0.1


class Pace:
    """Of one fetch session: at most one request is on its way."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._not_before = 0.0
        self._sent_at = 0.0
        self._small = 0
        self._short_poll_ms = limits.short_poll_ms

    def delay(self, now: float) -> float:
        """Seconds until the next request may be sent, 0 or less if it may now."""
        return self._not_before - now

    def max_wait_ms(self, *, some_full: bool) -> int:
        """How long the source may wait for records, for the request that is sent now. some_full: cursors without room are
        not among those that it names.
        """
        if not some_full:
            self._short_poll_ms = self._limits.short_poll_ms
            return self._limits.max_wait_ms
        wait = min(self._short_poll_ms, self._limits.max_wait_ms)
        self._short_poll_ms = min(self._short_poll_ms * 2, _LONGEST_SHORT_POLL_MS)
        return wait

    def sent(self, now: float, size: int) -> None:
        """A request for at most that many bytes."""
        self._sent_at = now
        self._small = min(self._limits.small_answer, size // 2)

    def answered(self, now: float, size: int, throttle_ms: int) -> None:
        """A broker that throttles us answers before it makes us wait (KIP-219)."""
        if size < self._small:
            self._not_before = self._sent_at + self._limits.small_answer_interval
        if throttle_ms > 0:
            self._not_before = max(self._not_before, now + throttle_ms / 1000)

    def refused(self, now: float) -> None:
        self._not_before = max(self._not_before, now + _REFUSED)

    def records_came(self) -> None:
        self._short_poll_ms = self._limits.short_poll_ms
