"""Whether a run gets any further. Its validator shows that it lives by sending the same progress over and over. Pure."""

from __future__ import annotations

from validator import messages as m
from validator.mode import Mode

STANDSTILL = 1800.0
"""Seconds without a step forward after which a run has failed: it lives, but Spark has nobody who works, for example."""


class Movement:
    """When a run got further last. By records Spark reads a partition in one task, however long that takes, so its progress
    tells nothing of the time in between: such a run never stands still. Promotes are proved by batches."""

    def __init__(self, mode: Mode, now: float) -> None:
        self._mode = mode
        self._at = now
        self._last: m.Progress | None = None

    def rested(self, event: m.Event, now: float) -> float:
        """The seconds since then, as of this event. Results are a step forward in any case."""
        if event != self._last or self._mode is Mode.RECORDS:
            self._at = now
        if isinstance(event, m.Progress):
            self._last = event
        return now - self._at
