"""The embedded store: one SQLite file, one process, one thread. The contract is in `base`.

Non-obvious:
- The lock is an flock on `<path>.lock`, held for the life of the process and given back by the kernel
  however the process ends, so a kill -9 never leaves a stale lock. The file itself stays: unlinking it
  would let two processes hold locks on two different files. The pid in it is only for the message.
- WAL with synchronous=FULL: a commit is on the disk when it returns, and readers with other tools do not
  block it.
- SQLite may not be used from the event loop (an fsync can take seconds on a busy disk) nor from several
  threads at once: everything runs in one worker thread, in order. A cancelled commit still finishes there.
- The file's mode is 0600: link properties should hold references to secrets only, but people will be people.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from controller import keys
from controller.operations import Delete, Operation, Put, Versioned
from controller.state import JsonValue
from fleet.stores.base import (
    ControllerFenced,
    NodeNotEmpty,
    StoreError,
    StoreLocked,
    StoreTooNew,
    VersionConflict,
)
from fleet.stores.nodes import dump, prefix

T = TypeVar("T")

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6B6C6E6B  # "klnk": tells our file from any other SQLite file

_SCHEMA = """
CREATE TABLE node (
    path TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID
"""


class SqliteStore:
    """A `Store` in a file. Make one with `open`."""

    def __init__(
        self, path: Path, lock: int, executor: ThreadPoolExecutor, database: sqlite3.Connection
    ) -> None:
        self._path = path
        self._lock: int | None = lock
        self._executor = executor
        self._database = database

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> SqliteStore:
        """Lock, open and, if it is new, create the store."""
        where = Path(os.path.abspath(path))  # noqa: ASYNC240 - no I/O beyond the working directory's name
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-store")
        opening = executor.submit(_open, where)
        try:
            lock, database = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The thread may still get the lock: its files have to be closed there.
            executor.submit(_discard, opening)
            executor.shutdown(wait=False)
            raise
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(where, lock, executor, database)

    @property
    def path(self) -> Path:
        return self._path

    async def get(self, path: str) -> Versioned | None:
        keys.split(path)
        return await self._run(lambda: _get(self._database, path))

    async def children(self, path: str) -> list[str]:
        below = prefix(path)
        rows = await self._run(lambda: _below(self._database, below))
        return sorted({found[len(below) :].split("/", 1)[0] for found, _, _ in rows})

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        below = prefix(path)
        rows = await self._run(lambda: _below(self._database, below))
        return {found: Versioned(_load(found, value), version) for found, version, value in rows}

    async def claim(self) -> int:
        return await self._run(lambda: _claim(self._database))

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        # Encoded here, so that a value that is no JSON raises before anything is begun.
        prepared: list[tuple[Operation, str]] = []
        for operation in operations:
            keys.split(operation.path)
            if operation.path == keys.CONTROLLER_EPOCH:
                raise StoreError(f"{operation.path} changes by claim() only")
            text = dump(operation.path, operation.value) if isinstance(operation, Put) else ""
            prepared.append((operation, text))
        await self._run(lambda: _commit(self._database, prepared, controller_epoch))

    async def close(self) -> None:
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        closing = self._executor.submit(_close, lock, self._database)
        self._executor.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    async def _run(self, work: Callable[[], T]) -> T:
        if self._lock is None:
            raise StoreError(f"the state store {self._path} is closed")

        def guarded() -> T:
            try:
                return work()
            except sqlite3.Error as error:
                raise StoreError(f"the state store {self._path} failed: {error}") from error

        return await asyncio.wrap_future(self._executor.submit(guarded))


def _open(path: Path) -> tuple[int, sqlite3.Connection]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path)
    except OSError as error:
        raise StoreError(f"the state store {path} cannot be opened: {error}") from error
    database: sqlite3.Connection | None = None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # isolation_level None: we begin transactions, the driver does not guess them.
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        _prepare(path, database)
    except (sqlite3.Error, OSError) as error:
        _close(lock, database)
        raise StoreError(f"the state store {path} cannot be opened: {error}") from error
    except BaseException:
        _close(lock, database)
        raise
    return lock, database


def _discard(opening: Future[tuple[int, sqlite3.Connection]]) -> None:
    """Runs in the store's thread after an open whose caller has gone."""
    if not opening.cancelled() and opening.exception() is None:
        lock, database = opening.result()
        _close(lock, database)


def _take_lock(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).strip()
            raise StoreLocked(str(path), int(holder) if holder.isdigit() else None) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _prepare(path: Path, database: sqlite3.Connection) -> None:
    application_id = int(database.execute("PRAGMA application_id").fetchone()[0])
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    tables = int(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if tables and application_id != APPLICATION_ID:
        raise StoreError(f"{path} is a SQLite file of another program: give store.path a file of its own")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(str(path), version, SCHEMA_VERSION)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if not tables:
        # In one transaction: a crash leaves either no table or a whole, versioned store.
        with _transaction(database):
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _close(lock: int, database: sqlite3.Connection | None) -> None:
    try:
        if database is not None:
            database.close()
    finally:
        os.close(lock)


def _get(database: sqlite3.Connection, path: str) -> Versioned | None:
    row = database.execute("SELECT version, value FROM node WHERE path = ?", (path,)).fetchone()
    return None if row is None else Versioned(_load(path, row[1]), int(row[0]))


def _below(database: sqlite3.Connection, prefix: str) -> list[tuple[str, int, str]]:
    # "0" is the character after "/", so this is the range of everything that starts with the prefix.
    return database.execute(
        "SELECT path, version, value FROM node WHERE path > ? AND path < ? ORDER BY path",
        (prefix, prefix[:-1] + "0"),
    ).fetchall()


def _epoch(database: sqlite3.Connection) -> int:
    current = _get(database, keys.CONTROLLER_EPOCH)
    if current is None:
        return 0
    if not isinstance(current.value, int):
        raise StoreError(f"{keys.CONTROLLER_EPOCH} is not a number")
    return current.value


def _claim(database: sqlite3.Connection) -> int:
    with _transaction(database):
        epoch = _epoch(database) + 1
        database.execute(
            "INSERT INTO node (path, version, value) VALUES (?, 0, ?) "
            "ON CONFLICT (path) DO UPDATE SET version = version + 1, value = excluded.value",
            (keys.CONTROLLER_EPOCH, json.dumps(epoch)),
        )
    return epoch


def _commit(
    database: sqlite3.Connection, prepared: Sequence[tuple[Operation, str]], controller_epoch: int
) -> None:
    with _transaction(database):
        current = _epoch(database)
        if controller_epoch < current:
            raise ControllerFenced(controller_epoch, current)
        for operation, text in prepared:
            _apply(database, operation, text)


def _apply(database: sqlite3.Connection, operation: Operation, text: str) -> None:
    path = operation.path
    row = database.execute("SELECT version FROM node WHERE path = ?", (path,)).fetchone()
    found = None if row is None else int(row[0])
    if found != operation.expect:
        raise VersionConflict(path, operation.expect, found)
    if isinstance(operation, Delete):
        if below := _below(database, f"{path}/"):
            raise NodeNotEmpty(f"{path} still has {below[0][0]} below it")
        database.execute("DELETE FROM node WHERE path = ?", (path,))
    elif found is None:
        database.execute("INSERT INTO node (path, version, value) VALUES (?, 0, ?)", (path, text))
    else:
        database.execute("UPDATE node SET version = version + 1, value = ? WHERE path = ?", (text, path))


def _load(path: str, text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError as error:
        raise StoreError(f"the value of {path} is not JSON: {error}") from error
    return value
