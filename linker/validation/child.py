"""A child process that has children: its output is kept, and it ends with all that it started."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from io import FileIO
from pathlib import Path

log = logging.getLogger(__name__)

CHUNK = 1 << 16
_ORPHANS_LOOK, _ORPHANS_GRACE = 0.5, 2.0


async def keep_log(errors: asyncio.StreamReader | None, file: Path, most: int) -> None:
    """Write the output of Spark and its JVM to a file of at most so many bytes and one before it, until it ends."""
    output: FileIO | None = None
    try:
        output = _append(file)
        while errors is not None and (chunk := await errors.read(CHUNK)):
            if output.tell() + len(chunk) > most:
                output.close()
                output = _append(file, anew=True)
            output.write(chunk)
    except OSError as error:
        log.warning("the validator's log cannot be written: %s", error.strerror or error)
        while errors is not None and await errors.read(CHUNK):
            pass  # it must not stand still for that
    finally:
        if output is not None:
            output.close()


def _append(file: Path, *, anew: bool = False) -> FileIO:
    if anew:
        file.replace(file.with_suffix(".log.1"))
    return file.open("ab", buffering=0)


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the process with its JVM. Workers of Spark end when the JVM does."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left


async def kill_orphans(process: asyncio.subprocess.Process) -> None:
    """A JVM that outlives its driver holds the pipes open, and whoever reads them would wait for it;
    so does wait(), which asyncio answers when the pipes are closed."""
    while process.returncode is None:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(_ORPHANS_LOOK)
    await asyncio.sleep(_ORPHANS_GRACE)
    kill_group(process)


def exit_text(code: int) -> str:
    return f"exit {code}" if code >= 0 else f"killed by signal {-code}"
