"""Limits of a listener against peers that only hold what they have: who does not read, who does not begin."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.wire.test_server import answer, client, listening, request, until
from wire.server import Exchange, Listener, ListenerLimits, ServerConnection

# Who does not read


def small_buffers(exchange: Exchange) -> None:
    """Of the kernel: the peer's progress is seen in small steps."""
    transport = exchange.connection._transport
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)


@contextmanager
def peer(listener: Listener) -> Iterator[socket.socket]:
    """One that reads only what it is told to, and has little room."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        sock.connect(("127.0.0.1", listener.port))
        sock.setblocking(False)
        yield sock


@pytest.mark.parametrize("requests", [1, 2, 60])
async def test_a_peer_that_reads_nothing_is_closed_whatever_it_has_sent(requests: int) -> None:
    def handler(exchange: Exchange) -> None:
        small_buffers(exchange)
        exchange.reply(answer(exchange, bytes(1 << 20)))

    limits = ListenerLimits(idle_timeout=0.2, write_high_water=1 << 18)
    async with listening(handler, limits) as listener:
        with peer(listener) as sock:
            sock.sendall(b"".join(request(i) for i in range(requests)))
            await until(lambda: bool(listener.connections))
            await until(lambda: not listener.connections)


async def test_a_peer_that_reads_nothing_is_closed_though_a_long_poll_of_it_waits() -> None:
    def handler(exchange: Exchange) -> None:
        small_buffers(exchange)
        if exchange.header.correlation_id == 0:
            exchange.reply(answer(exchange, bytes(1 << 20)))

    limits = ListenerLimits(idle_timeout=0.2, write_high_water=1 << 18)
    async with listening(handler, limits) as listener:
        with peer(listener) as sock:
            sock.sendall(request(0) + request(1))
            await until(lambda: bool(listener.connections))
            (connection,) = listener.connections
            await until(lambda: not listener.connections)
            assert "nothing was read of" in str(connection.closed_reason)


async def test_a_peer_that_reads_slowly_is_not_closed() -> None:
    size, answers = 1 << 20, 3

    def handler(exchange: Exchange) -> None:
        small_buffers(exchange)
        exchange.reply(answer(exchange, bytes(size)))

    limits = ListenerLimits(idle_timeout=0.8, write_high_water=1 << 18)
    async with listening(handler, limits) as listener:
        with peer(listener) as sock:
            sock.sendall(b"".join(request(i) for i in range(answers)))
            got, began = 0, asyncio.get_running_loop().time()
            while got < answers * (8 + size):
                await asyncio.sleep(0.02)
                with contextlib.suppress(BlockingIOError):
                    data = sock.recv(1 << 14)
                    assert data, f"closed after {got} bytes"
                    got += len(data)
            assert asyncio.get_running_loop().time() - began > 3 * limits.idle_timeout
            assert listener.connections


async def test_what_waits_behind_open_long_polls_is_not_idle() -> None:
    seen: list[Exchange] = []
    limits = ListenerLimits(idle_timeout=0.1, max_pipelined=2)
    async with listening(seen.append, limits) as listener, client(listener) as c:
        c.writer.write(b"".join(request(i) for i in range(4)))
        await asyncio.sleep(0.5)
        assert len(seen) == 2
        for number in range(4):
            seen[number].reply(answer(seen[number]))
            assert (await c.reply())[0] == number


async def test_a_peer_that_has_read_everything_after_all_may_be_quiet_for_as_long_as_others() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.reply(answer(exchange, bytes(4 << 20)))

    limits = ListenerLimits(idle_timeout=0.4, write_high_water=1 << 18)
    async with listening(handler, limits) as listener, client(listener) as c:
        c.writer.write(request(0))
        assert (await c.reply())[0] == 0
        await asyncio.sleep(0.2)
        assert listener.connections
        await until(lambda: not listener.connections)


class Slow:
    """A transport whose peer takes as much as comes, so that there is always as much to be sent when somebody looks."""

    def __init__(self) -> None:
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return 1 << 20

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def abort(self) -> None:
        self.aborted = True


async def test_who_takes_as_much_as_comes_reads() -> None:
    async with listening(lambda exchange: None, ListenerLimits(idle_timeout=0.2)) as listener:
        connection, transport = ServerConnection(listener), Slow()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for _ in range(30):
            connection.pause_writing()
            await asyncio.sleep(0.02)
            assert not transport.aborted
            connection.resume_writing()
        connection.pause_writing()
        await until(lambda: transport.aborted)
