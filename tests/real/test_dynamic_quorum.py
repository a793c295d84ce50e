"""A target whose controllers may change (KIP-853) and that has taken snapshots: the only way in is one of them."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lab.clusters.kafka_cluster import KafkaCluster
from tests.real.harness_tools import kafka_tool
from tests.real.harness_trouble import PATIENCE
from tests.real.test_membership import EAGER_SNAPSHOTS
from tests.real.test_switch import StartCluster, StartSidecar

pytestmark = pytest.mark.timeout(300)


async def snapshot_taken(kafka: KafkaCluster) -> None:
    """The log's beginning is gone."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    log = kafka.controllers[0].data / "__cluster_metadata-0"
    deadline, made = time.monotonic() + PATIENCE, 0
    while (log / "00000000000000000000.log").exists():
        assert time.monotonic() < deadline, list(log.iterdir())
        [done] = admin.create_topics([NewTopic(f"filler-{made}", 4, 1)]).values()
        await asyncio.to_thread(done.result, 30)
        made += 1
        await asyncio.sleep(0.2)


async def test_a_sidecar_starts_from_a_snapshot(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    kafka = await start_cluster(name="quorum", brokers=1, controllers=1, properties=EAGER_SNAPSHOTS)
    said = await kafka_tool(kafka.bootstrap, "kafka-features", "upgrade", "--feature", "kraft.version=1")
    assert said.exit_code == 0, said
    await snapshot_taken(kafka)
    sidecar = await start_sidecar(kafka.bootstrap, validation={"policy": "skip"})
    await sidecar.linker("status")
    await sidecar.kill()
    await sidecar.start()
    await sidecar.linker("status")
