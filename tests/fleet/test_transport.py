"""Channels over TCP: order, bounds, ends, and strangers. Under asyncio's own loop and under the one that is used."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.channel import ChannelClosed, MemberChannel
from fleet.transport import connections, handshake
from fleet.transport.connections import ControlServer, TransportLimits, connect
from fleet.transport.framing import MAX_FRAME_OF_STRANGERS, BadFrame, Wire
from fleet.transport.handshake import ACCEPTOR, CONNECTOR, TAG, NotTrusted, proof
from tests.fakes.certs import Authority
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.errors import LocalProtocolError

SECRET = "a secret that all share"
LOGGER = "fleet.transport.connections"


class Place:
    """A server whose channels are kept, or answered by `handler`."""

    def __init__(self) -> None:
        self.server: ControlServer
        self.channels: list[MemberChannel] = []

    async def hold(self, channel: MemberChannel) -> None:
        self.channels.append(channel)
        assert isinstance(channel, Wire)
        await channel.ended.wait()

    async def accepted(self) -> Wire:
        async with asyncio.timeout(30):
            while not self.channels:
                await asyncio.sleep(0.005)
        channel = self.channels.pop()
        assert isinstance(channel, Wire)
        return channel


@contextlib.asynccontextmanager
async def place(
    handler: Callable[[MemberChannel], Awaitable[None]] | None = None, **fields: Any
) -> AsyncIterator[Place]:
    made = Place()
    made.server = await ControlServer.start("127.0.0.1", 0, SECRET, handler or made.hold, **fields)
    try:
        yield made
    finally:
        await made.server.close()


@contextlib.asynccontextmanager
async def both(limits: TransportLimits | None = None) -> AsyncIterator[tuple[MemberChannel, Wire]]:
    async with place(limits=limits) as at:
        mine = await connect(("127.0.0.1", at.server.port), SECRET, 25, limits=limits)
        try:
            yield mine, await at.accepted()
        finally:
            mine.close()


async def raw(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def until_closed(sock: socket.socket, timeout: float = 25) -> bytes:
    """What comes before the other side closes."""
    found = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(sock, 65536):
                found += data
    sock.close()
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(25):
        while not condition():
            await asyncio.sleep(0.005)


def framed(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


async def works(at: Place) -> None:
    """The listener lives: somebody who knows the secret gets a channel."""
    channel = await connect(f"127.0.0.1:{at.server.port}", SECRET, 25)
    other = await at.accepted()
    channel.send({"is": "fine"})
    assert await asyncio.wait_for(other.receive(), 30) == {"is": "fine"}
    channel.close()
    await asyncio.wait_for(other.ended.wait(), 30)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


# Channels


async def test_ten_thousand_messages_both_ways_in_order() -> None:
    async with both() as (mine, theirs):
        assert mine.peer != theirs.peer

        async def talk(one: MemberChannel, other: MemberChannel) -> None:
            for n in range(10_000):
                one.send({"n": n, "text": "äö\ud800 \u0000"})
                if n % 100 == 0:
                    await asyncio.sleep(0)
            for n in range(10_000):
                assert await other.receive() == {"n": n, "text": "äö\ud800 \u0000"}

        async with asyncio.timeout(30):
            await asyncio.gather(talk(mine, theirs), talk(theirs, mine))


async def test_large_messages_arrive_whole() -> None:
    async with both() as (mine, theirs):
        for size in (1, 65_535, 5 << 20, 60 << 20):
            mine.send({"image": "x" * size})
            found = await asyncio.wait_for(theirs.receive(), 30)
            assert len(str(found["image"])) == size


async def test_what_came_before_the_end_is_received_and_then_the_end() -> None:
    async with both(TransportLimits(receive_buffer=64 << 20)) as (mine, theirs):
        for n in range(100):
            mine.send({"n": n})
        mine.send({"image": "x" * (16 << 20)})  # more than the kernel takes at once
        mine.close("bye")
        await asyncio.wait_for(theirs.ended.wait(), 30)
        assert [await theirs.receive() for _ in range(100)] == [{"n": n} for n in range(100)]
        assert len(str((await theirs.receive())["image"])) == 16 << 20
        for _ in range(2):
            with pytest.raises(ChannelClosed, match="the other side closed it"):
                await asyncio.wait_for(theirs.receive(), 30)
        with pytest.raises(ChannelClosed):
            theirs.send({})
        with pytest.raises(ChannelClosed, match="bye"):
            mine.send({})
        with pytest.raises(ChannelClosed, match="bye"):
            await mine.receive()
        mine.close("again")  # no change
        theirs.close()


async def test_closing_wakes_who_waits() -> None:
    async with both() as (mine, _):
        waiting = asyncio.create_task(mine.receive())
        await asyncio.sleep(0.01)
        mine.close("enough")
        with pytest.raises(ChannelClosed, match="enough"):
            await asyncio.wait_for(waiting, 30)


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with both() as (mine, theirs):
        waiting = asyncio.create_task(theirs.receive())
        await asyncio.sleep(0.01)
        waiting.cancel()
        mine.send({"n": 1})
        assert await asyncio.wait_for(theirs.receive(), 30) == {"n": 1}


async def test_who_does_not_read_loses_the_channel_and_memory_stays_bounded() -> None:
    limits = TransportLimits(send_buffer=1 << 20, receive_buffer=1 << 20)
    async with both(limits) as (mine, theirs):
        sent = 0
        with pytest.raises(ChannelClosed, match="does not keep up"):
            for sent in range(10_000):
                mine.send({"n": sent, "fill": "x" * 10_000})
                await asyncio.sleep(0)
        assert sent < 9_000  # kernel buffers and both of ours
        assert theirs._waiting < 2 << 20
        with pytest.raises(ChannelClosed):
            mine.send({})


async def test_who_reads_late_gets_everything() -> None:
    limits = TransportLimits(receive_buffer=100_000)
    async with both(limits) as (mine, theirs):
        for n in range(2000):
            mine.send({"n": n, "fill": "x" * 1000})
        await asyncio.sleep(0.1)
        assert theirs._waiting < 600_000  # one read beyond the bound
        for n in range(2000):
            assert (await asyncio.wait_for(theirs.receive(), 30))["n"] == n


async def test_a_message_beyond_the_largest_is_not_sent() -> None:
    async with both(TransportLimits(max_frame=1000)) as (mine, _):
        with pytest.raises(ChannelClosed, match="too large"):
            mine.send({"x": "y" * 1000})


@pytest.mark.parametrize("message", [{"x": float("nan")}, {"x": b""}, {"x": {1, 2}}])
async def test_what_json_cannot_say_is_refused_and_the_channel_lives(message: Any) -> None:
    async with both() as (mine, theirs):
        with pytest.raises(LocalProtocolError):
            mine.send(message)
        mine.send({"n": 1})
        assert await theirs.receive() == {"n": 1}


@pytest.mark.parametrize("cut", [2, 4, 100])
async def test_a_reset_in_the_middle_of_a_message(cut: int) -> None:
    async with both() as (mine, theirs):
        assert isinstance(mine, Wire)
        assert mine._transport is not None
        mine.send({"n": 1})
        mine._transport.write(framed({"fill": "x" * 1000})[:cut])
        await asyncio.sleep(0.05)
        sock = mine._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        mine.abort("test")
        assert await asyncio.wait_for(theirs.receive(), 30) == {"n": 1}
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(theirs.receive(), 30)


async def test_an_end_in_the_middle_of_a_message_is_told() -> None:
    async with both() as (mine, theirs):
        assert isinstance(mine, Wire)
        assert mine._transport is not None
        mine._transport.write(b"\0\0")
        mine.close()
        with pytest.raises(ChannelClosed, match="in the middle of a message"):
            await asyncio.wait_for(theirs.receive(), 30)


async def test_the_connection_is_watched() -> None:
    async with both() as ends:
        for end in ends:
            assert isinstance(end, Wire)
            assert end._transport is not None
            sock = end._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000


async def test_a_handler_that_returns_or_fails_closes_its_channel(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(channel: MemberChannel) -> None:
        message = await channel.receive()
        if message.get("fail"):
            raise RuntimeError("a bug")

    async with place(handler) as at:
        for fail in (True, False):
            channel = await connect(("127.0.0.1", at.server.port), SECRET, 25)
            channel.send({"fail": fail})
            with pytest.raises(ChannelClosed):
                await asyncio.wait_for(channel.receive(), 30)
    assert [line for line in lines(caplog) if "bug" in line]


async def test_closing_the_server_ends_its_channels() -> None:
    async with place() as at:
        channel = await connect(("127.0.0.1", at.server.port), SECRET, 25)
        await at.accepted()
        await at.server.close()
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(channel.receive(), 30)
        await at.server.close()


async def test_nobody_there() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(ChannelClosed, match=f"cannot connect to 127.0.0.1:{port}"):
        await connect(("127.0.0.1", port), SECRET, 25)


@pytest.mark.parametrize(("host", "port"), [("sidecar..example", 9095), ("127.0.0.1", 70_000)])
async def test_what_is_no_address(host: str, port: int) -> None:
    with pytest.raises(ChannelClosed, match=f"cannot connect to {host}:{port}"):
        await connect((host, port), SECRET, 25)


@pytest.mark.parametrize("address", ["", "nowhere", "host:0", "::1:9092", ":9092"])
async def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ChannelClosed, match=r"cannot connect(: '.*' is not host:port| to host:0)"):
        await connect(address, SECRET, 25)


async def test_somebody_who_never_answers() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()  # the kernel takes the connection
        with pytest.raises(ChannelClosed, match="did not answer in time"):
            limits = TransportLimits(handshake_timeout=60)
            await asyncio.wait_for(connect(sock.getsockname(), SECRET, 0.2, limits=limits), 25)


# The secret


async def test_another_secret_is_told_on_both_sides_and_shown_on_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with place() as at:
        with pytest.raises(NotTrusted, match=r"refused this sidecar.*shared secret") as caught:
            await connect(("127.0.0.1", at.server.port), "wrong and confidential", 25)
        await until(lambda: at.server.strangers == 0)
        assert len(lines(caplog)) == 1
        assert "does not know the shared secret" in lines(caplog)[0]
        shown = str(caught.value) + caplog.text
        assert SECRET not in shown
        assert "confidential" not in shown
        assert at.channels == []
        await works(at)


async def impostor(answers: Callable[[dict[str, Any], bytes], dict[str, Any]]) -> asyncio.Server:
    """Listens without knowing the secret."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = b"\1" * 32
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(2):
                size = int.from_bytes(await reader.readexactly(4), "big")
                message = json.loads(await reader.readexactly(size))
                writer.write(framed(answers(message, nonce)))
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize("reflect", [True, False])
async def test_an_acceptor_that_does_not_know_the_secret_is_found_out(reflect: bool) -> None:
    """Also if it only says back what it was told: nonce and proof of the connector are no proof of an acceptor."""

    def answers(message: dict[str, Any], nonce: bytes) -> dict[str, Any]:
        if "hello" in message:
            return message if reflect else {"hello": TAG, "nonce": nonce.hex()}
        return message if reflect else {"proof": "0" * 64}

    server = await impostor(answers)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NotTrusted, match="does not know the shared secret"):
        await connect(("127.0.0.1", port), SECRET, 25)
    server.close()


