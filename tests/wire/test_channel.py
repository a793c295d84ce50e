"""Channel on real sockets: order, hostile peers, ends, back-pressure."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from wire.client.channel import Channel
from wire.errors import ConnectionLost, FrameTooLarge, MalformedFrame, WireError

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def framed(correlation_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(payload), correlation_id) + payload


@asynccontextmanager
async def connected(peer: Peer, **options: int) -> AsyncIterator[Channel]:
    done: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        done.append(task)
        try:
            await peer(reader, writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel = Channel(**options)  # type: ignore[arg-type]
    await asyncio.get_running_loop().create_connection(lambda: channel, "127.0.0.1", port)
    try:
        yield channel
    finally:
        channel.close()
        await channel.closed_event.wait()
        server.close()
        for task in done:
            task.cancel()
        await asyncio.gather(*done, return_exceptions=True)
        await server.wait_closed()


class Replies:
    """Collects what on_reply is called with."""

    def __init__(self) -> None:
        self.got: list[bytes | WireError] = []
        self._changed = asyncio.Event()

    def __call__(self, result: memoryview | WireError) -> None:
        self.got.append(result if isinstance(result, WireError) else bytes(result))
        self._changed.set()

    async def wait(self, count: int) -> list[bytes | WireError]:
        async with asyncio.timeout(30):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.got


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        size = await reader.readexactly(4)
        writer.write(size + await reader.readexactly(struct.unpack(">i", size)[0]))


async def test_replies_come_in_order_of_sending() -> None:
    async with connected(echo) as channel:
        replies = Replies()
        for i in range(100):
            channel.send(i, [framed(i), b""] if i % 2 else [framed(i)], replies)
        got = await replies.wait(100)
        assert [struct.unpack_from(">i", frame)[0] for frame in got if isinstance(frame, bytes)] == list(
            range(100)
        )
        assert channel.in_flight == 0


async def test_a_byte_at_a_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        for byte in framed(1, b"slow but whole"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with connected(drip) as channel:
        replies = Replies()
        channel.send(1, [framed(1)], replies)
        assert await replies.wait(1) == [framed(1, b"slow but whole")[4:]]


async def test_a_request_without_answer_takes_no_place_in_the_order() -> None:
    async def second_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        writer.write(framed(2))
        await reader.read()

    async with connected(second_only) as channel:
        replies = Replies()
        channel.send(1, [framed(1)], None)
        channel.send(2, [framed(2)], replies)
        assert await replies.wait(1) == [framed(2)[4:]]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (framed(7), MalformedFrame),  # not the correlation id that is due
        (struct.pack(">i", 1 << 30), FrameTooLarge),
        (struct.pack(">i", -5) + b"xxxx", MalformedFrame),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FrameTooLarge),
        (framed(1) + framed(2) + framed(3), MalformedFrame),  # more answers than questions
    ],
)
async def test_garbage_closes_and_tells_everybody(answer: bytes, reason: type[WireError]) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        writer.write(answer)
        await reader.read()

    async with connected(garbage, max_frame=1 << 20) as channel:
        replies = Replies()
        channel.send(1, [framed(1)], replies)
        channel.send(2, [framed(2)], replies)
        async with asyncio.timeout(30):
            await channel.closed_event.wait()
        assert len(replies.got) == 2
        assert type(channel.closed_reason) is reason
        for result in replies.got:
            if isinstance(result, WireError):
                assert isinstance(result, ConnectionLost)
                assert result.sent
                assert result.__cause__ is channel.closed_reason


@pytest.mark.parametrize("cut", [0, 3, 4, 7, 10])
async def test_a_peer_that_dies_inside_an_answer(cut: int) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(framed(1, b"payload")[:cut])
        await writer.drain()

    async with connected(half) as channel:
        replies = Replies()
        channel.send(1, [framed(1)], replies)
        (result,) = await replies.wait(1)
        assert isinstance(result, ConnectionLost)
        assert result.sent
        with pytest.raises(ConnectionLost) as caught:
            channel.send(2, [framed(2)], replies)
        assert not caught.value.sent
        assert len(replies.got) == 1


async def test_close_answers_everybody_exactly_once_and_calls_back() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with connected(silent) as channel:
        replies = Replies()
        closed: list[int] = []
        channel.add_close_callback(lambda: closed.append(1))
        for i in range(3):
            channel.send(i, [framed(i)], replies)
        channel.close()
        channel.close()
        await channel.closed_event.wait()
        assert [type(result) for result in replies.got] == [ConnectionLost] * 3
        assert closed == [1]
        channel.add_close_callback(lambda: closed.append(2))
        await asyncio.sleep(0)
        assert closed == [1, 2]


async def test_a_failing_reply_handler_is_reported_and_ends_the_channel() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def broken(result: memoryview | WireError) -> None:
        raise RuntimeError("a bug")

    async with connected(echo) as channel:
        channel.send(1, [framed(1)], broken)
        async with asyncio.timeout(30):
            await channel.closed_event.wait()
    assert isinstance(reported[0]["exception"], RuntimeError)


async def test_a_peer_that_does_not_read_pauses_the_writer() -> None:
    release = asyncio.Event()

    async def stalled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        while await reader.read(1 << 20):
            pass

    async with connected(stalled) as channel:
        block = bytes(1 << 20)
        for i in range(40):
            channel.send(i, [block], None)
        assert channel.write_paused
        waiting = asyncio.create_task(channel.drain())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        release.set()
        async with asyncio.timeout(30):
            await waiting
        assert not channel.write_paused


async def test_a_cancelled_drain_leaves_nothing_behind() -> None:
    async def stalled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with connected(stalled) as channel:
        for i in range(40):
            channel.send(i, [bytes(1 << 20)], None)
        waiting = asyncio.create_task(channel.drain())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert channel._drain_waiters == []


async def test_paused_reading_holds_answers_back() -> None:
    async with connected(echo) as channel:
        replies = Replies()
        channel.pause_reading()
        channel.pause_reading()
        channel.send(1, [framed(1)], replies)
        await asyncio.sleep(0.05)
        channel.resume_reading()
        await asyncio.sleep(0.05)
        assert replies.got == []
        channel.resume_reading()
        assert len(await replies.wait(1)) == 1


async def test_large_answers_use_the_given_buffers() -> None:
    async def big(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(framed(1, bytes(500_000)))
        await reader.read()

    made: list[bytearray] = []

    def alloc(size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    async with connected(big, alloc=alloc) as channel:  # type: ignore[arg-type]
        frames: list[memoryview | WireError] = []
        channel.send(1, [framed(1)], frames.append)
        async with asyncio.timeout(30):
            while not frames:
                await asyncio.sleep(0.005)
        (frame,) = frames
        assert isinstance(frame, memoryview)
        assert frame.obj is made[0]
        assert len(frame) == 500_004
