"""The waits between tries: each longer than the one before, up to a limit.

Pure: it neither sleeps nor looks at a clock, and randomness is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 60  # doublings; a power beyond that would only overflow


@dataclass(slots=True)
class Backoff:
    """`first` and `longest` in seconds; `tries` counts the waits since the last success."""

    first: float
    longest: float
    factor: float = 2.0
    tries: int = 0

    def at(self, tries: int) -> float:
        """The wait after `tries` earlier ones, for callers that count by themselves."""
        return min(self.first * self.factor ** min(max(tries, 0), _MOST), self.longest)

    @property
    def wait(self) -> float:
        """The wait that comes next."""
        return self.at(self.tries)

    def next(self, chance: float = 1.0) -> float:
        """The wait for now. `chance` (0 to 1) is the share that is waited, so that many callers do not come at once."""
        wait = self.wait
        self.tries += 1
        return wait * chance

    def over(self, now: float, deadline: float) -> bool:
        """Whether no time is left for another try after the next wait."""
        return now + self.wait >= deadline

    def reset(self) -> None:
        """After a success."""
        self.tries = 0
