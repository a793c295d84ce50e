"""The sidecar as a broker of a link's source: joined and left live, cordoned, the same broker after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admin.models import DoctorReport, SourceMembership
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_fleet import Fleet
from tests.real.harness_tools import kafka_tool
from tests.real.harness_zookeeper import ZooKeeperKafka
from tests.real.test_membership import SECURED, USERS, credentials, grant
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


async def brokers(kafka: KafkaCluster) -> dict[int, str]:
    """The unfenced brokers by id, as a client of the cluster is told."""
    cluster = Cluster("asked", parse_bootstrap_servers(kafka.bootstrap), ClientSecurity.plaintext(), "test")
    try:
        await cluster.connect()
        answer = await cluster.call("describe_cluster", {}, timeout=10)
        return {one.broker_id: f"{one.host}:{one.port}" for one in answer.brokers}
    finally:
        await cluster.close()


async def until(condition: Callable[[], Awaitable[Any]], timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


async def joined(sidecar: SidecarProcess, source: KafkaCluster, broker_id: int = 800) -> None:
    """Until the source has the sidecar as an unfenced broker, and the sidecar says so."""

    async def ready() -> bool:
        at = (await brokers(source)).get(broker_id)
        return at == sidecar.address("source east") and (await member(sidecar)).state == "JOINED"

    await until(ready)


async def member(sidecar: SidecarProcess, of: int | None = None) -> SourceMembership:
    def ask() -> SourceMembership:
        with sidecar.client() as client:
            found = client.describe_link("east").source_membership
        return next(one for one in found if one.sidecar == (of or sidecar.spec.broker_id))

    return await asyncio.to_thread(ask)


async def doctor(sidecar: SidecarProcess) -> list[tuple[str, str]]:
    """The result and the text of each line about the join."""

    def ask() -> DoctorReport:
        with sidecar.client() as client:
            return client.doctor("east")

    found = await asyncio.to_thread(ask)
    return [(one.result, one.detail) for one in found.checks if one.name == "joining the source"]


async def clusters_on_the_metrics_page(sidecar: SidecarProcess) -> list[str]:
    """One for each heartbeat's age, as it is labelled."""

    def ask() -> str:
        with urllib.request.urlopen(f"{sidecar.admin_url}/metrics", timeout=30) as page:
            return str(page.read().decode())

    lines = (await asyncio.to_thread(ask)).splitlines()
    return [line.split(" ")[0] for line in lines if line.startswith("linker_heartbeat_age_seconds")]


async def test_a_source_is_joined_and_left_live(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, start_sidecar: StartSidecar
) -> None:
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 800}})
    await sidecar.linker("link", "create", "east", "-b", source_cluster.bootstrap)
    before = await brokers(source_cluster)
    assert 800 not in before
    assert await doctor(sidecar) == [("OK", "not joined; it could be: linker link update east --join-source")]

    await sidecar.linker("link", "update", "east", "--join-source")
    await joined(sidecar, source_cluster)
    [(result, text)] = await doctor(sidecar)
    assert result == "OK" and "as broker 800" in text
    of_source = 'linker_heartbeat_age_seconds{cluster="east"}'
    assert await clusters_on_the_metrics_page(sidecar) == ["linker_heartbeat_age_seconds", of_source]
    where = sidecar.address("source east")
    result = await kafka_tool(
        source_cluster.bootstrap, "kafka-topics", "--create", "--topic", "placed", "--partitions", "12"
    )
    assert result.exit_code == 0, result.text
    # A client that begins at the link broker of the source finds the whole cluster.
    for bootstrap in (source_cluster.bootstrap, where):
        told = await kafka_tool(bootstrap, "kafka-topics", "--describe", "--topic", "placed")
        assert told.text.count("Leader:") == 12 and "800" not in told.text, told.text
    configs = await kafka_tool(
        source_cluster.bootstrap,
        "kafka-configs",
        "--describe",
        "--entity-type",
        "brokers",
        "--entity-name",
        "800",
    )
    assert configs.exit_code == 0, configs.text
    dirs = await kafka_tool(source_cluster.bootstrap, "kafka-log-dirs", "--describe", "--broker-list", "800")
    assert "kafka-linker" in dirs.text, dirs.text

    await sidecar.kill()
    await sidecar.start()
    await joined(sidecar, source_cluster)
    # Somebody takes it out while it lives: it comes back.
    gone = await kafka_tool(source_cluster.bootstrap, "kafka-cluster", "unregister", "--id", "800")
    assert gone.exit_code == 0, gone.text
    await joined(sidecar, source_cluster)

    await sidecar.linker("link", "update", "east", "--no-join-source")

    async def left() -> bool:
        return await brokers(source_cluster) == before

    await until(left)
    listed = await kafka_tool(
        source_cluster.bootstrap, "kafka-cluster", "list-endpoints", "--include-fenced-brokers"
    )
    assert listed.exit_code == 0 and "800" not in listed.text.split(), listed.text

    await sidecar.linker("link", "update", "east", "--join-source")
    await joined(sidecar, source_cluster)
    await sidecar.linker("link", "delete", "east")
    assert await brokers(source_cluster) == before


