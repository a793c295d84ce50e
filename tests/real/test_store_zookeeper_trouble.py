"""The ZooKeeper store on a real server, when commits, sessions and servers do not end well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from controller.operations import Put, Versioned
from fleet.stores.base import ControllerFenced, StoreError
from fleet.stores.zookeeper.client import Rejected
from fleet.stores.zookeeper.plan import Step
from fleet.stores.zookeeper.session import Disconnected
from fleet.stores.zookeeper.store import ZooKeeperStore
from tests.real import harness_store_zookeeper as rig
from tests.real.harness_store_zookeeper import (
    SESSION,
    Open,
    candidate,
    eventually_commits,
    expire,
    is_alive,
    until,
)
from tests.real.harness_zookeeper_server import TICK_MS, ZooKeeperServer

GRANTED_AT_MOST = 20 * TICK_MS / 1000

server = rig.server
open_store = rig.open_store
store = rig.store
_paths = rig._paths


async def test_a_cancelled_commit_is_whole_or_not_there(store: ZooKeeperStore) -> None:
    epoch = await store.claim()
    done = 0
    for number in range(30):
        puts = [Put(f"/x/{number}", 1, None), Put(f"/y/{number}", 1, None)]
        task = asyncio.create_task(store.commit(puts, controller_epoch=epoch))
        await asyncio.sleep(0.0002 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        tree = await store.tree("/")
        assert (f"/x/{number}" in tree) == (f"/y/{number}" in tree)
        done += f"/x/{number}" in tree
    assert done > 0
    await store.commit([Put("/end", 1, None)], controller_epoch=epoch)


async def test_a_lost_commit_cannot_arrive_after_it_was_looked_for(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store()
    epoch = await store.claim()
    await store.tree("/")
    late: list[Step] = []
    transact = store._client.transact

    async def held_up(what: str, steps: Sequence[Step]) -> list[object]:
        del what
        late.extend(steps)
        raise Disconnected("the connection has ended")

    monkeypatch.setattr(store._client, "transact", held_up)
    with pytest.raises(StoreError):
        await store.commit([Put("/lost", 1, None)], controller_epoch=epoch)
    monkeypatch.undo()
    assert await store.get("/lost") is None
    with pytest.raises(Rejected):
        await transact("the lost commit, at last", late)
    assert await store.get("/lost") is None
    await store.commit([Put("/lost", 2, None)], controller_epoch=epoch)


async def test_a_server_that_hangs(server: ZooKeeperServer, open_store: Open) -> None:
    """Longer than the session: the seat is lost, what was under way fails, and it all goes on afterwards."""
    store, other = await open_store(), await open_store()
    epoch = await store.take_seat(candidate(1))
    await store.announce(candidate(1))
    lost = asyncio.create_task(store.seat_lost())
    await asyncio.sleep(0.1)
    assert not lost.done()
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StoreError, match="ZooKeeper at 127"):
            await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
        assert "not reachable" in await lost
        assert time.monotonic() - began < 4 * SESSION + 2
        cancelled = asyncio.create_task(store.commit([Put("/b", 1, None)], controller_epoch=epoch))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
    finally:
        server.resume()
    # Whatever became of the two: what is read now stays so.
    tree = await store.tree("/")
    await asyncio.sleep(0.5)
    assert await store.tree("/") == tree
    following = await store.take_seat(candidate(1))
    assert following > epoch
    await eventually_commits(store, "/c", following)
    assert (await other.tree("/"))["/c"].value == 1
    await until(lambda: is_alive(other, 1))


async def test_a_seat_is_given_up_after_the_session_that_was_granted(
    server: ZooKeeperServer, open_store: Open
) -> None:
    store = await open_store(session_timeout=120.0)  # of which the server makes 20 of its ticks
    await store.take_seat(candidate(1))
    lost = asyncio.create_task(store.seat_lost())
    server.pause()
    try:
        assert await asyncio.wait_for(lost, 3 * GRANTED_AT_MOST) == (
            f"ZooKeeper at {store._client.servers} was not reachable for {GRANTED_AT_MOST:g} s"
        )
    finally:
        server.resume()


async def test_a_server_that_restarts(server: ZooKeeperServer, open_store: Open) -> None:
    # The server makes less of it, and counts anew from its start; ours gives it time to start on a busy machine.
    store = await open_store(session_timeout=30.0)
    epoch = await store.take_seat(candidate(1))
    await store.commit([Put("/a", 1, None), Put("/b/c", 2, None)], controller_epoch=epoch)
    before = await store.tree("/")
    lost = asyncio.create_task(store.seat_lost())
    await server.kill()
    await server.start()
    assert await store.tree("/") == before
    await store.commit([Put("/a", 2, 0)], controller_epoch=epoch)
    assert not lost.done()  # the session has lived on
    lost.cancel()


async def test_an_expired_session(server: ZooKeeperServer, open_store: Open) -> None:
    store, other = await open_store(), await open_store()
    await store.announce(candidate(1))
    first = await store.take_seat(candidate(1))
    lost = asyncio.create_task(store.seat_lost())
    waiting = asyncio.create_task(other.take_seat(candidate(2)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await expire(server, store)
    async with asyncio.timeout(10):
        second = await waiting
        assert "session" in await lost or "gone" in await lost
    assert second > first
    with pytest.raises(ControllerFenced):
        await asyncio.wait_for(_commit_when_connected(store, first), 10)
    await until(lambda: is_alive(other, 1))  # announced again, in its new session
    seat = await store.seat_changed(None, timeout=5)
    if seat is not None and seat.epoch == first:  # as it knew it last
        seat = await store.seat_changed(seat, timeout=5)
    assert seat == other.seat
    assert other.seat is not None
    assert (other.seat.holder, other.seat.epoch) == (candidate(2), second)
    await other.commit([Put("/a", 1, None)], controller_epoch=second)
    assert await store.get("/a") == Versioned(1, 0)


async def _commit_when_connected(store: ZooKeeperStore, epoch: int) -> None:
    while True:
        try:
            return await store.commit([Put("/old", 1, None)], controller_epoch=epoch)
        except ControllerFenced:
            raise
        except StoreError:
            await asyncio.sleep(0.05)
