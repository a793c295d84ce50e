"""LeaderAndIsr, StopReplica and UpdateMetadata: how the controller of a ZooKeeper cluster (up to Kafka 3.9) tells brokers.

Only the partitions that a request names are read: they say where to look in ZooKeeper, which is the truth, so that nobody
who reaches a listener can make us believe anything. The answer says that all of it was done. A request that is not answered
in its own version keeps the controller from telling the broker anything else, for ever (ControllerChannelManager).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from wire.errors import MalformedFrame, UnsupportedApi
from wire.frames.primitives import (
    INT16,
    INT32,
    PARSE_ERRORS,
    compact_string,
    read_compact_count,
    read_count,
    read_name,
    read_string,
    skip_tags,
    string,
    uvarint,
)
from wire.frames.types import Buffer

LEADER_AND_ISR: Final = 4
STOP_REPLICA: Final = 5
UPDATE_METADATA: Final = 6

_NAMES: Final = {
    LEADER_AND_ISR: "leader_and_isr",
    STOP_REPLICA: "stop_replica",
    UPDATE_METADATA: "update_metadata",
}
_NEWEST: Final = {LEADER_AND_ISR: 7, STOP_REPLICA: 4, UPDATE_METADATA: 8}
_FLEXIBLE: Final = {LEADER_AND_ISR: 4, STOP_REPLICA: 2, UPDATE_METADATA: 6}
#: The first version that tells the broker epoch, says whether a KRaft controller sends it, and groups partitions by topic.
_BROKER_EPOCH: Final = {LEADER_AND_ISR: 2, STOP_REPLICA: 1, UPDATE_METADATA: 5}
_FROM_KRAFT: Final = {LEADER_AND_ISR: 7, STOP_REPLICA: 4, UPDATE_METADATA: 8}
_BY_TOPIC: Final = {LEADER_AND_ISR: 2, STOP_REPLICA: 1, UPDATE_METADATA: 5}
_TOPIC_ID: Final = {LEADER_AND_ISR: 5, UPDATE_METADATA: 7}
_NO_ID: Final = bytes(16)
_SIZE: Final = struct.Struct(">ii")


class ControlRequest(NamedTuple):
    """The topics that a control request names, each with its id (zeros where the version has none) and partitions."""

    api_key: int
    version: int
    controller_id: int
    controller_epoch: int
    topics: dict[str, tuple[bytes, list[int]]]


class _Reader:
    def __init__(self, frame: Buffer, offset: int, flexible: bool) -> None:
        self.frame, self.pos, self.flexible = frame, offset, flexible

    def skip(self, size: int) -> None:
        self.pos += size

    def int32(self) -> int:
        (value,) = INT32.unpack_from(self.frame, self.pos)
        self.pos += 4
        return int(value)

    def name(self) -> str:
        if self.flexible:
            value, self.pos = read_name(self.frame, self.pos)
            return value
        found, self.pos = read_string(self.frame, self.pos)
        if found is None:
            raise MalformedFrame("a topic without a name")
        return found

    def count(self, least: int) -> int:
        read = read_compact_count if self.flexible else read_count
        value, self.pos = read(self.frame, self.pos, least)
        return max(value, 0)

    def int32s(self) -> list[int]:
        return [self.int32() for _ in range(self.count(4))]

    def skip_int32s(self) -> None:
        count = self.count(4)  # it moves on, too
        self.pos += 4 * count

    def tags(self) -> None:
        if self.flexible:
            self.pos = skip_tags(self.frame, self.pos)


def parse_control_request(frame: Buffer, body_offset: int, api_key: int, version: int) -> ControlRequest:
    """UnsupportedApi for a version that no Kafka has, MalformedFrame for anything garbled."""
    name = _NAMES[api_key]
    if not 0 <= version <= _NEWEST[api_key]:
        raise UnsupportedApi("no Kafka has this version", api=name, version=version)
    reader = _Reader(frame, body_offset, version >= _FLEXIBLE[api_key])
    try:
        found = _parse(reader, api_key, version)
    except PARSE_ERRORS as error:
        raise MalformedFrame(f"garbled: {error}", api=name, version=version) from error
    if reader.pos > len(frame):
        raise MalformedFrame("shorter than it says", api=name, version=version)
    return found


def _parse(reader: _Reader, api_key: int, version: int) -> ControlRequest:
    controller = reader.int32()
    if version >= _FROM_KRAFT[api_key]:
        reader.skip(1)
    epoch = reader.int32()
    if version >= _BROKER_EPOCH[api_key]:
        reader.skip(8)
    if api_key == LEADER_AND_ISR and version >= 5:
        reader.skip(1)  # whether it has all topics
    if api_key == STOP_REPLICA and version <= 2:
        reader.skip(1)  # whether they are deleted
    topics: dict[str, tuple[bytes, list[int]]] = {}
    if version < _BY_TOPIC[api_key]:
        for _ in range(reader.count(6)):
            name = reader.name()
            _partitions_of(topics, name, _NO_ID).append(_partition(reader, api_key, version))
        return ControlRequest(api_key, version, controller, epoch, topics)
    for _ in range(reader.count(2)):
        name, topic_id = reader.name(), _NO_ID
        if version >= _TOPIC_ID.get(api_key, version + 1):
            topic_id = bytes(reader.frame[reader.pos : reader.pos + 16])
            reader.skip(16)
        indexes = _partitions_of(topics, name, topic_id)
        if api_key == STOP_REPLICA and version <= 2:
            indexes += reader.int32s()
        else:
            indexes += [_partition(reader, api_key, version) for _ in range(reader.count(4))]
        reader.tags()
    return ControlRequest(api_key, version, controller, epoch, topics)


def _partitions_of(topics: dict[str, tuple[bytes, list[int]]], name: str, topic_id: bytes) -> list[int]:
    return topics.setdefault(name, (topic_id, []))[1]


def _partition(reader: _Reader, api_key: int, version: int) -> int:
    """Past the state of one partition; its index."""
    index = reader.int32()
    if api_key == STOP_REPLICA:
        if version >= 3:
            reader.skip(5)  # leader epoch, whether it is deleted
            reader.tags()
        return index
    reader.skip(12)  # controller epoch, leader, leader epoch
    reader.skip_int32s()  # ISR
    reader.skip(4)  # the version of its znode
    reader.skip_int32s()  # replicas
    if api_key == UPDATE_METADATA:
        if version >= 4:
            reader.skip_int32s()  # offline replicas
    else:
        if version >= 3:
            reader.skip_int32s()  # adding
            reader.skip_int32s()  # removing
        if version >= 1:
            reader.skip(1)  # whether it is new
        if version >= 6:
            reader.skip(1)  # leader recovery state
    reader.tags()
    return index


def answer_control_request(request: ControlRequest, correlation_id: int) -> bytes:
    """Says that all of it was done; with its size prefix."""
    flexible = request.version >= _FLEXIBLE[request.api_key]
    tags = b"\0" if flexible else b""
    none = INT16.pack(0)
    body = [tags, none]  # of the header, and the error code
    if request.api_key != UPDATE_METADATA:
        by_id = request.api_key == LEADER_AND_ISR and request.version >= 5
        text = compact_string if flexible else string
        if by_id:
            body.append(_count(len(request.topics), flexible))
            for topic_id, indexes in request.topics.values():
                body += [topic_id, _count(len(indexes), flexible)]
                body += [INT32.pack(index) + none + tags for index in indexes]
                body.append(tags)
        else:
            body.append(_count(sum(len(indexes) for _, indexes in request.topics.values()), flexible))
            for name, (_, indexes) in request.topics.items():
                body += [text(name) + INT32.pack(index) + none + tags for index in indexes]
    body.append(tags)
    encoded = b"".join(body)
    return _SIZE.pack(len(encoded) + 4, correlation_id) + encoded


def _count(value: int, flexible: bool) -> bytes:
    return uvarint(value + 1) if flexible else INT32.pack(value)
