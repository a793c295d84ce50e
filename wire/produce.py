"""Produce requests and responses: a client's request is taken apart and re-grouped, its records never
touched.

Record bytes are memoryviews into the client's frame and leave in the source's request as they came. Versions
3 to 13 from clients, 9 to 13 to a source. Not here: batches (batch.py), order and retries (router).
"""

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wire.errors import LocalProtocolError, MalformedFrame
from wire.primitives import (
    INT32,
    PARSE_ERRORS,
    compact_string,
    node_endpoint,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_tags,
    read_uvarint,
    skip_tags,
    string,
    uvarint,
)
from wire.types import Buffer, Node

API = "produce"
MIN_VERSION, MAX_VERSION = 3, 13
MAX_ENTRIES = 50_000
"""Topics plus partitions of one request: parsed entries take far more memory than their few bytes on the
wire.
"""

TopicKey = str | bytes
"""Topic name up to version 12, topic id (16 bytes) from version 13."""


@dataclass(slots=True)
class ProduceRequest:
    """A client's request. Null records appear as an empty view: a broker refuses both alike."""

    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview]]]] = field(default_factory=list)


@dataclass(slots=True)
class ProduceResult:
    """One partition of a response."""

    index: int
    error: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()  # (index in the batch, message)
    current_leader: tuple[int, int] | None = None  # (leader id, leader epoch), v10+


class ProduceResponse(NamedTuple):
    """A parsed response."""

    topics: list[tuple[TopicKey, list[ProduceResult]]]
    throttle_ms: int


# What a forwarded write usually is: one batch without anything optional. It is read and written at one go, in the layout
# that the general functions have for it.
_ONE = 2  # an array of one element
_SINGLE_END = b"\0\0\0"  # of the partition, the topic and the message: no tagged fields
_SINGLE_REQUEST = struct.Struct(">hiB")  # acks, timeout, topics
_SINGLE_INDEX = struct.Struct(">Bi")  # partitions, index
_SINGLE_HEAD = struct.Struct(">ihhi")  # size, api key, version, correlation id
_SINGLE_RESPONSE = struct.Struct(">BB16sBihqqqBBBBiB")  # all of version 13 behind the correlation id
_SINGLE_ANSWER = struct.Struct(">iiBB")  # size, correlation id, tags, topics
_SINGLE_RESULT = struct.Struct(">BihqqqBBBBiB")

_ACKS_TIMEOUT = struct.Struct(">hi")
_LEADER = struct.Struct(">ii")
_RESULT_V2 = struct.Struct(">ihqq")  # index, error, base offset, log append time
_RESULT = struct.Struct(">ihqqq")  # and log start offset
_REQUEST_HEADER = struct.Struct(">hhi")


def parse_produce_request(frame: Buffer, body_offset: int, version: int) -> ProduceRequest:
    """Parse the body that begins at body_offset. Anything wrong in it is a MalformedFrame."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedFrame("no such version", api=API, version=version)
    view = memoryview(frame)
    try:
        parse = _parse_flexible if version >= 9 else _parse_legacy
        request, pos = parse(view, body_offset, version)
    except PARSE_ERRORS as error:
        raise MalformedFrame(f"request is garbled: {error}", api=API, version=version) from error
    except MalformedFrame as error:
        raise MalformedFrame(error.message, api=API, version=version) from error
    if pos != len(view):
        raise MalformedFrame(f"request of {len(view)} bytes ends at byte {pos}", api=API, version=version)
    return request


def _parse_single(frame: memoryview, pos: int, version: int) -> ProduceRequest | None:
    """A request of one batch that is nobody's transaction; None if it is anything else, well-formed or not."""
    if frame[pos] != 0:
        return None
    acks, timeout_ms, topics = _SINGLE_REQUEST.unpack_from(frame, pos + 1)
    pos += 8
    if topics != _ONE:
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
    if partitions != _ONE or size == 0 or frame[end:] != _SINGLE_END:
        return None
    return ProduceRequest(version, None, acks, timeout_ms, [(key, [(index, frame[pos:end])])])


def _parse_flexible(frame: memoryview, pos: int, version: int) -> tuple[ProduceRequest, int]:
    limit = len(frame)
    try:
        single = _parse_single(frame, pos, version)
    except (*PARSE_ERRORS, MalformedFrame):
        single = None  # too short for a batch: what is wrong with it, if anything is, is found out below
    if single is not None:
        return single, limit
    transactional_id, pos = read_compact_string(frame, pos)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, pos)
    pos += 6
    request = ProduceRequest(version, transactional_id, acks, timeout_ms)
    topic_count, pos = read_compact_count(frame, pos, 3)
    entries = _add_entries(0, topic_count)
    for _ in range(topic_count):
        key, pos = _read_key(frame, pos, version)
        count, pos = read_compact_count(frame, pos, 6)
        entries = _add_entries(entries, count)
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


