"""Produce responses: of a source parsed (versions 9 to 13), to a client built (3 to 13)."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import (
    INT32,
    compact_string,
    node_endpoint,
    read_compact_count,
    read_compact_string,
    read_tags,
    skip_tags,
    string,
    uvarint,
)
from wire.frames.produce_common import API, MAX_VERSION, MIN_VERSION
from wire.frames.topic_key import TopicKey, encode_key, read_key
from wire.frames.types import Buffer, Node
from wire.frames.whole import whole

_LEADER = struct.Struct(">ii")
_RESULT_V2 = struct.Struct(">ihqq")  # index, error, base offset, log append time
_RESULT = struct.Struct(">ihqqq")  # and log start offset
# And what nearly all have: no record errors, no message, no tagged fields.
_PLAIN = struct.Struct(">ihqqqBBB")
_NO_ERRORS = 1


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


def parse_produce_response(frame: Buffer, version: int) -> ProduceResponse:
    """Parse a frame that begins with the correlation id, as (topics, throttle_ms). Versions 9 to 13."""
    if not 9 <= version <= MAX_VERSION:
        raise LocalProtocolError("only versions 9 to 13 are sent", api=API, version=version)
    return _parse_response(frame, 4, version)


@whole(API, "response")
def _parse_response(frame: Buffer, pos: int, version: int) -> tuple[ProduceResponse, int]:
    pos = skip_tags(frame, pos)
    topics = []
    topic_count, pos = read_compact_count(frame, pos, 3)
    for _ in range(topic_count):
        key, pos = read_key(frame, pos, version)
        count, pos = read_compact_count(frame, pos, 33)
        results = []
        for _ in range(count):
            *plain, errors, message, tagged = _PLAIN.unpack_from(frame, pos)
            result = ProduceResult(*plain)
            if errors == _NO_ERRORS and not message and not tagged:
                results.append(result)
                pos += _PLAIN.size
                continue
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
    out = bytearray(struct.pack(">iiB", 0, correlation_id, 0))
    out += uvarint(len(topics) + 1)
    for key, results in topics:
        out += encode_key(key, version, API)
        out += uvarint(len(results) + 1)
        for result in results:
            if not result.record_errors and result.error_message is None and result.current_leader is None:
                out += _PLAIN.pack(
                    result.index,
                    result.error,
                    result.base_offset,
                    result.log_append_time,
                    result.log_start_offset,
                    _NO_ERRORS,
                    0,
                    0,
                )
                continue
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
