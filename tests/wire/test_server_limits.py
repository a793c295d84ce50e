"""Limits of a listener against peers that only hold what they have: who does not read, who does not begin."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.controller.virtual_loop import run_virtual
from tests.fakes.certs import Authority
from tests.wire.test_server import PLAINTEXT, Client, answer, client, listening, request, until
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.server.acceptor import Acceptor
from wire.server.listener import (
    Exchange,
    Listener,
    ListenerInfo,
    ListenerLimits,
    ServerConnection,
    start_listener,
)

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
            assert listener.refused_connections == 1


async def test_a_peer_that_reads_slowly_is_not_closed() -> None:
    size, answers = 1 << 20, 3

    def handler(exchange: Exchange) -> None:
        small_buffers(exchange)
        exchange.reply(answer(exchange, bytes(size)))

    limits = ListenerLimits(idle_timeout=4.0, write_high_water=1 << 18)
    async with listening(handler, limits) as listener:
        with peer(listener) as sock:
            sock.sendall(b"".join(request(i) for i in range(answers)))
            got, began = 0, asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < 1.5 * limits.idle_timeout:
                await asyncio.sleep(0.02)
                with contextlib.suppress(BlockingIOError):
                    data = sock.recv(1 << 12)
                    assert data, f"closed after {got} bytes"
                    got += len(data)
            assert got < answers * (8 + size), "not all of it was read"
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

    limits = ListenerLimits(idle_timeout=3.0, write_high_water=1 << 18)
    async with listening(handler, limits) as listener, client(listener) as c:
        began = asyncio.get_running_loop().time()
        c.writer.write(request(0))
        assert (await c.reply())[0] == 0
        (connection,) = listener.connections
        await until(lambda: not listener.connections)
        assert asyncio.get_running_loop().time() - began >= limits.idle_timeout
        assert "idle for 3 s" in str(connection.closed_reason)


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


def test_who_takes_as_much_as_comes_reads() -> None:
    async def reading() -> None:
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

    run_virtual(reading())


# Who does not begin

AUTHORITY = Authority()
ISSUED = AUTHORITY.issue("127.0.0.1")
SECURED = ListenerSecurity.from_properties(
    {
        "security.protocol": "SSL",
        "ssl.keystore.key": ISSUED.key,
        "ssl.keystore.certificate.chain": ISSUED.certificate,
    }
)
TRUSTING = ClientSecurity.from_properties(
    {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.pem}
).ssl_context()


@pytest.fixture
def reported() -> Iterator[list[dict[str, Any]]]:
    """What the event loop was told of; empty at the end unless a test has looked at it."""
    seen: list[dict[str, Any]] = []
    yield seen
    assert seen == []


@asynccontextmanager
async def secured(
    limits: ListenerLimits, seen: list[dict[str, Any]], **options: Any
) -> AsyncIterator[tuple[Listener, Acceptor]]:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    listener = await start_listener(
        options.pop("host", "127.0.0.1"),
        0,
        ListenerInfo("CLIENTS", "SSL"),
        SECURED,
        lambda exchange: exchange.reply(answer(exchange)),
        limits,
        **options,
    )
    acceptor = listener._server
    assert isinstance(acceptor, Acceptor)
    try:
        yield listener, acceptor
    finally:
        await listener.close()


@asynccontextmanager
async def tls_client(port: int, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, port, ssl=TRUSTING, server_hostname="127.0.0.1")
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def silent(listener: Listener, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            sock.setblocking(False)
            found.append(sock)
        yield found


def hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def served(c: Client, number: int = 1) -> None:
    c.writer.write(request(number))
    assert (await c.reply())[0] == number


async def test_a_connection_counts_before_its_handshake(reported: list[dict[str, Any]]) -> None:
    async with secured(ListenerLimits(max_connections=10), reported) as (listener, acceptor):
        async with tls_client(listener.port) as c:
            await served(c)
            before = open_files()
            with silent(listener, 30) as socks:
                await until(lambda: listener.refused_connections == 21)
                await until(lambda: sum(map(hung_up, socks)) == 21)
                assert acceptor.handshakes == 9
                assert open_files() - before - len(socks) == 9
                await served(c, 2)
            await until(lambda: acceptor.handshakes == 0)
            async with tls_client(listener.port) as other:
                await served(other)
        await until(lambda: not listener.connections)


async def test_open_connections_count_too(reported: list[dict[str, Any]]) -> None:
    limits = ListenerLimits(max_connections=1)
    async with secured(limits, reported) as (listener, _), tls_client(listener.port) as one:
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with tls_client(listener.port) as two:
                await served(two)
        assert listener.refused_connections == 1
        await served(one)


async def test_silent_peers_keep_nobody_out(reported: list[dict[str, Any]]) -> None:
    limits = ListenerLimits(max_handshakes=4, handshake_patience=0.1)
    async with secured(limits, reported) as (listener, acceptor):
        with silent(listener, 12) as socks:
            await until(lambda: acceptor.handshakes == 4)
            async with tls_client(listener.port) as c:  # it stands behind eight others
                await served(c)
            assert sum(map(hung_up, socks)) >= 8
            assert acceptor.handshakes <= 4


async def test_nobody_is_given_up_before_somebody_else_waits(reported: list[dict[str, Any]]) -> None:
    limits = ListenerLimits(max_handshakes=4, handshake_patience=0.05, tls_handshake_timeout=60)
    async with secured(limits, reported) as (listener, acceptor):
        with silent(listener, 4) as socks:
            await until(lambda: acceptor.handshakes == 4)
            await asyncio.sleep(0.2)
            assert not any(map(hung_up, socks))
            assert acceptor.handshakes == 4
        assert listener.refused_connections == 0
    async with secured(replace(limits, tls_handshake_timeout=0.5), reported) as (listener, acceptor):
        with silent(listener, 4) as socks:
            await until(lambda: all(map(hung_up, socks)))  # their time is over
            assert acceptor.handshakes == 0
        assert listener.refused_connections == 0


async def test_a_crowd_gets_in_through_few_handshakes(reported: list[dict[str, Any]]) -> None:
    async with secured(ListenerLimits(max_handshakes=3, handshake_patience=5), reported) as (
        listener,
        acceptor,
    ):
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            async with tls_client(listener.port) as c:
                most = max(most, acceptor.handshakes)
                await served(c, number)

        await asyncio.gather(*[one(number) for number in range(40)])
        assert most <= 3
        assert listener.refused_connections == 0


async def test_what_is_no_tls_frees_its_place(reported: list[dict[str, Any]]) -> None:
    async with secured(ListenerLimits(max_connections=1), reported) as (listener, acceptor):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", request(1), b"\x16\x03\x01\xff\xff" + bytes(100)):
            with silent(listener, 1) as (sock,):
                sock.sendall(garbage)
                await until(lambda sock=sock: hung_up(sock))  # type: ignore[misc]
            await until(lambda: acceptor.handshakes == 0)
        async with tls_client(listener.port) as c:
            await served(c)


async def test_closing_leaves_no_handshake_and_no_socket(reported: list[dict[str, Any]]) -> None:
    """After every possible number of the event loop's turns until the client is served."""
    async with secured(ListenerLimits(), reported) as (listener, _):
        await _join(listener.port)  # the event loop has all that it opens for itself
    before = open_files()
    for turns in range(200):
        async with secured(ListenerLimits(), reported) as (listener, acceptor):
            joining = asyncio.create_task(_join(listener.port))
            for _ in range(turns):
                await asyncio.sleep(0)
            through = joining.done()
            async with asyncio.timeout(30):
                await listener.close()
            assert acceptor.handshakes == 0
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
        if through:
            break
    assert turns > 5
    await until(lambda: open_files() <= before)
    gc.collect()


