"""Fetch and FetchSnapshot requests for the metadata partition, as an observer sends them. Pure.

One dict serves every version of a request: it has both topic name and topic id, both replica id and replica state.
"""

from __future__ import annotations

from linker.membership.discovery import METADATA_TOPIC
from wire.frames.types import METADATA_TOPIC_ID

_OBSERVER = -1  # not a replica: the quorum does not count an observer, and forgets it when it is gone


def fetch_request(
    *,
    cluster_id: str | None,
    quorum_epoch: int,
    offset: int,
    last_epoch: int,
    high_watermark: int,
    max_wait_ms: int,
    max_bytes: int,
) -> dict[str, object]:
    """`last_epoch` must lie between 0 and `quorum_epoch` (`KafkaRaftClient.handleFetchRequest`)."""
    return {
        "cluster_id": cluster_id,
        "replica_id": _OBSERVER,
        "replica_state": {"replica_id": _OBSERVER, "replica_epoch": -1},
        "max_wait_ms": max_wait_ms,
        "min_bytes": 0,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": METADATA_TOPIC,
                "topic_id": METADATA_TOPIC_ID,
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": quorum_epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": last_epoch,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                        "high_watermark": high_watermark,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def fetch_snapshot_request(
    *,
    cluster_id: str | None,
    quorum_epoch: int,
    snapshot: tuple[int, int],
    position: int,
    max_bytes: int,
) -> dict[str, object]:
    """A piece of the snapshot (end offset, epoch), from a byte position (KIP-630)."""
    end_offset, epoch = snapshot
    return {
        "cluster_id": cluster_id,
        "replica_id": _OBSERVER,
        "max_bytes": max_bytes,
        "topics": [
            {
                "name": METADATA_TOPIC,
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": quorum_epoch,
                        "snapshot_id": {"end_offset": end_offset, "epoch": epoch},
                        "position": position,
                    }
                ],
            }
        ],
    }
