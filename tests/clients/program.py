"""A program as a child process: its lines into events, its events into what the judges read.

Reading is pure (`Transcript.feed`); the process is started, ended and timed here and judged elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.clusters.child_process import die_with_us, parent_environment, tail
from lab.workload.history import Ack, ClientError, History, Outcome, Unacked
from tests.clients.judge import GroupRead, Membership
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

START_TIMEOUT = 60.0
STOP_TIMEOUT = 90.0
DUMP_SECONDS = 5.0
LINE_LIMIT = 8 << 20
ROOT = Path(__file__).parents[2]


class ProgramError(LinkerError):
    """A program did not do what it was asked to: a failure of the matrix, not of a record."""


@dataclass
class Transcript:
    """What one application said over all its runs; times are seconds since the epoch."""

    name: str
    partitions: int = 1
    topic: str = ""
    version: str = ""
    next: int = 0  # a producer's next number
    acks: list[Ack] = field(default_factory=list)
    unacked: list[Unacked] = field(default_factory=list)
    errors: list[ClientError] = field(default_factory=list)
    notices: list[ClientError] = field(default_factory=list)
    reads: list[GroupRead] = field(default_factory=list)
    memberships: list[Membership] = field(default_factory=list)
    closed: bool = False
    ready_at: float | None = None

    def feed(self, line: Mapping[str, Any], cluster: str, run: int) -> None:
        """Take in one line of a run at a cluster ("source" or "target")."""
        event, at = line["e"], line["t"] / 1000
        if event == "acked":
            for number, offset, when in line["r"]:
                known = offset if offset >= 0 else None
                self.acks.append(Ack(self.name, number, self._partition(number), known, when / 1000))
        elif event == "failed":
            outcome = Outcome.UNKNOWN if line["written"] else Outcome.FAIL
            for number in line["r"]:
                entry = Unacked(self.name, number, self._partition(number), outcome, line["error"], at)
                self.unacked.append(entry)
        elif event in ("error", "notice"):
            (self.errors if event == "error" else self.notices).append(
                ClientError(self.name, line["error"], at)
            )
        elif event == "records":
            partition = TopicPartition(line["topic"], line["p"])
            for offset, producer, number in line["r"]:
                self.reads.append(
                    GroupRead(self.name, cluster, run, partition, offset, producer or None, number, at)
                )
        elif event in ("assigned", "revoked", "lost"):
            held = [TopicPartition(topic, partition) for topic, partition in line["p"]]
            self.memberships.append(Membership(self.name, cluster, run, event, held, at))
        elif event == "ready":
            self.version, self.ready_at = line["version"], at
        elif event == "closed":
            self.next, self.closed = line.get("next", 0), True
        elif event != "state":
            raise ProgramError(f"{self.name} said what nobody knows: {line}")

    def history(self) -> History:
        """A producer's transcript as the checker reads it; a number without an outcome is unknown."""
        sends = [self._partition(number) for number in range(self.next)]
        return History(sends={self.name: sends}, acks=self.acks, unacked=self.unacked, errors=self.errors)

    def _partition(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number % self.partitions)


class Program:
    """One application: started at one cluster, ended, started at the other."""

    def __init__(
        self, command: Sequence[str], transcript: Transcript, arguments: Mapping[str, str], log: Path
    ) -> None:
        self.transcript = transcript
        self.log = log
        self._command = list(command)
        self._arguments = dict(arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._run = 0
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        return self.transcript.name

    async def start(self, bootstrap: str, cluster: str) -> None:
        """Start it and wait until its client is there.

        Raises:
            ProgramError: It ended, or was not ready in time.
        """
        if self._process is not None:
            raise ProgramError(f"{self.name} runs already")
        self._run += 1
        told = {
            **self._arguments,
            "name": self.name,
            "bootstrap": bootstrap,
            "first": str(self.transcript.next),
        }
        command = [*self._command, *(f"{key}={value}" for key, value in told.items())]
        self.transcript.ready_at, self.transcript.closed = None, False
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_us(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**parent_environment(), "PYTHONPATH": os.pathsep.join([str(ROOT), *_inherited()])},
                limit=LINE_LIMIT,
                start_new_session=True,
            )
        self._reader = asyncio.create_task(self._read(self._process, cluster, self._run), name=self.name)
        await self.until(lambda: self.transcript.ready_at is not None, START_TIMEOUT, "be ready")

    async def stop(self) -> None:
        """End it in good order and take in the last line.

        Raises:
            ProgramError: It did not end in good order, or not in time.
        """
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await reader
                await process.wait()
        except TimeoutError:
            await self._dump_stacks(process)
            raise ProgramError(
                f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s, see {self.log}"
            ) from None
        self._process = self._reader = None
        if not self.transcript.closed:
            raise ProgramError(
                f"{self.name} ended without saying so (exit {process.returncode}):\n{tail(self.log)}"
            )

    async def _dump_stacks(self, process: asyncio.subprocess.Process) -> None:
        """Into its log: Java and Go print every thread on SIGQUIT, Go and all others end with it."""
        if process.returncode is None:
            process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), DUMP_SECONDS)

    async def kill(self) -> None:
        """Whatever it does, it is gone afterwards."""
        process, reader = self._process, self._reader
        self._process = self._reader = None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        if reader is not None:
            await asyncio.wait([reader])

    async def move(self, bootstrap: str, cluster: str) -> None:
        """What a rolling restart does to one instance: only `bootstrap.servers` changes."""
        await self.stop()
        await self.start(bootstrap, cluster)

    async def until(self, reached: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait for something in the transcript.

        Raises:
            ProgramError: It ended, or time is up.
        """
        try:
            async with asyncio.timeout(timeout):
                while not reached():
                    if self._reader is None or self._reader.done():
                        raise ProgramError(f"{self.name} ended, it was to {what}:\n{tail(self.log)}")
                    self._changed.clear()
                    waiter = asyncio.create_task(self._changed.wait())
                    await asyncio.wait([waiter, self._reader], return_when=asyncio.FIRST_COMPLETED)
                    waiter.cancel()
        except TimeoutError:
            told = f" (it says {self.transcript.errors[-1].error})" if self.transcript.errors else ""
            raise ProgramError(
                f"{self.name} did not {what} within {timeout:.0f} s{told}, see {self.log}:\n{tail(self.log)}"
            ) from None

    async def _read(self, process: asyncio.subprocess.Process, cluster: str, run: int) -> None:
        if process.stdout is None:
            raise ProgramError(f"{self.name} has no output")
        async for line in process.stdout:
            try:
                self.transcript.feed(json.loads(line), cluster, run)
            except (ValueError, KeyError, TypeError) as error:
                raise ProgramError(f"{self.name} said {line[:200]!r}: {error!r}") from error
            self._changed.set()


def _inherited() -> list[str]:
    inherited = os.environ.get("PYTHONPATH")
    return [inherited] if inherited else []
