"""Every broker of the target restarts, one after the other, while moved producers write: none of them hears of it.

With stock brokers on their own a producer would not: each partition's leader moves before its broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import confluent_kafka
import pytest

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.live_producers import (
    CLIENT_LOG,
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import brokers_back
from tests.real.harness_trouble import TroubleScene

RATE = 100.0
RETRIES = 3
"""sarama's default, and few: tries that are counted end where time does not."""


class FewTries(LibrdkafkaProducer):
    """Gives up after three tries, a tenth of a second apart, as some libraries do by default."""

    def _connect(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "enable.idempotence": "true",
                "retries": RETRIES,
                "retry.backoff.ms": "100",
                "retry.backoff.max.ms": "100",
                "linger.ms": "2",
                "error_cb": self._told,
            },
            logger=CLIENT_LOG,
        )


@pytest.mark.timeout(400)
async def test_every_broker_of_the_target_restarts_under_load(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sidecar: SidecarProcess,
    unique_topic: Callable[[str], str],
) -> None:
    topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
    scene = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
    try:
        await scene.begin(writers=False)
        kinds: tuple[type[LiveProducer], ...] = (
            FewTries,
            LibrdkafkaProducer,
            AiokafkaProducer,
            KafkaPythonProducer,
        )
        for kind in kinds:
            producer = kind(kind.__name__, topic.name, topic.partitions, RATE, scene.history)
            scene.producers.append(producer)
            await producer.start(target_cluster.bootstrap)
        await scene.acked_more(50)
        for node in target_cluster.brokers:
            await node.restart()
            await brokers_back(target_cluster)
            await scene.acked_more(20)
        await asyncio.sleep(1)
        assert not scene.history.unacked, scene.history.unacked[:5]
        assert not scene.history.errors, scene.history.errors[:5]
        await scene.promoted()
        await scene.judge()
    finally:
        await scene.close()
