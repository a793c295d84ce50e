"""A link file on real brokers, from MirrorMaker's properties to the last mirror: idempotent, with drift and exit codes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from wire.together import together

pytestmark = [pytest.mark.real, pytest.mark.timeout(420)]
PATIENCE = 120.0
MM2 = """\
clusters = east, here
east.bootstrap.servers = {source}
here.bootstrap.servers = {target}
east->here.enabled = true
east->here.topics = orders, shop\\\\..*
east->here.groups = app-.*
east->here.sync.topic.acls.enabled = false
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
refresh.topics.interval.seconds = 1
"""

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


def make(bootstrap: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic in topics:
        producer.produce(topic, b"one")
    assert producer.flush(60) == 0


async def until_active(sidecar: SidecarProcess, *topics: str) -> None:
    """Until exactly these are mirrored, all ACTIVE without lag."""

    def active() -> dict[str, bool]:
        with sidecar.client() as client:
            return {
                one.topic: one.state is MirrorState.ACTIVE and one.lag == 0
                for one in client.list_mirrors("east")
            }

    deadline = time.monotonic() + PATIENCE
    while (found := await asyncio.to_thread(active)) != dict.fromkeys(topics, True):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


@pytest.mark.asyncio(loop_scope="session")
async def test_from_mirrormaker_to_a_file_that_is_applied_again_and_again(
    start_cluster: StartCluster, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    source, target = await together(start_cluster(name=name, brokers=1) for name in ("source", "target"))
    sidecar = await start_sidecar(target.bootstrap)
    await asyncio.to_thread(make, source.bootstrap, "orders", "shop.a", "alone", "unasked")

    async def applied(file: Path, code: int, *options: str) -> str:
        said = await sidecar.run("apply", "-f", str(file), *options)
        assert said.exit_code == code, said
        return said.output + said.errors

    properties, file = tmp_path / "mm2.properties", tmp_path / "links.yaml"
    properties.write_text(MM2.format(source=source.bootstrap, target=target.bootstrap))
    file.write_text((await sidecar.linker("convert", "mm2", str(properties))).output)

    assert "would create link east" in await applied(file, 3, "--dry-run")
    await applied(file, 0)
    await until_active(sidecar, "orders", "shop.a")
    await asyncio.to_thread(make, source.bootstrap, "shop.later")
    await until_active(sidecar, "orders", "shop.a", "shop.later")
    await applied(file, 0, "--dry-run")
    assert "0 changes made" in await applied(file, 0)

    await sidecar.linker("link", "update", "east", "--option", "groups_include=other")
    assert "groups_include: other -> app-.*" in await applied(file, 3, "--dry-run")
    await applied(file, 0)
    await applied(file, 0, "--dry-run")

    exported = tmp_path / "exported.yaml"
    exported.write_text((await sidecar.linker("export")).output)
    assert "shop.later" not in exported.read_text(), "it belongs to the option, not to the file"
    assert "0 changes made" in await applied(exported, 0)

    # A topic that the file alone names: made with its line, deleted without it, if told.
    text = exported.read_text()
    exported.write_text(text + "  mirrors:\n  - alone\n")
    assert "1 changes made" in await applied(exported, 0)
    await until_active(sidecar, "orders", "shop.a", "shop.later", "alone")
    exported.write_text(text)
    assert "not in the file" in await applied(exported, 0)
    await until_active(sidecar, "orders", "shop.a", "shop.later", "alone")
    await applied(exported, 0, "--delete-missing", "--yes")
    await until_active(sidecar, "orders", "shop.a", "shop.later")
    listed = await asyncio.to_thread(
        AdminClient({"bootstrap.servers": target.bootstrap}).list_topics, timeout=60
    )
    assert "alone" not in listed.topics

    exported.write_text(text.replace("options:", "option:"))
    said = await applied(exported, 2, "--dry-run")
    assert "option" in said
    assert "options" in said
