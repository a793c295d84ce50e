"""How fast a follower's log grows: from the first byte in its files to the last, looked at from outside.

The same look at the same kind of files for the link's follower and for stock Kafka's own, so neither side is
asked about itself. Processor time of processes is read at the same two moments.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.cluster import BenchError

POLL = 0.004
TIMEOUT = 240.0


@dataclass(frozen=True, slots=True)
class Growth:
    """One copy as it was seen."""

    bytes: int
    seconds: float  # first byte to last
    first_byte: float  # time.monotonic
    cpu_seconds: Mapping[str, float]  # by process, between the same two moments

    @property
    def mb_per_second(self) -> float:
        return self.bytes / 1e6 / self.seconds

    def cpu_per_gb(self, process: str) -> float:
        return self.cpu_seconds[process] / (self.bytes / 1e9)


class GrowthWatch:
    """Begin before the copying is asked for: `watch = GrowthWatch(...)`, then `await watch.done()`."""

    def __init__(
        self,
        directories: Sequence[Path],
        expected: int,
        cpu: Mapping[str, Callable[[], float]],
        *,
        exact: bool = True,
    ) -> None:
        self._directories = directories
        self._expected = expected
        self._cpu = cpu
        self._exact = exact
        self._stopped = False
        self._task = asyncio.create_task(asyncio.to_thread(self._watch))

    async def done(self) -> Growth:
        """Once every byte is there. Cancelling ends the watch too."""
        try:
            return await asyncio.shield(self._task)
        finally:
            self._stopped = True

    def _watch(self) -> Growth:
        deadline = time.monotonic() + TIMEOUT
        size = 0
        while not size:
            self._pause(deadline, size)
            size = log_bytes(self._directories)
        began, cpu = time.monotonic(), self._cpu_now()
        before = size
        while size < self._expected:
            self._pause(deadline, size)
            size = log_bytes(self._directories)
        seconds = time.monotonic() - began
        used = {name: value - cpu[name] for name, value in self._cpu_now().items()}
        if self._exact and size != self._expected:
            raise BenchError(f"the follower has {size} bytes where the leader has {self._expected}")
        return Growth(size - before, seconds, began, used)

    def _cpu_now(self) -> dict[str, float]:
        return {name: read() for name, read in self._cpu.items()}

    def _pause(self, deadline: float, size: int) -> None:
        if self._stopped:
            raise BenchError("no longer watched")
        if time.monotonic() > deadline:
            raise BenchError(f"{size} of {self._expected} bytes copied after {TIMEOUT:.0f} s")
        time.sleep(POLL)


def log_bytes(directories: Sequence[Path]) -> int:
    """Bytes in the log files of partitions; a directory that is not there yet has none."""
    total = 0
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                total += sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
        except FileNotFoundError:
            continue
    return total
