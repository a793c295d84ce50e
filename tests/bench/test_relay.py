"""The process that only passes bytes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from lab.bench.relay import BUFFER, HOST, RelayProcess

TIMEOUT = 30.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Relayed = tuple[RelayProcess, asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _relayed(serve: Serve, directory: Path) -> AsyncIterator[Relayed]:
    """A connection through a relay to a server of ours, which has closed all of its own when the block is left."""
    open_here: set[asyncio.StreamWriter] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_here.add(writer)
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            pass  # who looked whether the relay listens says nothing
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            open_here.discard(writer)

    server = await asyncio.start_server(served, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(TIMEOUT), server:
        async with RelayProcess(port, directory) as relay:
            reader, writer = await asyncio.open_connection(HOST, relay.port)
            yield relay, reader, writer
            writer.close()
        while open_here:
            await asyncio.sleep(0.01)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(BUFFER):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.asyncio
async def test_every_byte_comes_through_in_order_and_an_end_is_an_end(tmp_path: Path) -> None:
    sent = os.urandom(20 * BUFFER + 17)
    async with _relayed(_echo, tmp_path) as (relay, reader, writer):
        writer.write(sent)  # the first of it before the relay has reached the server
        assert await reader.readexactly(len(sent)) == sent
        assert relay.cpu_seconds() > 0
    assert not relay.running


@pytest.mark.asyncio
async def test_a_server_that_is_gone_ends_the_clients_connection(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.close()

    async with _relayed(hang_up, tmp_path) as (_, reader, writer):
        writer.write(b"?")
        assert await reader.read() == b""
