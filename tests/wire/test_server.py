"""The listener on real sockets: order, flow control, limits, hostile clients, ends."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fakes.certs import Authority
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.errors import LocalProtocolError, MalformedFrame, WireError
from wire.server.listener import (
    Exchange,
    Listener,
    ListenerInfo,
    ListenerLimits,
    ServerConnection,
    start_listener,
)

METADATA = 3


def request(correlation_id: int, payload: bytes = b"", key: int = METADATA, version: int = 1) -> bytes:
    body = struct.pack(">hhih", key, version, correlation_id, 1) + b"c" + payload
    return struct.pack(">i", len(body)) + body


def answer(exchange: Exchange, payload: bytes = b"") -> list[bytes]:
    return [struct.pack(">ii", 4 + len(payload), exchange.header.correlation_id), payload]


PLAINTEXT = ListenerInfo("CLIENTS", "PLAINTEXT")


@asynccontextmanager
async def listening(
    handler: Callable[[Exchange], None],
    limits: ListenerLimits | None = None,
    info: ListenerInfo = PLAINTEXT,
) -> AsyncIterator[Listener]:
    listener = await start_listener("127.0.0.1", 0, info, ListenerSecurity(), handler, limits)
    try:
        yield listener
    finally:
        await listener.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def reply(self) -> tuple[int, bytes]:
        async with asyncio.timeout(30):
            size = struct.unpack(">i", await self.reader.readexactly(4))[0]
            frame = await self.reader.readexactly(size)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    async def is_closed(self) -> bool:
        try:
            async with asyncio.timeout(30):
                while await self.reader.read(1 << 16):
                    pass
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def client(listener: Listener) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        # lets the transport's own close callbacks run before the loop ends
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_answers_leave_in_request_order_whatever_order_they_are_made_in() -> None:
    open_exchanges: list[Exchange] = []
    async with listening(open_exchanges.append) as listener, client(listener) as c:
        c.writer.write(b"".join(request(i) for i in range(10)))
        await until(lambda: len(open_exchanges) == 10)
        for exchange in reversed(open_exchanges):
            exchange.reply(answer(exchange, b"x" * exchange.header.correlation_id))
        assert [await c.reply() for _ in range(10)] == [(i, b"x" * i) for i in range(10)]


async def test_no_reply_frees_its_place() -> None:
    def handler(exchange: Exchange) -> None:
        if exchange.header.correlation_id == 1:
            exchange.no_reply()
        else:
            exchange.reply(answer(exchange))

    async with listening(handler) as listener, client(listener) as c:
        c.writer.write(request(1) + request(2))
        assert (await c.reply())[0] == 2


async def test_what_a_handler_sees() -> None:
    seen: list[Exchange] = []
    async with listening(seen.append) as listener, client(listener) as c:
        c.writer.write(request(9, b"body"))
        await until(lambda: bool(seen))
        (exchange,) = seen
        assert exchange.header == (METADATA, 1, 9, "c")
        assert bytes(exchange.frame[exchange.body_offset :]) == b"body"
        assert exchange.connection.listener == ("CLIENTS", "PLAINTEXT")
        assert exchange.connection.peer.startswith("127.0.0.1:")
        exchange.connection.local["who"] = "me"


async def test_a_byte_at_a_time() -> None:
    async with listening(lambda e: e.reply(answer(e))) as listener, client(listener) as c:
        for byte in request(1, b"payload") + request(2):
            c.writer.write(bytes([byte]))
            await c.writer.drain()
        assert [(await c.reply())[0] for _ in range(2)] == [1, 2]


async def test_no_more_than_max_pipelined_are_open_and_the_rest_follows() -> None:
    seen: list[Exchange] = []
    limits = ListenerLimits(max_pipelined=4)
    async with listening(seen.append, limits) as listener, client(listener) as c:
        c.writer.write(b"".join(request(i) for i in range(1000)))
        await until(lambda: len(seen) == 4)
        await asyncio.sleep(0.02)
        assert len(seen) == 4
        answered = 0
        while answered < 1000:
            await until(lambda done=answered: len(seen) > done)  # type: ignore[misc]
            for exchange in seen[answered:]:
                answered += 1
                exchange.reply(answer(exchange))
                assert exchange.connection.open_exchanges <= 4
        assert [(await c.reply())[0] for _ in range(1000)] == list(range(1000))


async def test_a_client_that_does_not_read_its_answers_is_not_served_further() -> None:
    served = 0

    def handler(exchange: Exchange) -> None:
        nonlocal served
        served += 1
        exchange.reply(answer(exchange, bytes(1 << 20)))

    limits = ListenerLimits(write_high_water=1 << 20)
    async with listening(handler, limits) as listener, client(listener) as c:
        c.reader._transport.pause_reading()  # type: ignore[attr-defined]
        c.writer.write(b"".join(request(i) for i in range(100)))
        await asyncio.sleep(0.2)
        assert served < 50
        c.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for i in range(100):
            assert (await c.reply())[0] == i


async def test_a_handlers_pause_is_counted() -> None:
    seen: list[Exchange] = []
    async with listening(seen.append) as listener, client(listener) as c:
        c.writer.write(request(1))
        await until(lambda: len(seen) == 1)
        connection = seen[0].connection
        connection.pause_reading()
        connection.pause_reading()
        c.writer.write(request(2))
        connection.resume_reading()
        await asyncio.sleep(0.05)
        assert len(seen) == 1
        connection.resume_reading()
        await until(lambda: len(seen) == 2)
        with pytest.raises(LocalProtocolError):
            connection.resume_reading()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS hello
        struct.pack(">i", -1) + bytes(20),
        struct.pack(">i", 5) + bytes(5),
        struct.pack(">i", 2**31 - 1) + bytes(20),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, METADATA, 1, 1, 500),
        bytes(1000),
    ],
)
async def test_garbage_closes_that_connection_only(garbage: bytes) -> None:
    async with listening(lambda e: e.reply(answer(e))) as listener, client(listener) as good:
        async with client(listener) as bad:
            bad.writer.write(garbage)
            assert await bad.is_closed()
        assert listener.protocol_errors == 1
        good.writer.write(request(1))
        assert (await good.reply())[0] == 1


async def test_requests_before_garbage_are_answered() -> None:
    async with listening(lambda e: e.reply(answer(e))) as listener, client(listener) as c:
        c.writer.write(request(1) + request(2) + struct.pack(">i", -7))
        await until(lambda: listener.protocol_errors == 1)
        assert await c.is_closed()


async def test_an_announced_frame_costs_nothing_until_it_comes() -> None:
    limits = ListenerLimits(max_frame=100 << 20)
    async with listening(lambda e: e.reply(answer(e)), limits) as listener, client(listener) as c:
        c.writer.write(struct.pack(">i", 100 << 20) + b"x")
        await until(lambda: bool(listener.connections))
        await asyncio.sleep(0.05)
        (connection,) = listener.connections
        large = connection._reader._large
        assert large is not None
        assert len(large) <= 1 << 16


async def test_strangers_may_send_little_on_a_sasl_listener() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.connection.logged_in()
        exchange.reply(answer(exchange))

    limits = ListenerLimits(max_frame_before_login=1000)
    secured = ListenerInfo("CLIENTS", "SASL_PLAINTEXT")
    async with listening(handler, limits, info=secured) as listener:
        async with client(listener) as stranger:
            stranger.writer.write(request(1, bytes(1001)))
            assert await stranger.is_closed()
        async with client(listener) as known:
            for number, size in ((1, 10), (2, 1001)):
                known.writer.write(request(number, bytes(size)))
                assert (await known.reply())[0] == number
    async with listening(handler, limits) as listener, client(listener) as anybody:
        anybody.writer.write(request(1, bytes(1001)))
        assert (await anybody.reply())[0] == 1


async def test_a_large_request_arrives_whole() -> None:
    payload = random.Random(3).randbytes(3_000_000)
    seen: list[Exchange] = []
    async with listening(seen.append) as listener, client(listener) as c:
        for i in range(3):
            c.writer.write(request(i, payload))
        await until(lambda: len(seen) == 3)
        for exchange in seen:
            assert exchange.frame[exchange.body_offset :] == payload


async def test_connections_beyond_the_limit_are_refused() -> None:
    limits = ListenerLimits(max_connections=2)
    async with listening(lambda e: e.reply(answer(e)), limits) as listener:
        async with client(listener) as first, client(listener), client(listener) as third:
            assert await third.is_closed()
            assert listener.refused_connections == 1
            first.writer.write(request(1))
            assert (await first.reply())[0] == 1
        await until(lambda: not listener.connections)
        async with client(listener) as again:
            again.writer.write(request(2))
            assert (await again.reply())[0] == 2


async def test_half_a_request_ends_with_the_idle_timeout() -> None:
    limits = ListenerLimits(idle_timeout=0.1)
    async with listening(lambda e: e.reply(answer(e)), limits) as listener, client(listener) as c:
        c.writer.write(request(1)[:9])
        assert await c.is_closed()
        assert not listener.connections


async def test_an_open_exchange_keeps_a_quiet_connection() -> None:
    seen: list[Exchange] = []
    limits = ListenerLimits(idle_timeout=0.05)
    async with listening(seen.append, limits) as listener, client(listener) as c:
        c.writer.write(request(1))
        await asyncio.sleep(0.3)
        seen[0].reply(answer(seen[0]))
        assert (await c.reply())[0] == 1


async def test_two_answers_are_a_bug_and_late_ones_are_dropped() -> None:
    seen: list[Exchange] = []
    async with listening(seen.append) as listener:
        async with client(listener) as c:
            c.writer.write(request(1) + request(2))
            await until(lambda: len(seen) == 2)
            seen[0].reply(answer(seen[0]))
            with pytest.raises(LocalProtocolError, match="twice"):
                seen[0].reply(answer(seen[0]))
        await until(lambda: not listener.connections)
        seen[1].reply(answer(seen[1]))
        assert seen[1].connection.closed


async def test_fail_and_close_callbacks() -> None:
    closed: list[ServerConnection] = []

    def handler(exchange: Exchange) -> None:
        connection = exchange.connection
        connection.add_close_callback(lambda: closed.append(connection))
        exchange.fail(WireError("cannot be answered"))

    async with listening(handler) as listener, client(listener) as c:
        c.writer.write(request(1))
        assert await c.is_closed()
        assert len(closed) == 1
        assert isinstance(closed[0].closed_reason, WireError)
        closed[0].add_close_callback(lambda: closed.append(closed[0]))
        await until(lambda: len(closed) == 2)


async def test_a_failing_handler_is_reported_and_a_malformed_body_is_counted() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def handler(exchange: Exchange) -> None:
        raise MalformedFrame("bad body") if exchange.header.correlation_id == 1 else RuntimeError("a bug")

    async with listening(handler) as listener:
        async with client(listener) as c:
            c.writer.write(request(1))
            assert await c.is_closed()
        assert listener.protocol_errors == 1
        assert reported == []
        async with client(listener) as c:
            c.writer.write(request(2))
            assert await c.is_closed()
        assert isinstance(reported[0]["exception"], RuntimeError)


async def test_close_waits_for_open_exchanges_within_the_grace() -> None:
    seen: list[Exchange] = []
    async with listening(seen.append) as listener, client(listener) as c:
        c.writer.write(request(1))
        await until(lambda: bool(seen))
        closing = asyncio.create_task(listener.close(grace=60))
        await asyncio.sleep(0.05)
        assert not closing.done()
        seen[0].reply(answer(seen[0], b"last"))
        async with asyncio.timeout(25):
            await closing
        assert await c.reply() == (1, b"last")
        assert await c.is_closed()


async def test_close_without_grace_cuts() -> None:
    seen: list[Exchange] = []
    async with listening(seen.append) as listener, client(listener) as c:
        c.writer.write(request(1))
        await until(lambda: bool(seen))
        async with asyncio.timeout(30):
            await listener.close(grace=0.05)
        assert await c.is_closed()
        assert seen[0].done


async def test_tls_listener_and_client_certificates() -> None:
    authority = Authority()
    server, own = authority.issue("127.0.0.1"), authority.issue("client")
    trust = {"security.protocol": "SSL", "ssl.truststore.certificates": authority.pem}
    security = ListenerSecurity.from_properties(
        {
            **trust,
            "ssl.keystore.key": server.key,
            "ssl.keystore.certificate.chain": server.certificate,
            "ssl.client.auth": "required",
        }
    )
    served: list[str] = []

    def handler(exchange: Exchange) -> None:
        served.append(exchange.connection.listener.security_protocol)
        exchange.reply(answer(exchange, bytes(300_000)))

    info = ListenerInfo("CLIENTS", "SSL")
    listener = await start_listener("127.0.0.1", 0, info, security, handler)
    try:
        identity = {"ssl.keystore.key": own.key, "ssl.keystore.certificate.chain": own.certificate}
        for props, accepted in (({**trust, **identity}, True), (trust, False)):
            context = ClientSecurity.from_properties(props).ssl_context()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
                c = Client(reader, writer)
                writer.write(request(1, bytes(200_000)))
                outcome = await c.reply() == (1, bytes(300_000))
                writer.transport.abort()
            except (OSError, asyncio.IncompleteReadError):
                outcome = False
            assert outcome is accepted
        assert served == ["SSL"]
    finally:
        await listener.close()