async def test_a_recorded_proof_is_worth_nothing() -> None:
    async with place() as at:
        said: list[bytes] = []
        for attempt in range(2):
            sock = await raw(at.server.port)
            loop = asyncio.get_running_loop()
            nonce = b"\2" * 32
            await loop.sock_sendall(sock, framed({"hello": TAG, "nonce": nonce.hex()}))
            answer = json.loads((await loop.sock_recv(sock, 65536))[4:])
            theirs = bytes.fromhex(answer["nonce"])
            if attempt == 0:
                said.append(framed({"proof": proof(SECRET.encode(), CONNECTOR, nonce, theirs)}))
            await loop.sock_sendall(sock, said[0])
            answer = json.loads((await loop.sock_recv(sock, 65536))[4:])
            if attempt == 0:
                assert answer == {"proof": proof(SECRET.encode(), ACCEPTOR, nonce, theirs)}
            else:
                assert "refused" in answer
            sock.close()


async def test_a_proof_of_the_other_role_is_none() -> None:
    async with place() as at:
        sock = await raw(at.server.port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, framed({"hello": TAG, "nonce": "03" * 32}))
        answer = json.loads((await loop.sock_recv(sock, 65536))[4:])
        theirs = bytes.fromhex(answer["nonce"])
        await loop.sock_sendall(sock, framed({"proof": proof(SECRET.encode(), ACCEPTOR, b"\3" * 32, theirs)}))
        assert b"refused" in await until_closed(sock)
        assert at.channels == []


