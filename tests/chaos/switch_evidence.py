"""What both clusters hold when a run of switches is over: the owner's logs, and everybody's beside them. Blocking."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient, ConfigResource

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.history import PartitionLog
from lab.workload.inspection import Placement, final_logs
from lab.workload.live_producers import CLIENT_LOG
from lab.workload.log_compare import ReplicaComparison, compare_replica
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceTopic
from tests.chaos.stage import Stage
from tests.chaos.switches import Owner
from wire.frames.types import TopicPartition

SETTLED_TIMEOUT = 60.0
ON_TOPIC = 1  # ConfigSource.DYNAMIC_TOPIC_CONFIG


class Owned:
    """Topics with the cluster that owns each of them."""

    def __init__(
        self,
        stage: Stage,
        owned_by: Mapping[Owner, Sequence[SourceTopic]],
        link_brokers: Mapping[Owner, set[int]],
    ) -> None:
        self._stage = stage
        self._link_brokers = link_brokers
        self.owner: dict[TopicPartition, PartitionLog] = {}
        self.replicas: list[ReplicaComparison] = []
        #: What is not as it should be and did not become so in time: leaders and in-sync replicas.
        self.unsettled: list[str] = []
        deadline = time.monotonic() + SETTLED_TIMEOUT
        for owner, topics in owned_by.items():
            if topics:
                self._collect(topics, owner, deadline)

    def _cluster(self, owner: Owner) -> KafkaCluster:
        return self._stage.source if owner is Owner.SOURCE else self._stage.target

    def _collect(self, topics: Sequence[SourceTopic], owner: Owner, deadline: float) -> None:
        while True:
            here, wrong = self._placed(topics, owner, owns=True)
            there, wrong_there = self._placed(topics, owner.other, owns=False)
            if not (wrong or wrong_there):
                break
            if time.monotonic() > deadline:
                self.unsettled += [*wrong, *wrong_there]
                break
            time.sleep(0.3)
        self.owner |= final_logs(self._cluster(owner), topics, here)
        for tp, placement in here.items():
            leader = open_replica(self._cluster(owner).log_dir(placement.leader), tp)
            for side, placed in ((owner, here), (owner.other, there)):
                for broker in placed[tp].replicas:
                    replica = open_replica(self._cluster(side).log_dir(broker), tp)
                    while replica.end() != leader.end() and time.monotonic() < deadline:
                        time.sleep(0.1)
                        replica = open_replica(self._cluster(side).log_dir(broker), tp)
                    self.replicas.append(compare_replica(leader, replica, tp, broker))
                    if replica.end() != leader.end():
                        self.unsettled.append(
                            f"{tp} at {side.name} broker {broker} ends at {replica.end()}, the owner's at {leader.end()}"
                        )

    def _placed(
        self, topics: Sequence[SourceTopic], side: Owner, *, owns: bool
    ) -> tuple[dict[TopicPartition, Placement], list[str]]:
        """Real brokers with a replica, and what is wrong with leaders and in-sync replicas."""
        cluster, link = self._cluster(side), self._link_brokers[side]
        real = {node.node_id for node in cluster.brokers}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=CLIENT_LOG)
        found = admin.list_topics(timeout=30).topics
        placed: dict[TopicPartition, Placement] = {}
        wrong: list[str] = []
        for tp in (tp for topic in topics for tp in topic.topic_partitions()):
            one = found[tp.topic].partitions[tp.partition]
            replicas = tuple(sorted(real & set(one.replicas)))
            leader = one.leader if one.leader in real else replicas[0]
            placed[tp] = Placement(leader, replicas)
            isr = set(one.isrs)
            right = (
                one.leader in real and set(replicas) <= isr if owns else one.leader in link and not isr & real
            )
            if not right:
                what = f"leader {one.leader}, replicas {one.replicas}, ISR {one.isrs}"
                wrong.append(f"{tp} at {side.name}, which {'owns' if owns else 'does not own'} it: {what}")
        return placed, wrong


def own_configs(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    """Those that are set on the topic itself."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=CLIENT_LOG)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in found.items() if entry.source == ON_TOPIC}
