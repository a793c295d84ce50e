"""Metadata-log records and batches as a controller writes them: the encoding side that product code does not
need.

Driven by the same generated tables as the decoder; values are the newest version's unless asked otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from crc32c import crc32c

from wire.metadata.fields import Field
from wire.metadata.schemas import SCHEMAS

_KEYS = {schema.name: key for key, schema in SCHEMAS.items()}
_FIXED = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
    "bool": ">?",
}


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def encode_record(name: str, fields: Mapping[str, Any], version: int | None = None) -> bytes:
    """The value of one record, frame included."""
    key = _KEYS[name]
    schema = SCHEMAS[key]
    version = schema.max_version if version is None else version
    known = {field.name for field in schema.fields}
    if unknown := set(fields) - known:
        raise ValueError(f"{name} has no {unknown}")
    return uvarint(1) + uvarint(key) + uvarint(version) + _struct(schema.fields, fields, version)


def encode_batch(
    base_offset: int,
    epoch: int,
    values: Sequence[bytes],
    *,
    control_type: int | None = None,
    control_types: Sequence[int] = (),
) -> bytes:
    """A v2 batch; with control_type its records are KRaft control records of that type, or each of its own one."""
    records = bytearray()
    if control_type is not None:
        control_types = [control_type] * len(values)
    for index, value in enumerate(values):
        key = struct.pack(">hh", 0, control_types[index]) if control_types else None
        body = b"\0" + varint(0) + varint(index)
        body += varint(-1) if key is None else varint(len(key)) + key
        body += varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    attributes = 32 if control_types else 0
    tail = struct.pack(">hiqqqhii", attributes, len(values) - 1, 0, 0, -1, -1, -1, len(values)) + records
    head = struct.pack(">ib", epoch, 2) + struct.pack(">I", crc32c(tail))
    return struct.pack(">qi", base_offset, len(head) + len(tail)) + head + tail


def snapshot_bytes(epoch: int, values: Sequence[bytes]) -> bytes:
    """A snapshot: header control batch, records, footer control batch (KIP-630). Behind the header the quorum's version and
    its voters, none here, as of a quorum whose voters may change (KIP-853)."""
    first = [
        struct.pack(">hq", 0, 0) + b"\0",
        struct.pack(">hh", 0, 1) + b"\0",
        struct.pack(">h", 0) + b"\x01\0",
    ]
    header = encode_batch(0, epoch, first, control_types=(3, 5, 6))
    body = b"".join(encode_batch(3 + index, epoch, [value]) for index, value in enumerate(values))
    footer = encode_batch(3 + len(values), epoch, [struct.pack(">h", 0) + b"\0"], control_type=4)
    return header + body + footer


def leader_change(base_offset: int, epoch: int) -> bytes:
    """The control batch a new leader of the quorum begins its epoch with."""
    return encode_batch(base_offset, epoch, [struct.pack(">hi", 0, 0) + b"\x01\x01\0"], control_type=2)


def _struct(fields: Sequence[Field], values: Mapping[str, Any], version: int) -> bytes:
    out = bytearray()
    tags: list[tuple[int, bytes]] = []
    for field in fields:
        if not _within(version, field.versions):
            continue
        value = values.get(field.name, field.default)
        if field.tag is not None and _within(version, field.tagged):
            if field.name in values:
                tags.append((field.tag, _value(field, field.type, value, version)))
        else:
            out += _value(field, field.type, value, version)
    out += uvarint(len(tags))
    for tag, data in sorted(tags):
        out += uvarint(tag) + uvarint(len(data)) + data
    return bytes(out)


def _value(field: Field, kind: str, value: Any, version: int) -> bytes:
    if kind.startswith("[]"):
        if value is None:
            return b"\0"
        return uvarint(len(value) + 1) + b"".join(_value(field, kind[2:], item, version) for item in value)
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if kind == "uuid":
        return bytes(value)
    if kind in ("string", "bytes"):
        if value is None:
            return b"\0"
        data = value.encode() if isinstance(value, str) else bytes(value)
        return uvarint(len(data) + 1) + data
    return _struct(field.fields, value, version)


def _within(version: int, span: tuple[int, int] | None) -> bool:
    return span is not None and span[0] <= version <= span[1]
