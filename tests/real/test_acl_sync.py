"""ACLs, quotas and SCRAM users on real brokers with Kafka's authorizer: compared, carried, followed both ways, and never
taken away from who had them before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest
import pytest_asyncio
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.live_producers import CLIENT_LOG
from tests.real.harness_promote import LINK
from tests.real.harness_tools import kafka_tool
from tests.real.harness_trouble import create_topic, linked_sidecar, patiently, write

pytestmark = pytest.mark.timeout(400)
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, GROUP, IDS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY

Row = tuple[str, str, str, str, str, str]


class Guarded(NamedTuple):
    source: KafkaCluster
    target: KafkaCluster
    sidecar: SidecarProcess


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(
    start_cluster: Callable[..., Awaitable[KafkaCluster]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=1, properties=GUARDED),
        start_cluster(name="target", brokers=2, properties=GUARDED),
    )
    async with linked_sidecar(source, target, 900, tmp_path_factory.mktemp("sidecar")) as sidecar:
        yield Guarded(source, target, sidecar)


def admin(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=CLIENT_LOG)


def binding(
    kind: ResourceType,
    name: str,
    user: str,
    operation: AclOperation,
    permission: AclPermissionType = ALLOW,
    pattern: ResourcePatternType = LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


async def make(cluster: KafkaCluster, *bindings: AclBinding) -> None:
    client = admin(cluster)
    for future in client.create_acls(list(bindings)).values():
        await asyncio.to_thread(future.result, 30)


async def remove(cluster: KafkaCluster, one: AclBinding) -> None:
    client = admin(cluster)
    wanted = AclBindingFilter(
        one.restype,
        one.name,
        one.resource_pattern_type,
        one.principal,
        "*",
        one.operation,
        one.permission_type,
    )
    for future in client.delete_acls([wanted]).values():
        assert len(await asyncio.to_thread(future.result, 30)) == 1


def rows(cluster: KafkaCluster) -> set[Row]:
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    client = admin(cluster)
    return {row(one) for one in client.describe_acls(everything).result(30)}


def row(one: AclBinding) -> Row:
    return (
        one.principal,
        one.permission_type.name,
        one.operation.name,
        one.restype.name,
        one.resource_pattern_type.name,
        one.name,
    )


async def mirror(guarded: Guarded, topic: str) -> None:
    await asyncio.to_thread(create_topic, guarded.source.bootstrap, topic)
    await asyncio.to_thread(write, guarded.source.bootstrap, topic, 50)
    await guarded.sidecar.linker("mirror", "create", topic, "--link", LINK, "-r", "2")


async def test_followed_both_ways(guarded: Guarded) -> None:
    source, target, sidecar = guarded
    wanted = [
        binding(TOPIC, "orders", "writer", WRITE),
        binding(TOPIC, "ord", "reader", READ, pattern=PREFIXED),
        binding(TOPIC, "orders", "reader", ALL, DENY),
        binding(GROUP, "*", "reader", READ),
        binding(IDS, "tx-", "writer", WRITE, pattern=PREFIXED),
    ]
    foreign = [binding(TOPIC, "others", "mallory", READ), binding(GROUP, "g", "mallory", READ)]
    theirs = binding(TOPIC, "orders", "auditor", READ)
    old = binding(TOPIC, "orders", "writer", AclOperation.DESCRIBE)
    await make(source, *wanted, *foreign, old)
    await make(target, theirs, old)
    await mirror(guarded, "orders")

    before = await asyncio.to_thread(rows, target)
    assert before == {row(theirs), row(old)}  # reported only, by default
    report = (await sidecar.run("acl", "diff", LINK, "-o", "json")).json()
    assert len(report["missing"]) == len(wanted)
    # The reader is kept out of the topic at the source, too.
    assert {(one["principal"], one["operation"], one["resource_type"]) for one in report["lacking"]} == {
        ("User:writer", "WRITE", "TOPIC"),
        ("User:writer", "WRITE", "TRANSACTIONAL_ID"),
    }
    table = await sidecar.run("acl", "diff", LINK)
    assert table.exit_code == 1
    assert "User:writer" in table.output
    plan = await sidecar.linker("mirror", "promote", "orders", "--link", LINK, "--dry-run")
    assert "User:writer may at the source, and not at the target: WRITE on topic orders" in plan.output
    doctor = await sidecar.run("doctor", "--link", LINK)
    assert "User:writer may at the source" in " ".join(doctor.output.split())

    await sidecar.linker(
        "link", "update", LINK, "--option", "acl_sync=follow", "--option", "acl_sync_interval_ms=1000"
    )

    async def until(expected: set[Row], what: str) -> None:
        await patiently(what, lambda: rows(target) == expected, 30)

    everything = before | {row(one) for one in wanted}
    await until(everything, "ACLs of the source at the target")
    assert (await sidecar.run("acl", "diff", LINK)).exit_code == 0

    await make(source, binding(TOPIC, "orders", "late", READ))
    await until(everything | {row(binding(TOPIC, "orders", "late", READ))}, "a new ACL")
    await remove(source, binding(TOPIC, "orders", "late", READ))
    await until(everything, "an ACL that the source has no more")
    # The target had it before: its end at the source changes nothing here.
    await remove(source, old)
    # Somebody takes one away here: it is put back.
    await remove(target, wanted[0])
    await until(everything, "an ACL that was taken away at the target")
    await asyncio.sleep(3)  # three looks
    assert await asyncio.to_thread(rows, target) == everything

    await sidecar.kill()
    await remove(source, wanted[4])
    await sidecar.start()
    everything -= {row(wanted[4])}
    await until(everything, "an ACL that was removed while the sidecar was away")

    await sidecar.linker("mirror", "promote", "orders", "--link", LINK, "--validation", "skip")
    await remove(source, wanted[0])
    await asyncio.sleep(3)  # three looks
    assert await asyncio.to_thread(rows, target) == everything


async def test_applied_once_with_quotas_and_mapped_principals(guarded: Guarded) -> None:
    source, target, sidecar = guarded
    await make(
        source, binding(TOPIC, "billing", "CN=app,O=x", READ), binding(TOPIC, "billing", "app2", WRITE)
    )
    await mirror(guarded, "billing")
    quota = ["--alter", "--entity-type", "users", "--entity-name", "app2"]
    for config in ("producer_byte_rate=1000000", "SCRAM-SHA-512=[password=secret]"):
        result = await kafka_tool(source.bootstrap, "kafka-configs", *quota, "--add-config", config)
        assert result.exit_code == 0, result
    refused = await sidecar.run("link", "update", LINK, "--option", "acl_principals_map=User:(.*=>User:x")
    assert refused.exit_code == 2
    await sidecar.linker("link", "update", LINK, "--option", r"acl_principals_map=User:CN=(\w+),.*=>User:\1")
    report = (await sidecar.run("acl", "diff", LINK, "-o", "json")).json()
    assert {one["principal"] for one in report["missing"]} == {"User:app", "User:app2"}
    [scram] = report["scram_users_missing"]
    assert scram == {"user": "app2", "mechanisms": ["SCRAM-SHA-512"]}
    done = await sidecar.linker("acl", "diff", LINK, "--apply", "--dry-run")
    assert "producer_byte_rate 1e+06" in done.output
    assert await asyncio.to_thread(rows, target) == set()
    await sidecar.linker("acl", "diff", LINK, "--apply")
    assert await asyncio.to_thread(rows, target) == {
        row(binding(TOPIC, "billing", "app", READ)),
        row(binding(TOPIC, "billing", "app2", WRITE)),
    }
    report = (await sidecar.run("acl", "diff", LINK, "-o", "json")).json()
    assert (report["missing"], report["quotas_missing"]) == ([], [])
    # Two principals that would become one are left out, with the reason.
    await make(source, binding(TOPIC, "billing", "app", WRITE))
    report = (await sidecar.run("acl", "diff", LINK, "-o", "json")).json()
    assert {one["acl"]["principal"] for one in report["left_out"]} == {"User:CN=app,O=x", "User:app"}


async def test_under_a_prefix_rights_to_read_come_along_with_the_name(guarded: Guarded) -> None:
    source, target, sidecar = guarded
    await make(
        source,
        binding(TOPIC, "orders", "writer", WRITE),
        binding(TOPIC, "ord", "reader", READ, pattern=PREFIXED),
        binding(TOPIC, "*", "owner", ALL),
        binding(TOPIC, "orders", "intern", ALL, DENY),
        binding(GROUP, "*", "reader", READ),
    )
    follow = ("prefix=far.", "acl_sync=follow", "acl_sync_interval_ms=1000")
    await sidecar.linker("link", "update", LINK, *(part for one in follow for part in ("--option", one)))
    await mirror(guarded, "orders")
    everything = {
        row(binding(TOPIC, "far.ord", "reader", READ, pattern=PREFIXED)),
        row(binding(TOPIC, "far.", "owner", READ, pattern=PREFIXED)),
        row(binding(TOPIC, "far.", "owner", AclOperation.DESCRIBE, pattern=PREFIXED)),
        row(binding(TOPIC, "far.orders", "intern", ALL, DENY)),
    }
    await patiently("ACLs under the prefix", lambda: rows(target) == everything, 30)
    assert (await sidecar.run("acl", "diff", LINK)).exit_code == 0
    await remove(source, binding(TOPIC, "*", "owner", ALL))
    everything = {one for one in everything if one[0] != "User:owner"}
    await patiently("an ACL that the source has no more", lambda: rows(target) == everything, 30)
