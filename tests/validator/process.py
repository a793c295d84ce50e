"""A validator process under test, and what it leaves in the machine while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import validator
from validator.messages import (
    MAX_LINE,
    Checked,
    Command,
    Configure,
    Event,
    Failed,
    Finished,
    Ready,
    ReplicaResult,
    Run,
    decode_event,
    encode,
)

PATIENCE = 400.0
"""On a machine that has other things to do too."""


class ValidatorUnderTest:
    """Send commands, await events; `log` is its stderr."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log
        self.seen: list[Event] = []

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def send(self, command: Command) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write(encode(command))
        await stdin.drain()

    async def event(self) -> Event:
        stdout = self.process.stdout
        assert stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await stdout.readline()
        assert line, f"the process has ended:\n{self.log[-3000:]}"
        event = decode_event(line)
        self.seen.append(event)
        return event

    async def ready(self, configure: Configure) -> Ready:
        await self.send(configure)
        event = await self.event()
        assert isinstance(event, Ready), event
        return event

    async def result(self, run: Run) -> tuple[Finished | Failed, list[ReplicaResult]]:
        """How a run ended, and the last result of every replica."""
        await self.send(run)
        return await self.end(run.id)

    async def end(self, run_id: str) -> tuple[Finished | Failed, list[ReplicaResult]]:
        results: dict[tuple[str, int, int], ReplicaResult] = {}
        while True:
            event = await self.event()
            if isinstance(event, Checked) and event.id == run_id:
                results |= {(one.topic, one.partition, one.broker_id): one for one in event.results}
            elif isinstance(event, Finished | Failed) and event.id == run_id:
                return event, [results[key] for key in sorted(results)]


@asynccontextmanager
async def validator_process(directory: Path) -> AsyncIterator[ValidatorUnderTest]:
    """A process of its own group; nothing of it is left at the end."""
    log = directory / "validator.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "validator",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=MAX_LINE,
            env={**os.environ, "PYTHONPATH": str(Path(validator.__file__).parents[1])},
            start_new_session=True,
        )
    try:
        yield ValidatorUnderTest(process, log)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


def descendants(pid: int) -> list[int]:
    """Every process below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # gone meanwhile
            parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
