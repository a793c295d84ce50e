"""Varints, strings and tagged fields, for the messages that are parsed without the schema codec.

Every reader takes (buffer, position) and returns (value, next position). Readers may raise IndexError, struct.error
or UnicodeDecodeError on a truncated buffer; the parser of a whole message turns those into MalformedFrame once
(whole.py), which keeps the loops free of try blocks. A slice beyond the end is silently short in Python, so a parser
must in the end compare its position with the length of the frame.
"""

import struct
from typing import Final

from wire.errors import MalformedFrame
from wire.frames.types import Buffer

MAX_TAGGED_FIELDS: Final = 16
"""The most tagged fields in one section. Kafka's messages have three at most; a hostile one could hold millions, and parsing
them would delay every connection."""
PARSE_ERRORS = (IndexError, struct.error, UnicodeDecodeError)

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

_unpack_int16 = INT16.unpack_from
_unpack_int32 = INT32.unpack_from


_SMALL = tuple(bytes((value,)) for value in range(0x80))


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Unsigned varint of at most 32 bits, as Kafka's ByteUtils.readUnsignedVarint."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while shift < 35:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, pos
        shift += 7
    raise MalformedFrame(f"unsigned varint before byte {pos} does not fit into 32 bits")


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Zigzag varint of at most 32 bits."""
    raw, pos = read_uvarint(buf, pos)
    return (raw >> 1) ^ -(raw & 1), pos


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """Zigzag varint of at most 64 bits."""
    value = shift = 0
    while shift < 70:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFFFFFFFFFF:
                break
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise MalformedFrame(f"varint before byte {pos} does not fit into 64 bits")


def uvarint(value: int) -> bytes:
    """Encoded unsigned varint."""
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Encoded zigzag varint of up to 64 bits."""
    return uvarint((value << 1) ^ (value >> 63))


def read_compact_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    length = buf[pos]
    if length < 0x80:
        pos += 1
    else:
        length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    end = pos + length - 1
    if end > len(buf):
        raise MalformedFrame(f"string of {length - 1} bytes at byte {pos} ends after the frame")
    return str(buf[pos:end], "utf-8"), end


def read_name(buf: Buffer, pos: int) -> tuple[str, int]:
    """A compact string that is not null."""
    name, pos = read_compact_string(buf, pos)
    if name is None:
        raise MalformedFrame(f"a null string before byte {pos}")
    return name, pos


def read_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    """Nullable string with a 16-bit length (non-flexible versions)."""
    length: int = _unpack_int16(buf, pos)[0]
    pos += 2
    if length < 0:
        if length != -1:
            raise MalformedFrame(f"string length {length} at byte {pos - 2}")
        return None, pos
    end = pos + length
    if end > len(buf):
        raise MalformedFrame(f"string of {length} bytes at byte {pos} ends after the frame")
    return str(buf[pos:end], "utf-8"), end


def compact_string(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    raw = value.encode()
    return uvarint(len(raw) + 1) + raw


def string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    raw = value.encode()
    return INT16.pack(len(raw)) + raw


def read_compact_count(buf: Buffer, pos: int, min_size: int) -> tuple[int, int]:
    """Length of a compact array (-1 = null), refused when its elements cannot fit."""
    count = buf[pos]
    if count < 0x80:
        pos += 1
    else:
        count, pos = read_uvarint(buf, pos)
    count -= 1
    if count * min_size > len(buf) - pos:
        raise MalformedFrame(f"array of {count} elements at byte {pos} does not fit into the frame")
    return count, pos


def read_array_count(buf: Buffer, pos: int, min_size: int) -> tuple[int, int]:
    """Length of a compact array that is not null."""
    count, pos = read_compact_count(buf, pos, min_size)
    if count < 0:
        raise MalformedFrame(f"a null array before byte {pos}")
    return count, pos


def read_count(buf: Buffer, pos: int, min_size: int) -> tuple[int, int]:
    """Length of a 32-bit counted array (-1 = null), refused when its elements cannot fit."""
    count: int = _unpack_int32(buf, pos)[0]
    pos += 4
    if count < -1 or count * min_size > len(buf) - pos:
        raise MalformedFrame(f"array of {count} elements at byte {pos} does not fit into the frame")
    return count, pos


def skip_tags(buf: Buffer, pos: int) -> int:
    """Position after a tagged-field section, whose contents are skipped."""
    if buf[pos] == 0:
        return pos + 1
    count, pos = read_tag_count(buf, pos)
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
    return pos


def read_tags(buf: Buffer, pos: int) -> tuple[list[tuple[int, int, int]], int]:
    """Tagged fields as (tag, start, end), and the position after them. Each end is inside the buffer."""
    count, pos = read_tag_count(buf, pos)
    tags = []
    limit = len(buf)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        end = pos + size
        if end > limit:
            raise MalformedFrame(f"tagged field {tag} at byte {pos} ends after the frame")
        tags.append((tag, pos, end))
        pos = end
    return tags, pos


def read_tag_count(buf: Buffer, pos: int) -> tuple[int, int]:
    """Number of tagged fields (a plain uvarint, not count + 1); each one takes two bytes at least."""
    count, pos = read_uvarint(buf, pos)
    if count > MAX_TAGGED_FIELDS or count * 2 > len(buf) - pos:
        raise MalformedFrame(f"{count} tagged fields at byte {pos} are too many or do not fit into the frame")
    return count, pos


def node_endpoint(node_id: int, host: str, port: int, rack: str | None) -> bytes:
    """One NodeEndpoint of the tagged field in Fetch v16+ and Produce v10+ responses (KIP-951)."""
    return INT32.pack(node_id) + compact_string(host) + INT32.pack(port) + compact_string(rack) + b"\0"
