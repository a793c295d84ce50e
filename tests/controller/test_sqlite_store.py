"""What only the SQLite store has: the lock, the schema version, durability under kill, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from controller.operations import Delete, Put, Versioned
from fleet.stores.base import StoreError, StoreLocked, StoreTooNew
from fleet.stores.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]


async def test_a_second_opener_is_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await SqliteStore.open(path)
    with pytest.raises(StoreLocked) as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)
    assert str(os.getpid()) in str(caught.value)
    await store.close()
    await store.close()
    again = await SqliteStore.open(path)
    await again.close()


async def test_a_lock_without_a_readable_pid(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await SqliteStore.open(path)
    (tmp_path / "state.db.lock").write_text("garbage")
    with pytest.raises(StoreLocked, match="another process"):
        await SqliteStore.open(path)
    await store.close()


async def test_what_was_committed_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "state.db"
    store = await SqliteStore.open(path)
    epoch = await store.claim()
    await store.commit([Put("/a", {"k": "v"}, None)], controller_epoch=epoch)
    await store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = await SqliteStore.open(path)
    assert await store.get("/a") == Versioned({"k": "v"}, 0)
    assert await store.claim() == epoch + 1
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.get("/a")


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await (await SqliteStore.open(path)).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreTooNew, match="99"):
        await SqliteStore.open(path)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (99,)
    database.close()


async def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE precious (x)")
    database.close()
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore.open(path)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is not a database" * 100)
    for _ in range(2):  # a failed open gives the lock back
        with pytest.raises(StoreError, match=r"garbage\.db"):
            await SqliteStore.open(garbage)
    assert garbage.read_bytes().startswith(b"this is not")


async def test_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        await SqliteStore.open(tmp_path / "file" / "state.db")


async def test_a_cancelled_commit_is_whole_or_not_there(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state.db")
    epoch = await store.claim()
    for number in range(30):
        task = asyncio.create_task(
            store.commit([Put(f"/x/{number}", 1, None), Put(f"/y/{number}", 1, None)], controller_epoch=epoch)
        )
        await asyncio.sleep(0 if number % 2 else 0.0005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # A read is queued behind the commit, so it sees how that ended.
        assert (await store.get(f"/x/{number}") is None) == (await store.get(f"/y/{number}") is None)
    await store.close()


async def test_a_cancelled_open_gives_the_lock_back(tmp_path: Path) -> None:
    for delay in (0.0, 0.0002, 0.002):
        task = asyncio.create_task(SqliteStore.open(tmp_path / "state.db"))
        await asyncio.sleep(delay)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, SqliteStore):
            await result.close()
        async with asyncio.timeout(30):
            while True:
                try:
                    store = await SqliteStore.open(tmp_path / "state.db")
                    break
                except StoreLocked:
                    await asyncio.sleep(0.01)
        await store.close()


async def test_the_event_loop_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state.db")
    epoch = await store.claim()
    release = asyncio.Event()
    blocked = store._executor.submit(_block_until, release, asyncio.get_running_loop())
    commit = asyncio.create_task(store.commit([Put("/a", 1, None)], controller_epoch=epoch))
    await asyncio.sleep(0.05)
    assert not commit.done()
    release.set()
    await commit
    assert blocked.done()
    await store.commit([Delete("/a", 0)], controller_epoch=epoch)
    await store.close()


def _block_until(release: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5)


_WRITER = """
import asyncio, sys
from controller.operations import Put
from fleet.stores.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    epoch = await store.claim()
    version = None
    for number in range(10**9):
        await store.commit(
            [Put("/left", number, version), Put("/right", number, version)], controller_epoch=epoch
        )
        version = number
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 7, 40])
async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "state.db"
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert process.stdout is not None
    try:
        for _ in range(lines):
            acknowledged = int(process.stdout.readline())
        with pytest.raises(StoreLocked, match=str(process.pid)):
            await SqliteStore.open(path)
    finally:
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
    acknowledged = max([acknowledged, *map(int, rest)])
    store = await SqliteStore.open(path)
    left, right = await store.get("/left"), await store.get("/right")
    assert left == right
    assert left is not None
    # The commit under way when the signal came may be there too.
    assert left.value in (acknowledged, acknowledged + 1)
    await store.close()
