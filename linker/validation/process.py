"""The validator process under control: started when it is needed, ended when it is idle, spoken to in JSON lines.

It is a child of the sidecar: with its JVM it is in a process group of its own, ends when its stdin does, and is killed
as a group when it does not. Its log is a file of bounded size beside the state. Secrets go to it through stdin only.

One command at a time; who may give one is the business of `turns`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from linker.config.check import ValidationConfig
from linker.process.children import die_with_us, parent_environment, python_path
from linker.validation.child import CHUNK, exit_text, keep_log, kill_group, kill_orphans
from linker.validation.errors import Side, ValidatorCancelled, ValidatorError
from linker.validation.needs import missing_parts
from linker.validation.standstill import STANDSTILL, Movement
from validator import messages as m
from validator.evidence.model import Evidence
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

START_TIMEOUT = 400.0  # longer than the validator itself waits for a master and its first executor
SILENCE = 300.0  # no word of progress for so long: it hangs
EVIDENCE_TIMEOUT = 300.0
CANCEL_TIMEOUT = 10.0
STOP_TIMEOUT = 10.0
CLOSE_GRACE = 1.0  # when the sidecar ends: whoever waits for its successor does not wait for Spark
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
MAX_LOG_BYTES = 16 << 20
_NICE = 5


class ValidatorProcess:
    """At most one process at a time. `close` it before the sidecar ends."""

    def __init__(
        self,
        config: ValidationConfig,
        directory: Path,
        *,
        command: Sequence[str] | None = None,
        start_timeout: float = START_TIMEOUT,
        silence: float = SILENCE,
        standstill: float = STANDSTILL,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        """`command`: what to start instead of the validator (tests)."""
        self._config = config
        self.directory = directory.absolute()  # the process has a working directory of its own
        self.log_file = self.directory / "validator.log"
        self._command = command
        self._start_timeout = start_timeout
        self._silence = silence
        self._standstill = standstill
        self._first_pause = first_pause
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[m.Event | ValidatorError] = asyncio.Queue()
        self._pause = 0.0
        self._not_before = 0.0
        self._busy = asyncio.Lock()
        #: Spark's report of itself; None while it does not run.
        self.ready: m.Ready | None = None
        #: Why the process was not usable last; None when it was.
        self.trouble: str | None = None
        self.starts = 0

    @property
    def state(self) -> Literal["off", "starting", "ready"]:
        if self._process is None:
            return "off"
        return "starting" if self.ready is None else "ready"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    # --- commands ------------------------------------------------------------------------------------------------

    async def run(
        self, command: m.Run, seen: Callable[[m.Progress | m.Checked], Awaitable[None]]
    ) -> m.Finished:
        """Have it checked; `seen` gets what is reported on the way. Cancelling this cancels the run, and so does a `seen`
        that raises.

        ValidatorError if it failed; what was Checked before stays true.
        """
        async with self._busy:
            await self._ensure()
            hearing = False
            movement = Movement(command.mode, time.monotonic())
            try:
                await self._send(command)
                while True:
                    event = await self._event(command.id, self._silence, "a run")
                    if isinstance(event, m.Finished):
                        return event
                    if movement.rested(event, time.monotonic()) > self._standstill:
                        await self._stands_still()
                    if isinstance(event, m.Progress | m.Checked):
                        hearing = True
                        await seen(event)
                        hearing = False
            except BaseException as error:
                if hearing or isinstance(error, asyncio.CancelledError):
                    # Nobody takes the results any more. Without a cancel the run would go on, and the next one would
                    # wait behind it.
                    await asyncio.shield(self._cancel(command.id))
                raise
            finally:
                self._rest()

    async def write_evidence(self, name: str, directory: Path, evidence: Evidence) -> m.EvidenceWritten:
        """Have it rendered; ValidatorError if it could not be written."""
        async with self._busy:
            await self._ensure()
            try:
                await self._send(m.WriteEvidence(id=name, directory=str(directory), evidence=evidence))
                while True:
                    event = await self._event(name, EVIDENCE_TIMEOUT, "writing the evidence")
                    if isinstance(event, m.EvidenceWritten):
                        return event
            except asyncio.CancelledError:
                await asyncio.shield(self._kill("it was interrupted while it wrote evidence"))
                raise
            finally:
                self._rest()

    async def _event(self, name: str, timeout: float, what: str) -> m.Event:
        """The next one that belongs to a command; raises its failure."""
        while True:
            try:
                async with asyncio.timeout(timeout):
                    event = await self._events.get()
            except TimeoutError:
                await self._kill(f"{what} gave no sign for {timeout:.0f} s")
                raise self._failed(
                    f"the validator gave no sign for {timeout:.0f} s; see {self.log_file}"
                ) from None
            if isinstance(event, ValidatorError):
                raise event
            if isinstance(event, m.Failed) and event.id in (None, name):
                if event.cancelled:
                    raise ValidatorCancelled(event.reason)
                raise ValidatorError(event.reason, side=event.side, address=event.address)
            if getattr(event, "id", None) == name:
                return event

    async def _stands_still(self) -> NoReturn:
        reason = f"the validator got no further for {self._standstill:.0f} s"
        await self._kill(reason)
        executors = f"has {self._config.spark_master} any executor?"
        raise self._failed(f"{reason}: {executors} See {self.log_file}", side="spark")

    async def _cancel(self, name: str) -> None:
        """Ask for the end of a run and wait for it; a process that does not answer is no longer of use."""
        try:
            await self._send(m.Cancel(id=name))
            async with asyncio.timeout(CANCEL_TIMEOUT):
                while True:
                    event = await self._event(name, CANCEL_TIMEOUT, "the end of a run")
                    if isinstance(event, m.Finished):
                        return
        except TimeoutError:
            await self._kill(f"it did not end a run within {CANCEL_TIMEOUT:.0f} s")
        except ValidatorError:
            return

    # --- life ----------------------------------------------------------------------------------------------------

    async def _ensure(self) -> None:
        """A process that is ready; ValidatorError if there is none to be had now."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._closing is not None:
            await asyncio.wait([self._closing])
            self._closing = None
        if self._process is not None and self.ready is not None:
            return
        if self._command is None:
            missing = missing_parts()
            if missing is not None:
                self.trouble = missing
                raise ValidatorError(missing, hopeless=True)
        wait = self._not_before - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            await self._start()
        except BaseException:
            await asyncio.shield(self._kill("it did not start"))
            raise
        self._pause, self.trouble = 0.0, None

    async def _start(self) -> None:
        work = self.directory / "work"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for report in work.glob("hs_err_pid*.log"):  # why a JVM crashed; one is kept
                report.replace(self.directory / "hs_err.log")
            await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)  # of one that was killed
            work.mkdir(exist_ok=True)
        except OSError as error:
            raise self._failed(f"{work} cannot be made: {error.strerror or error}") from error
        command = self._command or [sys.executable, "-P", "-m", "validator"]
        self._events = asyncio.Queue()
        self.starts += 1
        started = time.monotonic()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *die_with_us(command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=m.MAX_LINE,
                env={**parent_environment(), **python_path()},
                cwd=work,  # Spark leaves things there too (artifacts/spark-...)
                start_new_session=True,  # one group to kill, and Ctrl-C is for the sidecar
            )
        except OSError as error:
            raise self._failed(f"the validator cannot be started: {error.strerror or error}") from error
        # The comparison may wait for a processor, the forwarding of writes may not.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        self._pump = asyncio.create_task(self._watch(process), name="validator")
        config = self._config
        await self._send(
            m.Configure(
                master=config.spark_master, conf=config.spark_conf, python=config.python, work_dir=str(work)
            )
        )
        while True:
            left = started + self._start_timeout - time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    event = await self._events.get()
            except TimeoutError:
                raise self._failed(
                    f"Spark ({config.spark_master}) was not ready within {self._start_timeout:.0f} s; see {self.log_file}",
                    side="spark",
                ) from None
            if isinstance(event, m.Ready):
                self.ready = event
                log.info(
                    "validator: Spark %s on %s is ready after %.1f s",
                    event.spark,
                    event.master,
                    time.monotonic() - started,
                )
                return
            if isinstance(event, m.Failed):
                raise self._failed(event.reason, side=event.side or "spark", address=event.address)
            if isinstance(event, ValidatorError):
                raise event

    def _failed(self, reason: str, *, side: Side | None = None, address: str | None = None) -> ValidatorError:
        """Noted, with a longer pause before the next start."""
        self._pause = min(max(self._first_pause, self._pause * 2), LONGEST_PAUSE)
        self._not_before = time.monotonic() + self._pause
        error = ValidatorError(reason, side=side, address=address)
        self.trouble = str(error)
        return error

    async def _send(self, command: m.Command) -> None:
        process = self._process
        line = m.encode(command)
        if len(line) > m.MAX_LINE:
            raise ValidatorError(
                f"a command of {len(line)} bytes is longer than {m.MAX_LINE}: validate fewer topics"
            )
        try:
            if process is None or process.stdin is None:
                raise BrokenPipeError
            process.stdin.write(line)
            async with asyncio.timeout(self._silence):
                await process.stdin.drain()
        except TimeoutError:
            await self._kill("it does not read its commands")
            raise self._failed(f"the validator does not read its commands; see {self.log_file}") from None
        except (ConnectionError, RuntimeError):
            # `_watch` tells why it ended.
            log.debug("the validator has ended before it was asked")

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Events and log until both ends are closed; then whoever waits is told."""
        reaper = asyncio.create_task(kill_orphans(process), name="validator: orphans")
        try:
            async with TaskGroup() as group:
                group.create_task(keep_log(process.stderr, self.log_file, MAX_LOG_BYTES))
                reason = await self._read_events(process)
                if reason is not None:
                    kill_group(process)
                while process.stdout is not None and await process.stdout.read(CHUNK):
                    pass  # to its end, or the pipe stays open
            code = await process.wait()
        finally:
            reaper.cancel()
            kill_group(process)  # what it has left behind
            await asyncio.shield(process.wait())
        if self._process is process:
            self._process = self.ready = None
            self._events.put_nowait(
                self._failed(
                    f"{reason}; see {self.log_file}"
                    if reason is not None
                    else f"the validator process has ended ({exit_text(code)}); see {self.log_file}"
                )
            )

    async def _read_events(self, process: asyncio.subprocess.Process) -> str | None:
        """Until the end of its output; the reason why it is not worth listening on."""
        output = process.stdout
        while output is not None:
            try:
                line = await output.readline()
                if not line:
                    return None
                if self._process is process:
                    self._events.put_nowait(m.decode_event(line))
            except ValueError:
                return f"the validator sent a line of more than {m.MAX_LINE} bytes"
            except m.MessageError as error:
                return f"the validator does not speak this sidecar's language ({error})"
        return None

    def _rest(self) -> None:
        """Nothing to do: it ends in a while."""
        if self._process is not None and self._ending is None:
            loop = asyncio.get_running_loop()
            self._ending = loop.call_later(self._config.idle_timeout_ms / 1000, self._idle)

    def _idle(self) -> None:
        self._ending = None
        if self._process is not None and not self._busy.locked():
            log.info("validator: nothing to do, it ends")
            self._closing = asyncio.create_task(self._stop(STOP_TIMEOUT), name="validator: end")

    async def close(self) -> None:
        """End it, whatever it does."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._closing is not None:
            await asyncio.wait([self._closing], timeout=CLOSE_GRACE)
            if self._pump is not None and not self._closing.done():
                self._pump.cancel()  # which kills what it watches
                await asyncio.wait([self._closing])
        await self._stop(CLOSE_GRACE)

    async def _stop(self, grace: float) -> None:
        """In good order if it can, else by force."""
        process, pump = self._process, self._pump
        if process is None or pump is None:
            return
        self._process = self.ready = None
        try:
            if process.stdin is not None:
                process.stdin.write(m.encode(m.Stop()))
                process.stdin.close()
        except (ConnectionError, RuntimeError):
            log.debug("the validator had ended already")
        done, _ = await asyncio.wait([pump], timeout=grace)
        if not done:
            # Ending Spark in good order takes seconds, and nobody needs it.
            log.info("the validator is ended without waiting for Spark; nothing is lost by that")
            kill_group(process)
            await asyncio.wait([pump])
        _consume(pump)

    async def _kill(self, why: str) -> None:
        process, pump = self._process, self._pump
        self._process = self.ready = None
        if process is None:
            return
        log.warning("the validator (pid %d) is killed: %s", process.pid, why)
        kill_group(process)
        if pump is not None:
            await asyncio.wait([pump])
            _consume(pump)


def _consume(pump: asyncio.Task[None]) -> None:
    if not pump.cancelled() and (error := pump.exception()) is not None:
        log.error("watching the validator hit a bug", exc_info=error)