async def test_closing_hangs_up_on_who_has_not_begun(reported: list[dict[str, Any]]) -> None:
    """As above, and the peers just wait: the handshake's task, or the event loop's transport, may not have had a turn."""
    before = open_files()
    for turns in range(12):
        async with secured(ListenerLimits(), reported) as (listener, acceptor):
            with silent(listener, 3) as socks:
                for _ in range(turns):
                    await asyncio.sleep(0)
                async with asyncio.timeout(30):
                    await listener.close()
                await until(lambda socks=socks: all(map(hung_up, socks)))  # type: ignore[misc]
    assert acceptor.handshakes == 0
    await until(lambda: open_files() <= before + 2)  # of the event loop itself
    gc.collect()


async def _join(port: int) -> None:
    async with tls_client(port) as c:
        await served(c)


async def test_without_file_descriptors_it_tries_again(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError(24, "Too many open files")

    monkeypatch.setattr("wire.server.accept_loop._ACCEPT_RETRY", 0.2)
    async with secured(ListenerLimits(), reported) as (listener, acceptor):
        acceptor._accepting._ready(Exhausted())  # type: ignore[arg-type]
        assert "Too many open files" in reported.pop()["message"]
        assert acceptor._accepting.resting
        began = asyncio.get_running_loop().time()
        async with tls_client(listener.port) as c:
            await served(c)
        assert asyncio.get_running_loop().time() - began > 0.1


async def test_a_bug_in_a_handshake_is_told_and_the_listener_goes_on(reported: list[dict[str, Any]]) -> None:
    async with secured(ListenerLimits(), reported) as (listener, acceptor):
        loop = acceptor._loop

        class Broken:
            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

            async def connect_accepted_socket(self, _: Any, sock: socket.socket, **options: Any) -> None:
                sock.close()
                raise KeyError("a bug")

        acceptor._loop = Broken()  # type: ignore[assignment]
        with silent(listener, 1) as (sock,):
            sock.send(b"\x16")
            await until(lambda: hung_up(sock))
            await until(lambda: bool(reported))
        assert isinstance(reported.pop()["exception"], KeyError)
        acceptor._loop = loop
        async with tls_client(listener.port) as c:
            await served(c)


async def test_a_bound_socket_and_a_name_with_several_addresses(reported: list[dict[str, Any]]) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    async with secured(ListenerLimits(), reported, bound=bound) as (listener, _):
        assert listener.port == port
        async with tls_client(port) as c:
            await served(c)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    async with secured(ListenerLimits(), reported, host="localhost") as (listener, acceptor):
        for sock in acceptor._accepting.sockets:
            host, port = sock.getsockname()[:2]
            async with tls_client(port, host) as c:
                await served(c)


async def test_an_address_in_use_is_an_error_of_the_listener(unused_tcp_port: int) -> None:
    handler: Callable[[Exchange], None] = lambda exchange: None  # noqa: E731
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        for info, security in (
            (PLAINTEXT, ListenerSecurity()),
            (ListenerInfo("CLIENTS", "SSL"), SECURED),
        ):
            with pytest.raises(OSError, match="in use"):
                await start_listener("127.0.0.1", unused_tcp_port, info, security, handler)


async def test_the_silent_go_first_and_soon(reported: list[dict[str, Any]]) -> None:
    """A flood of connections that say nothing: who speaks keeps its place, who comes waits a moment."""
    limits = ListenerLimits(max_handshakes=4, handshake_patience=4.0)
    async with secured(limits, reported) as (listener, acceptor):
        with silent(listener, 1) as spoken:
            spoken[0].send(b"\x16")  # the first byte of a handshake, and no more
            await until(lambda: acceptor.handshakes == 1)
            await until(lambda: not next(iter(acceptor._handshakes.values())).silent)
            with silent(listener, 12) as socks:
                await until(lambda: acceptor.handshakes == 4)
                started = asyncio.get_running_loop().time()
                async with tls_client(listener.port) as c:  # it stands behind nine others
                    await served(c)
                # Four at a time, each for half a second; with the patience for all it would be eight seconds.
                assert asyncio.get_running_loop().time() - started < 6
                assert sum(map(hung_up, socks)) >= 9
                assert not hung_up(spoken[0])


async def test_who_speaks_at_last_has_the_time_of_those_who_speak(reported: list[dict[str, Any]]) -> None:
    """As when many clients come back at once: whoever waits for the silent ones' time does not take theirs."""
    limits = ListenerLimits(max_handshakes=2, handshake_patience=4.0)  # half a second for who says nothing
    async with secured(limits, reported) as (listener, acceptor):
        with silent(listener, 2) as socks, silent(listener, 1):
            await until(lambda: acceptor._accepting.resting)
            for sock in socks:
                sock.send(b"\x16")
            await until(lambda: not any(one.silent for one in acceptor._handshakes.values()))
            await asyncio.sleep(1)
            assert not any(map(hung_up, socks))
            assert listener.refused_connections == 0
            await until(lambda: listener.refused_connections == 1)
