"""The ZooKeeper store on a real server: the contract's own tests, its start, versions, and what others have written."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from pathlib import Path

import pytest

from controller.errors import CorruptState
from controller.operations import Delete, Put, Versioned
from fleet.stores.base import ControllerFenced, NodeNotEmpty, StoreError, StoreTooNew, VersionConflict
from fleet.stores.zookeeper.client import MAX_TRANSACTION_BYTES
from fleet.stores.zookeeper.store import ZooKeeperStore
from lab.clusters.ports import PortReservation
from tests.controller import test_store_contract
from tests.fakes.certs import Authority
from tests.real import harness_store_zookeeper as rig
from tests.real.harness_store_zookeeper import (
    SESSION,
    Open,
    candidate,
)
from tests.real.harness_zookeeper_server import ZooKeeperServer

server = rig.server
open_store = rig.open_store
store = rig.store
_paths = rig._paths

# The contract, held against the `store` of this module.
globals().update({name: test for name, test in vars(test_store_contract).items() if name.startswith("test_")})


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
