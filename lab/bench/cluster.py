"""A Kafka cluster of the benchmark: brokers as in production, and a client of our own wire protocol beside it.

Lives here: topics, replicas and elections as the cases ask for them. Not here: which clusters a case runs on (stage.py).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import TopicPartition

CALL_TIMEOUT = 30.0
GONE_TIMEOUT = 60.0
POLL = 0.02
HEAP_MB = 512

# Deleted copies make room at once: rounds repeat, and so does their gigabyte.
CLUSTER_PROPERTIES = {
    # Kafka's own move of leaders back to where they are preferred, every five minutes: in the middle of a measurement.
    "auto.leader.rebalance.enable": "false",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
}


class BenchError(LinkerError):
    """A measurement could not be taken."""


async def nap(deadline: float, late: str, pause: float = POLL) -> None:
    """One turn of a wait for something to get somewhere: raises once time is up (by time.monotonic)."""
    if time.monotonic() > deadline:
        raise BenchError(late)
    await asyncio.sleep(pause)


class BenchCluster(KafkaCluster):
    """A cluster with a client of our own wire protocol beside it."""

    def __init__(
        self,
        name: str,
        brokers: int,
        directory: Path,
        *,
        quick_start: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        spec = KafkaClusterSpec(
            name=name,
            brokers=brokers,
            properties={**CLUSTER_PROPERTIES, **(properties or {})},
            heap_mb=HEAP_MB,
            quick_start=quick_start,
        )
        super().__init__(spec, directory)
        self.client: Cluster | None = None

    async def start(self) -> None:
        await super().start()
        self.client = Cluster(
            self.spec.name,
            [("127.0.0.1", node.port()) for node in self.brokers],
            ClientSecurity.from_properties({}),
            client_id="bench",
        )
        await self.client.connect()

    async def close(self) -> None:
        if self.client is not None:
            client, self.client = self.client, None
            await client.close()
        await super().close()

    @property
    def connected(self) -> Cluster:
        """The client of the running cluster."""
        if self.client is None:
            raise BenchError(f"cluster {self.spec.name} is not running")
        return self.client

    async def call(self, api: str, fields: Mapping[str, object]) -> Any:
        return await self.connected.call(api, fields, timeout=CALL_TIMEOUT)

    async def create_topic(
        self, topic: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> None:
        """A topic with the given replicas per partition, ready for use."""
        response = await self.call(
            "create_topics",
            {
                "topics": [
                    {
                        "name": topic,
                        "num_partitions": -1,
                        "replication_factor": -1,
                        "assignments": [
                            {"partition_index": index, "broker_ids": list(replicas)}
                            for index, replicas in enumerate(assignment)
                        ],
                        "configs": [
                            {"name": name, "value": value} for name, value in (configs or {}).items()
                        ],
                    }
                ],
                "timeout_ms": int(CALL_TIMEOUT * 1000),
            },
        )
        for created in response.topics:
            if created.error_code:
                raise BrokerError(
                    int(created.error_code), message=f"creating {topic}: {created.error_message}"
                )
        client = self.client
        deadline = time.monotonic() + CALL_TIMEOUT
        tps = [TopicPartition(topic, index) for index in range(len(assignment))]
        while client is not None:
            await client.refresh([topic], timeout=CALL_TIMEOUT)
            if all(client.leader(tp) is not None for tp in tps):
                return
            await nap(deadline, f"topic {topic} has no leaders after {CALL_TIMEOUT:.0f} s")

    async def delete_topic(self, topic: str) -> None:
        """If it is there; returns before the brokers have cleaned up."""
        response = await self.call(
            "delete_topics",
            {
                "topics": [{"name": topic, "topic_id": None}],
                "topic_names": [topic],
                "timeout_ms": int(CALL_TIMEOUT * 1000),
            },
        )
        for deleted in response.responses:
            if deleted.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
                raise BrokerError(int(deleted.error_code), message=f"deleting {topic}")

    async def wait_reassigned(self, topic: str | None = None) -> None:
        """Until no reassignment (of this topic) is under way: undoing one that runs leaves the replicas where they are.

        A mirror has one for as long as the link leads it, so a cluster with mirrors is asked about a topic.
        """
        deadline = time.monotonic() + GONE_TIMEOUT
        while True:
            response = await self.call(
                "list_partition_reassignments", {"timeout_ms": int(CALL_TIMEOUT * 1000), "topics": None}
            )
            left = [one.name for one in response.topics if topic in (None, one.name)]
            if not left:
                return
            await nap(
                deadline, f"reassignments still under way after {GONE_TIMEOUT:.0f} s: {', '.join(left[:10])}"
            )

    async def reassign(self, topic: str, partitions: int, replicas: Sequence[int]) -> None:
        """Ask for these replicas of every partition; the copying is the brokers' own."""
        await self.reassign_each(topic, [replicas] * partitions)

    async def reassign_each(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Ask for other replicas, or another order of them, partition by partition."""
        response = await self.call(
            "alter_partition_reassignments",
            {
                "timeout_ms": int(CALL_TIMEOUT * 1000),
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": index, "replicas": list(wanted)}
                            for index, wanted in enumerate(replicas)
                        ],
                    }
                ],
            },
        )
        codes = [int(part.error_code) for one in response.responses for part in one.partitions]
        _raise_first([int(response.error_code), *codes], f"reassigning {topic}")

    async def elect_preferred(self, topics: Mapping[str, int]) -> None:
        """Move every leadership of these topics, given with their partitions, to the first replica, in one request."""
        response = await self.call(
            "elect_leaders",
            {
                "election_type": 0,
                "topic_partitions": [
                    {"topic": topic, "partitions": list(range(partitions))}
                    for topic, partitions in topics.items()
                ],
                "timeout_ms": int(CALL_TIMEOUT * 1000),
            },
        )
        codes = [
            int(part.error_code) for one in response.replica_election_results for part in one.partition_result
        ]
        _raise_first([int(response.error_code), *codes], f"electing leaders of {', '.join(topics)}")

    def replica_dirs(self, topic: str, partitions: int, broker: int) -> list[Path]:
        """Where a broker keeps its replicas of a topic."""
        return [self.partition_dir(broker, TopicPartition(topic, index)) for index in range(partitions)]

    async def wait_gone(self, topic: str, broker: int) -> None:
        """Until a broker has really deleted its replicas, so that the next round does not pay for it."""
        deadline = time.monotonic() + GONE_TIMEOUT
        while any(path.name.startswith(f"{topic}-") for path in self.log_dir(broker).iterdir()):
            await nap(deadline, f"broker {broker} still has replicas of {topic} after {GONE_TIMEOUT:.0f} s")


def _raise_first(codes: Sequence[int], what: str) -> None:
    for code in codes:
        if code:
            raise BrokerError(code, message=what)


def discard_data(cluster: KafkaCluster) -> None:
    """Gigabytes go, logs of the processes stay."""
    for node in cluster.nodes.values():
        shutil.rmtree(node.data, ignore_errors=True)
