"""A child process under control: started so that it dies with us, stopped, killed, paused, measured.

Belongs to no event loop (waiting is polling), so that session-wide fixtures can share one between tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from linker.process.children import die_with_us as die_with_us
from linker.process.children import parent_environment as parent_environment
from wire.errors import LinkerError

STOP_TIMEOUT = 40.0
POLL = 0.01


class ChildError(LinkerError):
    """A child process did not do what it was asked to; carries the end of its log."""


def tail(log: Path, lines: int = 12) -> str:
    """The end of a log, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


class ChildProcess:
    """One process at a time under a name, its output in one log file over all its starts."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id, None while it does not run."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process; None while it runs and before it was ever started."""
        return self._process.poll() if self._process is not None else None

    async def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """SIGTERM, which every one of ours takes for "end in good order"; the exit code."""
        process = self._running_process()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        if not await _ended(process, timeout):
            raise ChildError(self._story(f"did not stop within {timeout:.0f} s"))
        return process.returncode

    async def ended(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for it to end by itself; the exit code."""
        if self._process is None:
            raise ChildError(f"{self.name} was never started")
        if not await _ended(self._process, timeout):
            raise ChildError(self._story(f"has not ended after {timeout:.0f} s"))
        return self._process.returncode

    async def kill(self) -> None:
        """SIGKILL: what a power cut looks like to everybody else."""
        process = self._running_process()
        process.kill()
        if not await _ended(process, STOP_TIMEOUT):
            raise ChildError(
                f"{self.name} (pid {process.pid}) is still there {STOP_TIMEOUT:.0f} s after SIGKILL"
            )

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self._running_process().pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        os.kill(self._running_process().pid, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Processor time used so far by the process (Linux)."""
        stat = Path(f"/proc/{self._running_process().pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Resident memory of the process (Linux)."""
        pages = Path(f"/proc/{self._running_process().pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_resident_bytes(self) -> int:
        """The most memory that the process ever held (Linux)."""
        for line in Path(f"/proc/{self._running_process().pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise ChildError(f"/proc says nothing about the memory of {self.name}")

    def _launch(self, command: Sequence[str], directory: Path, more: Mapping[str, str] | None = None) -> None:
        if self.running:
            raise ChildError(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                die_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**parent_environment(), **(more or {})},
                cwd=directory,
                start_new_session=True,  # Ctrl-C is for whoever owns the child, not for the child
            )

    def _log_since_start(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()

    async def _nap(self, what: str, deadline: float, timeout: float) -> None:
        """One turn of a wait for the child to get somewhere: raises if it ended or time is up."""
        if not self.running:
            raise ChildError(self._story(f"ended while {what} (exit {self.exit_code})"))
        if time.monotonic() > deadline:
            raise ChildError(self._story(f"is still {what} after {timeout:.0f} s"))
        await asyncio.sleep(5 * POLL)

    def _story(self, what: str) -> str:
        return f"{self.name} {what}, see {self.log}:\n{tail(self.log)}"

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ChildError(f"{self.name} does not run")
        return self._process


async def _ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL)
    return True
