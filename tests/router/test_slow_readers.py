"""Consumers that ask for much and read nothing: what the sidecar keeps for them is bounded, and others go on."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import router.fetch.unread
from router.fetch.unread import Unread
from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually
from tests.router.test_consumer_fetch import fetch, log_of
from wire.frames.fetch import FetchPartition, FetchRequest, encode_fetch_request, parse_fetch_response
from wire.frames.types import TopicPartition

PIPELINED = 30
READERS = 40


def frames(rig: Rig, count: int, index: int = 0) -> bytes:
    key = rig.directory.mirrors["orders"].topic_id
    part = FetchPartition(index, -1, 0, -1, -1, 8 << 20)
    request = FetchRequest(
        version=17, max_wait_ms=500, min_bytes=1, max_bytes=8 << 20, topics=[(key, [part])]
    )
    return b"".join(bytes(encode_fetch_request(17, number, "app", request)) for number in range(count))


def connect(rig: Rig) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect(("127.0.0.1", rig.listener.port))
    sock.setblocking(False)
    return sock


def kept(rig: Rig) -> int:
    """Bytes of answers in the process."""
    total = 0
    for connection in rig.listener.connections:
        total += connection.unsent
        total += sum(len(one) for exchange in connection._open for one in exchange._answer)
    return total


def fill(rig: Rig) -> None:
    log = log_of(rig)
    while sum(len(one) for one in log.batches) < 16 << 20:
        log.append(4000)


async def test_who_does_not_read_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router.fetch.unread, "PATIENCE", 0.3)
    limits = RouterLimits(read_bytes=4 << 20)
    async with Rig(limits=limits) as rig:
        fill(rig)
        socks = [connect(rig) for _ in range(READERS)]
        most = 0
        try:
            for sock in socks:
                sock.send(frames(rig, PIPELINED))
            await eventually(lambda: rig.router.hub.unread.full)
            client = await rig.client()
            asked = fetch(client, rig, {0: 0})
            while not asked.done():
                most = max(most, kept(rig))
                await asyncio.sleep(0.01)
            assert (await asked).error == 0
            assert len((await asked).records()) > 0
            # The budget, and what is little of each. With all that was asked for it would be a hundred MiB and more.
            assert most < 12 << 20
            assert rig.router.hub.unread.cut > 0
        finally:
            for sock in socks:
                sock.close()
        await eventually(lambda: len(rig.listener.connections) == 1)
        await eventually(lambda: rig.router.hub.unread.used == 0)


async def test_answers_behind_one_that_waits_are_not_made() -> None:
    """A write that is held, and fetches behind it: their answers could not leave."""
    async with Rig() as rig:
        fill(rig)
        connection = await rig.client()
        producer = Producer(connection, rig)
        await producer.send(0)
        await rig.router.fence([TopicPartition("orders", 0)], timeout=25)
        held = producer.send(0)
        asked = [fetch(connection, rig, {0: 0}) for _ in range(20)]
        (server,) = rig.listener.connections
        await eventually(lambda: any(one.done for one in server._open))
        await asyncio.sleep(0.1)
        answers = [sum(map(len, one._answer)) for one in server._open]
        assert sum(size > 0 for size in answers) == 1
        assert rig.router.hub.unread.used > 0
        rig.router.unfence([TopicPartition("orders", 0)])
        assert [one.error for one in await held] == [0]
        for one in asked:
            assert len((await asyncio.wait_for(one, 25)).records()) > 0
        await eventually(lambda: rig.router.hub.unread.used == 0)


async def test_who_reads_slowly_gets_everything() -> None:
    async with Rig(limits=RouterLimits(read_bytes=16 << 20)) as rig:
        fill(rig)
        sock = connect(rig)
        loop = asyncio.get_running_loop()
        count = 8
        await loop.sock_sendall(sock, frames(rig, count))
        received = bytearray()
        answers = 0
        while answers < count:
            received += await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 25)
            await asyncio.sleep(0.001)
            while len(received) >= 4 and len(received) - 4 >= (size := int.from_bytes(received[:4], "big")):
                frame = memoryview(bytes(received[4 : 4 + size]))
                assert int.from_bytes(frame[:4], "big") == answers
                assert parse_fetch_response(frame, 17).partitions[0].records_end > 0
                del received[: 4 + size]
                answers += 1
        assert rig.router.hub.unread.cut == 0
        sock.close()


class Reader:
    def __init__(self, name: str, unsent: int) -> None:
        self.peer = name
        self.unsent = unsent
        self.aborted: Any = None

    def abort(self, reason: BaseException | None = None) -> None:
        self.aborted = reason


async def test_only_who_reads_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router.fetch.unread, "PATIENCE", 0.2)
    monkeypatch.setattr(router.fetch.unread, "_AGAIN", 0.02)
    unread = Unread(100, asyncio.get_running_loop())
    slow, silent = Reader("slow", 1 << 20), Reader("silent", 1 << 20)
    unread.add(slow, 60)
    unread.add(silent, 60)
    assert unread.full
    got = asyncio.Event()
    unread.wait(got.set)
    while not got.is_set():
        slow.unsent -= 1
        await asyncio.sleep(0.01)
    assert "nothing was read of an answer of 60 bytes" in str(silent.aborted)
    assert slow.aborted is None
    assert (unread.used, unread.cut) == (60, 1)
    assert [one.split(":")[0] for one in caplog.messages] == ["the connection of silent was closed"]
    unread.close()
