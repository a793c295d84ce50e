"""Addresses as brokers advertise them, good and bad: whatever is wrong with one, it is an error of ours."""

from __future__ import annotations

import asyncio

import pytest

from linker.process.upstreams import Upstreams
from tests.fakes import FakeCluster
from tests.fakes.certs import Authority
from wire.client.channel import Channel
from wire.client.cluster import Cluster
from wire.client.connecting import connect
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost
from wire.frames.types import Node

PLAINTEXT = ClientSecurity.plaintext()
TLS = ClientSecurity.from_properties(
    {"security.protocol": "SSL", "ssl.truststore.certificates": Authority().pem}
)
NO_NAMES = ["broker-2..example", "x" * 64 + ".example", ".example"]
NO_ADDRESSES = [
    *((name, 9092) for name in NO_NAMES),
    *(("127.0.0.1", port) for port in (65_536, 70_000, 0, -1)),
]


@pytest.mark.parametrize("security", [PLAINTEXT, TLS], ids=["PLAINTEXT", "SSL"])
@pytest.mark.parametrize(("host", "port"), NO_ADDRESSES)
async def test_what_is_no_address_is_a_connection_that_was_never_made(
    host: str, port: int, security: ClientSecurity
) -> None:
    with pytest.raises(ConnectionLost) as caught:
        await Connection.open(host, port, security, client_id="me", timeout=5)
    assert not caught.value.sent
    assert caught.value.message.startswith(f"cannot connect: host {host!r} and port {port} are no address (")
    with pytest.raises(ConnectionLost) as caught:
        await Upstreams(security)(Node(1, host, port, None), security.protocol)
    assert not caught.value.sent


async def test_a_name_that_cannot_be_looked_up_says_who_has_to_correct_it() -> None:
    with pytest.raises(ConnectionLost) as caught:
        await Connection.open("broker-2..example", 9092, PLAINTEXT, client_id="me", timeout=5)
    assert "host 'broker-2..example' and port 9092 are no address" in caught.value.message
    assert "advertised.listeners" in caught.value.message


async def test_a_cluster_goes_on_to_the_next_address() -> None:
    async with FakeCluster() as fake:
        cluster = Cluster("east", [("broker..example", 9092), *fake.bootstrap], PLAINTEXT, "me")
        await cluster.connect(timeout=5)
        fake.brokers[1].host = "broker..example"
        await cluster.refresh(None, timeout=5)
        with pytest.raises(ConnectionLost):
            await cluster.open_connection(1)
        await cluster.close()


async def test_a_peer_that_hangs_up_at_once_is_no_bug() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for _ in range(20):
        with pytest.raises(ConnectionLost):
            await Connection.open("127.0.0.1", port, PLAINTEXT, client_id="me", timeout=5)
    server.close()
    await server.wait_closed()


async def test_a_refused_connection_names_the_peer(unused_tcp_port: int) -> None:
    channel = Channel()
    with pytest.raises(ConnectionLost, match=f"peer 127.0.0.1:{unused_tcp_port}") as caught:
        await connect(channel, "127.0.0.1", unused_tcp_port, None)
    assert not caught.value.sent
    channel.close()
