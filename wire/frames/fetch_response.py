"""Fetch responses: of a source parsed, to followers and consumers built around the records' bytes.

Only the envelope is read or written. Records stay where they are: positions into the frame when parsing, memoryviews between
small envelope buffers when building.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.fetch_request import API
from wire.frames.primitives import (
    INT32,
    node_endpoint,
    read_compact_count,
    read_compact_string,
    read_tags,
    read_uvarint,
    skip_tags,
    string,
    uvarint,
)
from wire.frames.topic_key import TopicKey, encode_key
from wire.frames.types import Buffer, Node
from wire.frames.whole import add_entries, whole

_EPOCH_END = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_SNAPSHOT = struct.Struct(">qi")
_ABORTED = struct.Struct(">qq")
_PARTITION = struct.Struct(">ihqqq")
MAX_ANSWERED = 300_000
"""The most topics, partitions and aborted transactions in one parsed answer."""

# The whole fixed part of a partition when there are no aborted transactions (null array = one zero byte).
_PARTITION_PLAIN = struct.Struct(">ihqqqBi")
_TOP = struct.Struct(">ihi")  # throttle, error, session id
_RESPONSE_START = struct.Struct(">iiBihi")  # size, correlation id, header tags, throttle, error, session id


@dataclass(slots=True)
class FetchPartitionResult:
    """One partition of a response to build. `size` is the sum of the lengths of `records`."""

    index: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[memoryview] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None  # (epoch, end offset)
    current_leader: tuple[int, int] | None = None  # (leader id, leader epoch)
    preferred_read_replica: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)


class FetchedPartition(NamedTuple):
    """One partition of a parsed response. The records are frame[records_start:records_end]."""

    key: TopicKey
    index: int  # type: ignore[assignment]  # Kafka's name; hides tuple.index
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None  # (epoch, end offset)
    current_leader: tuple[int, int] | None  # (leader id, leader epoch)
    preferred_read_replica: int
    aborted: list[tuple[int, int]] | None  # (producer id, first offset)
    records_start: int
    records_end: int


class FetchResponse(NamedTuple):
    """A parsed response: the envelope, partitions in the order of the response."""

    error: int
    session_id: int
    throttle_ms: int
    partitions: list[FetchedPartition]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[FetchPartitionResult]]],
    *,
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    node_endpoints: Sequence[Node] = (),
) -> tuple[list[Buffer], int]:
    """Buffers of the whole frame (size prefix included) and their total length. Versions 4 to 18."""
    if not 4 <= version <= 18:
        raise LocalProtocolError("only versions 4 to 18 are served", api=API, version=version)
    if version < 12:
        return _encode_legacy(version, correlation_id, topics, error, session_id, throttle_ms)
    pack = _PARTITION_PLAIN.pack
    buffers: list[Buffer] = []
    first = envelope = bytearray(_RESPONSE_START.pack(0, correlation_id, 0, throttle_ms, error, session_id))
    envelope += uvarint(len(topics) + 1)
    total = 0
    for key, partitions in topics:
        envelope += encode_key(key, version, API)
        envelope += uvarint(len(partitions) + 1)
        for result in partitions:
            if result.aborted is None:
                envelope += pack(
                    result.index,
                    result.error,
                    result.high_watermark,
                    result.last_stable_offset,
                    result.log_start_offset,
                    0,
                    result.preferred_read_replica,
                )
            else:
                envelope += _PARTITION.pack(
                    result.index,
                    result.error,
                    result.high_watermark,
                    result.last_stable_offset,
                    result.log_start_offset,
                )
                envelope += uvarint(len(result.aborted) + 1)
                for producer_id, first_offset in result.aborted:
                    envelope += _ABORTED.pack(producer_id, first_offset) + b"\0"
                envelope += INT32.pack(result.preferred_read_replica)
            size = result.size
            if size or result.records:
                _check_size(result, version)
                envelope += uvarint(size + 1)
                total += len(envelope) + size
                buffers.append(envelope)
                buffers += result.records
                envelope = bytearray()
            else:
                envelope.append(1)  # empty, not null
            if result.diverging is None and result.current_leader is None:
                envelope.append(0)
            else:
                envelope += _partition_tags(result)
        envelope.append(0)
    if node_endpoints and version >= 16:
        body = uvarint(len(node_endpoints) + 1) + b"".join(node_endpoint(*node) for node in node_endpoints)
        envelope += b"\x01\0" + uvarint(len(body)) + body
    else:
        envelope.append(0)
    buffers.append(envelope)
    total += len(envelope)
    INT32.pack_into(first, 0, total - 4)
    return buffers, total


def _partition_tags(result: FetchPartitionResult) -> bytes:
    tags = b""
    count = 0
    if result.diverging is not None:
        tags += b"\0\x0d" + _EPOCH_END.pack(*result.diverging) + b"\0"
        count += 1
    if result.current_leader is not None:
        tags += b"\x01\x09" + _LEADER.pack(*result.current_leader) + b"\0"
        count += 1
    return bytes((count,)) + tags


def _check_size(result: FetchPartitionResult, version: int) -> None:
    """Check the sizes: a wrong one would shift every byte after it and garble the answer for the follower."""
    records = result.records
    if (len(records[0]) if len(records) == 1 else sum(map(len, records))) != result.size:
        raise LocalProtocolError(
            f"partition {result.index}: size {result.size} is not the records' size", api=API, version=version
        )


def _encode_legacy(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[FetchPartitionResult]]],
    error: int,
    session_id: int,
    throttle_ms: int,
) -> tuple[list[Buffer], int]:
    buffers: list[Buffer] = []
    first = envelope = bytearray(struct.pack(">iii", 0, correlation_id, throttle_ms))
    if version >= 7:
        envelope += struct.pack(">hi", error, session_id)
    envelope += INT32.pack(len(topics))
    total = 0
    for key, partitions in topics:
        if not isinstance(key, str):
            raise LocalProtocolError(f"topic {key!r} is not a name", api=API, version=version)
        envelope += string(key) + INT32.pack(len(partitions))
        for result in partitions:
            envelope += struct.pack(
                ">ihqq", result.index, result.error, result.high_watermark, result.last_stable_offset
            )
            if version >= 5:
                envelope += struct.pack(">q", result.log_start_offset)
            if result.aborted is None:
                envelope += INT32.pack(-1)
            else:
                envelope += INT32.pack(len(result.aborted))
                for producer_id, first_offset in result.aborted:
                    envelope += _ABORTED.pack(producer_id, first_offset)
            if version >= 11:
                envelope += INT32.pack(result.preferred_read_replica)
            envelope += INT32.pack(result.size)
            if result.size or result.records:
                _check_size(result, version)
                total += len(envelope) + result.size
                buffers.append(envelope)
                buffers += result.records
                envelope = bytearray()
    if envelope:
        buffers.append(envelope)
    total += len(envelope)
    INT32.pack_into(first, 0, total - 4)
    return buffers, total


def parse_fetch_response(frame: Buffer, version: int) -> FetchResponse:
    """Parse the envelope of a frame that begins with the correlation id. Versions 12 to 18."""
    if not 12 <= version <= 18:
        raise LocalProtocolError("only versions 12 to 18 are parsed", api=API, version=version)
    return _parse(frame, 4, version)


@whole(API, "response")
def _parse(frame: Buffer, pos: int, version: int) -> tuple[FetchResponse, int]:
    limit = len(frame)
    pos = skip_tags(frame, pos)
    throttle_ms, error, session_id = _TOP.unpack_from(frame, pos)
    pos += 10
    unpack = _PARTITION.unpack_from
    partitions: list[FetchedPartition] = []
    append = partitions.append
    new = tuple.__new__
    key: TopicKey | None
    topic_count, pos = read_compact_count(frame, pos, 3)
    entries = add_entries(0, max(topic_count, 0), MAX_ANSWERED)
    for _ in range(topic_count):
        if version >= 13:
            key = bytes(frame[pos : pos + 16])
            pos += 16
        else:
            key, pos = read_compact_string(frame, pos)
            if key is None:
                raise MalformedFrame("topic is null")
        count, pos = read_compact_count(frame, pos, 37)
        entries = add_entries(entries, max(count, 0), MAX_ANSWERED)
        for _ in range(count):
            index, code, high_watermark, last_stable, log_start = unpack(frame, pos)
            pos += 30
            aborted: list[tuple[int, int]] | None = None
            if frame[pos] == 0:
                pos += 1
            else:
                aborted, pos = _read_aborted(frame, pos)
                entries = add_entries(entries, len(aborted), MAX_ANSWERED)
            preferred = INT32.unpack_from(frame, pos)[0]
            size, start = read_uvarint(frame, pos + 4)
            end = start + size - 1 if size else start
            if end >= limit:
                raise MalformedFrame(f"records of partition {index} end after the frame")
            diverging = current_leader = None
            if frame[end] == 0:
                pos = end + 1
            else:
                diverging, current_leader, pos = _read_partition_tags(frame, end)
            append(
                new(
                    FetchedPartition,
                    (
                        key,
                        index,
                        code,
                        high_watermark,
                        last_stable,
                        log_start,
                        diverging,
                        current_leader,
                        preferred,
                        aborted,
                        start,
                        end,
                    ),
                )
            )
        pos = skip_tags(frame, pos)
    return FetchResponse(error, session_id, throttle_ms, partitions), skip_tags(frame, pos)


def _read_aborted(frame: Buffer, pos: int) -> tuple[list[tuple[int, int]], int]:
    count, pos = read_compact_count(frame, pos, 17)
    aborted = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, pos))
        pos = skip_tags(frame, pos + 16)
    return aborted, pos


_Pair = tuple[int, int] | None


def _read_partition_tags(frame: Buffer, pos: int) -> tuple[_Pair, _Pair, int]:
    found: list[_Pair] = [None, None, None]
    layouts = (_EPOCH_END, _LEADER, _SNAPSHOT)
    tags, pos = read_tags(frame, pos)
    for tag, start, end in tags:
        if tag < 3:
            layout = layouts[tag]
            first, second = layout.unpack_from(frame, start)
            if skip_tags(frame, start + layout.size) != end:
                raise MalformedFrame(f"tagged field {tag} of a partition has a wrong size")
            found[tag] = (first, second)
    return found[0], found[1], pos  # the third, a snapshot id, belongs to the metadata log
