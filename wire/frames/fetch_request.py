"""Fetch requests, versions 4 to 18: of followers and consumers parsed, to a source built.

Without the schema codec, because a follower asks for thousands of partitions many times a second.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import (
    INT32,
    INT64,
    compact_string,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_tags,
    skip_tags,
    string,
    uvarint,
)
from wire.frames.topic_key import TopicKey, encode_key, read_key
from wire.frames.types import Buffer
from wire.frames.whole import add_entries, whole

API = "fetch"
MIN_VERSION, MAX_VERSION = 4, 18
MAX_ENTRIES = 100_000
"""The most topics plus partitions in one request, because an entry takes ten times as much memory when parsed. A follower
names everything that it copies from us; consumers may name fewer (router/dispatch.py)."""
HIGH_WATERMARK_UNSUPPORTED = 0x7FFFFFFFFFFFFFFF
"""The protocol's default in v18, sent by a follower that does not track the high watermark; parsed as -1."""


class FetchPartition(NamedTuple):
    """One partition of a request. high_watermark is the follower's own (v18), -1 if it did not tell."""

    index: int  # type: ignore[assignment]  # Kafka's name; hides tuple.index
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    high_watermark: int = -1


@dataclass(slots=True)
class FetchRequest:
    """A Fetch request of any version; fields the version lacks hold Kafka's defaults."""

    version: int
    replica_id: int = -1
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[tuple[TopicKey, list[FetchPartition]]] = field(default_factory=list)
    forgotten: list[tuple[TopicKey, list[int]]] = field(default_factory=list)
    rack_id: str = ""

    @property
    def entries(self) -> int:
        """Topics plus partitions that it names."""
        return len(self.topics) + sum(len(partitions) for _, partitions in self.topics)


_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_PARTITION_TAGGED = struct.Struct(">iiqiqiB")  # FetchPartition's first six fields, number of tags
_REPLICA_STATE = struct.Struct(">iq")
_HEADER = struct.Struct(">hhi")
_LEGACY_PARTITION = {
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
}