def test_every_part_is_in_the_proof() -> None:
    one, two = b"\1" * 32, b"\2" * 32
    found = {
        proof(b"s", CONNECTOR, one, two),
        proof(b"s", ACCEPTOR, one, two),
        proof(b"t", CONNECTOR, one, two),
        proof(b"s", CONNECTOR, two, one),
        proof(b"s", CONNECTOR, one, one),
        proof(b"s", CONNECTOR, two, two),
    }
    assert len(found) == 6


def test_the_tag_is_in_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    before = proof(b"s", CONNECTOR, b"\1" * 32, b"\2" * 32)
    monkeypatch.setattr(handshake, "TAG", "kafka-linker control 2")
    assert proof(b"s", CONNECTOR, b"\1" * 32, b"\2" * 32) != before


# TLS


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def tls(authority: Authority, **more: str) -> dict[str, str]:
    issued = authority.issue("127.0.0.1")
    return {
        "security.protocol": "SSL",
        "ssl.keystore.certificate.chain": issued.certificate,
        "ssl.keystore.key": issued.key,
        "ssl.truststore.certificates": authority.pem,
        **more,
    }


async def test_over_tls_with_certificates_on_both_sides(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    listening = ListenerSecurity.from_properties(tls(authority, **{"ssl.client.auth": "required"}))
    async with place(tls=listening) as at:
        address = ("127.0.0.1", at.server.port)
        mine = await connect(address, SECRET, 25, tls=ClientSecurity.from_properties(tls(authority)))
        theirs = await at.accepted()
        mine.send({"image": "x" * (3 << 20)})
        assert len(str((await asyncio.wait_for(theirs.receive(), 30))["image"])) == 3 << 20
        mine.close()
        with pytest.raises(NotTrusted):
            await connect(address, "another", 25, tls=ClientSecurity.from_properties(tls(authority)))
        with pytest.raises(ChannelClosed):
            await connect(address, SECRET, 25, tls=ClientSecurity.from_properties(tls(Authority("stranger"))))
        with pytest.raises(ChannelClosed):
            await connect(address, SECRET, 25)  # no TLS
        await until(lambda: at.server.strangers == 0)
        assert not [line for line in lines(caplog) if "bug" in line]


async def test_the_host_name_is_checked_unless_switched_off(authority: Authority) -> None:
    properties = tls(authority)
    properties["ssl.keystore.certificate.chain"], properties["ssl.keystore.key"] = authority.issue(
        "elsewhere"
    )
    async with place(tls=ListenerSecurity.from_properties(properties)) as at:
        address = ("127.0.0.1", at.server.port)
        trust = {"security.protocol": "SSL", "ssl.truststore.certificates": authority.pem}
        with pytest.raises(ChannelClosed):
            await connect(address, SECRET, 25, tls=ClientSecurity.from_properties(trust))
        trust["ssl.endpoint.identification.algorithm"] = ""
        (await connect(address, SECRET, 25, tls=ClientSecurity.from_properties(trust))).close()


# Strangers


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a message of 1195725856 bytes"),
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (b"\0\0\0\0", "a message of 0 bytes"),
        (struct.pack(">I", MAX_FRAME_OF_STRANGERS + 1), "a message of 1048577 bytes"),
        (framed(b"\xff\xfe"), "not UTF-8 at byte 0"),
        (framed(b"{"), "not JSON"),
        (framed(b"[" * 500_000), "nested too deep"),
        (framed(b'{"a":' * 100_000), "nested too deep"),
        (framed(b'{"n":' + b"9" * 500_000 + b"}"), "integer string conversion"),
        (framed(b'{"n":NaN}'), "NaN is no JSON"),
        (framed([1]), "a message is an object, not a list"),
        (framed({}), "does not speak"),
        (framed({"hello": TAG}), "sent no nonce"),
        (framed({"hello": TAG, "nonce": "zz"}), "sent no nonce"),
        (framed({"hello": TAG, "nonce": "00" * 31}), "sent no nonce"),
        (framed({"hello": TAG, "nonce": "00" * 32}) + framed({"proof": "\ud800"}), "shared secret"),
        (framed({"hello": TAG, "nonce": "00" * 32}) + framed({"proof": None}), "shared secret"),
        (framed({"refused": "x\n" * 500}), "refused this sidecar"),
    ],
)
async def test_hostile_bytes_cost_one_connection_and_one_line(
    said: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with place() as at:
        sock = await raw(at.server.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(sock, said)
        await until_closed(sock)
        await until(lambda: at.server.strangers == 0)
        assert len(lines(caplog)) == 1
        assert logged in lines(caplog)[0]
        assert "\n" not in lines(caplog)[0]
        assert len(lines(caplog)[0]) < 500
        assert at.channels == []
        await works(at)


@pytest.mark.parametrize("said", [b"", b"\0", b"\0\0\0\x50{", framed({"hello": TAG, "nonce": "00" * 32})])
async def test_silence_ends_at_the_deadline(
    said: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT", 60.0)
    async with place(limits=TransportLimits(handshake_timeout=0.2)) as at:
        sock = await raw(at.server.port)
        await asyncio.get_running_loop().sock_sendall(sock, said)
        await until_closed(sock)
        await until(lambda: at.server.strangers == 0)
        assert [line for line in lines(caplog) if "not authenticated within 0.2 s" in line] == lines(caplog)
        assert len(lines(caplog)) == 1


async def test_dripping_bytes_does_not_prolong_it() -> None:
    async with place(limits=TransportLimits(handshake_timeout=0.3)) as at:
        sock = await raw(at.server.port)
        loop = asyncio.get_running_loop()
        began = loop.time()
        said = framed({"hello": TAG, "nonce": "00" * 32})
        with contextlib.suppress(ConnectionError):
            for n in range(100):
                await loop.sock_sendall(sock, said[n : n + 1])
                await asyncio.sleep(0.02)
        assert loop.time() - began < 20
        assert at.server.strangers == 0
        sock.close()


async def test_silence_in_a_tls_handshake_ends_at_the_deadline(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    listening = ListenerSecurity.from_properties(tls(authority))
    async with place(tls=listening, limits=TransportLimits(handshake_timeout=0.2)) as at:
        sock = await raw(at.server.port)
        await until_closed(sock)
        await until(lambda: at.server.strangers == 0)
        assert len(lines(caplog)) == 1
        assert "not authenticated within 0.2 s" in lines(caplog)[0]


async def test_gone_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with place() as at:
        for _ in range(20):
            sock = await raw(at.server.port)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        await works(at)  # accepted after all of them
        await until(lambda: at.server.strangers == 0)
        assert len(lines(caplog)) <= 20
        await works(at)


async def test_many_strangers_do_not_keep_a_sidecar_out(caplog: pytest.LogCaptureFixture) -> None:
    async with place(limits=TransportLimits(max_strangers=8, handshake_timeout=60)) as at:
        socks = [await raw(at.server.port) for _ in range(30)]
        await until(lambda: at.server.strangers == 8)
        await until_closed(socks.pop(0))  # the oldest
        assert at.server.strangers == 8
        await works(at)
        told = [line for line in lines(caplog) if "too many connections" in line]
        assert 1 <= len(told) <= 22, "strangers do not fill the log"
        for sock in socks:
            sock.close()


async def test_strangers_do_not_push_out_a_friend() -> None:
    async with place(limits=TransportLimits(max_strangers=2)) as at:
        mine = await connect(("127.0.0.1", at.server.port), SECRET, 25)
        theirs = await at.accepted()
        assert at.server.strangers == 0
        socks = [await raw(at.server.port) for _ in range(5)]
        await asyncio.sleep(0.05)
        mine.send({"n": 1})
        assert await asyncio.wait_for(theirs.receive(), 30) == {"n": 1}
        for sock in socks:
            sock.close()


async def test_a_friend_that_sends_nonsense_loses_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    async with both() as (mine, theirs):
        assert isinstance(mine, Wire)
        assert mine._transport is not None
        mine._transport.write(framed(b"nonsense") + framed({"n": 1}))
        with pytest.raises(BadFrame, match="not JSON"):
            await asyncio.wait_for(theirs.receive(), 30)
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(theirs.receive(), 30)
        await until(lambda: lines(caplog))
        assert len(lines(caplog)) == 1


class Nowhere(asyncio.Transport):
    """Takes everything; what a wire is tried with, without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.binary(max_size=60).map(framed),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                ),
                max_leaves=8,
            ).map(framed),
        ),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 300), max_size=10),
)
def test_any_bytes_in_any_pieces_are_messages_or_the_end(pieces: list[bytes], cuts: list[int]) -> None:
    """However it is cut, the same bytes give the same messages, and an error is one of ours."""

    async def outcome(chunks: list[bytes]) -> tuple[list[Any], bool]:
        transport = Nowhere()
        wire = Wire()
        wire.connection_made(transport)
        for chunk in chunks:
            wire.data_received(chunk)
        wire.eof_received()
        wire.connection_lost(None)
        found: list[Any] = []
        try:
            while True:
                found.append(await asyncio.wait_for(wire.receive(), 30))
        except ChannelClosed:
            return found, transport.aborted

    whole = b"".join(pieces)
    at = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    chunks = [whole[start:end] for start, end in itertools.pairwise(at)]
    assert asyncio.run(outcome([whole])) == asyncio.run(outcome(chunks))
