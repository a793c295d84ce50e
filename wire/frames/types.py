"""The few value types that every package shares."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview

# A topic id is its 16 raw bytes everywhere in this code base; uuid.UUID appears only at the schema codec's
# edge.
TopicId = bytes

ZERO_TOPIC_ID: TopicId = bytes(16)
METADATA_TOPIC_ID: TopicId = bytes(15) + b"\x01"

#: ConfigResource.Type, in requests about configs and in the metadata log. The broker with an empty name: every broker.
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4


class AclRight(IntEnum):
    """An operation that ACLs allow or deny, by Kafka's code (org.apache.kafka.common.acl.AclOperation). The code is also its
    bit in a field of authorized operations."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    @property
    def flag(self) -> str:
        """As kafka-acls.sh takes it: CLUSTER_ACTION is its ClusterAction."""
        return self.name.title().replace("_", "")


class TopicPartition(NamedTuple):
    """A topic's name with a partition's index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def per_topic(tps: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """The partitions of each topic, as they come."""
    topics: dict[str, list[TopicPartition]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(tp)
    return topics


class Node(NamedTuple):
    """A broker (or controller) as a client sees it."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


def format_address(host: str, port: int) -> str:
    """host:port, with the brackets an IPv6 literal needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def topic_id_str(topic_id: TopicId) -> str:
    """Kafka's own rendering: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> TopicId:
    """The inverse of topic_id_str."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id")
    return raw


def topic_id_to_uuid(topic_id: TopicId) -> uuid.UUID:
    return uuid.UUID(bytes=bytes(topic_id))


def topic_id_from_uuid(value: uuid.UUID | None) -> TopicId:
    """The schema codec gives None for the zero id."""
    return ZERO_TOPIC_ID if value is None else value.bytes