async def test_partitions_of_the_source_that_name_it_keep_it_there(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, start_sidecar: StartSidecar
) -> None:
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 801}})
    await sidecar.linker("link", "create", "east", "-b", source_cluster.bootstrap, "--join-source")
    await joined(sidecar, source_cluster, 801)
    topic = "names-801"
    made = await kafka_tool(
        source_cluster.bootstrap,
        "kafka-topics",
        "--create",
        "--topic",
        topic,
        "--replica-assignment",
        "1:801",
    )
    assert made.exit_code == 0, made.text

    for command in (("link", "update", "east", "--no-join-source"), ("link", "delete", "east")):

        async def refused(command: tuple[str, ...] = command) -> bool:
            answer = await sidecar.run(*command, "--dry-run")
            return answer.exit_code == 1 and f"is a replica of {topic}-0" in answer.errors

        await until(refused)
    assert (await member(sidecar)).state == "JOINED"
    assert (
        await kafka_tool(source_cluster.bootstrap, "kafka-topics", "--delete", "--topic", topic)
    ).exit_code == 0

    async def left() -> bool:
        return (await sidecar.run("link", "update", "east", "--no-join-source")).exit_code == 0

    await until(left)

    async def gone() -> bool:
        return 801 not in await brokers(source_cluster)

    await until(gone)


async def test_refused_with_words(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, start_sidecar: StartSidecar
) -> None:
    """A join that cannot be is refused when it is asked for, and the link goes on."""
    sidecar = await start_sidecar(
        target_cluster.bootstrap,
        sources={"taken": {"broker.id": min(await brokers(source_cluster))}, "free": {"broker.id": 802}},
    )
    for link, options, message in (
        ("east", (), "has no section sources.east: give it broker.id and listeners there"),
        ("taken", (), "is taken at the source, by a broker at"),
        ("free", ("--option", "forwarding=off"), "a link with forwarding=off does not join its source"),
        ("free", ("--option", "prefix=a."), "a link with prefix=a. does not join its source"),
    ):
        answer = await sidecar.run(
            "link", "create", link, "-b", source_cluster.bootstrap, "--join-source", *options
        )
        assert answer.exit_code == 1 and message in answer.errors, answer
    await sidecar.linker("link", "create", "east", "-b", source_cluster.bootstrap)
    answer = await sidecar.run("link", "update", "east", "--join-source")
    assert answer.exit_code == 1 and "has no section sources.east" in answer.errors, answer
    [(result, text)] = await doctor(sidecar)
    assert result == "OK" and "not joined, and could not be: the configuration of sidecar" in text