def _parse_legacy(frame: memoryview, pos: int, version: int) -> tuple[ProduceRequest, int]:
    limit = len(frame)
    transactional_id, pos = read_string(frame, pos)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, pos)
    request = ProduceRequest(version, transactional_id, acks, timeout_ms)
    topic_count, pos = read_count(frame, pos + 6, 6)
    entries = _add_entries(0, topic_count)
    for _ in range(topic_count):
        name, pos = read_string(frame, pos)
        if name is None:
            raise MalformedFrame("topic is null")
        count, pos = read_count(frame, pos, 8)
        entries = _add_entries(entries, count)
        partitions = []
        for _ in range(count):
            index, size = _LEADER.unpack_from(frame, pos)
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


def _add_entries(entries: int, count: int) -> int:
    if count < 0:
        raise MalformedFrame("array is null")
    entries += count
    if entries > MAX_ENTRIES:
        raise MalformedFrame(f"more than {MAX_ENTRIES} topics and partitions in one request")
    return entries


def _read_key(frame: Buffer, pos: int, version: int) -> tuple[TopicKey, int]:
    if version >= 13:
        return bytes(frame[pos : pos + 16]), pos + 16
    name, pos = read_compact_string(frame, pos)
    if name is None:
        raise MalformedFrame("topic is null")
    return name, pos


def _encode_key(key: TopicKey, version: int) -> bytes:
    if version >= 13:
        if isinstance(key, str) or len(key) != 16:
            raise LocalProtocolError(f"topic {key!r} is not a topic id", api=API, version=version)
        return bytes(key)
    if not isinstance(key, str):
        raise LocalProtocolError(f"topic {key!r} is not a name", api=API, version=version)
    return compact_string(key)


def encode_produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[TopicKey, Sequence[tuple[int, Buffer]]]],
) -> list[Buffer]:
    """Buffers of the whole frame, size prefix and header included; the records' views are handed on as they
    are.
    """
    if not 9 <= version <= MAX_VERSION:
        raise LocalProtocolError("only versions 9 to 13 are sent", api=API, version=version)
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return _encode_single(
            version, correlation_id, client_id, transactional_id, acks, timeout_ms, *topics[0]
        )
    buffers: list[Buffer] = []
    first = envelope = bytearray(4)
    envelope += _REQUEST_HEADER.pack(0, version, correlation_id) + _names(client_id, transactional_id)
    envelope += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    envelope += uvarint(len(topics) + 1)
    total = 0
    for key, partitions in topics:
        envelope += _encode_key(key, version)
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


def _names(client_id: str | None, transactional_id: str | None) -> bytes:
    return string(client_id) + b"\0" + compact_string(transactional_id)


_known_names = functools.lru_cache(1024)(_names)
#: Characters of a client id: clients choose theirs, up to 32 KiB each, and are not to fill our memory.
_KNOWN_MAX = 256


def _encode_single(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    key: TopicKey,
    partitions: Sequence[tuple[int, Buffer]],
) -> list[Buffer]:
    index, records = partitions[0]
    size = len(records)
    short = client_id is None or len(client_id) <= _KNOWN_MAX
    envelope = b"".join(
        (
            (_known_names if short else _names)(client_id, transactional_id),
            _SINGLE_REQUEST.pack(acks, timeout_ms, _ONE),
            _encode_key(key, version),
            _SINGLE_INDEX.pack(_ONE, index),
            uvarint(size + 1),
        )
    )
    total = _SINGLE_HEAD.size - 4 + len(envelope) + size + len(_SINGLE_END)
    return [_SINGLE_HEAD.pack(total, 0, version, correlation_id) + envelope, records, _SINGLE_END]


def parse_produce_response(frame: Buffer, version: int) -> ProduceResponse:
    """Parse a frame that begins with the correlation id, as (topics, throttle_ms). Versions 9 to 13."""
    if not 9 <= version <= MAX_VERSION:
        raise LocalProtocolError("only versions 9 to 13 are sent", api=API, version=version)
    try:
        response, pos = _parse_response(frame, version)
    except PARSE_ERRORS as error:
        raise MalformedFrame(f"response is garbled: {error}", api=API, version=version) from error
    except MalformedFrame as error:
        raise MalformedFrame(error.message, api=API, version=version) from error
    if pos != len(frame):
        raise MalformedFrame(f"response of {len(frame)} bytes ends at byte {pos}", api=API, version=version)
    return response


def _parse_single_response(frame: Buffer) -> ProduceResponse | None:
    """Version 13, one result and nothing optional; None if it is anything else."""
    if len(frame) != 4 + _SINGLE_RESPONSE.size:
        return None
    tags, topics, key, partitions, *numbers, errors, message, a, b, throttle_ms, c = (
        _SINGLE_RESPONSE.unpack_from(frame, 4)
    )
    if topics != _ONE or partitions != _ONE or errors != 1 or tags or message or a or b or c:
        return None
    return ProduceResponse([(key, [ProduceResult(*numbers)])], throttle_ms)


