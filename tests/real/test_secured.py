"""Clusters that trust nobody: SCRAM and an authorizer at the target, TLS with SASL at the source.

A missing right is named before anything is changed; clients keep their own identity through the sidecar.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin import AdminClient as KafkaAdmin

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from lab.workload.inspection import placements
from lab.workload.log_compare import compare_replica
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.fakes.certs import Authority
from tests.real.harness_trouble import refused
from tests.router.test_bare_tokens import OldClient
from wire.client import sasl
from wire.client.connection import Connection
from wire.client.security import ClientSecurity, SaslCredentials
from wire.errors import ConnectionLost
from wire.schema import codec

pytestmark = pytest.mark.timeout(300)

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USERS = ("admin", "sidecar", "writer", "reader", "stranger")
SIDECAR_ID = 900


def secret(user: str) -> str:
    return f"{user}-secret"


def login(bootstrap: str, user: str) -> dict[str, Any]:
    """librdkafka's properties of a user at the target."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": secret(user),
    }


class Secured(NamedTuple):
    source: KafkaCluster
    target: KafkaCluster
    authority_file: Path

    def grant(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """At the target, to one user."""
        grant(KafkaAdmin(login(self.target.bootstrap, "admin")), user, kind, name, *operations)


def grant(admin: Any, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for future in admin.create_acls(bindings).values():
        future.result(30)


@pytest_asyncio.fixture(loop_scope="session")
async def secured(start_cluster: Callable[..., Awaitable[KafkaCluster]], tmp_path: Path) -> Secured:
    """Target: everything by SASL, controllers by PLAIN. Source: an open door for the tests, SASL_SSL for links."""
    authority = Authority()
    issued = authority.issue("127.0.0.1")
    authority_file = tmp_path / "authority.pem"
    authority_file.write_text(authority.pem)
    scram = [f"SCRAM-SHA-512=[name={user},password={secret(user)}]" for user in USERS]
    target = start_cluster(
        name="target",
        brokers=2,
        controllers=1,
        listeners={"CLIENTS": "SASL_PLAINTEXT"},
        controller_protocol="SASL_PLAINTEXT",
        format_arguments=[argument for one in scram for argument in ("--add-scram", one)],
        properties={
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:admin",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": (
                f'{SCRAM} username="admin" password="{secret("admin")}";'
            ),
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": (
                f'{PLAIN} username="admin" password="{secret("admin")}" user_admin="{secret("admin")}" '
                f'user_sidecar="{secret("sidecar")}";'
            ),
        },
    )
    source = start_cluster(
        name="source",
        listeners={"PLAINTEXT": "PLAINTEXT", "SECURE": "SASL_SSL"},
        properties={
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.key": issued.key,
            "listener.name.secure.ssl.keystore.certificate.chain": issued.certificate,
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} user_link="{secret("link")}";',
        },
    )
    started = await asyncio.gather(target, source)
    return Secured(started[1], started[0], authority_file)