async def test_a_port_that_is_taken_and_a_source_that_is_away(
    target_cluster: KafkaCluster, start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Told before anything is registered; the target's side does not notice."""
    source = await start_cluster(name="source", brokers=1)
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 800}})
    host, port = sidecar.address("source east").split(":")
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        async def bound() -> bool:
            with contextlib.suppress(OSError):  # the sidecar holds it for a moment when it starts
                squatter.bind((host, int(port)))
                return True
            return False

        await until(bound)
        squatter.listen()
        await sidecar.linker("link", "create", "east", "-b", source.bootstrap, "--join-source")

        async def refused() -> bool:
            found = await member(sidecar)
            return found.state == "JOINING" and "cannot bind" in (found.reason or "")

        await until(refused)
        assert 800 not in await brokers(source)
        assert [result for result, _ in await doctor(sidecar)] == ["FAIL"]
    await joined(sidecar, source)

    [node] = source.nodes.values()
    await node.kill()
    await sidecar.restart()  # ready: it is a broker of the target
    assert (await member(sidecar)).state == "JOINING"
    assert "never awaited" not in sidecar.log.read_text()
    await node.start()
    await joined(sidecar, source)


async def test_a_source_that_cannot_cordon_gets_its_topics_back(
    target_cluster: KafkaCluster, start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Old enough, new topics are placed on the link broker as on any; they are led by real brokers a moment later."""
    source = await start_cluster(name="source", brokers=2, version="3.9.1")
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 800}})
    await sidecar.linker("link", "create", "east", "-b", source.bootstrap, "--join-source")
    await joined(sidecar, source)
    for factor in (1, 2, 3):
        made = await kafka_tool(
            source.bootstrap,
            *("kafka-topics", "--create", "--topic", f"placed-{factor}", "--partitions", "12"),
            *("--replication-factor", str(factor)),
        )
        assert made.exit_code == 0, made.text

    async def moved() -> bool:
        told = await kafka_tool(source.bootstrap, "kafka-topics", "--describe")
        lines = [line for line in told.text.splitlines() if "Leader:" in line and "placed-" in line]
        return len(lines) == 36 and not any("800" in line or "none" in line for line in lines)

    await until(moved)
    told = await kafka_tool(source.bootstrap, "kafka-topics", "--describe", "--topic", "placed-2")
    replicas = [line.split("Replicas:")[1].split()[0] for line in told.text.splitlines() if "Leader:" in line]
    assert all(sorted(one.split(",")) == ["1", "2"] for one in replicas), replicas
    log = sidecar.log.read_text()
    assert "was placed on a link broker of the source" in log


@pytest.mark.slow
async def test_synced_mirrors_stay_where_a_source_cannot_cordon(
    target_cluster: KafkaCluster, start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """They are on the link broker because somebody wants it; and the source is not left meanwhile."""
    source = await start_cluster(name="source", brokers=2, version="3.9.1")
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 800}})
    made = await kafka_tool(
        source.bootstrap,
        *("kafka-topics", "--create", "--topic", "synced", "--partitions", "2", "--replication-factor", "2"),
    )
    assert made.exit_code == 0, made.text
    await sidecar.linker("link", "create", "east", "-b", source.bootstrap, "--join-source")
    await joined(sidecar, source)
    await sidecar.linker("mirror", "create", "--link", "east", "synced")
    await sidecar.linker("mirror", "sync", "--link", "east", "synced")

    async def named() -> int:
        """How often: among the replicas of two partitions, and in their ISR."""
        told = await kafka_tool(source.bootstrap, "kafka-topics", "--describe", "--topic", "synced")
        return told.text.count("800")

    async def in_sync() -> bool:
        return await named() == 4

    await until(in_sync, 60)
    await asyncio.sleep(3)
    assert await in_sync()
    answer = await sidecar.run("link", "update", "east", "--no-join-source")
    assert answer.exit_code == 1 and "synced are synced with it; end that" in answer.errors, answer
    await sidecar.linker("mirror", "sync", "--link", "east", "--off", "synced")

    async def out() -> bool:
        return await named() == 0

    await until(out)
    assert "was placed on" not in sidecar.log.read_text()
    await sidecar.linker("link", "update", "east", "--no-join-source")


@pytest.mark.slow
async def test_a_source_whose_metadata_version_goes_up_cordons_then(
    target_cluster: KafkaCluster, start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    source = await start_cluster(name="source", brokers=1, metadata_version="4.1-IV1")
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 800}})
    await sidecar.linker("link", "create", "east", "-b", source.bootstrap, "--join-source")
    await joined(sidecar, source)
    assert not (await member(sidecar)).cordoned
    upgraded = await kafka_tool(source.bootstrap, "kafka-features", "upgrade", "--release-version", "4.3")
    assert upgraded.exit_code == 0, upgraded.text

    async def cordoned() -> bool:
        found = await member(sidecar)
        return found.state == "JOINED" and found.cordoned

    await until(cordoned)


async def test_each_missing_right_is_named_before_anything_is_registered(
    target_cluster: KafkaCluster, start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    source = await start_cluster(
        name="secured",
        brokers=2,
        controllers=1,
        listeners={"SASL_PLAINTEXT": "SASL_PLAINTEXT"},
        controller_protocol="SASL_PLAINTEXT",
        properties=SECURED,
    )
    admin = Cluster("source", parse_bootstrap_servers(source.bootstrap), credentials("admin"), "admin")
    sidecar = await start_sidecar(
        target_cluster.bootstrap, sources={"east": {"broker.id": 800, "protocol": "SASL_PLAINTEXT"}}
    )
    secret = sidecar.directory / "links" / "password"
    secret.parent.mkdir()
    secret.write_text(USERS["sidecar"])
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sidecar",
        "sasl.password": f"${{file:{secret}}}",
    }
    flags = [word for key, value in given.items() for word in ("-c", f"{key}={value}")]
    await sidecar.linker("link", "create", "east", "-b", source.bootstrap, *flags)
    for operation in ("DESCRIBE", "ALTER", "CLUSTER_ACTION"):
        answer = await sidecar.run("link", "update", "east", "--join-source")
        assert answer.exit_code == 1 and f"{operation} on Cluster" in answer.errors, answer
        assert any(operation in text for _, text in await doctor(sidecar))
        await grant(admin, operation)
        await asyncio.sleep(0.5)
    await sidecar.linker("link", "update", "east", "--join-source")

    async def unfenced() -> bool:
        return (await member(sidecar)).state == "JOINED"

    await until(unfenced)
    await sidecar.linker("link", "update", "east", "--no-join-source")

    async def left() -> bool:
        answer = await admin.call("describe_cluster", {}, timeout=10)
        return 800 not in {one.broker_id for one in answer.brokers}

    await until(left)
    await admin.close()


async def test_a_source_with_zookeeper_is_not_joined(
    target_cluster: KafkaCluster, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    async with ZooKeeperKafka(1, tmp_path / "old") as source:
        sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": {"broker.id": 800}})
        await sidecar.linker("link", "create", "east", "-b", source.bootstrap)
        answer = await sidecar.run("link", "update", "east", "--join-source")
        assert answer.exit_code == 1 and "runs in ZooKeeper mode" in answer.errors, answer
        [(result, text)] = await doctor(sidecar)
        assert result == "OK" and "not joined, and could not be" in text and "ZooKeeper" in text


@pytest.mark.slow
async def test_each_sidecar_of_a_fleet_joins_with_its_own_id(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, _numbers: Iterator[int]
) -> None:
    store = {"type": "topic", "topic": "join-source-state"}
    fleet = Fleet(target_cluster, [], tmp_path, store, {"lease.ms": 5000})
    try:
        first, second = 900 + next(_numbers), 900 + next(_numbers)
        for own, there in ((first, 811), (second, 812)):
            fleet.add(own, sources={"east": {"broker.id": there}})
        await fleet.start()
        one, two = fleet.cars.values()
        await one.linker("link", "create", "east", "-b", source_cluster.bootstrap, "--join-source")

        async def both() -> bool:
            found = set((await brokers(source_cluster)).values())
            return {car.address("source east") for car in (one, two)} <= found

        await until(both)

        async def shown() -> bool:
            with one.client() as client:
                found = (await asyncio.to_thread(client.describe_link, "east")).source_membership
            return [(m.sidecar, m.broker_id, m.state) for m in found] == [
                (first, 811, "JOINED"),
                (second, 812, "JOINED"),
            ]

        await until(shown)
        await one.linker("link", "delete", "east")
        assert not {811, 812} & set(await brokers(source_cluster))
    finally:
        await fleet.close()
