"""The Fetch request with which single brokers are asked for what their own logs hold, in the driver and in the sidecar.

Spans of logs are read by reader.py, whose requests and answers are not decoded field by field.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.types import TopicPartition

FETCH_VERSION = 12  # the newest that names topics: ids differ between the clusters
OFFSET_OUT_OF_RANGE = 1


def fetch_request(
    offsets: Mapping[TopicPartition, int], max_bytes: int, partition_max_bytes: int
) -> dict[str, object]:
    """Fields of a consumer's Fetch from these offsets, without a session, that is answered at once."""
    by_topic: dict[str, list[dict[str, int]]] = {}
    for tp, offset in offsets.items():
        by_topic.setdefault(tp.topic, []).append(
            {
                "partition": tp.partition,
                "current_leader_epoch": -1,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "fetch_offset": offset,
                "partition_max_bytes": partition_max_bytes,
            }
        )
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": max_bytes,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": asked} for topic, asked in by_topic.items()],
    }
