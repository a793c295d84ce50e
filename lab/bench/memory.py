"""Resident memory of a process over a stretch of time, and how many bytes it read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Self

from lab.clusters.child_process import ChildProcess

POLL = 0.05
MIB = 1 << 20


class MemoryWatch:
    """`async with MemoryWatch(process) as memory:` then `memory.peak`.

    The kernel's own high-water mark is set back at the beginning, so no peak between two looks is missed; the
    samples show how it went.
    """

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._task: asyncio.Task[None] | None = None
        self._began = 0.0
        self.samples: list[tuple[float, float]] = []  # (seconds since the start, MiB)
        self.peak = 0

    async def _watch(self) -> None:
        while True:
            now = time.monotonic() - self._began
            self.samples.append((round(now, 2), round(self._process.resident_bytes() / MIB, 1)))
            await asyncio.sleep(POLL)

    async def __aenter__(self) -> Self:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")  # resets VmHWM
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if kind is None:
            self.peak = self._process.peak_resident_bytes()

    def peak_now(self) -> int:
        """The peak so far, in bytes."""
        return self._process.peak_resident_bytes()

    def every_second(self) -> list[float]:
        """The samples' maxima, second by second, in MiB."""
        seconds: dict[int, float] = {}
        for moment, size in self.samples:
            seconds[int(moment)] = max(size, seconds.get(int(moment), 0.0))
        return list(seconds.values())


def bytes_read(process: ChildProcess) -> int:
    """Everything that a process got by read(2) so far, sockets included."""
    for line in Path(f"/proc/{process.pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def open_files(process: ChildProcess) -> int:
    """File descriptors that a process has open."""
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
