"""The ZooKeeper store on a real server: the contract's own tests, and what only this store has."""

from __future__ import annotations

import asyncio
import itertools
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from controller.errors import CorruptState
from controller.store import (
    ControllerFenced,
    Delete,
    NodeNotEmpty,
    Put,
    StoreError,
    StoreTooNew,
    VersionConflict,
    Versioned,
)
from controller.store.base import Candidate, FleetStore
from controller.store.zookeeper import ZooKeeperStore
from controller.store.zookeeper_client import MAX_TRANSACTION_BYTES, Rejected
from controller.store.zookeeper_plan import Remove, Step
from controller.store.zookeeper_session import Disconnected
from linker.demo.ports import PortReservation
from tests.controller import test_store_contract
from tests.fakes.certs import Authority
from tests.real.harness_zookeeper_server import ZooKeeperServer

ROOT = Path(__file__).parents[2]
SESSION = 1.5  # seconds

Open = Callable[..., Awaitable[ZooKeeperStore]]

# The contract, held against the `store` of this module.
globals().update({name: test for name, test in vars(test_store_contract).items() if name.startswith("test_")})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ZooKeeperServer]:
    """Leave it running."""
    started = await ZooKeeperServer.prepared(tmp_path_factory.mktemp("zookeeper"))
    try:
        await started.start()
        yield started
    finally:
        await started.close()


@pytest.fixture(scope="module")
def _paths() -> Iterator[int]:
    return itertools.count()


@pytest_asyncio.fixture(loop_scope="session")
async def open_store(server: ZooKeeperServer, _paths: Iterator[int]) -> AsyncIterator[Open]:
    """`await open_store()`: one more store, all on one path that is the test's own."""
    path = f"/tests/{next(_paths)}"
    async with AsyncExitStack() as stack:

        async def open_one(more: str = "", **options: object) -> ZooKeeperStore:
            options = {"session_timeout": SESSION, **options}
            opened = await ZooKeeperStore.open(f"{server.address}{path}{more}", **options)  # type: ignore[arg-type]
            stack.push_async_callback(opened.close)
            return opened

        yield open_one


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: Open) -> ZooKeeperStore:
    return await open_store()


def candidate(broker_id: int, cluster_id: str = "target") -> Candidate:
    return Candidate(
        broker_id=broker_id,
        control=f"h:{broker_id}",
        admin=f"h:1{broker_id}",
        session=f"process-{broker_id}",
        cluster_id=cluster_id,
    )


async def expire(server: ZooKeeperServer, store: ZooKeeperStore) -> None:
    """End the store's session behind its back, as the server does when it is silent for too long."""
    outsider = await asyncio.to_thread(server.outsider, store._client._client.client_id)
    await asyncio.to_thread(outsider.stop)
    await asyncio.to_thread(outsider.close)


