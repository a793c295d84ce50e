"""Who has the seat and who is alive, in ZooKeeper on a real server."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from controller.operations import Put
from fleet.stores.base import Candidate, ControllerFenced, FleetStore, StoreError
from fleet.stores.zookeeper.plan import Remove
from tests.real import harness_store_zookeeper as rig
from tests.real.harness_store_zookeeper import (
    SESSION,
    Open,
    candidate,
    holds,
    is_alive,
    until,
)

ROOT = Path(__file__).parents[2]

server = rig.server
open_store = rig.open_store
store = rig.store
_paths = rig._paths


_HOLDER = """
import asyncio, sys
from fleet.stores.base import Candidate
from fleet.stores.zookeeper.store import ZooKeeperStore

async def main():
    store = await ZooKeeperStore.open(sys.argv[1], session_timeout=float(sys.argv[2]))
    me = Candidate(broker_id=1, session="first", cluster_id="target")
    await store.announce(me)
    print(await store.take_seat(me), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_holder_is_killed(open_store: Open) -> None:
    store = await open_store()
    assert await store.seat_changed(None, timeout=0.1) is None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLDER, store._client.where("/"), str(SESSION), stdout=-1, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        first = int(await asyncio.wait_for(process.stdout.readline(), 20))
        seat = await store.seat_changed(None, timeout=5)
        assert seat is not None
        assert (seat.holder.broker_id, seat.holder.session, seat.epoch) == (1, "first", first)
        waiting = asyncio.create_task(store.take_seat(candidate(2)))
        # The same broker.id, started again before the old session is over.
        again = asyncio.create_task(store.announce(candidate(1)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        assert await asyncio.wait_for(waiting, 10) > first
        took = time.monotonic() - killed
        await asyncio.wait_for(again, 5)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    print(f"taken over {took:.2f} s after kill -9, session timeout {SESSION} s")
    assert took < 2 * SESSION + 2
    now = await store.seat_changed(seat, timeout=5)
    assert now == store.seat
    assert now is not None
    assert now.holder == candidate(2)


async def test_the_seat_is_given_back(open_store: Open) -> None:
    first, second, third = [await open_store(session_timeout=5.0) for _ in range(3)]
    epoch = await first.take_seat(candidate(1))
    lost = asyncio.create_task(first.seat_lost())
    waiting = asyncio.create_task(second.take_seat(candidate(2)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    began = time.monotonic()
    await first.resign()
    assert await asyncio.wait_for(waiting, 5) == epoch + 1
    assert time.monotonic() - began < 3.0
    assert await lost == "resigned"
    await first.resign()  # nothing to do, and in nobody's way
    await third.resign()
    assert await third.seat_changed(None, timeout=5) is not None
    await second.commit([], controller_epoch=epoch + 1)
    waiting = asyncio.create_task(third.take_seat(candidate(3)))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await second.close()  # as good as resigning
    assert await asyncio.wait_for(waiting, 5) == epoch + 2
    assert time.monotonic() - began < 3.0


async def test_resigning_late_is_in_nobodys_way(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look at the seat and its removal the session ended, and another took the seat."""
    first, second = await open_store(), await open_store()
    await first.take_seat(candidate(1))
    stale = await first._client.read("/controller")
    assert stale is not None
    await first._client.transact("as if the session had ended", [Remove("/controller", 0)])
    epoch = await second.take_seat(candidate(2))
    read = first._client.read

    async def late(path: str) -> object:
        return stale if path == "/controller" else await read(path)

    monkeypatch.setattr(first._client, "read", late)
    await first.resign()
    monkeypatch.undo()
    await asyncio.sleep(0.2)
    assert await second.get("/controller") is not None
    await second.commit([], controller_epoch=epoch)


async def test_only_one_of_many_has_the_seat(open_store: Open) -> None:
    stores = [await open_store() for _ in range(4)]
    tasks = {
        asyncio.create_task(store.take_seat(candidate(index))): store for index, store in enumerate(stores)
    }
    waiting, epochs = set(tasks), []
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.2)
        assert len(done) == 1
        (winner,) = done
        epochs.append(winner.result())
        assert not any(task.done() for task in waiting)
        await tasks[winner].resign()
    assert epochs == sorted(set(epochs))


async def test_a_cancelled_taking_leaves_the_seat_free(open_store: Open) -> None:
    store, other = await open_store(), await open_store()
    for number in range(12):
        task = asyncio.create_task(store.take_seat(candidate(1)))
        await asyncio.sleep(0.0005 * number)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, int):
            await store.resign()
        epoch = await asyncio.wait_for(other.take_seat(candidate(2)), 5)
        await other.commit([], controller_epoch=epoch)
        await other.resign()


async def test_a_seat_of_its_own_earlier_session_is_taken_over(open_store: Open) -> None:
    """The client was made anew, and the session of the old one lives on."""
    store = await open_store(session_timeout=5.0)
    first = await store.take_seat(candidate(1))
    old = store._client._client
    store._client._client = store._client._new_client()
    store._client._client.start_async()
    try:
        await until(lambda: holds(lambda: bool(store._client.former)))
        assert "session" in await asyncio.wait_for(store.seat_lost(), 5)
        began = time.monotonic()
        assert await asyncio.wait_for(store.take_seat(candidate(1)), 10) > first
        assert time.monotonic() - began < 3.0
    finally:
        await asyncio.to_thread(old.stop)
        await asyncio.to_thread(old.close)
    await asyncio.sleep(0.3)
    assert (await store.get("/controller")) is not None


async def test_a_client_that_gives_up_is_made_anew(open_store: Open) -> None:
    store = await open_store()
    await store.announce(candidate(1))
    epoch = await store.take_seat(candidate(1))
    lost = asyncio.create_task(store.seat_lost())
    await asyncio.to_thread(store._client._client.stop)  # as kazoo does after an error of its own
    assert "session" in await asyncio.wait_for(lost, 5)
    following = await asyncio.wait_for(store.take_seat(candidate(1)), 10)
    assert following > epoch
    await store.commit([Put("/a", 1, None)], controller_epoch=following)
    await until(lambda: is_alive(store, 1))


async def test_a_claim_by_another_takes_the_seat_away(open_store: Open) -> None:
    store, other = await open_store(), await open_store()
    epoch = await store.take_seat(candidate(1))
    lost = asyncio.create_task(store.seat_lost())
    await other.claim()
    with pytest.raises(ControllerFenced):
        await store.commit([], controller_epoch=epoch)
    assert "claimed" in await asyncio.wait_for(lost, 5)


async def test_two_sidecars_with_one_broker_id(open_store: Open) -> None:
    first, second = await open_store(), await open_store()
    await first.announce(candidate(7))
    with pytest.raises(StoreError, match=r"another sidecar with broker\.id 7"):
        await second.announce(Candidate(broker_id=7, session="another"))
    node = await second.get("/sidecars/ids/7")
    assert node is not None
    assert isinstance(node.value, dict)
    assert node.value["session"] == "process-7"
    await first.close()
    await asyncio.wait_for(second.announce(Candidate(broker_id=7, session="another")), 2)


async def test_two_fleets_on_one_path(open_store: Open) -> None:
    first, second = await open_store(), await open_store()
    await first.announce(candidate(1, "here"))
    for attempt in (second.announce, second.take_seat):
        with pytest.raises(StoreError, match=r"fleet of target cluster here, not there.*path of its own"):
            await attempt(candidate(2, "there"))
    await second.announce(candidate(2, "here"))
    assert await first.children("/sidecars/ids") == ["1", "2"]


async def test_it_is_a_fleet_store(store: FleetStore) -> None:
    assert await store.seat_changed(None, timeout=0.05) is None
