"""What comes to an open port: garbage, half and oversized frames. The connection goes, the process and its memory stay."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_trouble import TroubleScene, linked_sidecar
from wire.schema import codec

CLOSED_WITHIN = 20.0
ROUNDS = 6
FLAT = 12 << 20  # bytes that the process may have grown by after the first round
PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
    unique_topic: Callable[[str], str],
    _numbers: Iterator[int],
) -> AsyncIterator[TroubleScene]:
    async with linked_sidecar(
        source_cluster, target_cluster, 900 + next(_numbers), tmp_path_factory.mktemp("sidecar")
    ) as sidecar:
        topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
        made = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
        yield made
        await made.close()


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def header(api_key: int, version: int, *, flexible: bool) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 4) + b"evil" + (b"\0" if flexible else b"")


def to_the_listener(seed: random.Random) -> list[bytes]:
    """Each of these has to end its connection at once."""
    metadata = codec.encode_request("metadata", 9, {"topics": []}, correlation_id=1, client_id="c")
    return [
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + seed.randbytes(500),  # a TLS client's hello
        struct.pack(">i", -1) + seed.randbytes(100),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1) + seed.randbytes(5000),
        struct.pack(">i", 120 << 20) + seed.randbytes(5000),
        framed(seed.randbytes(3)),
        framed(struct.pack(">hhi", 999, 0, 1) + seed.randbytes(200)),  # no such api
        framed(struct.pack(">hhih", METADATA, 9, 1, 30000) + seed.randbytes(100)),  # client id beyond the end
        framed(header(PRODUCE, 9, flexible=True) + seed.randbytes(200)),
        framed(header(PRODUCE, 13, flexible=True) + b"\x00\xff\xff\x00\x00\x00\x01\xff\xff\xff\xff\x0f"),
        framed(header(FETCH, 12, flexible=True) + seed.randbytes(60)),
        framed(header(FETCH, 4, flexible=False) + struct.pack(">iiiib", -1, 0, 0, 1 << 30, 0) + b"\x7f" * 8),
        framed(header(LIST_OFFSETS, 6, flexible=True) + b"\xff" * 40),
        framed(bytes(metadata)) + struct.pack(">i", 2**30),  # a good one, then an oversized one
    ]


def to_the_admin_port(seed: random.Random) -> list[bytes]:
    start = b"POST /v1/links HTTP/1.1\r\nHost: localhost\r\n"
    return [
        seed.randbytes(3000) + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + seed.randbytes(500) + b"\n\n",
        framed(header(METADATA, 9, flexible=True)) + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 900) for i in range(300)) + b"\r\n",
        start + b"Content-Length: 99999999999\r\n\r\n" + seed.randbytes(4000),
        start + b"Content-Length: -1\r\n\r\n",
        start + b"Transfer-Encoding: chunked\r\n\r\nzzzz\r\n",
        start
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"100000\r\n"
        + b"z" * 0x100000
        + b"\r\n"
        + b"100000\r\nz",
    ]


async def rejected(address: tuple[str, int], content: bytes, *, in_pieces: bool = False) -> bytes:
    """Send it, keep the connection open, and wait until the other side closes; what it said before."""
    reader, writer = await asyncio.open_connection(*address)
    answer = b""
    try:
        async with asyncio.timeout(CLOSED_WITHIN):
            with contextlib.suppress(ConnectionError):
                for piece in [content[i : i + 1] for i in range(len(content))] if in_pieces else [content]:
                    writer.write(piece)
                    await writer.drain()
                    if in_pieces:
                        await asyncio.sleep(0)
                answer = await reader.read(1 << 20)
                while more := await reader.read(1 << 20):
                    answer += more
    except TimeoutError:
        raise AssertionError(f"still open after {CLOSED_WITHIN:.0f} s: {content[:80]!r}") from None
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answer


async def half(address: tuple[str, int], content: bytes) -> None:
    """Send a part and hang up."""
    _, writer = await asyncio.open_connection(*address)
    writer.write(content)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.removeprefix("http://").rpartition(":")
    return host, int(port)


async def one_round(sidecar: SidecarProcess, seed: random.Random) -> None:
    listener, admin = address_of(sidecar.address()), address_of(sidecar.admin_url)
    hostile = to_the_listener(seed)
    await asyncio.gather(*(rejected(listener, content) for content in hostile * 4))
    await asyncio.gather(*(rejected(listener, content[:600], in_pieces=True) for content in hostile[:7]))
    # Large frames that never come to an end: what is announced must not be paid for in memory.
    large = [
        framed(header(PRODUCE, 9, flexible=True) + bytes(size << 20))[: (size << 20) // 2] for size in (1, 8)
    ]
    await asyncio.gather(*(half(listener, content) for content in [*hostile, *large] * 2))
    await asyncio.gather(*(rejected(admin, content) for content in to_the_admin_port(seed) * 2))
    await asyncio.gather(*(half(admin, content[:50]) for content in to_the_admin_port(seed) * 2))


async def test_garbage_on_every_port(scene: TroubleScene) -> None:
    """While clients work: none of them notices."""
    await scene.begin()
    sidecar, seed = scene.sidecar, random.Random(4)
    pid = sidecar.pid
    sizes = []
    for _ in range(ROUNDS):
        await one_round(sidecar, seed)
        await scene.acked_more(10)
        sizes.append(sidecar.resident_bytes())
    assert sidecar.pid == pid
    assert sizes[-1] - sizes[1] < FLAT, [size >> 20 for size in sizes]
    assert sidecar.peak_resident_bytes() < 300 << 20, "memory was given for what was only announced"
    assert "Traceback" not in sidecar.log.read_text()
    assert "internal error" not in sidecar.log.read_text()
    await scene.acked_more(20)
    await scene.promoted()
    await scene.judge()


async def test_many_silent_connections(scene: TroubleScene) -> None:
    """Half a frame each, and then nothing: they cost little, and keep nobody out."""
    await scene.begin()
    listener = address_of(scene.sidecar.address())
    before = scene.sidecar.resident_bytes()
    writers = []
    try:
        for _ in range(500):
            _, writer = await asyncio.open_connection(*listener)
            writer.write(struct.pack(">i", 100 << 20) + b"\0\0\0\x09")
            writers.append(writer)
        await scene.acked_more(30)
        assert scene.sidecar.resident_bytes() - before < 100 << 20
    finally:
        for writer in writers:
            writer.close()
    await scene.acked_more(20)
    await scene.promoted()
    await scene.judge()
