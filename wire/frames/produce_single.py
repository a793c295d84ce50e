"""Produce of one batch, versions 9 to 13: the parts that all messages about one partition share are built once.

The bytes are those of produce_request.py and produce_response.py, which handle every other form.
"""

from __future__ import annotations

import struct
from typing import Final

from wire.errors import LocalProtocolError
from wire.frames.primitives import string, uvarint
from wire.frames.produce_common import API, MAX_VERSION, ONE, SINGLE_END
from wire.frames.topic_key import TopicKey, encode_key
from wire.frames.types import Buffer

FIRST_VERSION: Final = 9
_HEAD = struct.Struct(">ihhi")  # size, api key, version, correlation id
_ACKS = struct.Struct(">hiB")  # acks, timeout, topics
_PARTITION = struct.Struct(">Bi")  # partitions, index
_FRONT = struct.Struct(">ii")  # size, correlation id
# error, base offset, log append time, log start offset; no record errors, no message, no tagged fields of the partition
# and the topic; throttle time, no tagged fields
_RESULT = struct.Struct(">hqqqBBBBiB")
_NO_ERRORS: Final = 1

Acknowledged = tuple[int, int, int, int]
"""Base offset, log append time, log start offset, throttle time in ms."""


class SingleRequest:
    """Requests of one client for one partition, none of them in a transaction."""

    __slots__ = ("_names", "_partition", "_version")

    def __init__(self, version: int, client_id: str | None, key: TopicKey, index: int) -> None:
        _check(version)
        self._version = version
        self._names = string(client_id) + b"\0\0"  # no tagged fields of the header, no transactional id
        self._partition = encode_key(key, version, API) + _PARTITION.pack(ONE, index)

    def encode(self, correlation_id: int, acks: int, timeout_ms: int, records: Buffer) -> list[Buffer]:
        """Buffers of the whole frame, size prefix included. The records are passed on unchanged."""
        size = len(records)
        envelope = self._names + _ACKS.pack(acks, timeout_ms, ONE) + self._partition + uvarint(size + 1)
        total = _HEAD.size - 4 + len(envelope) + size + len(SINGLE_END)
        return [_HEAD.pack(total, 0, self._version, correlation_id) + envelope, records, SINGLE_END]


class SingleAnswer:
    """Reads and writes answers about one partition."""

    __slots__ = ("_before", "_length")

    def __init__(self, version: int, key: TopicKey, index: int) -> None:
        _check(version)
        self._before = bytes((0, ONE)) + encode_key(key, version, API) + _PARTITION.pack(ONE, index)
        self._length = 4 + len(self._before) + _RESULT.size

    def acknowledged(self, frame: Buffer) -> Acknowledged | None:
        """The values of a successful answer, from its correlation id on; None for any other frame, well-formed or not."""
        if len(frame) != self._length:
            return None
        at = 4 + len(self._before)
        error, base_offset, append_time, log_start, errors, message, a, b, throttle_ms, c = (
            _RESULT.unpack_from(frame, at)
        )
        if error or base_offset < 0 or errors != _NO_ERRORS or message or a or b or c:
            return None
        if frame[4:at] != self._before:
            return None
        return base_offset, append_time, log_start, throttle_ms

    def encode(self, correlation_id: int, what: Acknowledged) -> list[Buffer]:
        """A success: the whole frame, size prefix included."""
        base_offset, append_time, log_start, throttle_ms = what
        return [
            _FRONT.pack(self._length, correlation_id)
            + self._before
            + _RESULT.pack(0, base_offset, append_time, log_start, _NO_ERRORS, 0, 0, 0, throttle_ms, 0)
        ]


def _check(version: int) -> None:
    if not FIRST_VERSION <= version <= MAX_VERSION:
        raise LocalProtocolError("one batch at a time is for versions 9 to 13", api=API, version=version)
