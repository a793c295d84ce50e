"""A listener that anybody reaches, beside the brokers' own: what strangers can do there to a mirror, and to the sidecar.

The target has an authorizer; on PUBLIC everybody is User:ANONYMOUS, who may read one topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType
from confluent_kafka.admin import AdminClient as KafkaAdmin

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from tests.real.test_secured import AUTHORIZER, PLAIN, SIDECAR_ID, grant, secret
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost
from wire.frames.fetch import FetchPartition, FetchRequest, encode_fetch_request
from wire.frames.primitives import string, uvarint
from wire.schema import codec

pytestmark = pytest.mark.timeout(400)

READERS = 60
PIPELINED = 40
TOPICS = 1_390_000  # of no name: four MiB
PARTITIONS = 39_000


def credentials(user: str) -> ClientSecurity:
    return ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": secret(user),
        }
    )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def connect(sidecar: SidecarProcess, listener: str, security: ClientSecurity) -> Connection:
    host, port = host_and_port(sidecar.address(listener))
    return await Connection.open(host, port, security, client_id="anybody", timeout=30)


def resident(sidecar: SidecarProcess) -> int:
    """MiB of memory that the sidecar has."""
    assert sidecar.pid is not None
    status = Path(f"/proc/{sidecar.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) >> 10


async def active(sidecar: SidecarProcess, topic: str) -> None:
    deadline = time.monotonic() + 90
    while True:
        [link] = (await sidecar.linker("status", "-o", "json")).json()["links"]
        mirror = next(one for one in link["mirror_list"] if one["topic"] == topic)
        if link["forwarding"]["enabled"] and mirror["state"] == "ACTIVE" and mirror["lag"] == 0:
            return
        assert time.monotonic() < deadline, link
        await asyncio.sleep(0.3)


def fill(source: KafkaCluster, topic: str, megabytes: int) -> None:
    admin = KafkaAdmin({"bootstrap.servers": source.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": source.bootstrap, "batch.size": 500_000, "linger.ms": 50})
    for _ in range(megabytes * 10):
        producer.produce(topic, bytes(100_000), partition=0)
        producer.poll(0)
        if len(producer) > 200:
            producer.flush(30)
    producer.flush(30)


async def test_a_door_that_is_open(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    jaas = f'{PLAIN} username="admin" password="{secret("admin")}" ' + " ".join(
        f'user_{user}="{secret(user)}"' for user in ("admin", "stranger")
    )
    target = await start_cluster(
        name="open",
        brokers=1,
        controllers=1,
        listeners={"CLIENTS": "SASL_PLAINTEXT", "PUBLIC": "PLAINTEXT"},
        controller_protocol="SASL_PLAINTEXT",
        properties={
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:admin",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": jaas + ";",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": jaas + ";",
        },
    )
    spec = SidecarSpec(
        target_bootstrap=target.bootstrap,
        broker_id=SIDECAR_ID,
        listeners={"CLIENTS": "SASL_PLAINTEXT", "PUBLIC": "PLAINTEXT"},
        target={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": secret("admin"),
        },
    )
    hidden, public = unique_topic("hidden"), unique_topic("public")
    await asyncio.to_thread(fill, source_cluster, hidden, 1)
    await asyncio.to_thread(fill, source_cluster, public, 60)
    login = {
        "bootstrap.servers": target.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": secret("admin"),
    }
    await asyncio.to_thread(
        grant, KafkaAdmin(login), "ANONYMOUS", ResourceType.TOPIC, public, AclOperation.READ
    )
    async with SidecarProcess(spec, tmp_path / "sidecar") as sidecar:
        await sidecar.linker("link", "create", "east", "--bootstrap-servers", source_cluster.bootstrap)
        for topic in (hidden, public):
            await sidecar.linker("mirror", "create", topic, "--link", "east", "--replication-factor", "1")
            await active(sidecar, topic)
        await nobody_is_a_follower(sidecar, hidden)
        await one_request_stops_nothing(sidecar, hidden, public)
        await who_does_not_read_costs_little(sidecar, public)
        for topic in (hidden, public):
            await active(sidecar, topic)
        log = sidecar.log.read_text()
        assert "may not fetch as a follower on listener PUBLIC" in log
        assert "brokers talk to each other on CLIENTS" in log
        assert "Traceback" not in log


async def nobody_is_a_follower(sidecar: SidecarProcess, topic: str) -> None:
    """As anybody on PUBLIC; as a user without rights, and as the brokers' own principal without the broker's epoch."""
    part = {
        "partition": 0,
        "fetch_offset": 0,
        "log_start_offset": 0,
        "partition_max_bytes": 1 << 20,
    }
    fetch = {
        "replica_id": 1,
        "max_wait_ms": 100,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [part]}],
    }
    for listener, security in (
        ("PUBLIC", ClientSecurity.plaintext()),
        ("CLIENTS", credentials("stranger")),
    ):
        connection = await connect(sidecar, listener, security)
        with pytest.raises(ConnectionLost):
            await connection.call("fetch", fetch, timeout=30, version=12)
        connection.close()
    connection = await connect(sidecar, "CLIENTS", credentials("admin"))
    answer = await connection.call("fetch", fetch, timeout=30, version=12)
    (told,) = answer.responses[0].partitions
    assert int(told.error_code) == 6  # NOT_LEADER_OR_FOLLOWER
    assert not told.records
    connection.close()


async def one_request_stops_nothing(sidecar: SidecarProcess, hidden: str, public: str) -> None:
    """Three of four MiB at once, and ten of as many partitions as are allowed: others are answered meanwhile."""
    head = struct.pack(">hhi", codec.api_key("list_offsets"), 7, 7) + string("app") + b"\0"
    head += struct.pack(">ib", -1, 0)
    huge = head + uvarint(TOPICS + 1) + b"\x01\x01\x00" * TOPICS + b"\0"
    parts = b"".join(struct.pack(">iiqB", index, -1, -1, 0) for index in range(PARTITIONS))
    name = public.encode()
    largest = head + b"\x02" + uvarint(len(name) + 1) + name + uvarint(PARTITIONS + 1) + parts + b"\0\0"

    async def send(frame: bytes) -> int:
        reader, writer = await asyncio.open_connection(*host_and_port(sidecar.address("PUBLIC")))
        writer.write(len(frame).to_bytes(4, "big") + frame)
        try:
            size = await asyncio.wait_for(reader.read(4), 60)
            return int.from_bytes(size, "big") and len(
                await asyncio.wait_for(reader.readexactly(int.from_bytes(size, "big")), 60)
            )
        except ConnectionError:
            return 0
        finally:
            writer.close()

    other = await connect(sidecar, "CLIENTS", credentials("admin"))
    sending = asyncio.gather(*(send(huge) for _ in range(3)), *(send(largest) for _ in range(10)))
    slowest = 0.0
    while not sending.done():
        started = time.monotonic()
        await other.call("metadata", {"topics": [{"name": hidden}]}, timeout=30)
        slowest = max(slowest, time.monotonic() - started)
        await asyncio.sleep(0.01)
    answered = await sending
    assert answered[:3] == [0, 0, 0]
    assert all(size > PARTITIONS * 20 for size in answered[3:])
    assert slowest < 10  # 20 to 58 seconds before
    other.close()


@contextlib.contextmanager
def slow_readers(sidecar: SidecarProcess, frames: bytes) -> Iterator[list[socket.socket]]:
    socks = []
    try:
        for _ in range(READERS):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.connect(host_and_port(sidecar.address("PUBLIC")))
            sock.sendall(frames)
            socks.append(sock)
        yield socks
    finally:
        for sock in socks:
            sock.close()


async def who_does_not_read_costs_little(sidecar: SidecarProcess, topic: str) -> None:
    request = FetchRequest(
        version=12,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[(topic, [FetchPartition(0, -1, 0, -1, -1, 1 << 20)])],
    )
    frames = b"".join(bytes(encode_fetch_request(12, number, "slow", request)) for number in range(PIPELINED))
    before = resident(sidecar)
    most = before
    with slow_readers(sidecar, frames):
        for _ in range(40):
            await asyncio.sleep(0.25)
            most = max(most, resident(sidecar))
        connection = await connect(sidecar, "PUBLIC", ClientSecurity.plaintext())
        _, answer = await connection.fetch(request, timeout=60)
        assert answer.partitions[0].error == 0
        connection.close()
    # 50 readers took 1,240 MiB before.
    assert most - before < 160, (before, most)
