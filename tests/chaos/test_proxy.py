"""What the proxy does to connections, with an echo server behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import Mode, Proxy, Trouble, owner

SOON = 0.2


class Recorder:
    """A tap that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, bytes]] = []

    def asked(self, connection: int, data: bytes, at: float) -> None:
        assert at <= time.monotonic()
        self.seen.append(("asked", connection, data))

    def answered(self, connection: int, data: bytes) -> None:
        self.seen.append(("answered", connection, data))

    def closed(self, connection: int) -> None:
        self.seen.append(("closed", connection, b""))


@asynccontextmanager
async def echo(tap: Recorder | None = None, got: list[bytes] | None = None) -> AsyncIterator[Proxy]:
    """`got`: what has reached the server, b"" for every connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if got is not None:
            got.append(b"")
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                if got is not None:
                    got.append(data)
                writer.write(data.upper())
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = Proxy("echo", server.sockets[0].getsockname()[:2], tap)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.02)  # aborted transports close their sockets a moment later


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, proxy: Proxy) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", proxy.port))

    async def ask(self, data: bytes, timeout: float = 5.0) -> bytes:
        self.writer.write(data)
        return await self.answer(timeout)

    async def answer(self, timeout: float = 5.0) -> bytes:
        async with asyncio.timeout(timeout):
            return await self.reader.read(1000)

    async def ended(self) -> bool:
        try:
            return await self.answer() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


async def test_it_passes_everything_on_and_shows_it_to_its_tap() -> None:
    tap = Recorder()
    async with echo(tap) as proxy:
        client = await Client.open(proxy)
        assert await client.ask(b"one") == b"ONE"
        assert await client.ask(b"two") == b"TWO"
        client.close()
        for _ in range(200):
            if proxy.open_connections == 0:
                break
            await asyncio.sleep(0.01)
    assert tap.seen == [
        ("asked", 1, b"one"),
        ("answered", 1, b"ONE"),
        ("asked", 1, b"two"),
        ("answered", 1, b"TWO"),
        ("closed", 1, b""),
    ]


async def test_cut_resets_what_is_there_and_refuses_what_comes_until_it_is_over() -> None:
    async with echo() as proxy:
        client = await Client.open(proxy)
        assert await client.ask(b"one") == b"ONE"
        with proxy.troubled(Trouble(Mode.CUT)):
            assert await client.ended()
            late = await Client.open(proxy)
            assert await late.ended()
        again = await Client.open(proxy)
        assert await again.ask(b"three") == b"THREE"
        for one in (client, late, again):
            one.close()


async def test_a_blackhole_holds_both_directions_and_delivers_late() -> None:
    got: list[bytes] = []
    async with echo(got=got) as proxy:
        client = await Client.open(proxy)
        assert await client.ask(b"one") == b"ONE"
        with proxy.troubled(Trouble(Mode.BLACKHOLE)):
            with pytest.raises(TimeoutError):
                await client.ask(b"two", SOON)
            fresh = await Client.open(proxy)
            with pytest.raises(TimeoutError):
                await fresh.ask(b"three", SOON)
            assert got == [b"", b"one"]
        assert await client.answer() == b"TWO"
        assert await fresh.answer() == b"THREE"
        client.close()
        fresh.close()


async def test_a_deaf_one_is_heard_and_does_not_hear() -> None:
    got: list[bytes] = []
    async with echo(got=got) as proxy:
        client = await Client.open(proxy)
        with proxy.troubled(Trouble(Mode.DEAF)):
            with pytest.raises(TimeoutError):
                await client.ask(b"one", SOON)
            assert got == [b"", b"one"]
        assert await client.answer() == b"ONE"
        client.close()


async def test_slow_is_slow_once_in_each_direction() -> None:
    async with echo() as proxy:
        client = await Client.open(proxy)
        assert await client.ask(b"one") == b"ONE"
        with proxy.troubled(Trouble(Mode.SLOW, delay=0.15)):
            started = time.monotonic()
            assert await client.ask(b"two") == b"TWO"
            assert 0.3 <= time.monotonic() - started < 3.0
        client.close()


async def test_troubles_may_overlap() -> None:
    async with echo() as proxy:
        client = await Client.open(proxy)
        with proxy.troubled(Trouble(Mode.BLACKHOLE)):
            with proxy.troubled(Trouble(Mode.DEAF)), pytest.raises(TimeoutError):
                await client.ask(b"one", SOON)
            with pytest.raises(TimeoutError):
                await client.answer(SOON)
        assert await client.answer() == b"ONE"
        client.close()


async def test_only_the_process_that_is_meant_is_hit() -> None:
    """The other end is a process of its own, for which the trouble is meant."""
    program = (
        "import socket,sys\n"
        "s=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
        "s.sendall(b'one'); print(s.recv(9), flush=True)\n"
        "sys.stdin.readline(); s.sendall(b'two'); s.settimeout(10); print(s.recv(9), flush=True)\n"
    )
    async with echo() as proxy:
        client = await Client.open(proxy)
        other = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            str(proxy.port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdin is not None and other.stdout is not None
        try:
            assert await other.stdout.readline() == b"b'ONE'\n"
            with proxy.troubled(Trouble(Mode.BLACKHOLE, lambda: {other.pid})):
                other.stdin.write(b"\n")
                assert await client.ask(b"mine") == b"MINE"
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(SOON):
                        await other.stdout.readline()
            async with asyncio.timeout(5):
                assert await other.stdout.readline() == b"b'TWO'\n"
        finally:
            client.close()
            if other.returncode is None:
                other.kill()
            await other.wait()
            other.stdin.close()


async def test_the_owner_of_a_connection_is_found() -> None:
    async with echo() as proxy:
        client = await Client.open(proxy)
        port = client.writer.get_extra_info("sockname")[1]
        assert owner(port, proxy.port) == os.getpid()
        assert owner(port, proxy.port + 1) is None
        client.close()


async def test_who_cannot_be_reached_is_a_connection_that_ends() -> None:
    proxy = Proxy("nobody", ("127.0.0.1", 1))
    await proxy.start()
    client = await Client.open(proxy)
    assert await client.ended()
    client.close()
    await proxy.close()
