"""Log lines that a peer can cause: a few per minute, the others only counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

MOST = 10
PER = 60.0


class Sparing(logging.Filter):
    """At most MOST lines in PER seconds; the first one after that says how many were left out.

    As a filter of a logger it limits the lines that begin with `begins`.
    """

    def __init__(self, begins: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._begins = begins
        self._clock = clock
        self._until = float("-inf")
        self._told = 0
        self._left_out = 0

    def spare(self) -> str | None:
        """The text to append to the line, mostly empty; None if the line is to be left out."""
        now = self._clock()
        more = ""
        if now >= self._until:
            if self._left_out:
                more = f" ({self._left_out} lines like this were left out before it)"
            self._until, self._told, self._left_out = now + PER, 0, 0
        if self._told >= MOST:
            self._left_out += 1
            return None
        self._told += 1
        return more

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.msg, str) or not record.msg.startswith(self._begins):
            return True
        more = self.spare()
        if more:
            record.msg += more
        return more is not None
