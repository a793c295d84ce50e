"""Kafka Connect over mirrors of its internal topics: a worker moves with its connectors' configs, offsets and states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admin.models import GroupState, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from tests.real.harness_connect import ConnectWorker
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import create_topic, linked_sidecar, patiently

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LINES = 50
PATIENCE = 60.0


async def test_a_worker_moves_with_its_connectors(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
    tmp_path: Path,
    _numbers: Iterator[int],
) -> None:
    """At the target before the promote, over it, and after it: no line is lost, none is there twice."""
    name = unique_topic("c").replace("test_a_worker_moves_with_its_connectors", "w")
    sink, source = f"sink-{name}", f"source-{name}"
    internal = [f"{name}-{kind}" for kind in ("configs", "offsets", "status")]
    topics = [f"{name}-lines", *internal]
    for index, topic in enumerate(topics):
        configs = {"cleanup.policy": "compact"} if topic in internal else {}
        await asyncio.to_thread(
            create_topic, source_cluster.bootstrap, topic, [1, 1, 5, 5][index], 2, configs
        )
    worker = {
        "group.id": f"connect-cluster-{name}",
        **{
            f"{kind}.storage.topic": topic
            for kind, topic in zip(("config", "offset", "status"), internal, strict=True)
        },
        **{f"{kind}.storage.replication.factor": "2" for kind in ("config", "offset", "status")},
    }
    lines, read = tmp_path / "lines.txt", tmp_path / "read.txt"
    written: list[str] = []

    def more() -> None:
        new = [f"line {len(written) + index}" for index in range(LINES)]
        written.extend(new)
        with lines.open("a") as file:
            file.write("".join(f"{line}\n" for line in new))

    def got() -> list[str]:
        return read.read_text().splitlines() if read.exists() else []

    async def all_read() -> None:
        await patiently("every line", lambda: len(got()) >= len(written), PATIENCE)
        assert got() == written

    async with ConnectWorker(source_cluster.bootstrap, worker, tmp_path / "at-source") as at_source:
        more()
        await at_source.configure(
            source,
            {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                "file": str(lines),
                "topic": topics[0],
            },
        )
        await at_source.configure(
            sink,
            {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
                "file": str(read),
                "topics": topics[0],
            },
        )
        await all_read()
        await asyncio.sleep(1.0)  # two flushes of offsets

    async with linked_sidecar(
        source_cluster, target_cluster, 900 + next(_numbers), tmp_path / "sidecar"
    ) as sidecar:
        options = ("--option", f"groups_include=connect-{sink}", "--option", "groups_exclude=")
        await sidecar.linker("link", "update", LINK, *options)
        await sidecar.linker("mirror", "create", *topics, "--link", LINK, "-r", "2")

        def active() -> bool:
            with sidecar.client() as client:
                found = [client.describe_mirror(LINK, topic) for topic in topics]
            return all(one.state is MirrorState.ACTIVE and one.lag == 0 for one in found)

        await patiently("mirrors ACTIVE", active)

        def gated() -> bool:
            with sidecar.client() as client:
                found = [one for one in client.list_groups(LINK) if one.group == f"connect-{sink}"]
            return bool(found) and found[0].state is GroupState.GATED

        await patiently("the sink's group GATED", gated)
        async with ConnectWorker(target_cluster.bootstrap, worker, tmp_path / "at-target") as at_target:
            await at_target.running_tasks(source)
            more()  # the source connector writes through the sidecar, the sink's group waits
            await asyncio.sleep(1.0)
            assert got() == written[:LINES]
            await sidecar.linker("group", "promote", f"connect-{sink}", "--link", LINK)
            await all_read()
            await sidecar.linker("mirror", "promote", *topics, "--link", LINK)
            more()
            await all_read()
            await at_target.running_tasks(source)
            await at_target.running_tasks(sink)
        async with ConnectWorker(target_cluster.bootstrap, worker, tmp_path / "again") as again:
            more()  # what it knows was written under another cluster's brokers, and is all its own now
            await again.running_tasks(source)
            await all_read()
