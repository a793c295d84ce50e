"""The lock of the state directory, and the sessions of the processes that had it.

The lock makes `replaces` true: its holder knows that every earlier process of this directory is over.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

from linker.process.state_files import StateDirError, read_state, write_state
from wire.errors import LinkerError


class StateDirInUse(LinkerError):
    """Another process works with this state directory."""


class SidecarProcess:
    """This process among all that ever ran with this state directory. `close` when it ends."""

    def __init__(self, lock: int, session: str, replaces: tuple[str, ...]) -> None:
        self._lock: int | None = lock
        self.session = session
        #: Sessions of earlier processes: certainly over.
        self.replaces = replaces

    @classmethod
    def begin(cls, directory: Path) -> SidecarProcess:
        """Take the lock and a session of its own."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(directory / "sidecar.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(f"sidecar.state.dir {directory}: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateDirInUse(
                    f"{directory} is in use by another sidecar: stop it, or give this one a sidecar.state.dir of its own"
                ) from None
            before = read_state(directory / "session.json")
            session = uuid.uuid4().hex
            known = before.get("sessions", [])
            if not isinstance(known, list) or not all(isinstance(one, str) for one in known):
                raise StateDirError(f"{directory / 'session.json'} is damaged: remove it")
            # The last few: the newest may have ended before any link controller heard of it.
            sessions = [*known[-7:], session]
            write_state(directory / "session.json", {"sessions": sessions})
        except BaseException:
            os.close(lock)
            raise
        return cls(lock, session, tuple(sessions[:-1]))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
