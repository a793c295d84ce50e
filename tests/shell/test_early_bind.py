"""Sockets that are bound before anybody serves them."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from lab.clusters.ports import PortReservation
from linker.process.early_bind import EarlySockets
from wire.client.security import ListenerSecurity
from wire.server.listener import Exchange, ListenerInfo, start_listener

HOST = "127.0.0.1"
REQUEST = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # ApiVersions v0, correlation id 7, no client id


@pytest.fixture
def port() -> int:
    reservation = PortReservation()
    reservation.release()
    return reservation.port


def echo(exchange: Exchange) -> None:
    exchange.reply([struct.pack(">ii", 4, exchange.header.correlation_id)])


async def test_who_comes_early_is_answered_by_who_serves_later(port: int) -> None:
    early_sockets = EarlySockets([(HOST, port)])
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(REQUEST)
    await writer.drain()
    info = ListenerInfo("CLIENTS", "PLAINTEXT")
    listener = await start_listener(
        HOST, port, info, ListenerSecurity(), echo, bound=early_sockets.take(HOST, port)
    )
    try:
        assert listener.port == port
        async with asyncio.timeout(30):
            assert struct.unpack(">ii", await reader.readexactly(8)) == (4, 7)
    finally:
        writer.close()
        await listener.close()
    assert early_sockets.take(HOST, port) is None, "it is given away once"


async def test_who_waited_for_nothing_is_told(port: int) -> None:
    early_sockets = EarlySockets([(HOST, port)])
    reader, writer = await asyncio.open_connection(HOST, port)
    early_sockets.close()
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(30):
            writer.write(REQUEST)
            assert await reader.read() == b""
            raise ConnectionResetError("closed in order")
    writer.transport.abort()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, port), timeout=5)
    EarlySockets([(HOST, port)]).close()  # and it can be bound again


def test_what_cannot_be_bound_is_left_to_whoever_serves_it(port: int) -> None:
    first = EarlySockets([(HOST, port)])
    second = EarlySockets([(HOST, port), ("localhost", port), (HOST, 0), ("no such host", port)])
    assert [second.take(host, at) for host, at in ((HOST, port), ("localhost", port), (HOST, 0))] == [
        None
    ] * 3
    first.close()