async def until(condition: Callable[[], Awaitable[bool]], timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not await condition():
            await asyncio.sleep(0.02)


async def eventually_commits(store: ZooKeeperStore, path: str, epoch: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                return await store.commit([Put(path, 1, None)], controller_epoch=epoch)
            except VersionConflict:
                return None
            except ControllerFenced:
                raise
            except StoreError:
                await asyncio.sleep(0.05)


# Start.


async def test_no_server_at_start() -> None:
    with PortReservation() as port:
        before = time.monotonic()
        with pytest.raises(StoreError, match=f"127.0.0.1:{port.port}.*refused.*connect string"):
            await ZooKeeperStore.open(f"127.0.0.1:{port.port}/x", connect_timeout=0.5)
        assert time.monotonic() - before < 5


async def test_a_server_that_does_not_answer(server: ZooKeeperServer) -> None:
    server.pause()
    try:
        with pytest.raises(StoreError, match=r"cannot be reached within 0\.5 s"):
            await ZooKeeperStore.open(server.address, connect_timeout=0.5, session_timeout=SESSION)
    finally:
        server.resume()


async def test_a_path_of_another_program_is_refused(server: ZooKeeperServer) -> None:
    outsider = await asyncio.to_thread(server.outsider)
    try:
        await asyncio.to_thread(outsider.create, "/kafka/controller_epoch", b"7", makepath=True)
        with pytest.raises(
            StoreError, match=r"/kafka holds controller_epoch and is no state store.*of its own"
        ):
            await ZooKeeperStore.open(f"{server.address}/kafka")
        assert await asyncio.to_thread(outsider.get_children, "/kafka") == ["controller_epoch"]
    finally:
        await asyncio.to_thread(outsider.stop)
        await asyncio.to_thread(outsider.close)


async def test_several_begin_one_store_at_once(open_store: Open) -> None:
    stores = await asyncio.gather(*(open_store("/deep/er") for _ in range(4)))
    epochs = await asyncio.gather(*(store.claim() for store in stores))
    assert sorted(epochs) == [1, 2, 3, 4]


async def test_closed(store: ZooKeeperStore) -> None:
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.get("/a")
    with pytest.raises(StoreError, match="closed"):
        await store.claim()


# Versions, and the paths between the nodes.


async def test_a_path_that_becomes_a_node_begins_at_version_0(open_store: Open) -> None:
    store, other = await open_store(), await open_store()
    epoch = await store.claim()
    await store.commit([Put("/a/b/c/d", 1, None)], controller_epoch=epoch)
    assert await store.get("/a/b") is None
    with pytest.raises(VersionConflict):
        await store.commit([Put("/a/b", 1, 0)], controller_epoch=epoch)
    await store.commit([Put("/a/b", "x", None)], controller_epoch=epoch)
    assert await other.get("/a/b") == Versioned("x", 0)
    await store.commit([Put("/a/b", "y", 0), Put("/a/b", "z", 1)], controller_epoch=epoch)
    # A second process plans with what it reads, not with what the first one remembers.
    with pytest.raises(VersionConflict):
        await other.commit([Put("/a/b", "no", 3)], controller_epoch=epoch)  # ZooKeeper's own version
    await other.commit([Put("/a/b", "zz", 2)], controller_epoch=epoch)
    assert await store.get("/a/b") == Versioned("zz", 3)
    with pytest.raises(NodeNotEmpty):
        await store.commit([Delete("/a/b", 3)], controller_epoch=epoch)
    await store.commit([Delete("/a/b/c/d", 0)], controller_epoch=epoch)
    assert await store.children("/a/b") == []
    await store.commit([Delete("/a/b", 3)], controller_epoch=epoch)
    assert await store.children("/") == ["controller_epoch"]


async def test_concurrent_writers_lose_nothing(open_store: Open) -> None:
    stores = [await open_store() for _ in range(3)]
    epoch = await stores[0].claim()
    await stores[0].commit([Put("/n", 0, None)], controller_epoch=epoch)
    conflicts = 0

    async def count(store: ZooKeeperStore, name: int) -> None:
        nonlocal conflicts
        for turn in range(15):
            while True:
                node = await store.get("/n")
                assert node is not None
                assert isinstance(node.value, int)
                try:
                    # Beside it, paths that come and go under the others' hands.
                    await store.commit(
                        [Put("/n", node.value + 1, node.version), Put(f"/x/y/{name}/z", turn, None)],
                        controller_epoch=epoch,
                    )
                    await store.commit([Delete(f"/x/y/{name}/z", 0)], controller_epoch=epoch)
                    break
                except VersionConflict as conflict:
                    assert conflict.path == "/n"
                    conflicts += 1

    await asyncio.gather(*(count(store, name) for name, store in enumerate(stores)))
    assert await stores[1].get("/n") == Versioned(45, 45)
    assert conflicts > 0
    assert await stores[1].children("/") == ["controller_epoch", "n"]


async def test_a_tree_is_of_one_moment(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = await open_store(), await open_store()
    epoch = await writer.claim()
    names = [f"/t/{index}/state" for index in range(40)]
    await writer.commit([Put(name, 0, None) for name in names], controller_epoch=epoch)
    walks = 0
    walk = reader._walk

    async def counted(path: str) -> object:
        nonlocal walks
        walks += 1
        return await walk(path)

    monkeypatch.setattr(reader, "_walk", counted)

    async def write() -> None:
        for turn in itertools.count(1):
            await writer.commit([Put(name, turn, turn - 1) for name in names], controller_epoch=epoch)
            await asyncio.sleep(0.01 * (turn % 12))  # sometimes in the middle of a read, sometimes not

    task = asyncio.create_task(write())
    seen, reads = set(), 0
    while reads < 25 or walks < reads + 5:  # until it was disturbed often enough
        assert reads < 500
        reads += 1
        tree = await reader.tree("/t")
        assert set(tree) == set(names)
        assert len({node.value for node in tree.values()}) == 1
        seen.add(next(iter(tree.values())))
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(seen) > 10


async def test_a_commit_that_is_too_large_says_so(store: ZooKeeperStore) -> None:
    epoch = await store.claim()
    size = 9000
    fits = MAX_TRANSACTION_BYTES // (size + 150)
    operations = [Put(f"/links/l/mirrors/t/{index}/state", "x" * size, None) for index in range(fits + 10)]
    with pytest.raises(StoreError, match="commit fewer at once"):
        await store.commit(operations, controller_epoch=epoch)
    assert await store.children("/") == ["controller_epoch"]
    await store.commit(operations[: fits - 2], controller_epoch=epoch)
    assert len(await store.tree("/links")) == fits - 2


async def test_what_was_never_claimed(open_store: Open) -> None:
    store = await open_store()
    await store.claim()
    with pytest.raises(StoreError, match="never claimed"):
        await store.commit([Put("/a", 1, None)], controller_epoch=2)
    with pytest.raises(StoreError, match="never claimed"):
        await store.commit([], controller_epoch=2)


async def test_an_empty_commit_proves_the_epoch(open_store: Open) -> None:
    first, second = await open_store(), await open_store()
    epoch = await first.claim()
    await first.commit([], controller_epoch=epoch)
    before = first._client._client.last_zxid
    await first.commit([], controller_epoch=epoch)
    assert first._client._client.last_zxid > before  # a transaction of the quorum, not a read of one server
    following = await second.claim()
    with pytest.raises(ControllerFenced) as caught:
        await first.commit([], controller_epoch=epoch)
    assert (caught.value.epoch, caught.value.current) == (epoch, following)
    await second.commit([], controller_epoch=following)


async def test_who_is_fenced_stays_so_after_reading_anew(open_store: Open) -> None:
    """What it plans on is new then, only its epoch is old."""
    first, second = await open_store(), await open_store()
    epoch = await first.claim()
    await first.commit([Put("/a", 1, None)], controller_epoch=epoch)
    following = await second.claim()
    await first.tree("/")
    with pytest.raises(ControllerFenced):
        await first.commit([Put("/a", 2, 0)], controller_epoch=epoch)
    assert await second.get("/a") == Versioned(1, 0)
    await second.commit([Put("/a", 3, 0)], controller_epoch=following)


# Trouble.


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


async def test_a_server_that_restarts(server: ZooKeeperServer, open_store: Open) -> None:
    store = await open_store(session_timeout=5.0)
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
    assert await store.seat_changed(None, timeout=5) == other.seat
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


async def is_alive(store: ZooKeeperStore, broker_id: int) -> bool:
    return str(broker_id) in await store.children("/sidecars/ids")


# The seat.

_HOLDER = """
import asyncio, sys
from controller.store.base import Candidate
from controller.store.zookeeper import ZooKeeperStore

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
    first, second, third = [await open_store() for _ in range(3)]
    epoch = await first.take_seat(candidate(1))
    lost = asyncio.create_task(first.seat_lost())
    waiting = asyncio.create_task(second.take_seat(candidate(2)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    began = time.monotonic()
    await first.resign()
    assert await asyncio.wait_for(waiting, 5) == epoch + 1
    assert time.monotonic() - began < 1.0
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
    assert time.monotonic() - began < 1.0


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
        await until(lambda: _has(lambda: bool(store._client.former)))
        assert "session" in await asyncio.wait_for(store.seat_lost(), 5)
        began = time.monotonic()
        assert await asyncio.wait_for(store.take_seat(candidate(1)), 10) > first
        assert time.monotonic() - began < 1.0
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


async def _has(condition: Callable[[], bool]) -> bool:
    return condition()


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


# What others have written.


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"not json", CorruptState),
        (b"\xff\xfe", CorruptState),
        (b"7", CorruptState),
        (b'{"value": 1}', CorruptState),
        (b'{"format": 1}', CorruptState),
        (b'{"format": 1, "base": 5, "value": 1}', CorruptState),
        (b'{"format": 1, "value": NaN}', CorruptState),
        (b"[" * 100_000, CorruptState),
        (b'{"format": 2, "value": 1}', StoreTooNew),
    ],
)
async def test_foreign_data(
    server: ZooKeeperServer, store: ZooKeeperStore, data: bytes, error: type[Exception]
) -> None:
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None), Put("/b", 1, None)], controller_epoch=epoch)
    outsider = await asyncio.to_thread(server.outsider)
    try:
        full = store._client.full
        await asyncio.to_thread(outsider.set, full("/a"), data)
        await asyncio.to_thread(outsider.create, full("/controller"), data)
        for call in (
            store.get("/a"),
            store.tree("/"),
            store.commit([Put("/a", 2, 0)], controller_epoch=epoch),
        ):
            with pytest.raises(error, match=f"{full('/a')} "):
                await call
        with pytest.raises(StoreError, match=full("/controller")):
            await store.take_seat(candidate(1))
        assert store.seat is None
        assert await store.get("/b") == Versioned(1, 0)
        for path in ("/a", "/controller"):
            await asyncio.to_thread(outsider.delete, full(path))
        assert await asyncio.wait_for(store.take_seat(candidate(1)), 5) > epoch
    finally:
        await asyncio.to_thread(outsider.stop)
        await asyncio.to_thread(outsider.close)


async def test_a_newer_store_is_refused(server: ZooKeeperServer, open_store: Open) -> None:
    store = await open_store()
    outsider = await asyncio.to_thread(server.outsider)
    try:
        await asyncio.to_thread(
            outsider.set, store._client.full("/commits"), b'{"format": 9, "value": null, "more": 1}'
        )
    finally:
        await asyncio.to_thread(outsider.stop)
        await asyncio.to_thread(outsider.close)
    with pytest.raises(StoreTooNew, match="9"):
        await open_store()


async def test_an_emptied_store(server: ZooKeeperServer, open_store: Open) -> None:
    store = await open_store()
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    outsider = await asyncio.to_thread(server.outsider)
    try:
        await asyncio.to_thread(outsider.delete, store._client.full("/"), recursive=True)
    finally:
        await asyncio.to_thread(outsider.stop)
        await asyncio.to_thread(outsider.close)
    with pytest.raises(StoreError, match="emptied"):
        await store.commit([Put("/b", 1, None)], controller_epoch=epoch)
    again = await open_store()
    assert await again.claim() == 1


async def test_a_store_with_a_password(open_store: Open) -> None:
    ours = await open_store("/secret", auth=("linker", "right"))
    epoch = await ours.claim()
    await ours.commit([Put("/a", 1, None)], controller_epoch=epoch)
    for auth in (None, ("linker", "wrong")):
        with pytest.raises(StoreError, match="does not let us in"):
            await open_store("/secret", auth=auth)
    again = await open_store("/secret", auth=("linker", "right"))
    assert await again.get("/a") == Versioned(1, 0)


async def test_tls(tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority("a stranger")
    issued = authority.issue("127.0.0.1")
    keys, trust = tmp_path / "server.pem", tmp_path / "authority.pem"
    keys.write_text(issued.key + issued.certificate)
    trust.write_text(authority.pem)
    server = await ZooKeeperServer.prepared(
        tmp_path / "zookeeper",
        {
            "secure": True,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": keys,
            "ssl.trustStore.location": trust,
            "ssl.clientAuth": "none",
        },
    )
    try:
        await server.start()
        trusting = ssl.create_default_context(cadata=authority.pem)
        store = await ZooKeeperStore.open(f"{server.address}/x", tls=trusting, session_timeout=SESSION)
        epoch = await store.take_seat(candidate(1))
        await store.commit([Put("/a", "x" * 300_000, None)], controller_epoch=epoch)
        assert await store.get("/a") == Versioned("x" * 300_000, 0)
        await store.close()
        with pytest.raises(StoreError, match="certificate verify failed"):
            await ZooKeeperStore.open(
                server.address,
                tls=ssl.create_default_context(cadata=stranger.pem),
                session_timeout=SESSION,
                connect_timeout=1.5,
            )
        with pytest.raises(StoreError, match="cannot be reached"):
            await ZooKeeperStore.open(server.address, session_timeout=SESSION, connect_timeout=1.5)
    finally:
        await server.close()