def _parse_response(frame: Buffer, version: int) -> tuple[ProduceResponse, int]:
    single = _parse_single_response(frame) if version == 13 else None
    if single is not None:
        return single, len(frame)
    pos = skip_tags(frame, 4)
    topics = []
    topic_count, pos = read_compact_count(frame, pos, 3)
    for _ in range(topic_count):
        key, pos = _read_key(frame, pos, version)
        count, pos = read_compact_count(frame, pos, 33)
        results = []
        for _ in range(count):
            result = ProduceResult(*_RESULT.unpack_from(frame, pos))
            error_count, pos = read_compact_count(frame, pos + 30, 6)
            if error_count > 0:
                record_errors = []
                for _ in range(error_count):
                    batch_index = INT32.unpack_from(frame, pos)[0]
                    message, pos = read_compact_string(frame, pos + 4)
                    record_errors.append((batch_index, message))
                    pos = skip_tags(frame, pos)
                result.record_errors = record_errors
            result.error_message, pos = read_compact_string(frame, pos)
            tags, pos = read_tags(frame, pos)
            for tag, start, end in tags:
                if tag == 0 and version >= 10:
                    result.current_leader = _LEADER.unpack_from(frame, start)
                    if skip_tags(frame, start + 8) != end:
                        raise MalformedFrame("current leader has a wrong size")
            results.append(result)
        pos = skip_tags(frame, pos)
        topics.append((key, results))
    throttle_ms = INT32.unpack_from(frame, pos)[0]
    return ProduceResponse(topics, throttle_ms), skip_tags(frame, pos + 4)


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProduceResult]]],
    *,
    throttle_ms: int = 0,
    node_endpoints: Sequence[Node] = (),
) -> list[Buffer]:
    """The whole frame, size prefix included. Versions 3 to 13; what a version lacks is left out."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise LocalProtocolError("only versions 3 to 13 are served", api=API, version=version)
    if version < 9:
        out = _encode_legacy_response(version, correlation_id, topics, throttle_ms)
    else:
        out = _encode_response(version, correlation_id, topics, throttle_ms, node_endpoints)
    INT32.pack_into(out, 0, len(out) - 4)
    return [out]


def _encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProduceResult]]],
    throttle_ms: int,
    node_endpoints: Sequence[Node],
) -> bytearray:
    if len(topics) == 1 and len(topics[0][1]) == 1 and not node_endpoints:
        key, (only,) = topics[0]
        if only.error_message is None and only.current_leader is None and not only.record_errors:
            return bytearray().join(
                (
                    _SINGLE_ANSWER.pack(0, correlation_id, 0, _ONE),
                    _encode_key(key, version),
                    _SINGLE_RESULT.pack(
                        _ONE,
                        only.index,
                        only.error,
                        only.base_offset,
                        only.log_append_time,
                        only.log_start_offset,
                        1,  # no record errors
                        0,  # no message
                        0,
                        0,
                        throttle_ms,
                        0,
                    ),
                )
            )
    out = bytearray(struct.pack(">iiB", 0, correlation_id, 0))
    out += uvarint(len(topics) + 1)
    for key, results in topics:
        out += _encode_key(key, version)
        out += uvarint(len(results) + 1)
        for result in results:
            out += _RESULT.pack(
                result.index,
                result.error,
                result.base_offset,
                result.log_append_time,
                result.log_start_offset,
            )
            out += uvarint(len(result.record_errors) + 1)
            for batch_index, message in result.record_errors:
                out += INT32.pack(batch_index) + compact_string(message) + b"\0"
            out += compact_string(result.error_message)
            if result.current_leader is None or version < 10:
                out.append(0)
            else:
                out += b"\x01\0\x09" + _LEADER.pack(*result.current_leader) + b"\0"
        out.append(0)
    out += INT32.pack(throttle_ms)
    if node_endpoints and version >= 10:
        body = uvarint(len(node_endpoints) + 1) + b"".join(node_endpoint(*node) for node in node_endpoints)
        out += b"\x01\0" + uvarint(len(body)) + body
    else:
        out.append(0)
    return out


def _encode_legacy_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProduceResult]]],
    throttle_ms: int,
) -> bytearray:
    out = bytearray(struct.pack(">iii", 0, correlation_id, len(topics)))
    for key, results in topics:
        if not isinstance(key, str):
            raise LocalProtocolError(f"topic {key!r} is not a name", api=API, version=version)
        out += string(key) + INT32.pack(len(results))
        for result in results:
            out += _RESULT_V2.pack(result.index, result.error, result.base_offset, result.log_append_time)
            if version >= 5:
                out += struct.pack(">q", result.log_start_offset)
            if version >= 8:
                out += INT32.pack(len(result.record_errors))
                for batch_index, message in result.record_errors:
                    out += INT32.pack(batch_index) + string(message)
                out += string(result.error_message)
    out += INT32.pack(throttle_ms)
    return out
