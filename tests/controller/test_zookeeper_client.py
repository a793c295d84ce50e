"""The ZooKeeper store and servers that are none. On a real one it is tested in tests/real."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kazoo.protocol.serialization import Close

from fleet.stores.base import StoreError
from fleet.stores.zookeeper.session import ZooKeeperSession
from fleet.stores.zookeeper.store import ZooKeeperStore

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "connect", ["", "/x", "host:port", "host:1/a/../b", "host:1/a b", "host:1//x", "a:1,,b:2", "host:99999"]
)
async def test_connect_strings_that_make_no_sense(connect: str) -> None:
    with pytest.raises(StoreError, match="host:port,host:port/path"):
        await ZooKeeperStore.open(connect, connect_timeout=0.1)


@pytest.mark.parametrize(
    "answer",  # the last one is accepted as a session, and breaks kazoo afterwards
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00" * 20,
        b"\x00\x00\x00\x24" + b"\xff" * 36,
        b"\x00\x00\x00\x25" + b"\x00\x00\x00\x00\x00\x00\x17\x70" + b"\x01" * 29 + b"\xff" * 200,
    ],
)
async def test_servers_that_talk_nonsense(answer: bytes) -> None:
    timeout = 2.5 if answer.endswith(b"\xff" * 200) else 0.8
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(1)
        writer.write(answer)
        await _closed(writer)

    threads = threading.active_count()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}"):
            await ZooKeeperStore.open(f"127.0.0.1:{port}", connect_timeout=timeout, session_timeout=1.0)
    finally:
        server.close()
        await server.wait_closed()
    assert connections > 1  # it has not given up, whatever it got
    async with asyncio.timeout(30):
        while threading.active_count() > threads:
            await asyncio.sleep(0.01)


async def _closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    except OSError:
        pass


async def test_an_open_that_is_cancelled_leaves_nothing() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await _closed(writer)

    threads = threading.active_count()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opening = asyncio.create_task(ZooKeeperStore.open(f"127.0.0.1:{port}", session_timeout=1.0))
    await asyncio.sleep(0.1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(30):
        while threading.active_count() > threads:
            await asyncio.sleep(0.01)
    server.close()
    await server.wait_closed()


def test_kazoo_is_loaded_only_for_this_store() -> None:
    check = (
        "import sys, linker.sidecar, linker.stores; assert 'kazoo' not in sys.modules; "
        "import fleet.stores.zookeeper.store; assert 'kazoo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


@pytest.mark.parametrize(("session_timeout", "connect_timeout"), [(6.0, 30.0), (30.0, 6.0)])
async def test_a_server_that_takes_a_connection_and_says_nothing(
    session_timeout: float, connect_timeout: float
) -> None:
    """As one that has just started may: the next connection gets a session, and keeps it."""
    connections = 0
    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await reader.read()
            hung_up.set()
        else:
            await _give_session(reader, writer)
        await _closed(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.monotonic()
    session = await ZooKeeperSession.open(
        f"127.0.0.1:{port}",
        session_timeout=session_timeout,
        connect_timeout=connect_timeout,
        auth=None,
        tls=None,
    )
    try:
        assert 2.0 <= time.monotonic() - began < 5.9  # a third of the time there is, and not all of it
        assert hung_up.is_set()
        await asyncio.sleep(2.3)  # longer than a connection without a session would have
        assert session.connected
        assert connections == 2
    finally:
        await session.close()
        server.close()
        await server.wait_closed()


async def test_an_ensemble_that_grants_less_than_was_asked_for() -> None:
    """Six seconds instead of 24: a server that says nothing after that is left after two seconds, not eight."""
    opened: list[float] = []
    given = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(time.monotonic())
        if len(opened) == 2:
            await reader.read()
        else:
            serving = asyncio.create_task(_give_session(reader, writer, granted=6000))
            if len(opened) == 1:
                await given.wait()
                serving.cancel()
            await asyncio.wait([serving])
        await _closed(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    session = await ZooKeeperSession.open(
        f"127.0.0.1:{port}", session_timeout=24.0, connect_timeout=30, auth=None, tls=None
    )
    given.set()
    try:
        deadline = time.monotonic() + 30
        while len(opened) < 3 or not session.connected:
            assert time.monotonic() < deadline, opened
            await asyncio.sleep(0.02)
        assert 1.9 <= opened[2] - opened[1] < 7.9
    finally:
        await session.close()
        server.close()
        await server.wait_closed()


async def _give_session(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, granted: int = 1500
) -> None:
    """Until the client says that it goes."""

    async def frame() -> bytes:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    await frame()
    body = struct.pack(">iiqi16sb", 0, granted, 7, 16, b"p" * 16, 0)
    writer.write(struct.pack(">i", len(body)) + body)
    kind = 0
    while kind != Close.type:
        xid, kind = struct.unpack_from(">ii", await frame())
        writer.write(struct.pack(">iiqi", 16, xid, 1, 0))


class Client:
    """What the session needs of a KazooClient, which ends as the test wants."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.started = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def start_async(self) -> None:
        if self.broken:
            raise OSError(24, "Too many open files")
        self._loop.call_soon_threadsafe(self.started.set)

    def stop(self) -> None: ...

    def close(self) -> None: ...


async def test_a_client_that_cannot_be_started_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one after it: nobody else would make a new one."""
    monkeypatch.setattr("fleet.stores.zookeeper.session._REVIVE_DELAY", 0.01)
    made: list[Client] = []

    def new_client(_: ZooKeeperSession) -> Client:
        made.append(Client(broken=len(made) < 3))
        return made[-1]

    monkeypatch.setattr(ZooKeeperSession, "_new_client", new_client)
    session = ZooKeeperSession("127.0.0.1:1", 6.0, 1.0, None, None)
    try:
        session._issuer.submit(session._start, session._client)
        async with asyncio.timeout(30):
            while len(made) < 4:
                await asyncio.sleep(0.01)
            await made[3].started.wait()
        assert session._client is made[3]
        await asyncio.sleep(0.1)
        assert len(made) == 4
    finally:
        await session.close()


@pytest.mark.parametrize("had_a_session", [False, True])
async def test_the_end_of_a_connections_thread_is_the_end_of_its_client(
    had_a_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kazoo tells its listeners of it only if it was connected until then."""
    monkeypatch.setattr("fleet.stores.zookeeper.session._REVIVE_DELAY", 0.01)
    session = ZooKeeperSession("127.0.0.1:1", 6.0, 1.0, None, None)
    first = session._client
    first._connection._connect_loop = lambda retry: (_ for _ in ()).throw(MemoryError("no thread, no buffer"))
    if had_a_session:
        session.session, session.connected = 7, True
    monkeypatch.setattr(session, "_new_client", lambda: Client(broken=False))
    try:
        turn = session.changed.turn()
        session._issuer.submit(session._start, first)
        async with asyncio.timeout(30):
            await turn.wait()
            assert not session.connected
            assert session.former == ({7} if had_a_session else set())
            while session._client is first:
                await asyncio.sleep(0.01)
            await session._client.started.wait()
    finally:
        await session.close()
