"""Two sources with a topic of the same name, gathered in one target under their links' prefixes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import MirrorState, MirrorSummary
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.log_compare import compare_replica
from lab.workload.replica_log import open_replica
from tests.real.test_growth import add
from tests.real.test_read_only import read, written
from tests.real.test_validation import VALIDATION
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(420)
PATIENCE = 120.0

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


def make(cluster: KafkaCluster, topic: str, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    write(cluster, topic, records)


def write(cluster: KafkaCluster, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(records):
        producer.produce(topic, f"{cluster.spec.name} {number}".encode(), partition=number % 2)
    assert producer.flush(60) == 0


class Stage:
    """Two sources, a target and one sidecar with a link to each."""

    def __init__(
        self, east: KafkaCluster, west: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess
    ) -> None:
        self.sources = {"east": east, "west": west}
        self.target, self.sidecar = target, sidecar

    async def mirrors(self, link: str) -> dict[str, MirrorSummary]:
        def ask() -> dict[str, MirrorSummary]:
            with self.sidecar.client() as client:
                return {one.topic: one for one in client.list_mirrors(link)}

        return await asyncio.to_thread(ask)

    async def copied(self, link: str, *topics: str) -> dict[str, MirrorSummary]:
        """Until exactly these are mirrored, and their replicas have what the source has."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.mirrors(link)
            fine = found.keys() == set(topics) and all(
                one.state is MirrorState.ACTIVE and one.lag == 0 for one in found.values()
            )
            if fine and await asyncio.to_thread(self.unequal, link, found) is None:
                return found
            assert time.monotonic() < deadline, (found, self.unequal(link, found))
            await asyncio.sleep(0.2)

    def unequal(self, link: str, found: dict[str, MirrorSummary]) -> str | None:
        """The first difference of two logs as they lie on the brokers' disks: batches, offsets, every byte but the epoch."""
        source = self.sources[link]
        for topic, one in found.items():
            for index in range(one.partitions):
                here = open_replica(self.target.log_dir(1), TopicPartition(topic, index))
                there = open_replica(source.log_dir(1), TopicPartition(one.source_topic or topic, index))
                compared = compare_replica(there, here, TopicPartition(topic, index), 1)
                if not compared.identical or not compared.batches:
                    return f"{topic}-{index}: {compared}"
        return None


@pytest_asyncio.fixture(loop_scope="session")
async def stage(start_cluster: StartCluster, start_sidecar: StartSidecar) -> AsyncIterator[Stage]:
    east, west, target = await asyncio.gather(
        *(start_cluster(name=name, brokers=1) for name in ("east", "west", "target"))
    )
    sidecar = await start_sidecar(target.bootstrap, validation=VALIDATION)
    for link, source in (("east", east), ("west", west)):
        options = ("--option", f"prefix={link}.")
        await sidecar.linker("link", "create", link, "--bootstrap-servers", source.bootstrap, *options)
    yield Stage(east, west, target, sidecar)


async def refused(stage: Stage, *command: str) -> str:
    said = await stage.sidecar.run(*command)
    assert said.exit_code != 0, said
    return said.output + said.errors


