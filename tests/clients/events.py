"""Events at the target while clients write: a roll of its brokers, the death of the leader. The same without a link.

Without a link one broker leads all partitions when it is killed, and nobody else has them, as it is with a sidecar: three
replicas would have another leader, which is another event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from tests.clients.judge import Window
from tests.clients.program import ProgramError
from tests.clients.stage import Stage
from wire.frames.types import TopicPartition

IN_SYNC_TIMEOUT = 90.0
REASSIGNED_TIMEOUT = 30.0
LOOK_SECONDS = 0.5
SETTLE_SECONDS = 1.0  # until clients write to the new leader
LINK_BROKER = 900  # SidecarSpec's


async def roll(stage: Stage) -> Window:
    """Every broker of the target once, in good order; the next one when the last one has all its replicas in sync."""
    begin = time.time()
    for node in stage.target.brokers:
        await node.restart()
        await _in_sync(stage)
    return Window(begin, time.time())


async def kill(stage: Stage, topics: Collection[str], partitions: int) -> Window:
    """SIGKILL for the leader of these topics, and a start at once: the sidecar; without a link a broker."""
    if stage.sidecar is not None:
        begin = time.time()
        await stage.sidecar.kill()
        await stage.sidecar.start()
        return Window(begin, time.time())
    node = stage.target.brokers[0]
    for topic in topics:
        alone = {partition: [node.node_id] for partition in range(partitions)}
        await asyncio.to_thread(reassign, stage.target.bootstrap, topic, alone)
    await asyncio.sleep(SETTLE_SECONDS)
    begin = time.time()
    await node.kill()
    await node.start()
    await _in_sync(stage)
    return Window(begin, time.time())


async def _in_sync(stage: Stage) -> None:
    deadline = time.monotonic() + IN_SYNC_TIMEOUT
    while late := await asyncio.to_thread(_late, stage.target.bootstrap):
        if time.monotonic() > deadline:
            raise ProgramError(f"not in sync {IN_SYNC_TIMEOUT:.0f} s after a restart: {late[:5]}")
        await asyncio.sleep(LOOK_SECONDS)


def _late(bootstrap: str) -> list[str]:
    """Partitions without a leader, or with replicas out of sync; those that the sidecar leads have no other by design."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return [
        f"{name}-{index}"
        for name, topic in topics.items()
        for index, one in topic.partitions.items()
        if one.leader != LINK_BROKER and (one.leader < 0 or len(one.isrs) < len(one.replicas))
    ]


def reassign(bootstrap: str, topic: str, brokers: Mapping[int, Sequence[int]]) -> None:
    """Give each partition to these brokers, of which the first one leads, and wait until it is so."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.alter_partition_reassignments(
            {TopicPartition(topic, partition): list(some) for partition, some in brokers.items()}
        )
        until_held_by(admin, topic, brokers)
    finally:
        admin.close()


def until_held_by(admin: KafkaAdminClient, topic: str, brokers: Mapping[int, Sequence[int]]) -> None:
    wanted = {partition: (some[0], sorted(some)) for partition, some in brokers.items()}
    deadline = time.monotonic() + REASSIGNED_TIMEOUT
    while True:
        (described,) = admin.describe_topics([topic])
        found = {
            one["partition_index"]: (one["leader_id"], sorted(one["replica_nodes"]))
            for one in described["partitions"]
        }
        if found == wanted:
            return
        if time.monotonic() > deadline:
            raise ProgramError(f"{topic}: leader and replicas are {found}, not {wanted}")
        time.sleep(0.02)
