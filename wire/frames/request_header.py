"""The request header, read without the schema codec: the listener reads one per request."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from wire.errors import MalformedFrame
from wire.frames.primitives import skip_tags
from wire.frames.types import Buffer

NEVER: Final = 1 << 15

# The first version of each api whose messages, and with them the request header, are flexible (Kafka 4.3; 4 to 6 are of
# controllers before KRaft).
# tests/wire/test_request_header.py compares it with the schemas.
FIRST_FLEXIBLE: Final[dict[int, int]] = {
    0: 9, 1: 12, 2: 6, 3: 9, 4: 4, 5: 2, 6: 6, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 17: NEVER, 18: 3,
    19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 29: 2, 30: 2, 31: 2, 32: 4,
    33: 2, 34: 2, 35: 2, 36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0,
    47: NEVER, 48: 1, 49: 1, 50: 0, 51: 0, 52: 0, 53: 1, 54: 1, 55: 0, 56: 0, 57: 0, 58: 0, 59: 0, 60: 0,
    61: 0, 62: 0, 63: 0, 64: 0, 65: 0, 66: 0, 67: 0, 68: 0, 69: 0, 70: 0, 71: 0, 72: 0, 73: 0, 74: 0,
    75: 0, 76: 0, 77: 0, 78: 0, 79: 0, 80: 0, 81: 0, 82: 0, 83: 0, 84: 0, 85: 0, 86: 0, 87: 0, 88: 0,
    89: 0, 90: 0, 91: 0, 92: 0,
}  # fmt: skip

_FIXED = struct.Struct(">hhih")
_header = tuple.__new__  # saves the NamedTuple's own function, for every request


class RequestHeader(NamedTuple):
    """The header in front of every request, whatever its header version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header and the start of the body; MalformedFrame for anything else, an unknown api key included."""
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
    except struct.error:
        raise MalformedFrame("a request shorter than its header") from None
    first_flexible = FIRST_FLEXIBLE.get(api_key)
    if first_flexible is None:
        raise MalformedFrame(f"unknown api key {api_key}")
    if api_version < 0:
        raise MalformedFrame(f"api key {api_key} with a negative version", version=api_version)
    offset = _FIXED.size
    client_id: str | None = None
    if length >= 0:
        stop = offset + length
        if stop > len(frame):
            raise MalformedFrame("a client id longer than its request")
        try:
            client_id = str(memoryview(frame)[offset:stop], "utf-8")
        except UnicodeDecodeError:
            raise MalformedFrame("a client id that is not UTF-8") from None
        offset = stop
    elif length != -1:
        raise MalformedFrame(f"a client id of length {length}")
    if api_version >= first_flexible:
        offset = offset + 1 if frame[offset : offset + 1] == b"\0" else skip_tagged_fields(frame, offset)
    return _header(RequestHeader, (api_key, api_version, correlation_id, client_id)), offset


def skip_tagged_fields(frame: Buffer, offset: int) -> int:
    """Past a tagged-field section; almost always the one byte 0."""
    try:
        offset = skip_tags(frame, offset)
    except IndexError:
        raise MalformedFrame("a request that ends inside its header") from None
    if offset > len(frame):
        raise MalformedFrame("a tagged field longer than its request")
    return offset
