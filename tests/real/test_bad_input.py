"""What is refused, on real clusters and through the real command line: one line, exit 1, and nothing has changed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import create_topic, refused, topics_of, write
from tests.real.kafka_admin import kafka_admin

UniqueTopic = Callable[[str], str]


@pytest_asyncio.fixture(loop_scope="session")
async def unchanged(sidecar: SidecarProcess, target_cluster: KafkaCluster) -> AsyncIterator[None]:
    """The sidecar's links and mirrors and the target's topics are afterwards what they were."""

    def everything() -> tuple[Any, ...]:
        with sidecar.client() as client:
            links = client.list_links()
            mirrors = [mirror.topic for link in links for mirror in client.list_mirrors(link.name)]
        return sorted(link.name for link in links), sorted(mirrors), topics_of(target_cluster.bootstrap)

    before = await asyncio.to_thread(everything)
    yield
    assert await asyncio.to_thread(everything) == before


# --- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
async def test_sources_that_do_not_answer(sidecar: SidecarProcess) -> None:
    with PortReservation() as nobody:
        address = f"127.0.0.1:{nobody.port}"
        result = await sidecar.run("link", "create", "new", "--bootstrap-servers", address)
    refused(result, address, "refused")
    result = await sidecar.run("link", "create", "new", "--bootstrap-servers", "no-such-host.invalid:9092")
    refused(result, "no-such-host.invalid:9092")


@pytest.mark.usefixtures("unchanged")
async def test_a_source_that_is_no_kafka(sidecar: SidecarProcess) -> None:
    async with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        result = await sidecar.run("link", "create", "new", "--bootstrap-servers", address)
        refused(result, address)
    async with listening(None) as address:  # takes the connection and never answers
        began = time.monotonic()
        result = await sidecar.run("link", "create", "new", "--bootstrap-servers", address)
        refused(result, address)
        assert time.monotonic() - began < 45


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[str]:
    """A server that says the same to everybody."""
    silent: list[asyncio.StreamWriter] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            silent.append(writer)
            return
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in silent:
            writer.close()
        server.close()


@pytest.mark.usefixtures("unchanged")
async def test_a_source_that_is_the_target(sidecar: SidecarProcess, target_cluster: KafkaCluster) -> None:
    result = await sidecar.run("link", "create", "new", "--bootstrap-servers", target_cluster.bootstrap)
    refused(result, "same cluster", target_cluster.cluster_id)


@pytest.mark.usefixtures("unchanged")
async def test_a_source_that_is_another_one(sidecar: SidecarProcess, source_cluster: KafkaCluster) -> None:
    arguments = ["--bootstrap-servers", source_cluster.bootstrap]
    result = await sidecar.run("link", "create", "new", *arguments, "--source-cluster-id", "AnotherCluster")
    refused(result, source_cluster.cluster_id, "AnotherCluster")
    result = await sidecar.run("link", "create", LINK, *arguments)
    refused(result, f"link {LINK} exists already")


# --- mirrors -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
async def test_topics_that_cannot_be_mirrored(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
) -> None:
    there, missing = unique_topic("there"), unique_topic("missing")
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, there)
    for names, words in (
        ([there, missing], (missing, "the source has no topic")),
        ([there, "__consumer_offsets"], ("__consumer_offsets", "internal")),
    ):
        result = await sidecar.run("mirror", "create", *names, "--link", LINK)
        refused(result, *words)
    result = await sidecar.run("mirror", "create", there, "--link", LINK, "--replication-factor", "9")
    refused(result, "replication factor 9")
    result = await sidecar.run("mirror", "create", there, "--link", "nobody")
    refused(result, "nobody")


async def test_a_topic_that_exists_at_the_target(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
) -> None:
    name, other = unique_topic("taken"), unique_topic("free")
    for topic in (name, other):
        await asyncio.to_thread(create_topic, source_cluster.bootstrap, topic)
    await asyncio.to_thread(create_topic, target_cluster.bootstrap, name)
    await asyncio.to_thread(write, target_cluster.bootstrap, name, 10)
    before = await asyncio.to_thread(topics_of, target_cluster.bootstrap)
    result = await sidecar.run("mirror", "create", other, name, "--link", LINK)
    refused(result, name, "exists at the target and is no mirror")
    assert await asyncio.to_thread(topics_of, target_cluster.bootstrap) == before
    assert (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json() == []


@pytest.mark.usefixtures("unchanged")
async def test_segments_smaller_than_a_batch(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
) -> None:
    """A follower that cannot append a batch would stop for good."""
    name = unique_topic("wide")
    limits = {"max.message.bytes": str(3 << 20)}
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, name, 1, 1, limits)
    with segments_of(target_cluster.bootstrap, 1 << 20):
        own = ("--config-from-target", "segment.bytes")
        result = await sidecar.run("mirror", "create", name, "--link", LINK, *own)
        # With segments as large as the source's, which a mirror is given, they fit.
        given = await sidecar.linker("mirror", "create", name, "--link", LINK, "--dry-run")
    refused(result, name, str(3 << 20), str(1 << 20), "segment.bytes")
    assert "segment.bytes is 1073741824 at the source" in given.output, given


@contextmanager
def segments_of(bootstrap: str, size: int) -> Iterator[None]:
    """log.segment.bytes of all brokers, for a while."""
    admin = kafka_admin(bootstrap)
    brokers = [broker for broker in admin.list_topics(timeout=30).brokers if broker < 900]

    def change(operation: AlterConfigOpType) -> None:
        for broker in brokers:
            entry = ConfigEntry("log.segment.bytes", str(size), incremental_operation=operation)
            resource = ConfigResource(ConfigResource.Type.BROKER, str(broker), incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(30)
        time.sleep(0.5)  # brokers take it over from the metadata log

    change(AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE)


# --- sidecars ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def another(
    directory: Path, bootstrap: str, broker_id: int, **spec: Any
) -> AsyncIterator[SidecarProcess]:
    """A sidecar that is configured and not started."""
    process = SidecarProcess(SidecarSpec(target_bootstrap=bootstrap, broker_id=broker_id, **spec), directory)
    process.write_config()
    try:
        yield process
    finally:
        await process.close()


async def refuses_to_run(process: SidecarProcess, *words: str, timeout: float = 60.0) -> str:
    """It ends by itself with exit 1 and a last line that holds all the words; the lines before are its log."""
    process.launch()
    code = await process.ended(timeout)
    text = process._log_since_start().decode()
    lines = text.splitlines()
    assert code == 1, text
    assert "Traceback" not in text, text
    assert [line for line in lines if line.startswith("linker: ")] == lines[-1:], text
    assert "internal error" not in lines[-1], text
    assert not [word for word in words if word not in lines[-1]], lines[-1]
    return lines[-1]


async def test_broker_id_of_a_real_broker(target_cluster: KafkaCluster, tmp_path: Path) -> None:
    async with another(tmp_path / "a", target_cluster.bootstrap, broker_id=1) as process:
        await refuses_to_run(process, "broker id 1", "broker.id")


async def test_broker_id_of_another_sidecar(
    sidecar: SidecarProcess, target_cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Same id, a state directory of its own: another incarnation, which must not push the first one out."""
    own_id = sidecar.spec.broker_id
    async with another(tmp_path / "a", target_cluster.bootstrap, broker_id=own_id) as process:
        await refuses_to_run(process, f"broker id {own_id}")
    status = (await sidecar.linker("status", "-o", "json")).json()
    assert status["sidecar"]["state"] == "RUNNING"


