"""Values of metadata records, decoded by the generated tables: frame version, api key, version, fields."""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from wire.errors import MalformedFrame, UnsupportedApi
from wire.frames.primitives import (
    PARSE_ERRORS,
    read_compact_count,
    read_compact_string,
    read_tags,
    read_uvarint,
)
from wire.frames.types import Buffer
from wire.metadata.fields import Field, Versions
from wire.metadata.schemas import KAFKA_VERSION, SCHEMAS

FRAME_VERSION = 1

Reader = Callable[[Buffer, int], tuple[Any, int]]


class MetadataRecord(NamedTuple):
    """One record: its type as Kafka names it, every field of the newest version (absent ones by default)."""

    type: str
    version: int
    fields: dict[str, Any]


def decode_metadata_value(value: Buffer) -> MetadataRecord:
    """Decode a record's value.

    MalformedFrame if the bytes are damaged. UnsupportedApi if type or version is newer than the tables, because to skip a
    record is to miss a change of the cluster.
    """
    try:
        frame_version, pos = read_uvarint(value, 0)
        if frame_version != FRAME_VERSION:
            raise MalformedFrame(f"metadata record has frame version {frame_version}, not {FRAME_VERSION}")
        api_key, pos = read_uvarint(value, pos)
        version, pos = read_uvarint(value, pos)
        schema = SCHEMAS.get(api_key)
        if schema is None or version > schema.max_version:
            name = schema.name if schema is not None else f"type {api_key}"
            raise UnsupportedApi(f"metadata record {name} v{version} is newer than Kafka {KAFKA_VERSION}")
        fields, pos = _record_reader(api_key, version)(value, pos)
    except PARSE_ERRORS as error:
        raise MalformedFrame(f"metadata record is garbled: {error}") from error
    if pos != len(value):
        raise MalformedFrame(f"metadata record of {len(value)} bytes ends at byte {pos}")
    return MetadataRecord(schema.name, version, fields)


@cache
def _record_reader(api_key: int, version: int) -> Reader:
    return _struct_reader(SCHEMAS[api_key].fields, version)[0]


def _within(version: int, span: Versions | None) -> bool:
    return span is not None and span[0] <= version <= span[1]


def _struct_reader(fields: Sequence[Field], version: int) -> tuple[Reader, int]:
    """A reader for these fields at this version, and their least number of bytes."""
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    min_size = 1  # the tagged-field section
    for field in fields:
        defaults[field.name] = [] if field.default == () else field.default
        if not _within(version, field.versions):
            continue
        reader, size = _field_reader(field, version)
        if field.tag is not None and _within(version, field.tagged):
            tagged[field.tag] = (field.name, reader)
        else:
            plain.append((field.name, reader))
            min_size += size
    list_defaults = [name for name, value in defaults.items() if value == []]

    def read(buf: Buffer, pos: int) -> tuple[dict[str, Any], int]:
        values = defaults.copy()
        for name in list_defaults:
            values[name] = []
        for name, reader in plain:
            values[name], pos = reader(buf, pos)
        tags, pos = read_tags(buf, pos)
        for tag, start, end in tags:
            if tag in tagged:
                name, reader = tagged[tag]
                values[name], stop = reader(buf, start)
                if stop != end:
                    raise MalformedFrame(f"{name} takes {stop - start} of {end - start} bytes of its tag")
        return values, pos

    return read, min_size


def _field_reader(field: Field, version: int) -> tuple[Reader, int]:
    nullable = _within(version, field.nullable)
    if field.type.startswith("[]"):
        return _array_reader(field, version, nullable), 1
    return _element_reader(field, field.type, version, nullable)


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


def _element_reader(field: Field, kind: str, version: int, nullable: bool) -> tuple[Reader, int]:
    if kind in _FIXED:
        layout = struct.Struct(_FIXED[kind])
        return _fixed_reader(layout), layout.size
    if kind == "uuid":
        return _read_uuid, 16
    if kind == "string":
        return _string_reader(field.name, nullable), 1
    if kind == "bytes":
        return _bytes_reader(field.name, nullable), 1
    return _struct_reader(field.fields, version)


def _fixed_reader(layout: struct.Struct) -> Reader:
    unpack, size = layout.unpack_from, layout.size

    def read(buf: Buffer, pos: int) -> tuple[Any, int]:
        return unpack(buf, pos)[0], pos + size

    return read


def _read_uuid(buf: Buffer, pos: int) -> tuple[bytes, int]:
    value = bytes(buf[pos : pos + 16])
    if len(value) != 16:
        raise MalformedFrame(f"uuid at byte {pos} ends after the record")
    return value, pos + 16


def _string_reader(name: str, nullable: bool) -> Reader:
    def read(buf: Buffer, pos: int) -> tuple[str | None, int]:
        value, pos = read_compact_string(buf, pos)
        if value is None and not nullable:
            raise MalformedFrame(f"{name} is null")
        return value, pos

    return read


def _bytes_reader(name: str, nullable: bool) -> Reader:
    def read(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
        size, pos = read_compact_count(buf, pos, 1)
        if size < 0:
            if not nullable:
                raise MalformedFrame(f"{name} is null")
            return None, pos
        return bytes(buf[pos : pos + size]), pos + size

    return read


def _array_reader(field: Field, version: int, nullable: bool) -> Reader:
    kind = field.type.removeprefix("[]")
    element, min_size = _element_reader(field, kind, version, False)
    name = field.name

    def read(buf: Buffer, pos: int) -> tuple[list[Any] | None, int]:
        count, pos = read_compact_count(buf, pos, min_size)
        if count < 0:
            if not nullable:
                raise MalformedFrame(f"{name} is null")
            return None, pos
        if kind == "int32":  # replica lists: most of a large metadata log
            return list(struct.unpack_from(f">{count}i", buf, pos)), pos + 4 * count
        values = []
        for _ in range(count):
            value, pos = element(buf, pos)
            values.append(value)
        return values, pos

    return read
