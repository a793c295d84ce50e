"""A reader of kio's entities that is safe with hostile bytes.

kio's native reader allocates as many array slots as the peer *announces*, before it checks whether that many bytes
are there: a frame of 30 bytes can abort the process. It also refuses a whole answer for one error code newer than its
table. This reader does neither; an unknown code becomes an unnamed ErrorCode that compares like its number. One
reader function is built per entity type, from the same dataclasses.
"""

from __future__ import annotations

import datetime
import functools
import struct
import uuid
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from kio.schema.errors import ErrorCode

from wire.errors import MalformedFrame
from wire.frames.primitives import read_uvarint
from wire.schema.entity_fields import field_default, unwrap_annotation

Read = Callable[[bytes, int], tuple[Any, int]]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIXED = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint8": ">B",
    "uint16": ">H",
    "uint32": ">I",
    "uint64": ">Q",
    "float64": ">d",
    "bool": ">?",
}
_KNOWN_ERRORS = {int(code): code for code in ErrorCode}


def error_code(code: int) -> ErrorCode:
    """The enum's member, or an unnamed one that compares like its number."""
    known = _KNOWN_ERRORS.get(code)
    if known is not None:
        return known
    made = int.__new__(ErrorCode, code)
    made._value_ = code
    made._name_ = f"unknown_error_{code}"
    made.retriable = False
    return made


def read_entity(entity_type: Any, data: bytes, offset: int) -> tuple[Any, int]:
    """The entity at `offset` and the offset after it; MalformedFrame for anything else."""
    try:
        return _entity_reader(entity_type)(data, offset)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise MalformedFrame(f"cannot decode: {error}") from error


@functools.cache
def _entity_reader(entity_type: Any) -> Read:
    flexible: bool = entity_type.__flexible__
    header: bool = entity_type.__name__ == "RequestHeader"
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    for field in fields(entity_type):
        # Kafka keeps the client id in the old format whatever the header's version
        compact = flexible and not (header and field.name == "client_id")
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, _field_reader(field, compact, tagged=False)))
        else:
            tagged[tag] = (field.name, _field_reader(field, compact, tagged=True))
            defaults[field.name] = field_default(field)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        values = defaults.copy()
        for name, read_field in plain:
            values[name], position = read_field(data, position)
        if flexible:
            count, position = read_uvarint(data, position)
            for _ in range(count):
                tag, position = read_uvarint(data, position)
                size, position = read_uvarint(data, position)
                stop = position + size
                if stop > len(data):
                    raise MalformedFrame("a tagged field longer than its message")
                known = tagged.get(tag)
                if known is not None:
                    values[known[0]], end = known[1](data, position)
                    if end != stop:
                        raise MalformedFrame(f"tagged field {known[0]} is not as long as announced")
                position = stop
        return entity_type(**values), position

    return read


def _field_reader(field: Any, flexible: bool, *, tagged: bool) -> Read:
    inner, array, nullable = unwrap_annotation(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if array:
        element = _value_reader(inner, kafka_type, flexible, nullable=False)
        return functools.partial(_read_array, element, flexible, nullable)
    # a tagged field is left out rather than null, so it carries no null marker
    return _value_reader(inner, kafka_type, flexible, nullable=nullable and not tagged)


def _read_array(
    element: Read, flexible: bool, nullable: bool, data: bytes, position: int
) -> tuple[tuple[Any, ...] | None, int]:
    if flexible:
        count, position = read_uvarint(data, position)
        count -= 1
    else:
        count, position = _INT32.unpack_from(data, position)[0], position + 4
    if count < 0:
        if count == -1 and nullable:
            return None, position
        raise MalformedFrame(f"an array of {count} elements")
    if count > len(data) - position:  # every element takes at least a byte
        raise MalformedFrame(f"an array of {count} elements in {len(data) - position} bytes")
    items = []
    for _ in range(count):
        item, position = element(data, position)
        items.append(item)
    return tuple(items), position


def _value_reader(inner: Any, kafka_type: str | None, flexible: bool, *, nullable: bool) -> Read:
    if kafka_type is None:
        reader = _entity_reader(inner)
        return functools.partial(_read_nullable_entity, reader) if nullable else reader
    if kafka_type == "string":
        length = read_uvarint if flexible else _int16
        return functools.partial(_read_string, length, int(flexible), nullable)
    if kafka_type in ("bytes", "records"):
        length = read_uvarint if flexible else _int32
        return functools.partial(_read_bytes, length, int(flexible), nullable)
    if kafka_type in _FIXED:
        return functools.partial(_read_number, struct.Struct(_FIXED[kafka_type]))
    return _OTHERS[kafka_type]


_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


def _int16(data: bytes, position: int) -> tuple[int, int]:
    return _INT16.unpack_from(data, position)[0], position + 2


def _int32(data: bytes, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(data, position)[0], position + 4


def _int64(data: bytes, position: int) -> tuple[int, int]:
    return _INT64.unpack_from(data, position)[0], position + 8


def _read_number(shape: struct.Struct, data: bytes, position: int) -> tuple[Any, int]:
    return shape.unpack_from(data, position)[0], position + shape.size


def _read_nullable_entity(reader: Read, data: bytes, position: int) -> tuple[Any, int]:
    if data[position] == 0xFF:
        return None, position + 1
    return reader(data, position + 1)


def _read_bytes(
    read_length: Read, bias: int, nullable: bool, data: bytes, position: int
) -> tuple[bytes | None, int]:
    length, position = read_length(data, position)
    length -= bias
    if length < 0:
        if length == -1 and nullable:
            return None, position
        raise MalformedFrame(f"a field of {length} bytes")
    stop = position + length
    if stop > len(data):
        raise MalformedFrame(f"a field of {length} bytes, {len(data) - position} are left")
    return data[position:stop], stop


def _read_string(
    read_length: Read, bias: int, nullable: bool, data: bytes, position: int
) -> tuple[str | None, int]:
    raw, position = _read_bytes(read_length, bias, nullable, data, position)
    return None if raw is None else raw.decode(), position


def _read_uuid(data: bytes, position: int) -> tuple[uuid.UUID | None, int]:
    raw = data[position : position + 16]
    if len(raw) < 16:
        raise MalformedFrame("a message that ends inside a uuid")
    return (uuid.UUID(bytes=raw) if any(raw) else None), position + 16


def _read_error_code(data: bytes, position: int) -> tuple[ErrorCode, int]:
    return error_code(_INT16.unpack_from(data, position)[0]), position + 2


def _read_timedelta(read_number: Read, data: bytes, position: int) -> tuple[datetime.timedelta, int]:
    number, position = read_number(data, position)
    return datetime.timedelta(milliseconds=number), position


def _read_datetime(data: bytes, position: int) -> tuple[datetime.datetime | None, int]:
    number, position = _int64(data, position)
    return (None if number == -1 else _EPOCH + datetime.timedelta(milliseconds=number)), position


_OTHERS: dict[str, Read] = {
    "uuid": _read_uuid,
    "error_code": _read_error_code,
    "timedelta_i32": functools.partial(_read_timedelta, _int32),
    "timedelta_i64": functools.partial(_read_timedelta, _int64),
    "datetime_i64": _read_datetime,
}