def parse_fetch_request(frame: Buffer, body_offset: int, version: int) -> FetchRequest:
    """Parse the body that begins at body_offset; MalformedFrame for anything wrong in it."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedFrame("no such version", api=API, version=version)
    parse = _parse_flexible if version >= 12 else _parse_legacy
    return parse(frame, body_offset, version)


@whole(API, "request")
def _parse_flexible(frame: Buffer, pos: int, version: int) -> tuple[FetchRequest, int]:
    replica_id = -1
    if version < 15:
        replica_id = INT32.unpack_from(frame, pos)[0]
        pos += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, pos)
    session_id, session_epoch = _SESSION.unpack_from(frame, pos + 13)
    pos += 21
    unpack = _PARTITION_TAGGED.unpack_from
    new = tuple.__new__
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    topic_count, pos = read_compact_count(frame, pos, 3)
    entries = add_entries(0, topic_count, MAX_ENTRIES)
    for _ in range(topic_count):
        key, pos = read_key(frame, pos, version)
        count, pos = read_compact_count(frame, pos, 33)
        entries = add_entries(entries, count, MAX_ENTRIES)
        partitions: list[FetchPartition] = []
        append = partitions.append
        for _ in range(count):
            index, current, offset, last, log_start, max_partition_bytes, tags = unpack(frame, pos)
            high_watermark = -1
            if tags:
                high_watermark, pos = _read_partition_tags(frame, pos + 32, version)
            else:
                pos += 33
            append(
                new(
                    FetchPartition,
                    (index, current, offset, last, log_start, max_partition_bytes, high_watermark),
                )
            )
        pos = skip_tags(frame, pos)
        topics.append((key, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    topic_count, pos = read_compact_count(frame, pos, 3)
    entries = add_entries(entries, topic_count, MAX_ENTRIES)
    for _ in range(topic_count):
        key, pos = read_key(frame, pos, version)
        count, pos = read_compact_count(frame, pos, 4)
        entries = add_entries(entries, count, MAX_ENTRIES)
        forgotten.append((key, list(struct.unpack_from(f">{max(count, 0)}i", frame, pos))))
        pos = skip_tags(frame, pos + 4 * max(count, 0))
    rack_id, pos = read_compact_string(frame, pos)
    replica_epoch = -1
    tag_list, pos = read_tags(frame, pos)
    for tag, start, end in tag_list:
        if tag == 1 and version >= 15:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(frame, start)
            if skip_tags(frame, start + 12) != end:
                raise MalformedFrame("replica state has a wrong size")
    request = FetchRequest(
        version,
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        _not_null(rack_id, "rack id"),
    )
    return request, pos


def _read_partition_tags(frame: Buffer, pos: int, version: int) -> tuple[int, int]:
    """(follower's high watermark or -1, position). Tag 0, the log directory id, is not needed."""
    high_watermark = -1
    tags, pos = read_tags(frame, pos)
    for tag, start, end in tags:
        if tag == 1 and version >= 18:
            if end - start != 8:
                raise MalformedFrame("high watermark is not 8 bytes")
            high_watermark = INT64.unpack_from(frame, start)[0]
            if high_watermark == HIGH_WATERMARK_UNSUPPORTED:
                high_watermark = -1
    return high_watermark, pos


@whole(API, "request")
def _parse_legacy(frame: Buffer, pos: int, version: int) -> tuple[FetchRequest, int]:
    replica_id: int = INT32.unpack_from(frame, pos)[0]
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, pos + 4)
    pos += 17
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, pos)
        pos += 8
    layout = _LEGACY_PARTITION[9 if version >= 9 else 5 if version >= 5 else 4]
    unpack, size = layout.unpack_from, layout.size
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    topic_count, pos = read_count(frame, pos, 6)
    entries = add_entries(0, topic_count, MAX_ENTRIES)
    for _ in range(topic_count):
        name, pos = read_string(frame, pos)
        count, pos = read_count(frame, pos, size)
        entries = add_entries(entries, count, MAX_ENTRIES)
        partitions = []
        for _ in range(count):
            values = unpack(frame, pos)
            pos += size
            if version >= 9:
                index, current, offset, log_start, max_partition_bytes = values
            elif version >= 5:
                index, offset, log_start, max_partition_bytes = values
                current = -1
            else:
                index, offset, max_partition_bytes = values
                current = log_start = -1
            partitions.append(FetchPartition(index, current, offset, -1, log_start, max_partition_bytes))
        topics.append((_not_null(name, "topic"), partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= 7:
        topic_count, pos = read_count(frame, pos, 6)
        entries = add_entries(entries, topic_count, MAX_ENTRIES)
        for _ in range(topic_count):
            name, pos = read_string(frame, pos)
            count, pos = read_count(frame, pos, 4)
            entries = add_entries(entries, count, MAX_ENTRIES)
            indexes = list(struct.unpack_from(f">{max(count, 0)}i", frame, pos))
            forgotten.append((_not_null(name, "topic"), indexes))
            pos += 4 * max(count, 0)
    rack_id: str | None = ""
    if version >= 11:
        rack_id, pos = read_string(frame, pos)
    request = FetchRequest(
        version,
        replica_id,
        -1,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        _not_null(rack_id, "rack id"),
    )
    return request, pos


def _not_null(value: str | None, what: str) -> str:
    if value is None:
        raise MalformedFrame(f"{what} is null")
    return value


def encode_fetch_request(
    version: int, correlation_id: int, client_id: str | None, request: FetchRequest
) -> bytearray:
    """The whole frame, size prefix and header included. Versions 12 to 17; `version` rules, not
    request.version.
    """
    if not 12 <= version <= 17:
        raise LocalProtocolError("only versions 12 to 17 are sent", api=API, version=version)
    out = bytearray(4)
    out += _HEADER.pack(1, version, correlation_id) + string(client_id) + b"\0"
    if version < 15:
        out += INT32.pack(request.replica_id)
    out += _LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    out += _SESSION.pack(request.session_id, request.session_epoch)
    pack = _PARTITION_TAGGED.pack
    out += uvarint(len(request.topics) + 1)
    for key, partitions in request.topics:
        out += encode_key(key, version, API)
        out += uvarint(len(partitions) + 1)
        for partition in partitions:
            out += pack(*partition[:6], 0)
        out.append(0)
    out += uvarint(len(request.forgotten) + 1)
    for key, indexes in request.forgotten:
        out += encode_key(key, version, API)
        out += uvarint(len(indexes) + 1)
        out += struct.pack(f">{len(indexes)}i", *indexes)
        out.append(0)
    out += compact_string(request.rack_id)
    if version >= 15 and request.replica_id != -1:
        out += b"\x01\x01\x0d" + _REPLICA_STATE.pack(request.replica_id, request.replica_epoch)
    out.append(0)  # no tagged fields, or none inside the replica state
    INT32.pack_into(out, 0, len(out) - 4)
    return out