@pytest_asyncio.fixture(loop_scope="session")
async def sidecar(secured: Secured, tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    """Configured, not started. Secrets are files."""
    password = tmp_path / "sidecar.password"
    password.write_text(secret("sidecar"))
    spec = SidecarSpec(
        target_bootstrap=secured.target.bootstrap,
        broker_id=SIDECAR_ID,
        listeners={"CLIENTS": "SASL_PLAINTEXT"},
        target={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "sidecar",
            "sasl.password": f"${{file:{password}}}",
            "controller.sasl.mechanism": "PLAIN",
        },
    )
    process = SidecarProcess(spec, tmp_path / "sidecar")
    process.write_config()
    yield process
    await process.close()


async def test_secured_clusters(
    secured: Secured, sidecar: SidecarProcess, unique_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """Each missing right by its name, then link, mirror, forward as the client that it is, promote."""
    source, target, _ = secured
    topic = SourceTopic(unique_topic("t"), 2, SourceFiller.history)
    filler = SourceFiller(source.bootstrap, scale=0.2)
    await asyncio.to_thread(filler.create, [topic], 1)
    await asyncio.to_thread(filler.fill, [topic])
    await the_sidecar_is_told_what_it_lacks(secured, sidecar)
    link = link_arguments(secured, tmp_path)
    await the_link_is_told_what_it_lacks(secured, sidecar, link, topic.name)
    await sidecar.linker("mirror", "create", topic.name, "--link", "east", "--replication-factor", "2")
    await the_mirror_says_what_it_lacks(secured, sidecar, topic.name)
    await forwarding_and_active(sidecar, topic.name)
    await asyncio.to_thread(clients_have_their_own_rights, secured, topic.name)
    await old_clients_log_in(secured, sidecar, topic.name)
    await strangers_may_send_little(sidecar)
    await nobody_poses_as_a_follower(sidecar, topic.name)
    await the_link_broker_tells_no_more_than_a_broker(secured, sidecar, topic.name)
    await the_promote_is_told_what_it_lacks(secured, sidecar, topic.name)
    await asyncio.to_thread(produce, login(target.bootstrap, "writer"), topic.name)
    await same_bytes(source, target, topic)
    await sidecar.linker("sidecar", "leave", str(SIDECAR_ID))
    assert await sidecar.ended() == 0
    told = sidecar.log.read_text() + "".join(
        path.read_text(errors="replace")
        for path in (sidecar.directory / "state").rglob("*")
        if path.is_file()
    )
    assert secret("sidecar") not in told
    assert secret("link") not in told


async def test_tls_on_every_connection_of_the_target(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Clients and followers come to the sidecar by TLS and SASL; so goes what it passes on to the brokers."""
    authority = Authority()
    broker, own = authority.issue("127.0.0.1"), authority.issue("127.0.0.1")
    trust, keystore = tmp_path / "authority.pem", tmp_path / "sidecar.pem"
    trust.write_text(authority.pem)
    keystore.write_text(own.key + own.certificate)
    target = await start_cluster(
        name="tls",
        brokers=2,
        listeners={"CLIENTS": "SASL_SSL"},
        properties={
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": broker.key,
            "ssl.keystore.certificate.chain": broker.certificate,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.pem,
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": (
                f'{PLAIN} username="admin" password="{secret("admin")}" user_admin="{secret("admin")}" '
                f'user_writer="{secret("writer")}";'
            ),
        },
    )
    spec = SidecarSpec(
        target_bootstrap=target.bootstrap,
        broker_id=SIDECAR_ID,
        listeners={"CLIENTS": "SASL_SSL"},
        sidecar={"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)},
        target={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": secret("admin"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trust),
            "controller.security.protocol": "PLAINTEXT",
        },
    )
    topic = SourceTopic(unique_topic("t"), 2, SourceFiller.history)
    filler = SourceFiller(source_cluster.bootstrap, scale=0.2)
    await asyncio.to_thread(filler.create, [topic], 1)
    await asyncio.to_thread(filler.fill, [topic])
    writer = {
        **login(target.bootstrap, "writer"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": str(trust),
    }
    async with SidecarProcess(spec, tmp_path / "sidecar") as sidecar:
        await sidecar.linker("link", "create", "east", "--bootstrap-servers", source_cluster.bootstrap)
        await sidecar.linker("mirror", "create", topic.name, "--link", "east", "--replication-factor", "2")
        await forwarding_and_active(sidecar, topic.name)
        before = await asyncio.to_thread(end_of, source_cluster, topic.name)
        assert await asyncio.to_thread(produce, writer, topic.name) is None
        assert await asyncio.to_thread(end_of, source_cluster, topic.name) == before + 1
        assert await asyncio.to_thread(consume, writer, topic.name) is None
        await sidecar.linker("mirror", "promote", topic.name, "--link", "east")
        assert await asyncio.to_thread(produce, writer, topic.name) is None
        assert await asyncio.to_thread(end_of, source_cluster, topic.name) == before + 1
    await same_bytes(source_cluster, target, topic)


async def same_bytes(source: KafkaCluster, target: KafkaCluster, topic: SourceTopic) -> None:
    placed = await asyncio.to_thread(placements, source.bootstrap, [topic])
    for tp in topic.topic_partitions():
        original = open_replica(source.log_dir(placed[tp].leader), tp)
        for broker in (1, 2):
            compared = compare_replica(original, open_replica(target.log_dir(broker), tp), tp, broker)
            assert compared.identical, compared
            assert compared.offsets_identical, compared


async def the_sidecar_is_told_what_it_lacks(secured: Secured, sidecar: SidecarProcess) -> None:
    """Each start names one right; with all that were named it runs."""
    named: list[str] = []
    while len(named) < 6:
        try:
            sidecar.launch()
            await sidecar.wait_ready(60)
            break
        except Exception:
            assert sidecar.exit_code == 1, sidecar.log.read_text()
            line = sidecar._log_since_start().decode().splitlines()[-1]
            found = re.search(
                r"lacks the right (\w+) on Cluster .*kafka-acls\.sh .*--operation (\w+) --cluster", line
            )
            assert found is not None, line
            assert line.startswith("linker: "), line
            assert found[1] not in named, f"granted already: {line}"
            named.append(found[1])
            operation = AclOperation[found[1]]
            await asyncio.to_thread(secured.grant, "sidecar", ResourceType.BROKER, "kafka-cluster", operation)
            await asyncio.sleep(0.5)
    assert "CLUSTER_ACTION" in named, named


def link_arguments(secured: Secured, tmp_path: Path) -> list[str]:
    files = tmp_path / "sidecar" / "links"
    files.mkdir(parents=True, exist_ok=True)
    password, authority = (files / name for name in ("link.password", "authority.pem"))
    password.write_text(secret("link"))
    authority.write_text(secured.authority_file.read_text())
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "link",
        "sasl.password": f"${{file:{password}}}",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
    }
    return [
        "--bootstrap-servers",
        secured.source.bootstrap_for("SECURE"),
        *(argument for name, value in config.items() for argument in ("--config", f"{name}={value}")),
    ]


async def the_link_is_told_what_it_lacks(
    secured: Secured, sidecar: SidecarProcess, link: list[str], topic: str
) -> None:
    wrong = [one.replace("sasl.username=link", "sasl.username=nobody") for one in link]
    refused(await sidecar.run("link", "create", "east", *wrong), "127.0.0.1")
    no_trust = [one.replace("authority.pem", "link.password") for one in link]
    refused(await sidecar.run("link", "create", "east", *no_trust), "holds no PEM block")
    elsewhere = [re.sub("location=.*", f"location={secured.authority_file}", one) for one in link]
    refused(await sidecar.run("link", "create", "east", *elsewhere), "a link may use files there only")
    named = await granting(
        lambda: sidecar.run("link", "create", "east", *link),
        "lacks (\\w+) on (Cluster) at the target",
        lambda operation, _: secured.grant(
            "sidecar", ResourceType.BROKER, "kafka-cluster", AclOperation[operation]
        ),
    )
    assert ("CREATE", "Cluster") in named, named
    anonymous = KafkaAdmin({"bootstrap.servers": secured.source.bootstrap})
    refused(await sidecar.run("mirror", "create", topic, "--link", "east"), topic)
    grant(anonymous, "link", ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    await asyncio.sleep(0.5)
    named = await granting(
        lambda: sidecar.run("mirror", "create", topic, "--link", "east", "--dry-run", "-o", "json"),
        "lacks(?: the right)? (\\w+) on (topic|Topic|Cluster)",
        lambda operation, resource: (
            grant(anonymous, "link", ResourceType.TOPIC, topic, AclOperation[operation])
            if resource == "topic"
            else secured.grant("sidecar", ResourceType.TOPIC, "*", AclOperation[operation])
        ),
    )
    assert {("READ", "topic"), ("WRITE", "topic"), ("DESCRIBE_CONFIGS", "topic")} <= set(named), named


async def the_mirror_says_what_it_lacks(secured: Secured, sidecar: SidecarProcess, topic: str) -> None:
    """What only shows while it works is a reason, until the right is there."""
    cluster = ("sidecar", ResourceType.BROKER, "kafka-cluster")
    for command, words, user, kind, name, operation in (
        (
            ["link", "describe", "east"],
            "IDEMPOTENT_WRITE on Cluster",
            *cluster,
            AclOperation.IDEMPOTENT_WRITE,
        ),
        (
            ["mirror", "describe", topic, "--link", "east"],
            f"DESCRIBE_CONFIGS on topic {topic}",
            "sidecar",
            ResourceType.TOPIC,
            topic,
            AclOperation.DESCRIBE_CONFIGS,
        ),
    ):
        deadline = time.monotonic() + 60
        while words not in (output := (await sidecar.linker(*command, "-o", "json")).output):
            assert time.monotonic() < deadline, output
            await asyncio.sleep(0.3)
        await asyncio.to_thread(secured.grant, user, kind, name, operation)


async def the_promote_is_told_what_it_lacks(secured: Secured, sidecar: SidecarProcess, topic: str) -> None:
    named = await granting(
        lambda: sidecar.run("mirror", "promote", topic, "--link", "east", "-o", "json"),
        "lacks (\\w+) on (topic) .* at the target; kafka-acls.sh ",
        lambda operation, _: secured.grant("sidecar", ResourceType.TOPIC, topic, AclOperation[operation]),
    )
    assert named == [("READ", "topic"), ("ALTER_CONFIGS", "topic")]


async def granting(
    command: Callable[[], Awaitable[Any]], pattern: str, give: Callable[[str, str], None]
) -> list[tuple[str, str]]:
    """Run a command until it works, giving what each refusal names, which is something new each time."""
    named: list[tuple[str, str]] = []
    for _ in range(10):
        result = await command()
        if result.exit_code == 0:
            return named
        line = refused(result)
        found = re.search(pattern, line)
        assert found is not None, line
        assert (found[1], found[2]) not in named, f"granted already: {line}"
        named.append((found[1], found[2]))
        await asyncio.to_thread(give, found[1], found[2])
        await asyncio.sleep(0.5)
    raise AssertionError(f"still refused after {named}")


async def forwarding_and_active(sidecar: SidecarProcess, topic: str) -> None:
    deadline = time.monotonic() + 90
    while True:
        status = (await sidecar.linker("status", "-o", "json")).json()
        [link] = status["links"]
        [mirror] = link["mirror_list"]
        if link["forwarding"]["enabled"] and mirror["state"] == "ACTIVE" and mirror["lag"] == 0:
            return
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.3)


def produce(client: dict[str, Any], topic: str) -> KafkaError | None:
    """One record to each partition; the error of the first that was refused."""
    outcome: list[KafkaError | None] = []
    producer = Producer({**client, "enable.idempotence": True, "delivery.timeout.ms": 30_000})
    for partition in (0, 1):
        producer.produce(
            topic, random.randbytes(900_000), partition=partition, on_delivery=lambda e, _: outcome.append(e)
        )
    assert producer.flush(60) == 0
    return next((error for error in outcome if error is not None), None)


def consume(client: dict[str, Any], topic: str) -> KafkaError | None:
    """The error that a consumer without a group gets for its first fetch, None if it gets a record."""
    consumer = Consumer({**client, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([KafkaPartition(topic, 0, 0)])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            # It asks for its group's coordinator, too, which is not what this is about.
            if message is None or (
                message.error() and message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
            ):
                continue
            return message.error()
        raise AssertionError("neither a record nor an error")
    finally:
        consumer.close()


def clients_have_their_own_rights(secured: Secured, topic: str) -> None:
    """At the target, though the source would take anything from the link's principal."""
    bootstrap = secured.target.bootstrap
    writer, reader = login(bootstrap, "writer"), login(bootstrap, "reader")
    secured.grant("writer", ResourceType.TOPIC, topic, AclOperation.WRITE, AclOperation.DESCRIBE)
    secured.grant("writer", ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE)
    secured.grant("reader", ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE)
    secured.grant("reader", ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE)
    time.sleep(0.5)
    before = end_of(secured.source, topic)
    refusal = produce(reader, topic)
    assert refusal is not None
    assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, refusal
    assert end_of(secured.source, topic) == before, "forwarded although not allowed"
    assert produce(writer, topic) is None
    assert end_of(secured.source, topic) == before + 1
    assert consume(reader, topic) is None
    refusal = consume(writer, topic)
    assert refusal is not None
    assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, refusal


async def old_clients_log_in(secured: Secured, sidecar: SidecarProcess, topic: str) -> None:
    """With SaslHandshake v0 and tokens without a header (kaf, sarama before 1.41): here as at a real broker."""
    for address in (secured.target.bootstrap.split(",")[0], sidecar.address("CLIENTS")):
        host, _, port = address.rpartition(":")
        for password, welcome in ((secret("reader"), True), ("wrong", False)):
            client = await OldClient.at(host, int(port))
            credentials = SaslCredentials("SCRAM-SHA-512", "reader", password)
            try:
                if not welcome:
                    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                        await sasl.authenticate(client.log_in, credentials, peer=address)
                    continue
                await sasl.authenticate(client.log_in, credentials, peer=address)
                answer: Any = await client.call("metadata", 5, {"topics": [{"name": topic}]})
                assert [(one.name, int(one.error_code)) for one in answer.topics] == [(topic, 0)], address
            finally:
                client.close()


def end_of(source: KafkaCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": "unused"})
    try:
        return int(consumer.get_watermark_offsets(KafkaPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()


async def strangers_may_send_little(sidecar: SidecarProcess) -> None:
    """Who has not logged in cannot make the sidecar keep a frame of 100 MB, nor ask for anything."""
    host, _, port = sidecar.address().rpartition(":")
    request = codec.encode_request("metadata", 9, {"topics": []}, correlation_id=1, client_id="stranger")
    for content in ((100 << 20).to_bytes(4, "big") + bytes(100), len(request).to_bytes(4, "big") + request):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(content)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def nobody_poses_as_a_follower(sidecar: SidecarProcess, topic: str) -> None:
    """A user who may read asks as if it were broker 1: with that it could pretend that a copy is complete."""
    connection = await as_user(sidecar.address(), "reader")
    try:
        partition = {"partition": 0, "fetch_offset": 1 << 40, "partition_max_bytes": 1 << 20}
        fetch = {
            "replica_id": 1,
            "max_wait_ms": 100,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
        }
        with pytest.raises(ConnectionLost):
            await connection.call("fetch", fetch, timeout=20, version=12)
    finally:
        connection.close()


async def the_link_broker_tells_no_more_than_a_broker(
    secured: Secured, sidecar: SidecarProcess, topic: str
) -> None:
    """Each user gets from the link broker, of itself, the error that broker 1 has for the same question about itself."""
    user = "reader"
    before = await told_about_themselves(secured, sidecar, user)
    assert before == {SIDECAR_ID: [31, 31, 31], 1: [31, 31, 31]}
    cluster = "kafka-cluster"
    secured.grant(
        user, ResourceType.BROKER, cluster, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
    )
    await asyncio.sleep(1)
    # Who may describe configs may not therefore Describe the cluster, and is told no rights on it.
    after = await told_about_themselves(secured, sidecar, user)
    assert after == {SIDECAR_ID: [0, 0, 31], 1: [0, 0, 31]}
    connection = await as_user(sidecar.address(), user)
    try:
        asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}]
        answer = await connection.call("delete_records", {"topics": asked, "timeout": 1000}, timeout=20)
        assert int(answer.topics[0].partitions[0].error_code) == 29
    finally:
        connection.close()


async def told_about_themselves(secured: Secured, sidecar: SidecarProcess, user: str) -> dict[int, list[int]]:
    """Error codes of DescribeConfigs, of a throttle set, and of DescribeLogDirs, by the broker that is asked."""
    [one] = [node for node in secured.target.brokers if node.node_id == 1]
    found = {}
    for broker, address in ((SIDECAR_ID, sidecar.address()), (1, one.address())):
        connection = await as_user(address, user)
        try:
            name = {"resource_type": 4, "resource_name": str(broker)}
            configs = await connection.call("describe_configs", {"resources": [name]}, timeout=20)
            rate = {
                "name": "leader.replication.throttled.rate",
                "config_operation": 0,
                "value": "1000000000",
            }
            asked = {"resources": [{**name, "configs": [rate]}], "validate_only": True}
            altered = await connection.call("incremental_alter_configs", asked, timeout=20)
            dirs = await connection.call("describe_log_dirs", {"topics": None}, timeout=20)
        finally:
            connection.close()
        errors = [configs.results[0].error_code, altered.responses[0].error_code, dirs.error_code]
        found[broker] = [int(error) for error in errors]
    return found


async def as_user(address: str, user: str) -> Connection:
    host, _, port = address.rpartition(":")
    security = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": secret(user),
        }
    )
    return await Connection.open(host, int(port), security, client_id="asker", timeout=30)
