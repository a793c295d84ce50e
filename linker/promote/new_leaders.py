"""Connects to the new leaders before a hand-over, and waits until they know that they lead.

The metadata log tells the hand-over to us and to every broker at about the same moment. A client that is told "not
leader" a moment too early asks a broker that has not applied it, or writes to a new leader that does not know yet that
it leads. Each time it loses a retry back-off, a tenth of a second in most libraries, where a few more milliseconds
behind the fence would have been enough.

Correctness does not depend on this: a broker that does not answer in time is not waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from itertools import islice
from typing import Any

from controller.judge.hand_over import find
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.error_codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage
from wire.together import together

log = logging.getLogger(__name__)

_PAUSE = 0.004
_FEW = 3
_CALL_TIMEOUT = 5.0
_LATEST = -1
_NOT_YET = frozenset(
    {UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH}
)
_METADATA_VERSION = 12  # as wire.client.cluster asks


async def open_connections(nodes: Iterable[tuple[Cluster, int]], *, timeout: float) -> None:
    """Connect to these brokers. Failures are left to the step that needs the connection, which names the broker."""

    async def open_one(cluster: Cluster, node_id: int) -> None:
        try:
            await cluster.connection(node_id)
        except LinkerError as error:
            log.info("broker %d of %s was not connected ahead of a fence: %s", node_id, cluster.name, error)

    await _bounded((open_one(cluster, node_id) for cluster, node_id in nodes), timeout)


async def wait_known(
    cluster: Cluster,
    image: ClusterImage,
    tps: Collection[TopicPartition],
    link_brokers: Collection[int],
    *,
    leading: Callable[[Collection[TopicPartition]], None] = lambda _tps: None,
    timeout: float,
) -> bool:
    """Until each new leader of `tps` knows that it leads, and every real broker names it to clients. False if that was
    not heard of in time.

    leading: called for each leader, with its partitions, once it has said that it leads them.
    """
    led: dict[int, dict[TopicPartition, int]] = {}
    leaders: dict[TopicPartition, int] = {}
    for tp in tps:
        partition = find(image, tp)
        if partition is not None and partition.leader >= 0 and partition.leader not in link_brokers:
            led.setdefault(partition.leader, {})[tp] = partition.leader_epoch
            leaders[tp] = partition.leader
    if not leaders:
        return True
    real = {broker.id for broker in image.live_brokers(link_brokers)}

    async def until_known(node_id: int) -> None:
        # A broker names new leaders before it becomes one itself, so that a leader is asked for names only once.
        epochs = led.get(node_id)
        if epochs is not None and await _until_leads(cluster, node_id, epochs):
            leading(epochs.keys())
        if node_id in real:
            await _until_names(cluster, node_id, leaders)

    return await _bounded([until_known(node_id) for node_id in sorted(real | led.keys())], timeout)


async def wait_named(
    cluster: Cluster,
    image: ClusterImage,
    tps: Collection[TopicPartition],
    link_brokers: Collection[int],
    *,
    timeout: float,
) -> None:
    """Until every real broker names to clients whoever the image says leads `tps`: another link broker, say."""
    leaders: dict[TopicPartition, int] = {}
    for tp in tps:
        partition = find(image, tp)
        if partition is not None and partition.leader >= 0:
            leaders[tp] = partition.leader
    real = [broker.id for broker in image.live_brokers(link_brokers)]
    if leaders:
        await _bounded([_until_names(cluster, node_id, leaders) for node_id in real], timeout)


async def _until_leads(cluster: Cluster, node_id: int, epochs: Mapping[TopicPartition, int]) -> bool:
    """A broker answers ListOffsets for what it leads only once it does. False if it does not answer.

    A broker that becomes the leader of many is busy: it is asked for a few of them, then for those that are left.
    """
    left = dict(epochs)
    while left:
        few = len(left) == len(epochs)
        asked = dict(islice(left.items(), _FEW)) if few else left
        try:
            answer = await cluster.call(
                "list_offsets", _latest_of(asked), node_id=node_id, timeout=_CALL_TIMEOUT
            )
        except LinkerError as error:
            log.info("broker %d did not tell whether it leads what was handed over: %s", node_id, error)
            return False
        answered = [
            TopicPartition(topic.name, part.partition_index)
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code not in _NOT_YET
        ]
        for tp in answered:
            left.pop(tp, None)
        if left and not (few and answered):
            await asyncio.sleep(_PAUSE)
    return True


def _latest_of(epochs: Mapping[TopicPartition, int]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for tp, epoch in epochs.items():
        asked = {"partition_index": tp.partition, "current_leader_epoch": epoch, "timestamp": _LATEST}
        topics.setdefault(tp.topic, []).append(asked)
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


async def _until_names(cluster: Cluster, node_id: int, leaders: Mapping[TopicPartition, int]) -> None:
    fields = {
        "topics": [{"name": topic} for topic in dict.fromkeys(tp.topic for tp in leaders)],
        "allow_auto_topic_creation": False,
    }
    while True:
        try:
            connection = await cluster.connection(node_id)
            answer = await connection.call(
                "metadata", fields, timeout=_CALL_TIMEOUT, max_version=_METADATA_VERSION
            )
        except LinkerError as error:
            log.info("broker %d did not tell who leads what was handed over: %s", node_id, error)
            return
        named = {
            TopicPartition(topic.name, part.partition_index): part.leader_id
            for topic in answer.topics
            for part in topic.partitions
        }
        if all(named.get(tp) == leader for tp, leader in leaders.items()):
            return
        await asyncio.sleep(_PAUSE)


async def _bounded(work: Iterable[Coroutine[Any, Any, None]], timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await together(work)
    except TimeoutError:
        return False
    return True
