"""Membership in real KRaft clusters: joining, living through controllers' deaths, handing over, leaving,
refusals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from controller.alter_partition import alter_partition_item
from lab.clusters.kafka_cluster import KafkaCluster
from linker.links.configs import topic_configs
from linker.membership import (
    AdvertisedListener,
    BrokerIdTaken,
    ClusterIdChanged,
    Identity,
    MissingRight,
    StillHosting,
    TargetCluster,
)
from tests.fakes.mirror_topic import create_mirror_topic
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost
from wire.frames.types import TOPIC_RESOURCE, TopicPartition
from wire.metadata.image import ClusterImage

StartCluster = Callable[..., Awaitable[KafkaCluster]]
UniqueTopic = Callable[[str], str]

# Snapshots every few records and a log that is cut behind them, so that FetchSnapshot is the only way in.
EAGER_SNAPSHOTS = {
    "metadata.log.max.record.bytes.between.snapshots": "1500",
    "metadata.log.max.snapshot.interval.ms": "3000",
    "internal.metadata.log.segment.bytes": "2000",
    "metadata.max.retention.bytes": "3000",
}
SIDECAR = AdvertisedListener("PLAINTEXT", "127.0.0.1", 19092, 0)


class Member:
    """A TargetCluster with its running task."""

    def __init__(self, target: TargetCluster, saved: list[Identity]) -> None:
        self.target = target
        self.saved = saved
        self.task = asyncio.ensure_future(target.run())

    async def up(self) -> TargetCluster:
        await self.target.join(60)
        await self.target.serve(30)
        return self.target

    async def remove(self) -> None:
        """A test that failed must not leave its broker id taken in a cluster that others use. With heartbeats it would
        register again."""
        image = self.target.image.brokers.get(self.target.broker_id)
        if not self.task.done() and image and image.incarnation_id == self.target.identity.incarnation_id:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            await self.target.channel.call(
                "unregister_broker", {"broker_id": self.target.broker_id}, timeout=10, idempotent=True
            )

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.target.close()
        await self.target.cluster.close()


@pytest_asyncio.fixture(loop_scope="session")
async def make_member() -> AsyncIterator[Callable[..., Member]]:
    members: list[Member] = []

    def make(
        kafka: KafkaCluster,
        identity: Identity | None = None,
        *,
        security: ClientSecurity | None = None,
        listener: AdvertisedListener = SIDECAR,
        controllers: str = "",
        **options: Any,
    ) -> Member:
        security = security or ClientSecurity.plaintext()
        saved: list[Identity] = []

        async def save(value: Identity) -> None:
            saved.append(value)

        target = TargetCluster(
            Cluster("target", parse_bootstrap_servers(kafka.bootstrap), security, "linker-test"),
            controller_security=security,
            controller_bootstrap=parse_bootstrap_servers(controllers) if controllers else (),
            identity=identity or Identity.create(900),
            save=save,
            listeners=[listener],
            **options,
        )
        members.append(Member(target, saved))
        return members[-1]

    yield make
    for member in members:
        try:
            await member.remove()
        finally:
            await member.stop()


async def eventually(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.05)


async def alive_again(target: TargetCluster) -> None:
    """A metadata fetch and a heartbeat that were sent after now were accepted."""
    now = time.monotonic()
    await target.metadata.caught_up(60)
    await eventually(lambda: target.registration.last_heartbeat > now, 60)


async def mirror(
    target: TargetCluster, topic: str, replicas: list[int], partitions: int = 2
) -> list[TopicPartition]:
    """A topic led by the link broker and open to be handed over."""
    tps = [TopicPartition(topic, index) for index in range(partitions)]
    await create_mirror_topic(
        target.operations,
        topic,
        {tp.partition: [target.broker_id] for tp in tps},
        {"unclean.leader.election.enable": "false"},
    )
    await target.operations.reassign(
        {
            tp: replicas[tp.partition % len(replicas) :] + replicas[: tp.partition % len(replicas)]
            for tp in tps
        }
    )
    await target.metadata.wait_for(
        lambda image: (
            True if all(p.adding for p in image.topics_by_name[topic].partitions.values()) else None
        ),
        20,
    )
    return tps


async def hand_over(target: TargetCluster, tps: list[TopicPartition], replicas: list[int]) -> None:
    isr = (target.broker_id, *replicas)
    items = [alter_partition_item(target.image, tp, isr) for tp in tps]
    assert set((await target.operations.alter_partition(items)).values()) == {108}
    await target.metadata.wait_for(
        lambda image: (
            True
            if all(image.topics_by_name[tp.topic].partitions[tp.partition].leader in replicas for tp in tps)
            else None
        ),
        20,
    )


async def test_from_joining_to_leaving(
    target_cluster: KafkaCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    target = await make_member(target_cluster).up()
    broker = target.image.brokers[900]
    assert not broker.fenced
    assert broker.cordoned_log_dirs == (target.identity.log_dir_id,)
    assert broker.rack in {"a", "b", "c"}

    topic = unique_topic("mirror")
    tps = await mirror(target, topic, [1, 2, 3], partitions=3)
    with pytest.raises(StillHosting, match=f"leads {topic}-0, {topic}-1, {topic}-2"):
        await target.leave(30)
    assert await target.operations.elect_preferred(tps) != {}
    assert {p.leader for p in target.image.topics_by_name[topic].partitions.values()} == {900}

    await hand_over(target, tps, [1, 2, 3])
    partitions = target.image.topics_by_name[topic].partitions.values()
    assert sorted(p.leader for p in partitions) == [1, 2, 3]
    assert all(900 not in p.replicas and not p.adding and not p.removing for p in partitions)
    await target.operations.set_configs_of_topics(
        {topic: {"retention.ms": "1", "unclean.leader.election.enable": None}}
    )
    async with asyncio.timeout(10):  # a broker that is asked may hear of it a little later
        while (
            "retention.ms"
            not in (described := (await topic_configs(target.cluster, [topic], timeout=10))[topic]).overrides
        ):
            await asyncio.sleep(0.05)
    assert described.overrides["retention.ms"] == "1"
    assert "unclean.leader.election.enable" not in described.overrides
    assert int(described.effective["segment.bytes"]) > 0

    first, length = await target.operations.allocate_producer_ids(24, connections=8)
    await target.metadata.wait_for(
        lambda image: True if image.next_producer_id >= first + length else None, 10
    )
    await target.operations.delete_topic(topic)
    await target.leave(30)
    assert 900 not in target.image.brokers


async def test_placement_leaves_the_cordoned_sidecar_alone(
    target_cluster: KafkaCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    target = await make_member(target_cluster).up()
    await target.metadata.wait_for(lambda image: image.brokers[900].cordoned_log_dirs, 10)
    topic = unique_topic("placed")
    answer = await target.channel.call(
        "create_topics",
        {
            "topics": [
                {
                    "name": topic,
                    "num_partitions": 24,
                    "replication_factor": 3,
                    "assignments": [],
                    "configs": [],
                }
            ],
            "timeout_ms": 10000,
        },
        timeout=20,
    )
    assert int(answer.topics[0].error_code) == 0

    def placed(image: ClusterImage) -> bool | None:
        there = image.topics_by_name.get(topic)
        return True if there is not None and len(there.partitions) == 24 else None

    await target.metadata.wait_for(placed, 10)
    assert not any(900 in p.replicas for p in target.image.topics_by_name[topic].partitions.values())
    await target.operations.delete_topic(topic)
    await target.leave(30)


async def test_a_restart_under_the_same_identity_changes_nothing(
    target_cluster: KafkaCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    first = make_member(target_cluster)
    target = await first.up()
    topic = unique_topic("kept")
    await mirror(target, topic, [1, 2])
    before = dict(target.image.topics_by_name[topic].partitions)
    epoch = target.identity.broker_epoch
    await first.stop()
    again = await make_member(
        target_cluster, first.saved[-1], controllers=target_cluster.controller_bootstrap
    ).up()
    assert again.identity.broker_epoch == epoch
    assert again.image.topics_by_name[topic].partitions == before
    await again.operations.delete_topic(topic)
    await again.leave(30)


async def test_an_id_that_is_taken(target_cluster: KafkaCluster, make_member: Callable[..., Member]) -> None:
    with pytest.raises(BrokerIdTaken, match="broker id 1 is taken in target by a live broker"):
        await make_member(target_cluster, Identity.create(1)).target.join(30)
    first = await make_member(target_cluster).up()
    with pytest.raises(BrokerIdTaken, match="broker id 900 is taken in target by a live broker"):
        await make_member(target_cluster).target.join(30)
    await alive_again(first)
    assert first.registration.fenced is False
    await first.leave(30)


async def test_another_cluster(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, make_member: Callable[..., Member]
) -> None:
    stored = Identity(900, bytes(15) + b"\x11", bytes(15) + b"\x12", 7, source_cluster.cluster_id)
    with pytest.raises(ClusterIdChanged, match=f"belongs to cluster {source_cluster.cluster_id}"):
        await make_member(target_cluster, stored).target.join(30)
    with pytest.raises(ClusterIdChanged, match="belongs to another cluster"):
        await make_member(target_cluster, controllers=source_cluster.controller_bootstrap).target.join(30)


@pytest.mark.slow
async def test_quorum_of_three_with_snapshots(
    start_cluster: StartCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    kafka = await start_cluster(name="quorum", brokers=2, controllers=3, properties=EAGER_SNAPSHOTS)
    first = make_member(kafka)
    target = await first.up()
    topic = unique_topic("mirror")
    tps = await mirror(target, topic, [1, 2], partitions=4)
    for number in range(40):
        await target.operations.set_configs_of_topics({topic: {"retention.ms": str(10**9 + number)}})
    log_dir = kafka.controllers[0].data / "__cluster_metadata-0"
    await eventually(lambda: not (log_dir / "00000000000000000000.log").exists(), 60)

    # The log's beginning is gone: only a snapshot gets a newcomer in.
    before = dict(target.image.topics_by_name[topic].partitions)
    epoch = target.identity.broker_epoch
    await first.stop()
    target = await make_member(kafka, first.saved[-1]).up()
    assert target.metadata.snapshots_loaded >= 1
    assert target.identity.broker_epoch == epoch
    assert target.image.topics_by_name[topic].partitions == before
    assert target.image.configs[TOPIC_RESOURCE, topic]["retention.ms"] == str(10**9 + 39)

    # The active controller dies.
    assert target.channel.active is not None
    died = kafka.nodes[target.channel.active.id]
    await died.kill()
    await alive_again(target)
    assert target.channel.active is not None
    assert target.channel.active.id != died.node_id
    await hand_over(target, tps[:2], [1, 2])
    await died.start()

    # The next one hangs without closing a connection.
    hung = kafka.nodes[target.channel.active.id]
    hung.pause()
    try:
        await eventually(
            lambda: target.channel.active is not None and target.channel.active.id != hung.node_id, 60
        )
        await alive_again(target)
    finally:
        hung.resume()
    await hand_over(target, tps[2:], [1, 2])

    # All are gone for a while, as in an outage.
    for node in kafka.controllers:
        await node.kill()
    await asyncio.sleep(2)
    await asyncio.gather(*(node.start() for node in kafka.controllers))
    await alive_again(target)
    assert target.image.brokers[900].epoch == epoch
    await eventually(lambda: target.registration.fenced is False)
    await target.operations.delete_topic(topic)
    await target.leave(60)


async def test_a_restarted_target_broker_has_a_new_epoch(
    start_cluster: StartCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    kafka = await start_cluster(name="epochs", brokers=2, controllers=1)
    target = await make_member(kafka).up()
    tps = await mirror(target, unique_topic("mirror"), [1, 2])
    old = target.image.brokers[2].epoch
    await kafka.nodes[2].restart()
    await target.metadata.wait_for(
        lambda image: True if image.brokers[2].epoch != old and not image.brokers[2].fenced else None, 60
    )
    # The answer to a hand-over gets lost: what became of it is in the log, not in a second request.
    kafka.controllers[0].pause()
    try:
        with pytest.raises(ConnectionLost) as unknown:
            item = alter_partition_item(target.image, tps[0], (900, 1, 2))
            await target.operations.alter_partition([item], timeout=1)
    finally:
        kafka.controllers[0].resume()
    assert unknown.value.sent
    await alive_again(target)
    await target.metadata.caught_up(30)
    settled = target.image.topics_by_name[tps[0].topic].partitions[0]
    assert (settled.leader, settled.replicas) in {(1, (1, 2)), (900, (1, 2, 900))}
    await hand_over(target, [tp for tp in tps if tp != tps[0] or settled.leader == 900], [1, 2])
    # A single controller restarts: nothing is fenced, and the epochs stay.
    epoch = target.identity.broker_epoch
    await kafka.controllers[0].kill()
    await kafka.controllers[0].start()
    await alive_again(target)
    assert (target.image.brokers[900].epoch, target.registration.fenced) == (epoch, False)
    await target.leave(60)


# --- rights -------------------------------------------------------------------------------------------------

USERS = {"admin": "admin-secret", "sidecar": "sidecar-secret"}
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="admin-secret" '
    + " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    + ";"
)
SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
    "listener.name.controller.plain.sasl.jaas.config": _JAAS,
}
# resource type, operation: AclOperation and ResourceType ids
_CLUSTER = 4
_OPERATIONS = {"CLUSTER_ACTION": 9, "ALTER": 7, "DESCRIBE": 8, "CREATE": 5}


def credentials(user: str) -> ClientSecurity:
    return ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": USERS[user],
        }
    )


async def grant(admin: Cluster, operation: str) -> None:
    answer = await admin.call(
        "create_acls",
        {
            "creations": [
                {
                    "resource_type": _CLUSTER,
                    "resource_name": "kafka-cluster",
                    "resource_pattern_type": 3,
                    "principal": "User:sidecar",
                    "host": "*",
                    "operation": _OPERATIONS[operation],
                    "permission_type": 3,
                }
            ]
        },
        timeout=20,
    )
    assert [int(result.error_code) for result in answer.results] == [0]


async def test_the_missing_right_is_named_one_after_the_other(
    start_cluster: StartCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    kafka = await start_cluster(
        name="secured",
        brokers=2,
        controllers=1,
        listeners={"SASL_PLAINTEXT": "SASL_PLAINTEXT"},
        controller_protocol="SASL_PLAINTEXT",
        properties=SECURED,
    )
    admin = Cluster("target", parse_bootstrap_servers(kafka.bootstrap), credentials("admin"), "admin")
    listener = AdvertisedListener("SASL_PLAINTEXT", "127.0.0.1", 19092, 2)
    topic = unique_topic("mirror")

    def sidecar() -> Member:
        return make_member(kafka, security=credentials("sidecar"), listener=listener)

    async def refused(operation: str, attempt: Callable[[], Awaitable[Any]]) -> None:
        """The attempt names the right; once granted (and published), it is no longer what is missing."""
        with pytest.raises(MissingRight, match=f"lacks the right {operation} on Cluster"):
            await attempt()
        await grant(admin, operation)
        await asyncio.sleep(0.5)

    await refused("DESCRIBE", lambda: sidecar().target.join(30))
    await refused("CLUSTER_ACTION", lambda: sidecar().target.join(30))
    target = await sidecar().up()
    await refused("CREATE", lambda: create_mirror_topic(target.operations, topic, {0: [900]}, {}))
    await create_mirror_topic(target.operations, topic, {0: [900]}, {})
    tp = TopicPartition(topic, 0)
    await refused("ALTER", lambda: target.operations.reassign({tp: [1, 2]}))
    await target.operations.reassign({tp: [1, 2]})
    await target.metadata.wait_for(lambda image: image.topics_by_name[topic].partitions[0].adding or None, 20)
    await hand_over(target, [tp], [1, 2])
    await target.leave(30)
    await admin.close()


@pytest.mark.slow
async def test_kafka_3_9(
    start_cluster: StartCluster, make_member: Callable[..., Member], unique_topic: UniqueTopic
) -> None:
    kafka = await start_cluster(name="old", brokers=2, controllers=1, version="3.9.1")
    first = make_member(kafka)
    target = await first.up()
    tps = await mirror(target, unique_topic("mirror"), [1, 2])
    await first.stop()
    target = await make_member(kafka, first.saved[-1]).up()
    assert target.identity.broker_epoch == first.saved[-1].broker_epoch
    await hand_over(target, tps, [1, 2])
    await target.operations.allocate_producer_ids(3)
    await target.leave(30)
