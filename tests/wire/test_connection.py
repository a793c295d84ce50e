"""Connection against a fake broker: negotiation, deadlines, hostile answers, TLS, SASL, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import FakeCluster
from tests.fakes.certs import Authority
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import (
    AuthenticationFailed,
    ConnectionLost,
    HungUp,
    MalformedFrame,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)
from wire.frames.batch import iter_batch_headers
from wire.frames.fetch import FetchPartition, FetchRequest

PLAINTEXT = ClientSecurity.plaintext()


async def connect(
    cluster: FakeCluster, security: ClientSecurity = PLAINTEXT, timeout: float = 5
) -> Connection:
    host, port = cluster.bootstrap[0]
    return await Connection.open(host, port, security, client_id="me", timeout=timeout)


async def closed(connection: Connection) -> None:
    connection.close()
    async with asyncio.timeout(30):
        await connection.closed_event.wait()


def properties(protocol: str, **extra: str) -> dict[str, str]:
    return {"security.protocol": protocol, **{name.replace("_", "."): value for name, value in extra.items()}}


async def test_negotiation_and_calls() -> None:
    async with FakeCluster(cluster_id="fake", api_versions={"metadata": (2, 7), "produce": None}) as cluster:
        cluster.supported_features = {"metadata.version": (7, 29), "kraft.version": (0, 1)}
        cluster.finalized_features = {"metadata.version": (29, 29)}
        connection = await connect(cluster)
        assert connection.api_range("metadata") == (2, 7)
        assert connection.api_range("produce") is None
        assert connection.supported_features == {"metadata.version": (7, 29), "kraft.version": (0, 1)}
        assert connection.finalized_features == {"metadata.version": (29, 29)}
        answer = await connection.call("metadata", {"topics": []}, timeout=5)
        assert answer.cluster_id == "fake"
        assert [r.version for r in cluster.received("metadata")] == [7]
        await connection.call("metadata", {"topics": []}, timeout=5, max_version=4)
        await connection.call("metadata", {"topics": []}, timeout=5, version=2)
        assert [r.version for r in cluster.received("metadata")] == [7, 4, 2]
        assert cluster.received("metadata")[0].client_id == "me"
        for bad in ({"version": 1}, {"version": 8}, {"max_version": 1}):
            with pytest.raises(UnsupportedApi, match="2 to 7"):
                await connection.call("metadata", {"topics": []}, timeout=5, **bad)
        with pytest.raises(UnsupportedApi, match="does not offer"):
            await connection.call("produce", {}, timeout=5)
        await closed(connection)


async def test_a_broker_that_lacks_our_api_versions_version() -> None:
    async with FakeCluster(api_versions={"api_versions": (0, 2)}) as cluster:
        connection = await connect(cluster)
        assert connection.api_range("api_versions") == (0, 2)
        assert connection.api_range("metadata") is not None
        await closed(connection)


async def test_asking_for_features_again() -> None:
    async with FakeCluster() as cluster:
        connection = await connect(cluster)
        cluster.finalized_features = {"metadata.version": (25, 25)}
        cluster.supported_features = {"kraft.version": (0, 1)}
        await connection.api_versions(version=3)
        assert connection.supported_features == {}
        answer = await connection.api_versions(version=4)
        assert connection.finalized_features == {"metadata.version": (25, 25)}
        assert connection.supported_features == {"kraft.version": (0, 1)}
        assert int(answer.error_code) == 0
        await closed(connection)


async def test_nobody_listens(unused_tcp_port: int) -> None:
    with pytest.raises(ConnectionLost, match=f"cannot connect.*127.0.0.1:{unused_tcp_port}") as caught:
        await Connection.open("127.0.0.1", unused_tcp_port, PLAINTEXT, client_id="me", timeout=5)
    assert not caught.value.sent
    with pytest.raises(ConnectionLost):
        await Connection.open("no-such-host.invalid", 9092, PLAINTEXT, client_id="me", timeout=10)


async def test_a_peer_that_never_answers_the_handshake() -> None:
    async with FakeCluster() as cluster:
        cluster.inject("api_versions", drop=True)
        with pytest.raises(RequestTimedOut) as caught:
            await connect(cluster, timeout=0.1)
        assert not caught.value.sent


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">ii", 4, 1),
        struct.pack(">iih", 6, 1, 0),
        struct.pack(">iihi", 10, 1, 35, 2**31 - 1),
        struct.pack(">iih", 6, 99, 0),
        struct.pack(">iihB", 7, 1, 0, 255),
    ],
)
async def test_a_peer_that_answers_garbage_to_the_handshake(raw: bytes) -> None:
    async with FakeCluster() as cluster:
        cluster.inject("api_versions", raw=raw)
        with pytest.raises((MalformedFrame, ConnectionLost)):
            await connect(cluster)


async def test_a_late_answer_closes_the_connection_and_leaves_the_others_unknown() -> None:
    async with FakeCluster() as cluster:
        connection = await connect(cluster)
        cluster.inject("metadata", drop=True)
        other = asyncio.create_task(connection.call("describe_cluster", {}, timeout=5))
        with pytest.raises(RequestTimedOut) as caught:
            await asyncio.gather(connection.call("metadata", {"topics": []}, timeout=0.1))
        assert caught.value.sent
        assert (caught.value.api, caught.value.peer) == ("metadata", connection.peer)
        assert connection.closed
        # the fake answers one request after the other, so the second one was either answered or is unknown
        (result,) = await asyncio.gather(other, return_exceptions=True)
        assert not isinstance(result, BaseException) or (isinstance(result, ConnectionLost) and result.sent)
        with pytest.raises(ConnectionLost) as again:
            await connection.call("metadata", {"topics": []}, timeout=1)
        assert not again.value.sent


async def test_a_fetch_that_is_not_decoded() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders")
        for _ in range(3):
            cluster.add("orders", 0)
        connection = await connect(cluster)
        asked = FetchPartition(0, -1, 1, -1, -1, 1 << 20)
        request = FetchRequest(version=12, session_epoch=-1, topics=[("orders", [asked])])
        frame, answer = await connection.fetch(request, timeout=5)
        (partition,) = answer.partitions
        assert (partition.key, partition.index, partition.error) == ("orders", 0, 0)
        headers = iter_batch_headers(frame, partition.records_start, partition.records_end)
        assert [header.base_offset for header in headers] == [1, 2]
        with pytest.raises(UnsupportedApi):
            await connection.fetch(replace(request, version=99), timeout=5)
        cluster.inject("fetch", drop=True)
        with pytest.raises(RequestTimedOut) as caught:
            await connection.fetch(request, timeout=0.1)
        assert (caught.value.api, caught.value.version, caught.value.peer) == ("fetch", 12, connection.peer)
        assert connection.closed


@pytest.mark.parametrize("cut", [0, 1, 4, 9])
async def test_a_connection_that_dies_inside_an_answer(cut: int) -> None:
    async with FakeCluster() as cluster:
        connection = await connect(cluster)
        cluster.inject("metadata", close_after=cut)
        with pytest.raises(ConnectionLost) as caught:
            await connection.call("metadata", {"topics": []}, timeout=5)
        assert caught.value.sent
        assert caught.value.api == "metadata"


async def test_a_cancelled_call_leaves_the_connection_usable() -> None:
    async with FakeCluster() as cluster:
        connection = await connect(cluster)
        cluster.inject("metadata", delay_answer=0.1)
        late = asyncio.create_task(connection.call("metadata", {"topics": []}, timeout=5))
        await asyncio.sleep(0.02)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        answer = await connection.call("describe_cluster", {}, timeout=5)
        assert answer.cluster_id == cluster.cluster_id
        assert connection.channel.in_flight == 0
        await closed(connection)


async def test_an_open_cancelled_at_any_moment_leaves_no_socket() -> None:
    """Cancel after every possible number of event-loop turns until `open` gets through."""
    users = {"u": "p"}
    security = ClientSecurity.from_properties(
        properties("SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", sasl_username="u", sasl_password="p")
    )
    async with FakeCluster(sasl_users=users) as cluster:
        for turns in itertools.count():
            opening = asyncio.create_task(connect(cluster, security))
            for _ in range(turns):
                await asyncio.sleep(0)
            if opening.done():
                await closed(opening.result())
                break
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        assert turns > 3
        broker = cluster.brokers[1]
        async with asyncio.timeout(30):
            while broker.connections:
                await asyncio.sleep(0.01)


# --- SASL


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_sasl(mechanism: str) -> None:
    async with FakeCluster(sasl_users={"a,b=c": "pä ss"}) as cluster:
        cluster.session_lifetime_ms = 60_000
        login = properties(
            "SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username="a,b=c", sasl_password="pä ss"
        )
        connection = await connect(cluster, ClientSecurity.from_properties(login))
        assert connection.expires_at is not None
        await connection.call("metadata", {"topics": []}, timeout=5)
        await closed(connection)
        for name, value in (("sasl.password", "wrong"), ("sasl.username", "nobody")):
            with pytest.raises(AuthenticationFailed, match="refused"):
                await connect(cluster, ClientSecurity.from_properties({**login, name: value}))


async def test_sasl_mechanism_not_offered() -> None:
    async with FakeCluster(sasl_users={"u": "p"}, sasl_mechanisms=["PLAIN"]) as cluster:
        login = properties(
            "SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password="p"
        )
        with pytest.raises(AuthenticationFailed, match="does not offer SCRAM-SHA-512, but PLAIN"):
            await connect(cluster, ClientSecurity.from_properties(login))


async def test_a_plaintext_client_on_a_sasl_listener() -> None:
    async with FakeCluster(sasl_users={"u": "p"}) as cluster:
        connection = await connect(cluster)
        with pytest.raises(ConnectionLost):
            await connection.call("metadata", {"topics": []}, timeout=5)


# --- TLS

AUTHORITY = Authority()


def server_context(tmp_path: Path, host: str = "127.0.0.1", *, client_auth: bool = False) -> ssl.SSLContext:
    issued = AUTHORITY.issue(host)
    pem = tmp_path / "server.pem"
    pem.write_text(issued.key + issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    if client_auth:
        context.load_verify_locations(cadata=AUTHORITY.pem)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def trusting(extra: Mapping[str, str] | None = None, protocol: str = "SSL") -> ClientSecurity:
    return ClientSecurity.from_properties(
        {"security.protocol": protocol, "ssl.truststore.certificates": AUTHORITY.pem, **(extra or {})}
    )


async def test_tls(tmp_path: Path) -> None:
    async with FakeCluster(ssl_context=server_context(tmp_path)) as cluster:
        connection = await connect(cluster, trusting())
        answer = await connection.call("metadata", {"topics": []}, timeout=5)
        assert answer.cluster_id == cluster.cluster_id
        await closed(connection)


async def test_tls_that_must_fail(tmp_path: Path) -> None:
    async with FakeCluster(ssl_context=server_context(tmp_path)) as cluster:
        stranger = ClientSecurity.from_properties(
            {"security.protocol": "SSL", "ssl.truststore.certificates": Authority("stranger").pem}
        )
        with pytest.raises(AuthenticationFailed, match="TLS failed"):
            await connect(cluster, stranger)
        with pytest.raises(WireError):
            await connect(cluster, PLAINTEXT, timeout=0.5)
    async with FakeCluster() as cluster:
        with pytest.raises((AuthenticationFailed, ConnectionLost)):
            await connect(cluster, trusting(), timeout=0.3)


async def test_tls_host_name(tmp_path: Path) -> None:
    async with FakeCluster(ssl_context=server_context(tmp_path, "elsewhere.example")) as cluster:
        with pytest.raises(AuthenticationFailed, match="TLS failed"):
            await connect(cluster, trusting())
        connection = await connect(cluster, trusting({"ssl.endpoint.identification.algorithm": ""}))
        await closed(connection)


@pytest.mark.parametrize("password", [None, "secret"])
async def test_mutual_tls_with_sasl(tmp_path: Path, password: str | None) -> None:
    own = AUTHORITY.issue("client", key_password=password)
    store = tmp_path / "client.pem"
    store.write_text(own.key + own.certificate)
    context = server_context(tmp_path, client_auth=True)
    async with FakeCluster(ssl_context=context, sasl_users={"u": "p"}) as cluster:
        extra = {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'x.ScramLoginModule required username="u" password="p";',
            "ssl.keystore.location": str(store),
            "ssl.keystore.type": "PEM",
        }
        if password is not None:
            extra["ssl.key.password"] = password
        connection = await connect(cluster, trusting(extra, "SASL_SSL"))
        await connection.call("metadata", {"topics": []}, timeout=5)
        await closed(connection)
        del extra["ssl.keystore.location"]
        with pytest.raises((AuthenticationFailed, ConnectionLost)):
            await connect(cluster, trusting(extra, "SASL_SSL"))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_a_peer_that_hangs_up_at_once(protocol: str) -> None:
    """As a broker does above max.connections.per.ip; one that answers something first has another reason."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    security = ClientSecurity.from_properties({"security.protocol": protocol})
    try:
        with pytest.raises(HungUp, match=r"max\.connections\.per\.ip"):
            await Connection.open("127.0.0.1", port, security, client_id="test", timeout=5)
    finally:
        server.close()