async def test_store_of_another_process(
    sidecar: SidecarProcess, target_cluster: KafkaCluster, tmp_path: Path
) -> None:
    state = {"state.dir": str(sidecar.directory / "state")}
    async with another(
        tmp_path / "a", target_cluster.bootstrap, sidecar.spec.broker_id, sidecar=state
    ) as process:
        await refuses_to_run(process, "in use by process", str(sidecar.pid), "linker.db", timeout=20)
    status = (await sidecar.linker("status", "-o", "json")).json()
    assert status["sidecar"]["state"] == "RUNNING"


async def test_stores_that_cannot_be_used(target_cluster: KafkaCluster, tmp_path: Path) -> None:
    store = tmp_path / "a" / "state" / "linker.db"
    async with another(tmp_path / "a", target_cluster.bootstrap, 1) as process:
        await refuses_to_run(process, "broker id 1")  # it has made its store
        database = sqlite3.connect(store)
        [version] = database.execute("PRAGMA user_version").fetchone()
        database.execute(f"PRAGMA user_version = {version + 1}")
        database.close()
        content = store.read_bytes()
        await refuses_to_run(process, "newer version of the linker", str(store), timeout=20)
        assert store.read_bytes() == content
        store.write_bytes(b"no database, but somebody's notes" * 100)
        await refuses_to_run(process, str(store), timeout=20)
        assert store.read_bytes() == b"no database, but somebody's notes" * 100


async def test_configuration_errors(target_cluster: KafkaCluster, tmp_path: Path) -> None:
    for index, (section, key, words) in enumerate(
        (
            ("sidecar", "brokerid", ("unknown key sidecar.brokerid", "broker.id")),
            ("target", "bootstrap.server", ("unknown key target.bootstrap.server", "bootstrap.servers")),
            ("store", "kind", ("unknown key store.kind",)),
        )
    ):
        directory = tmp_path / str(index)
        more = {section: {key: "1"}}
        async with another(directory, target_cluster.bootstrap, 5950, **more) as process:
            await refuses_to_run(process, "linker.yaml", *words, timeout=20)
        assert not (directory / "state").exists(), "something was made although the file is wrong"


async def test_target_that_does_not_answer(tmp_path: Path) -> None:
    with PortReservation() as nobody:
        address = f"127.0.0.1:{nobody.port}"
        async with another(tmp_path / "a", address, 5950) as process:
            await refuses_to_run(process, address, timeout=100)


async def test_address_in_use(target_cluster: KafkaCluster, tmp_path: Path) -> None:
    async with (
        listening(None) as address,
        another(
            tmp_path / "a", target_cluster.bootstrap, 5950, sidecar={"listeners": [f"PLAINTEXT://{address}"]}
        ) as process,
    ):
        await refuses_to_run(process, address, "PLAINTEXT")
