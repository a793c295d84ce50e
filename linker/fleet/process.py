"""Files of the state directory: the lock of the only process, and the identity of the sidecar.

The lock makes `replaces` true: its holder knows that every earlier process of this directory is over. The identity is
kept here rather than in the shared store, because a sidecar has to come back as the same broker even while no link
controller can be reached.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import uuid
from pathlib import Path
from typing import Any

from linker.membership import Identity
from wire.errors import LinkerError


class StateDirInUse(LinkerError):
    """Another process works with this state directory."""


class StateDirError(LinkerError):
    """The state directory cannot be used, or holds files that this program has not written."""


class SidecarProcess:
    """This process among all that ever ran with this state directory. `close` when it ends."""

    def __init__(self, directory: Path, lock: int, session: str, replaces: tuple[str, ...]) -> None:
        self._directory = directory
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
            before = _read(directory / "session.json")
            session = uuid.uuid4().hex
            known = before.get("sessions", [])
            if not isinstance(known, list) or not all(isinstance(one, str) for one in known):
                raise StateDirError(f"{directory / 'session.json'} is damaged: remove it")
            # The last few: the newest may have ended before any link controller heard of it.
            sessions = [*known[-7:], session]
            _write(directory / "session.json", {"sessions": sessions})
        except BaseException:
            os.close(lock)
            raise
        return cls(directory, lock, session, tuple(sessions[:-1]))

    def identity(self) -> Identity | None:
        """The sidecar's identity at the target; None before it ever registered there."""
        path = self._directory / "identity.json"
        kept = _read(path)
        if not kept:
            return None
        try:
            return Identity(
                int(kept["broker_id"]),
                base64.b64decode(kept["incarnation_id"], validate=True),
                base64.b64decode(kept["log_dir_id"], validate=True),
                int(kept["broker_epoch"]),
                str(kept["cluster_id"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateDirError(f"{path} is damaged ({error!r}): restore it from a backup") from error

    def save_identity(self, identity: Identity) -> None:
        """Durable when it returns."""
        _write(
            self._directory / "identity.json",
            {
                "broker_id": identity.broker_id,
                "incarnation_id": base64.b64encode(identity.incarnation_id).decode(),
                "log_dir_id": base64.b64encode(identity.log_dir_id).decode(),
                "broker_epoch": identity.broker_epoch,
                "cluster_id": identity.cluster_id,
            },
        )

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateDirError(f"{path}: {error.strerror or error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StateDirError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise StateDirError(f"{path} is damaged: not an object")
    return value


def _write(path: Path, value: dict[str, Any]) -> None:
    """Write the whole file or nothing, and on the disk: a power cut must not change the identity."""
    beside = path.with_suffix(".new")
    try:
        with open(beside, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StateDirError(f"{path}: {error.strerror or error}") from error
