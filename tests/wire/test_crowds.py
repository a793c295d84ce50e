"""Connections of one address do not keep out those of others, nor the target's brokers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.wire.test_server import answer, listening, request, until
from tests.wire.test_server_limits import hung_up, secured
from wire.server.listener import Exchange, Listener, ListenerLimits


@contextmanager
def crowd(listener: Listener, count: int, address: str) -> Iterator[list[socket.socket]]:
    socks = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.bind((address, 0))
            sock.connect(("127.0.0.1", listener.port))
            sock.setblocking(False)
            socks.append(sock)
        yield socks
    finally:
        for sock in socks:
            sock.close()


async def asks(listener: Listener, address: str) -> bool:
    """Whether a client from there is served."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(address, 0))
    except ConnectionError:
        return False
    try:
        writer.write(request(1))
        return bool(await asyncio.wait_for(reader.read(4), 30))
    except ConnectionError:
        return False
    finally:
        writer.close()


def broker(exchange: Exchange) -> None:
    exchange.connection.is_broker()
    exchange.reply(answer(exchange))


async def test_one_address_gets_a_part(caplog: pytest.LogCaptureFixture) -> None:
    limits = ListenerLimits(max_connections=100, max_per_address=50)
    async with listening(lambda e: e.reply(answer(e)), limits) as listener:
        with caplog.at_level(logging.WARNING), crowd(listener, 70, "127.0.0.2") as socks:
            await until(lambda: listener.refused_connections == 20)
            await until(lambda: sum(map(hung_up, socks)) == 20)
            assert not await asks(listener, "127.0.0.2")
            assert await asks(listener, "127.0.0.3")
        assert listener.refused_connections == 21
        assert caplog.text.count("50 connections are from this address") == 1  # one line a minute
        assert "127.0.0.2" in caplog.text
        await until(lambda: not listener.connections)
        assert await asks(listener, "127.0.0.2")


async def test_some_places_are_the_brokers() -> None:
    limits = ListenerLimits(max_connections=100, max_per_address=50)
    async with listening(broker, limits) as listener:
        assert await asks(listener, "127.0.0.9")  # a follower was there
        await until(lambda: not listener.connections)
        with crowd(listener, 50, "127.0.0.2"), crowd(listener, 50, "127.0.0.3"):
            await until(lambda: listener.refused_connections == 10)
            await until(lambda: len(listener.connections) == 90)
            assert not await asks(listener, "127.0.0.4")
            assert await asks(listener, "127.0.0.9")
            await until(lambda: len(listener.connections) == 90)
            with crowd(listener, 10, "127.0.0.9"):
                await until(lambda: len(listener.connections) == 100)
                assert not await asks(listener, "127.0.0.9")


async def test_tls_handshakes_count() -> None:
    limits = ListenerLimits(max_connections=100, max_per_address=50)
    async with secured(limits, []) as (listener, acceptor):
        with crowd(listener, 70, "127.0.0.2"):
            await until(lambda: listener.refused_connections == 20)
            assert acceptor.handshakes == 50
