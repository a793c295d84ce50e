"""Metadata and ListOffsets for hundreds of partitions, without the schema codec: a promote sends them while it holds
producers.

With the schema codec a partition of a Metadata answer costs some 50 microseconds, one of a ListOffsets request 35.
For a topic of a thousand partitions, asked of each broker of the source, that was a fifth of a second. kio still
handles older versions.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from wire.errors import MalformedFrame
from wire.frames.primitives import (
    INT16,
    INT32,
    compact_string,
    read_array_count,
    read_compact_string,
    read_name,
    skip_tags,
    uvarint,
)
from wire.schema.fast_messages import Message, Messages

_LED = struct.Struct(">hiii")  # error, partition, leader, leader epoch
_ASKED = struct.Struct(">iiqB")  # partition, leader epoch, timestamp, number of tags
_LISTED = struct.Struct(">ihqqi")  # partition, error, timestamp, offset, leader epoch
_NODES = tuple(struct.Struct(f">{count}i") for count in range(8))


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class LedPartition(NamedTuple):
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: Sequence[int]
    isr_nodes: Sequence[int]


class Topic(NamedTuple):
    error_code: int
    name: str | None
    topic_id: uuid.UUID | None
    partitions: Sequence[LedPartition]
    topic_authorized_operations: int


class MetadataAnswer(NamedTuple):
    brokers: Sequence[Broker]
    cluster_id: str | None
    controller_id: int
    topics: Sequence[Topic]


class ListedOffset(NamedTuple):
    partition_index: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


class ListedTopic(NamedTuple):
    name: str
    partitions: Sequence[ListedOffset]


class ListOffsetsAnswer(NamedTuple):
    topics: Sequence[ListedTopic]


def _nodes(data: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    count, pos = read_array_count(data, pos, 4)
    if count < len(_NODES):
        return _NODES[count].unpack_from(data, pos), pos + 4 * count
    return struct.unpack_from(f">{count}i", data, pos), pos + 4 * count


def _metadata_answer(
    data: bytes, pos: int, *, with_ids: bool, with_rights: bool
) -> tuple[MetadataAnswer, int]:
    count, pos = read_array_count(data, pos + 4, 11)  # after the throttle time
    brokers = []
    for _ in range(count):
        (node,) = INT32.unpack_from(data, pos)
        host, pos = read_name(data, pos + 4)
        (port,) = INT32.unpack_from(data, pos)
        rack, pos = read_compact_string(data, pos + 4)
        pos = skip_tags(data, pos)
        brokers.append(Broker(node, host, port, rack))
    cluster_id, pos = read_compact_string(data, pos)
    (controller,) = INT32.unpack_from(data, pos)
    count, pos = read_array_count(data, pos + 4, 10)
    topics = []
    for _ in range(count):
        topic, pos = _topic(data, pos, with_ids)
        topics.append(topic)
    if with_rights:
        INT32.unpack_from(data, pos)
        pos += 4
    return MetadataAnswer(brokers, cluster_id, controller, topics), skip_tags(data, pos)


def _topic(data: bytes, pos: int, with_ids: bool) -> tuple[Topic, int]:
    (error,) = INT16.unpack_from(data, pos)
    name, pos = read_compact_string(data, pos + 2)
    topic_id = None
    if with_ids:
        raw = data[pos : pos + 16]
        if len(raw) < 16:
            raise MalformedFrame("a message that ends inside a uuid")
        topic_id = uuid.UUID(bytes=raw) if any(raw) else None
        pos += 16
    count, pos = read_array_count(data, pos + 1, 18)  # after "is internal"
    partitions = []
    unpack, new = _LED.unpack_from, tuple.__new__
    for _ in range(count):
        code, index, leader, epoch = unpack(data, pos)
        replicas, pos = _nodes(data, pos + 14)
        isr, pos = _nodes(data, pos)
        _, pos = _nodes(data, pos)  # those that are offline
        pos = skip_tags(data, pos)
        partitions.append(new(LedPartition, (code, index, leader, epoch, replicas, isr)))
    (rights,) = INT32.unpack_from(data, pos)
    return Topic(error, name, topic_id, partitions, rights), skip_tags(data, pos + 4)


def _metadata(fields: Mapping[str, Any], *, with_ids: bool, with_cluster_rights: bool) -> bytearray:
    topics = fields["topics"]
    out = bytearray(uvarint(0 if topics is None else len(topics) + 1))
    for topic in topics or ():
        if with_ids:
            topic_id = topic.get("topic_id") or bytes(16)
            out += topic_id if isinstance(topic_id, bytes) else topic_id.bytes
        out += compact_string(topic["name"])
        out.append(0)
    out.append(bool(fields["allow_auto_topic_creation"]))
    if with_cluster_rights:
        out.append(bool(fields.get("include_cluster_authorized_operations")))
    out.append(bool(fields.get("include_topic_authorized_operations")))
    out.append(0)
    return out


def _list_offsets(fields: Mapping[str, Any], *, with_timeout: bool) -> bytearray:
    topics = fields["topics"]
    out = bytearray(INT32.pack(fields["replica_id"]))
    out += fields["isolation_level"].to_bytes(1, "big")
    out += uvarint(len(topics) + 1)
    pack = _ASKED.pack
    for topic in topics:
        partitions = topic["partitions"]
        out += compact_string(topic["name"])
        out += uvarint(len(partitions) + 1)
        for one in partitions:
            out += pack(one["partition_index"], one["current_leader_epoch"], one["timestamp"], 0)
        out.append(0)
    if with_timeout:
        out += INT32.pack(fields.get("timeout_ms", 0))
    out.append(0)
    return out


def _list_offsets_answer(data: bytes, pos: int) -> tuple[ListOffsetsAnswer, int]:
    topics = []
    unpack, new = _LISTED.unpack_from, tuple.__new__
    count, pos = read_array_count(data, pos + 4, 3)
    for _ in range(count):
        name, pos = read_name(data, pos)
        size, pos = read_array_count(data, pos, 27)
        listed = []
        for _ in range(size):
            listed.append(new(ListedOffset, unpack(data, pos)))
            pos = skip_tags(data, pos + 26)
        pos = skip_tags(data, pos)
        topics.append(ListedTopic(name, listed))
    return ListOffsetsAnswer(topics), skip_tags(data, pos)


_NAMES = frozenset({"topics", "allow_auto_topic_creation"})
_RIGHTS = frozenset({"include_cluster_authorized_operations", "include_topic_authorized_operations"})
_ASKS = frozenset({"replica_id", "isolation_level", "topics"})
_TIMEOUT = frozenset({"timeout_ms"})  # as elsewhere, dropped where the version has none

MESSAGES: Messages = {
    **{
        ("metadata", version): Message(
            _NAMES,
            partial(_metadata, with_ids=version >= 10, with_cluster_rights=version <= 10),
            partial(_metadata_answer, with_ids=version >= 10, with_rights=version <= 10),
            _RIGHTS,
        )
        for version in (9, 10, 11, 12)
    },
    **{
        ("list_offsets", version): Message(
            _ASKS, partial(_list_offsets, with_timeout=version >= 10), _list_offsets_answer, _TIMEOUT
        )
        for version in (6, 7, 8, 9, 10, 11)
    },
}
