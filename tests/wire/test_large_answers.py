"""A peer that we ask answers with far more than it can mean: it is not received, or others go on while it is decoded."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from wire.client.channel import Channel
from wire.client.cluster import Cluster
from wire.client.connecting import connect
from wire.client.connection import MAX_ANSWER, Connection
from wire.client.security import ClientSecurity
from wire.errors import LinkerError, MalformedFrame
from wire.frames.fetch import parse_fetch_response
from wire.frames.fetch_response import MAX_ANSWERED
from wire.frames.primitives import compact_string, uvarint
from wire.schema import codec

METADATA = 3
Answer = Callable[[int, int], bytes]
"""(api key, correlation id) -> the frame without its size."""


def api_versions(correlation_id: int) -> bytes:
    keys = [
        {"api_key": key, "min_version": 0, "max_version": high} for key, high in ((1, 17), (3, 12), (18, 3))
    ]
    return codec.encode_response("api_versions", 3, correlation_id, {"error_code": 0, "api_keys": keys})


def metadata(topics: int, partitions: int) -> Answer:
    """Made of the smallest topics and partitions that there are."""
    partition = struct.pack(">hiii", 0, 0, 1, 0) + b"\x02" + bytes(4) + b"\x02" + bytes(4) + b"\x01\x00"
    topic = (
        struct.pack(">h", 0)
        + compact_string("t")
        + bytes(16)
        + b"\0"
        + uvarint(partitions + 1)
        + partition * partitions
        + struct.pack(">i", 0)
        + b"\0"
    )
    body = bytes(4) + b"\x01" + compact_string("evil") + struct.pack(">i", 1) + uvarint(topics + 1)
    body += topic * topics + b"\0"

    def answer(key: int, correlation_id: int) -> bytes:
        return struct.pack(">i", correlation_id) + b"\0" + body

    return answer


class Source:
    """Says what it is told to say to Metadata."""

    def __init__(self, answer: Answer, announce: int | None = None) -> None:
        self.answer = answer
        self.announce = announce
        self.sent = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation_id = struct.unpack_from(">hhi", frame)
                if key == 18 and version > 3:
                    reply = codec.encode_response(
                        "api_versions",
                        0,
                        correlation_id,
                        {
                            "error_code": 35,
                            "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}],
                        },
                    )
                elif key == 18:
                    reply = api_versions(correlation_id)
                else:
                    reply = self.answer(key, correlation_id)
                if key != 18 and self.announce is not None:
                    writer.write(struct.pack(">i", self.announce))
                    while self.sent < self.announce:
                        writer.write(bytes(1 << 16))
                        await writer.drain()
                        self.sent += 1 << 16
                writer.write(struct.pack(">i", len(reply)) + reply)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(source: Source) -> AsyncIterator[Source]:
    server = await asyncio.start_server(source.serve, "127.0.0.1", 0)
    source.port = server.sockets[0].getsockname()[1]
    try:
        yield source
    finally:
        server.close()


async def opened(source: Source) -> Connection:
    return await Connection.open(
        "127.0.0.1", source.port, ClientSecurity.plaintext(), client_id="me", timeout=5
    )


async def test_an_answer_of_a_quarter_of_a_gigabyte_is_not_received() -> None:
    async with serving(Source(metadata(1, 1), announce=240 << 20)) as source:
        connection = await opened(source)
        with pytest.raises(LinkerError):
            await connection.call("metadata", {"topics": []}, timeout=20)
        assert connection.closed
        assert "limit is 16777216" in str(connection.channel.closed_reason)
        # What fits into the buffers on the way.
        assert source.sent < 32 << 20


async def test_before_the_handshake_is_done_a_mebibyte_is_too_much() -> None:
    async with serving(Source(metadata(1, 1))) as source:
        original = api_versions

        def large(correlation_id: int) -> bytes:
            return original(correlation_id) + bytes(2 << 20)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.wire.test_large_answers.api_versions", large)
            with pytest.raises(LinkerError, match=r"limit|lost|connect"):
                await opened(source)


async def test_others_go_on_while_a_large_one_is_decoded() -> None:
    count = 14 * (1 << 20) // 26
    async with serving(Source(metadata(1, count))) as source:
        connection = await opened(source)
        longest = 0.0
        turns = 0

        async def watch() -> None:
            nonlocal longest, turns
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.005)
                longest = max(longest, time.perf_counter() - before)
                turns += 1

        watcher = asyncio.create_task(watch())
        started = time.process_time()
        answer = await connection.call("metadata", {"topics": [{"name": "t"}]}, timeout=60)
        took = time.process_time() - started
        watcher.cancel()
        assert len(answer.topics[0].partitions) == count
        assert took > 0.3  # else nothing is shown here
        assert turns > 10
        connection.close()


async def test_topics_that_nobody_asked_for() -> None:
    async with serving(Source(metadata(5000, 1))) as source:
        cluster = Cluster("east", [("127.0.0.1", source.port)], ClientSecurity.plaintext(), "me")
        with pytest.raises(MalformedFrame, match="5000 topics are told where 0 were asked for"):
            await cluster.connect(timeout=5)
        await cluster.close()


async def test_each_answer_has_its_own_limit() -> None:
    """Behind one another, in one read: a large one where a large one may come, and then one where it may not."""
    large, small = 3 << 20, 2 << 20

    def answer(key: int, correlation_id: int) -> bytes:
        return struct.pack(">i", correlation_id) + bytes(large - 4)

    async with serving(Source(answer)) as source:
        channel = Channel()
        await connect(channel, "127.0.0.1", source.port, None)
        replies: list[object] = []
        for number, most in ((1, large), (2, large), (3, small)):
            frame = codec.encode_request(
                "metadata", 12, {"topics": []}, correlation_id=number, client_id="me"
            )
            channel.send(number, [len(frame).to_bytes(4, "big"), frame], replies.append, most)
        async with asyncio.timeout(30):
            await channel.closed_event.wait()
        assert [isinstance(one, memoryview) for one in replies] == [True, True, False]
        assert f"limit is {small}" in str(channel.closed_reason)


def test_a_fetch_answer_of_a_million_partitions() -> None:
    partition = struct.pack(">ihqqq", 0, 0, 0, 0, 0) + b"\0" + struct.pack(">i", -1) + b"\0\0"
    count = 1_000_000
    frame = struct.pack(">i", 1) + b"\0" + struct.pack(">ihi", 0, 0, 0) + b"\x02" + bytes(16)
    frame += uvarint(count + 1) + partition * count + b"\0\0"
    started = time.process_time()
    with pytest.raises(MalformedFrame, match=f"more than {MAX_ANSWERED}"):
        parse_fetch_response(frame, 17)
    assert time.process_time() - started < 0.3


def test_what_a_lawful_answer_needs() -> None:
    assert len(metadata(1, 200_000)(METADATA, 1)) < MAX_ANSWER
