"""The validator process: commands in, events out, one Spark session, one run at a time.

A thread reads stdin, so a Cancel is heard during a run. When stdin ends the process ends, with its JVM: what runs is
cancelled first, and if that takes too long it ends all the same.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import BinaryIO

from validator import messages
from validator.batch_run import BatchRun, Emit
from validator.mode import Mode
from validator.read.session import Session, SparkFailed
from validator.records.run import RecordRun
from wire.errors import LinkerError

END_SECONDS = 20.0
"""A process whose stdin has ended is gone after this long, whatever Spark does."""

log = logging.getLogger("validator")


class Driver:
    """Reads commands from `commands`, writes events to `events`; `serve` returns when the process may end."""

    def __init__(self, commands: BinaryIO, events: BinaryIO) -> None:
        self._commands = commands
        self._events = events
        self._write_lock = threading.Lock()
        self._waiting: queue.Queue[messages.Command | None] = queue.Queue()
        self._cancels: dict[str, threading.Event] = {}  # of runs that wait or run
        self._cancels_lock = threading.Lock()
        self._running: str | None = None
        self._session: Session | None = None
        self.ended = threading.Event()

    def serve(self) -> int:
        """The process's exit code: 1 if Spark could not be started."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        try:
            while (command := self._waiting.get()) is not None:
                if isinstance(command, messages.Configure):
                    if not self._configure(command):
                        return 1
                elif isinstance(command, messages.Run):
                    self._run(command)
                elif isinstance(command, messages.WriteEvidence):
                    self._write_evidence(command)
        finally:
            if self._session is not None:
                self._session.stop()
            self.ended.set()
        return 0

    # --- commands -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while line := self._commands.readline(messages.MAX_LINE):
            try:
                command = messages.decode_command(line)
            except messages.MessageError as error:
                self.emit(messages.Failed(id=None, reason=str(error)))
                break
            if isinstance(command, messages.Stop):
                break
            if isinstance(command, messages.Cancel):
                self._cancel(command.id)
                continue
            if isinstance(command, messages.Run):
                with self._cancels_lock:
                    self._cancels[command.id] = threading.Event()
            self._waiting.put(command)
        with self._cancels_lock:
            left = list(self._cancels)
        for run_id in left:
            self._cancel(run_id)
        self._waiting.put(None)
        if not self.ended.wait(END_SECONDS):
            log.error(
                "Spark does not end within %g s of the end of stdin; the process ends without it", END_SECONDS
            )
            logging.shutdown()
            os._exit(1)

    def _cancel(self, run_id: str) -> None:
        with self._cancels_lock:
            cancelled = self._cancels.get(run_id)
            running = self._running == run_id
        if cancelled is None:
            return  # it has ended already
        cancelled.set()
        if running and self._session is not None:
            try:
                self._session.spark.sparkContext.cancelJobGroup(run_id)
            except Exception as error:  # a session that is just ending
                log.warning("cancelling run %s: %s", run_id, error)

    def _configure(self, command: messages.Configure) -> bool:
        session = Session(command)
        try:
            spark = session.start()
        except LinkerError as error:
            address = error.address if isinstance(error, SparkFailed) else None
            self.emit(messages.Failed(id=None, reason=str(error), side="spark", address=address))
            return False
        self._session = session
        self.emit(messages.Ready(spark=spark.version, master=command.master, ui=session.ui()))
        return True

    def _run(self, run: messages.Run) -> None:
        with self._cancels_lock:
            cancelled = self._cancels[run.id]
            self._running = run.id
        try:
            if self._session is None:
                self.emit(messages.Failed(id=run.id, reason="no Configure was sent", side="spark"))
            elif cancelled.is_set():
                self.emit(messages.Failed(id=run.id, reason="cancelled", cancelled=True))
            else:
                execute(self._session, run, self.emit, cancelled)
        except SparkFailed as error:
            self.emit(messages.Failed(id=run.id, reason=str(error), side="spark", address=error.address))
        finally:
            with self._cancels_lock:
                self._running = None
                del self._cancels[run.id]

    def _write_evidence(self, command: messages.WriteEvidence) -> None:
        from validator.evidence.write import write_evidence

        try:
            written = write_evidence(command.evidence, command.directory)
            self.emit(
                messages.EvidenceWritten(
                    id=command.id,
                    html=str(written.html),
                    json_path=str(written.json_path),
                    parquet=str(written.parquet),
                )
            )
        except (LinkerError, OSError) as error:
            self.emit(messages.Failed(id=command.id, reason=f"the evidence could not be written: {error}"))

    # --- events ---------------------------------------------------------------------------------------------

    def emit(self, event: messages.Event) -> None:
        """Write one line; from any thread. A sidecar that went away is the end of stdin's business."""
        with self._write_lock:
            try:
                self._events.write(messages.encode(event))
                self._events.flush()
            except BrokenPipeError:
                log.warning("nobody reads the events any more")


def execute(session: Session, run: messages.Run, emit: Emit, cancelled: threading.Event) -> None:
    """Carry a run out in its mode."""
    if run.mode is Mode.RECORDS:
        RecordRun(session.spark, run, emit, cancelled).execute()
    else:
        BatchRun(session.spark, run, emit, cancelled).execute()
