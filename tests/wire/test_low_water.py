"""LowWater on real sockets: a large answer wakes us a few times, and nothing ever waits for what will not come."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.wire.test_channel import Peer, Replies, connected, framed
from wire.client.channel import Channel
from wire.errors import ConnectionLost, WireError
from wire.transport.low_water import LEAST, LowWater

LARGE = 4 << 20
PIECE = 32 * 1024


class Reads:
    """Counts the reads of a channel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = Channel.buffer_updated

        def counted(channel: Channel, nbytes: int) -> None:
            self.count += 1
            real(channel, nbytes)

        monkeypatch.setattr(Channel, "buffer_updated", counted)


async def in_pieces(writer: asyncio.StreamWriter, data: bytes) -> None:
    for start in range(0, len(data), PIECE):
        writer.write(data[start : start + PIECE])
        await writer.drain()
        await asyncio.sleep(0.001)


async def answer_of(peer: Peer) -> bytes | WireError:
    """What one request gets, within the deadline of `Replies`."""
    async with connected(peer) as channel:
        replies = Replies()
        channel.send(1, [framed(1)], replies)
        return (await replies.wait(1))[0]


async def test_a_large_answer_in_pieces_takes_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = framed(1, bytes(LARGE))

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        await in_pieces(writer, answer)

    reads = Reads(monkeypatch)
    assert await answer_of(peer) == answer[4:]
    assert len(answer) // PIECE == 128
    assert reads.count < 32  # of 128 pieces


async def test_what_follows_a_large_answer_is_not_kept_back() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(1, 4):
            await reader.readexactly(8)
            await in_pieces(writer, framed(number, bytes(LARGE if number == 1 else 10)))

    async with connected(peer) as channel:
        replies = Replies()
        for number in range(1, 4):
            channel.send(number, [framed(number)], replies)
            await replies.wait(number)


@pytest.mark.parametrize("missing", [1, 10, LEAST - 1, LEAST, LEAST + 1, LARGE // 2])
async def test_the_rest_of_an_answer_is_enough(missing: int) -> None:
    """What is waited for shrinks with what has come: the last bytes are followed by nothing."""
    answer = framed(1, bytes(LARGE))

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        await in_pieces(writer, answer[:-missing])
        await asyncio.sleep(
            0.05
        )  # so that the rest comes by itself; that the others were read cannot be waited for
        writer.write(answer[-missing:])
        await reader.read()

    assert await answer_of(peer) == answer[4:]


async def test_an_answer_larger_than_any_socket_buffer() -> None:
    answer = framed(1, bytes(40 << 20))

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(answer)
        await reader.read()

    assert await answer_of(peer) == answer[4:]


async def test_a_peer_that_hangs_up_within_an_answer_is_noticed_at_once() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        await in_pieces(writer, framed(1, bytes(LARGE))[: LEAST * 2])
        writer.close()

    assert isinstance(await answer_of(peer), ConnectionLost)


class FakeSocket:
    def __init__(self, *, refuses: bool = False) -> None:
        self.asked: list[int] = []
        self.refuses = refuses

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.asked.append(value)
        if self.refuses:
            raise OSError(92, "Protocol not available")


class FakeTransport(asyncio.BaseTransport):
    """Of a TLS connection the bytes of a frame are not those of its socket."""


def low_water(fake: FakeSocket | None, *, tls: bool = False) -> LowWater:
    return LowWater(FakeTransport({"socket": fake, "sslcontext": object() if tls else None}))


def test_the_kernel_is_asked_only_when_something_changes() -> None:
    fake = FakeSocket()
    mark = low_water(fake)
    for missing in (0, 0, LARGE, LARGE, LEAST, LEAST - 1, 5, 0, 0):
        mark.wait_for(missing)
    assert fake.asked == [LARGE, LEAST, 1]


def test_a_socket_that_cannot_do_it_is_asked_once() -> None:
    fake = FakeSocket(refuses=True)
    mark = low_water(fake)
    for missing in (LARGE, LEAST, 0):
        mark.wait_for(missing)
    assert fake.asked == [LARGE]


def test_tls_and_transports_without_a_socket_are_left_alone() -> None:
    fake = FakeSocket()
    low_water(fake, tls=True).wait_for(LARGE)
    low_water(None).wait_for(LARGE)
    assert fake.asked == []
