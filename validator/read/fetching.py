"""The Fetch request with which single brokers are asked for what their own logs hold, in the driver and in the sidecar.

Spans of logs are read by reader.py, whose requests and answers are not decoded field by field.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.client.cluster import Cluster
from wire.errors import BrokerError, MalformedFrame
from wire.frames.fetch import FetchedPartition, FetchPartition, FetchRequest, TopicKey
from wire.frames.types import TopicPartition

FETCH_VERSION = 12  # the newest that names topics: ids differ between the clusters


def fetch_request(
    offsets: Mapping[TopicPartition, int], max_bytes: int, partition_max_bytes: int
) -> FetchRequest:
    """A consumer's Fetch from these offsets, without a session, that is answered at once."""
    by_topic: dict[TopicKey, list[FetchPartition]] = {}
    for tp, offset in offsets.items():
        by_topic.setdefault(tp.topic, []).append(
            FetchPartition(tp.partition, -1, offset, -1, -1, partition_max_bytes)
        )
    return FetchRequest(
        version=FETCH_VERSION,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=list(by_topic.items()),
    )


async def fetch_once(
    cluster: Cluster, node_id: int, request: FetchRequest, *, timeout: float, purpose: str = "default"
) -> tuple[memoryview, list[tuple[TopicPartition, FetchedPartition]]]:
    """The answer's frame and what it says of each partition, which points into the frame.

    Raises BrokerError if the whole request is refused, MalformedFrame for a partition that was not asked for.
    """
    asked = {(topic, one.index) for topic, partitions in request.topics for one in partitions}
    frame, response = await cluster.fetch(node_id, request, timeout=timeout, purpose=purpose)
    if response.error:
        raise BrokerError(response.error, api="fetch", version=FETCH_VERSION)
    found = []
    for data in response.partitions:
        tp = TopicPartition(str(data.key), data.index)
        if (data.key, data.index) not in asked:
            raise MalformedFrame("an answer to what was not asked", api="fetch", topic_partition=tp)
        found.append((tp, data))
    return frame, found