async def test_two_sources_with_a_topic_of_one_name_fan_in_to_one_target(stage: Stage) -> None:
    sidecar, at = stage.sidecar, stage.target.bootstrap
    for link, source in stage.sources.items():
        await asyncio.to_thread(make, source, "orders", 200)
        await sidecar.linker("mirror", "create", "--link", link, "orders")
    for link in stage.sources:
        found = await stage.copied(link, f"{link}.orders")
        assert found[f"{link}.orders"].source_topic == "orders"

    # Both go on, and so do they after a restart of the sidecar.
    for source in stage.sources.values():
        await asyncio.to_thread(write, source, "orders", 100)
    await sidecar.restart()
    for link, source in stage.sources.items():
        await asyncio.to_thread(write, source, "orders", 100)
        await stage.copied(link, f"{link}.orders")
        assert await asyncio.to_thread(read, at, f"{link}.orders", f"readers of {link}", 400) == 400

    # Read by anybody, written by nobody.
    for more in ({}, {"enable.idempotence": True}):
        error, seconds = await asyncio.to_thread(written, at, "east.orders", **more)
        assert error is not None
        assert error.code() == KafkaError.POLICY_VIOLATION, error
        assert seconds < 10
    groups = (await sidecar.linker("group", "list", "--link", "east", "-o", "json")).json()
    assert groups == [], groups

    assert "is called east.orders here" in await refused(
        stage, "mirror", "describe", "orders", "--link", "east"
    )
    assert "prefix" in await refused(stage, "link", "update", "east", "--option", "prefix=other.")
    assert "east.orders" in await refused(stage, "mirror", "create", "--link", "east", "orders")

    # A partition that one source adds is the mirror's, under its name here.
    await asyncio.to_thread(add, stage.sources["east"].bootstrap, "orders", 3)
    producer = Producer({"bootstrap.servers": stage.sources["east"].bootstrap})
    for number in range(7):
        producer.produce("orders", f"added {number}".encode(), partition=2)
    assert await asyncio.to_thread(producer.flush, 60) == 0
    deadline = time.monotonic() + PATIENCE
    while (await stage.copied("east", "east.orders"))["east.orders"].partitions < 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)
    assert await asyncio.to_thread(read, at, "east.orders", "readers of added ones", 407) == 407

    # One is deleted with its topic; the other one, and both sources, stay as they are.
    await sidecar.linker("mirror", "delete", "east.orders", "--link", "east", "--yes")
    await asyncio.to_thread(write, stage.sources["west"], "orders", 100)
    await stage.copied("west", "west.orders")
    assert await stage.mirrors("east") == {}

    def topics(cluster: KafkaCluster) -> set[str]:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        return {name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")}

    assert await asyncio.to_thread(topics, stage.target) == {"west.orders"}
    assert await asyncio.to_thread(topics, stage.sources["east"]) == {"orders"}
    await sidecar.linker("link", "update", "east", "--option", "prefix=other.")
    await sidecar.linker("mirror", "create", "--link", "east", "orders")
    await stage.copied("east", "other.orders")


@pytest.mark.slow
async def test_it_is_proved_and_is_the_targets_own_only_when_that_is_said(stage: Stage) -> None:
    sidecar, at = stage.sidecar, stage.target.bootstrap
    for link, source in stage.sources.items():
        await asyncio.to_thread(make, source, "orders", 100)
        await sidecar.linker("mirror", "create", "--link", link, "orders")
    for link in stage.sources:
        await stage.copied(link, f"{link}.orders")
    for mode in ("batches", "records"):
        run = (
            await sidecar.linker("validate", "east", "--mode", mode, "-o", "json", timeout=PATIENCE)
        ).json()
        assert (run["state"], run["mismatches"]) == ("DONE", 0), run
        assert run["records"] == 100, run

    end = ("east.orders", "--link", "east")
    for how in (("promote",), ("failover", "--force", "--yes")):
        assert "--as-own-topic" in await refused(stage, "mirror", how[0], *end, *how[1:])
    told = await refused(stage, "mirror", "promote", *end, "--as-own-topic", "--fence-source")
    assert "the source's producers stay there" in told
    promote = ("mirror", "promote", *end, "--as-own-topic", "-o", "json")
    done = (await sidecar.linker(*promote, timeout=PATIENCE)).json()
    assert done["phase"] == "PROMOTED", done
    document = json.loads(Path(done["validation"]["json_path"]).read_bytes())
    assert document["verdict"] == "EQUAL"
    assert [(one["topic"], one["source_topic"]) for one in document["topics"]] == [("east.orders", "orders")]

    # Both go on, by themselves.
    error, _ = await asyncio.to_thread(written, at, "east.orders")
    assert error is None, error
    await asyncio.to_thread(write, stage.sources["east"], "orders", 50)
    assert await asyncio.to_thread(read, at, "east.orders", "own", 101) == 101
    assert await asyncio.to_thread(read, stage.sources["east"].bootstrap, "orders", "own", 150) == 150

    # A source that does not stand still is left behind by a failover.
    failover = (
        "mirror",
        "failover",
        "west.orders",
        "--link",
        "west",
        "--as-own-topic",
        "--yes",
        "-o",
        "json",
    )
    assert "still answers" in await refused(stage, *failover)
    done = (await sidecar.linker(*failover, "--force", timeout=PATIENCE)).json()
    assert done["phase"] == "FAILED_OVER", done
    error, _ = await asyncio.to_thread(written, at, "west.orders")
    assert error is None, error


@pytest.mark.slow
async def test_patterns_and_files_name_the_sources_topics(stage: Stage, tmp_path: Path) -> None:
    sidecar, east = stage.sidecar, stage.sources["east"]
    for topic in ("shop.a", "shop.b", "other"):
        await asyncio.to_thread(make, east, topic, 4)
    await asyncio.to_thread(make, stage.target, "east.shop_b", 4)
    follow = ("topics_include=shop\\..*", "topics_refresh_interval_ms=1000", "topics_deleted=delete")
    await sidecar.linker("link", "update", "east", *(part for one in follow for part in ("--option", one)))
    await stage.copied("east", "east.shop.a")
    listed = (await sidecar.linker("mirror", "list", "--link", "east")).output
    assert "SOURCE TOPIC" in listed
    assert "shop.b" in listed.split("NOT MIRRORED")[1]
    assert "east.shop_b differ in" in listed

    exported = (await sidecar.linker("export", "east")).output
    assert "prefix: east." in exported
    await sidecar.linker("mirror", "create", "--link", "east", "other")
    await stage.copied("east", "east.shop.a", "east.other")
    whole = tmp_path / "links.yaml"
    whole.write_text((await sidecar.linker("export", "east")).output)
    assert "- topic: other\n" in whole.read_text()
    same = await sidecar.run("apply", "-f", str(whole), "--dry-run")
    assert (same.exit_code, "0 changes to make" in same.output) == (0, True), same

    admin = AdminClient({"bootstrap.servers": east.bootstrap})
    await asyncio.to_thread(lambda: admin.delete_topics(["shop.a"])["shop.a"].result(60))
    await stage.copied("east", "east.other")
    doctor = await sidecar.run("doctor")
    assert "WRITE" not in doctor.output, doctor.output
