"""What is large is read and written in pieces while clients ask, whole when nobody does; nothing is lost or reordered."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator

import pytest

import wire.frames.pieces
import wire.transport.low_water
from tests.wire.test_gathering import Taken, writer
from tests.wire.test_server import listening
from wire.client.channel import Channel
from wire.errors import WireError
from wire.frames.pieces import PIECE, client_asked, in_pieces
from wire.server.listener import Exchange
from wire.transport.gathering import gathered_writes

LARGE = 4 * 1024 * 1024


@pytest.fixture(autouse=True)
async def nobody(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """No client has asked for anything before a test, nor after it; one that asks in it stays."""
    monkeypatch.setattr(wire.frames.pieces, "LATELY", 60.0)
    client_asked(float("-inf"))
    yield
    client_asked(float("-inf"))


def somebody() -> None:
    client_asked(asyncio.get_running_loop().time())


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_client_is_there_for_a_while_after_a_request() -> None:
    client_asked(100.0)
    assert in_pieces(100.0)
    assert in_pieces(159.0)
    assert not in_pieces(161.0)


async def test_whole_when_nobody_asks() -> None:
    taken = Taken()
    writer(taken).write([b"head", bytes(LARGE)])
    assert [len(call) for call in taken.calls] == [4 + LARGE]


async def test_a_large_write_leaves_piece_by_piece_and_what_follows_after_it() -> None:
    taken = Taken()
    one = writer(taken)
    somebody()
    data = os.urandom(3 * PIECE)
    one.write([b"head", data[:1000], data[1000:]])
    one.write([b"next"])
    assert [len(call) for call in taken.calls] == [PIECE]
    with gathered_writes():
        one.write([b"last"])
    await turns(1)
    assert [len(call) for call in taken.calls] == [PIECE, PIECE]
    await turns(3)
    assert [len(call) for call in taken.calls] == [PIECE, PIECE, PIECE, 4 + 4 + 4]
    assert b"".join(taken.calls) == b"head" + data + b"nextlast"
    one.write([b"small"])
    assert taken.calls[-1] == b"small"


async def test_a_write_of_less_than_two_pieces_leaves_whole() -> None:
    taken = Taken()
    somebody()
    writer(taken).write([bytes(2 * PIECE - 1)])
    assert [len(call) for call in taken.calls] == [2 * PIECE - 1]


async def test_the_rest_leaves_at_once_when_clients_have_gone() -> None:
    taken = Taken()
    somebody()
    data = os.urandom(LARGE)
    writer(taken).write([data])
    client_asked(float("-inf"))
    await turns(1)
    assert [len(call) for call in taken.calls] == [PIECE, LARGE - PIECE]
    assert b"".join(taken.calls) == data


async def test_what_queues_behind_a_large_write_is_not_hidden_from_the_transport() -> None:
    """It alone knows how much has not left yet, and stops who would add to that."""
    taken = Taken()
    one = writer(taken)
    somebody()
    data = os.urandom(LARGE)
    one.write([data])
    one.write([bytes(PIECE)])
    assert [len(call) for call in taken.calls] == [PIECE]
    one.write([bytes(PIECE)])
    assert b"".join(taken.calls) == data + bytes(2 * PIECE)
    one.write([data])
    one.write([bytes(PIECE)])  # those before are not counted again
    assert [len(call) for call in taken.calls[2:]] == [PIECE]
    await turns(LARGE // PIECE + 2)
    assert b"".join(taken.calls) == data + bytes(2 * PIECE) + data + bytes(PIECE)
    other = Taken()
    two = writer(other)
    for _ in range(2):  # nor are those that have left
        two.write([data])
        two.write([bytes(PIECE)])
        assert other.calls[-1] == data[:PIECE]
        await turns(LARGE // PIECE + 2)


async def test_flush_sends_the_rest_and_what_gathers() -> None:
    taken = Taken()
    one = writer(taken)
    somebody()
    data = os.urandom(LARGE)
    with gathered_writes():
        one.write([data])
        one.write([b"gathered"])
        one.flush()
    assert b"".join(taken.calls) == data + b"gathered"
    await turns(3)
    assert b"".join(taken.calls) == data + b"gathered"


async def test_nothing_is_written_to_a_transport_that_closes() -> None:
    taken = Taken()
    somebody()
    writer(taken).write([bytes(LARGE)])
    taken.closing = True
    await turns(20)
    assert [len(call) for call in taken.calls] == [PIECE]


class Peer:
    """A server that answers every request, by its correlation id, with a large frame; and the channel to it."""

    def __init__(self, channel: Channel, body: bytes) -> None:
        self.channel = channel
        self.body = body
        self.reads: list[int] = []
        self.turns: list[int] = []  # in which turn of the event loop each of them was
        self.turn = 0
        updated = channel.buffer_updated

        def noted(nbytes: int) -> None:
            self.reads.append(nbytes)
            self.turns.append(self.turn)
            updated(nbytes)

        channel.buffer_updated = noted  # type: ignore[method-assign]

    async def answer(self, *, late: bool = False) -> bytes:
        """`late`: it is not looked at before the kernel holds much of it."""
        reply: asyncio.Future[memoryview | WireError] = asyncio.get_running_loop().create_future()
        self.channel.send(7, [(4).to_bytes(4, "big"), (7).to_bytes(4, "big")], reply.set_result)
        if late:
            self.channel.pause_reading()
            await asyncio.sleep(0.1)
            self.channel.resume_reading()
        frame = await self._watched(reply)
        assert isinstance(frame, memoryview)
        return bytes(frame)

    async def _watched(self, reply: asyncio.Future[memoryview | WireError]) -> memoryview | WireError:
        while not reply.done():
            self.turn += 1
            await asyncio.sleep(0)
        return reply.result()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    body = os.urandom(LARGE)

    async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await reader.readexactly(8)
                out.write((4 + len(body)).to_bytes(4, "big") + asked[4:] + body)
        except asyncio.IncompleteReadError:
            out.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    channel = Channel()
    peer = Peer(channel, body)  # before the transport has a look at the channel's methods
    await asyncio.get_running_loop().create_connection(lambda: channel, host, port)
    yield peer
    channel.close()
    await channel.closed_event.wait()
    server.close()
    await server.wait_closed()


async def test_a_large_answer_is_read_in_pieces_one_a_turn(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[int] = []
    monkeypatch.setattr(
        wire.transport.low_water.LowWater, "wait_for", lambda _self, missing: waited_for.append(missing)
    )
    for _ in range(5):
        await peer.answer()  # the kernel gives more room to who reads much
    assert max(peer.reads) >= 2 * PIECE
    peer.reads.clear()
    peer.turns.clear()
    waited_for.clear()
    somebody()
    assert await peer.answer(late=True) == (7).to_bytes(4, "big") + peer.body
    assert max(peer.reads) == PIECE
    full = [turn for turn, size in zip(peer.turns, peer.reads, strict=True) if size == PIECE]
    assert full
    assert len(set(full)) == len(full)
    assert await peer.answer() == (7).to_bytes(4, "big") + peer.body
    # Less than a piece is in the first read, which does not know yet that the frame is large.
    assert sum(missing > PIECE for missing in waited_for) <= 2


async def test_a_large_answer_is_read_in_few_reads_when_nobody_asks(peer: Peer) -> None:
    assert await peer.answer() == (7).to_bytes(4, "big") + peer.body
    assert max(peer.reads) > PIECE


@pytest.mark.parametrize(("api_key", "asks"), [(0, True), (3, True), (1, False)])
async def test_every_request_but_a_fetch_is_a_clients(api_key: int, asks: bool) -> None:
    def handler(exchange: Exchange) -> None:
        exchange.reply([bytes(4)])

    async with listening(handler) as listener:
        reader, out = await asyncio.open_connection("127.0.0.1", listener.port)
        body = struct.pack(">hhih", api_key, 0, 5, -1)
        out.write(struct.pack(">i", len(body)) + body)
        await reader.readexactly(4)
        out.close()
    assert in_pieces(asyncio.get_running_loop().time()) is asks
