"""Produce requests: of a client parsed (versions 3 to 13), to a source built (9 to 13).

Records are never touched: they are memoryviews into the client's frame and go into the source's request as they came.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import (
    INT32,
    PARSE_ERRORS,
    compact_string,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
    string,
    uvarint,
)
from wire.frames.produce_common import (
    API,
    MAX_ENTRIES,
    MAX_VERSION,
    MIN_VERSION,
    ONE,
    SINGLE_END,
)
from wire.frames.topic_key import TopicKey, encode_key, read_key
from wire.frames.types import Buffer
from wire.frames.whole import add_entries, whole


@dataclass(slots=True)
class ProduceRequest:
    """A client's request. Null records appear as an empty view: a broker refuses both alike."""

    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview]]]] = field(default_factory=list)


_SINGLE_REQUEST = struct.Struct(">hiB")  # acks, timeout, topics
_SINGLE_INDEX = struct.Struct(">Bi")  # partitions, index

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_AND_SIZE = struct.Struct(">ii")  # of a partition, before version 9
_REQUEST_HEADER = struct.Struct(">hhi")


def parse_produce_request(frame: Buffer, body_offset: int, version: int) -> ProduceRequest:
    """Parse the body that begins at body_offset. Anything wrong in it is a MalformedFrame."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedFrame("no such version", api=API, version=version)
    view = memoryview(frame)
    if version < 9:
        return _parse_legacy(view, body_offset, version)
    try:
        single = _parse_single(view, body_offset, version)
    except (*PARSE_ERRORS, MalformedFrame):
        single = None  # too short for a batch: the general parser below finds the error, if there is one
    return _parse_flexible(view, body_offset, version) if single is None else single


def _parse_single(frame: memoryview, pos: int, version: int) -> ProduceRequest | None:
    """A request of one batch outside transactions; None for any other request, well-formed or not."""
    if frame[pos] != 0:
        return None
    acks, timeout_ms, topics = _SINGLE_REQUEST.unpack_from(frame, pos + 1)
    pos += 8
    if topics != ONE:
        return None
    key: TopicKey
    if version >= 13:
        key = bytes(frame[pos : pos + 16])
        pos += 16
    else:
        length = frame[pos]
        if not 0 < length < 0x80:
            return None
        key = str(frame[pos + 1 : pos + length], "utf-8")
        pos += length
    partitions, index = _SINGLE_INDEX.unpack_from(frame, pos)
    size, pos = read_uvarint(frame, pos + 5)
    end = pos + size - 1
    if partitions != ONE or size == 0 or frame[end:] != SINGLE_END:
        return None
    return ProduceRequest(version, None, acks, timeout_ms, [(key, [(index, frame[pos:end])])])


@whole(API, "request")
def _parse_flexible(frame: memoryview, pos: int, version: int) -> tuple[ProduceRequest, int]:
    limit = len(frame)
    transactional_id, pos = read_compact_string(frame, pos)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, pos)
    pos += 6
    request = ProduceRequest(version, transactional_id, acks, timeout_ms)
    topic_count, pos = read_compact_count(frame, pos, 3)
    entries = add_entries(0, topic_count, MAX_ENTRIES)
    for _ in range(topic_count):
        key, pos = read_key(frame, pos, version)
        count, pos = read_compact_count(frame, pos, 6)
        entries = add_entries(entries, count, MAX_ENTRIES)
        partitions = []
        for _ in range(count):
            index = INT32.unpack_from(frame, pos)[0]
            size, pos = read_uvarint(frame, pos + 4)
            end = pos + size - 1 if size else pos
            if end > limit:
                raise MalformedFrame(f"records of partition {index} end after the frame")
            partitions.append((index, frame[pos:end]))
            pos = end + 1 if frame[end] == 0 else skip_tags(frame, end)
        pos = skip_tags(frame, pos)
        request.topics.append((key, partitions))
    return request, skip_tags(frame, pos)


@whole(API, "request")
def _parse_legacy(frame: memoryview, pos: int, version: int) -> tuple[ProduceRequest, int]:
    limit = len(frame)
    transactional_id, pos = read_string(frame, pos)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, pos)
    request = ProduceRequest(version, transactional_id, acks, timeout_ms)
    topic_count, pos = read_count(frame, pos + 6, 6)
    entries = add_entries(0, topic_count, MAX_ENTRIES)
    for _ in range(topic_count):
        name, pos = read_string(frame, pos)
        if name is None:
            raise MalformedFrame("topic is null")
        count, pos = read_count(frame, pos, 8)
        entries = add_entries(entries, count, MAX_ENTRIES)
        partitions = []
        for _ in range(count):
            index, size = _INDEX_AND_SIZE.unpack_from(frame, pos)
            pos += 8
            end = pos + max(size, 0)
            if end > limit or size < -1:
                raise MalformedFrame(
                    f"{size} bytes of records of partition {index} do not fit into the frame"
                )
            partitions.append((index, frame[pos:end]))
            pos = end
        request.topics.append((name, partitions))
    return request, pos


def encode_produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[TopicKey, Sequence[tuple[int, Buffer]]]],
) -> list[Buffer]:
    """Buffers of the whole frame, size prefix and header included. The records' views are passed on unchanged."""
    if not 9 <= version <= MAX_VERSION:
        raise LocalProtocolError("only versions 9 to 13 are sent", api=API, version=version)
    buffers: list[Buffer] = []
    first = envelope = bytearray(4)
    envelope += _REQUEST_HEADER.pack(0, version, correlation_id)
    envelope += string(client_id) + b"\0" + compact_string(transactional_id)
    envelope += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    envelope += uvarint(len(topics) + 1)
    total = 0
    for key, partitions in topics:
        envelope += encode_key(key, version, API)
        envelope += uvarint(len(partitions) + 1)
        for index, records in partitions:
            size = len(records)
            envelope += INT32.pack(index)
            envelope += uvarint(size + 1)
            buffers.append(envelope)
            buffers.append(records)
            total += len(envelope) + size
            envelope = bytearray(1)  # the partition's empty tagged fields
        envelope.append(0)
    envelope.append(0)
    buffers.append(envelope)
    INT32.pack_into(first, 0, total + len(envelope) - 4)
    return buffers
