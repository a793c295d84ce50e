"""Records of the metadata log: every type and version against an independent encoder, hostile bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.metadata_records import encode_record
from wire.errors import MalformedFrame, UnsupportedApi
from wire.metadata.decode import decode_metadata_value
from wire.metadata.fields import Field
from wire.metadata.schemas import SCHEMAS

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(st.characters(codec="utf-8"), max_size=10),
    "bytes": st.binary(max_size=10),
}


def within(version: int, span: tuple[int, int] | None) -> bool:
    return span is not None and span[0] <= version <= span[1]


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    kind = field.type.removeprefix("[]")
    one = structs(field.fields, version) if kind == "struct" else KINDS[kind]
    if field.type.startswith("[]"):
        one = st.lists(one, max_size=4)
    return st.none() | one if within(version, field.nullable) else one


def structs(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    present = [f for f in fields if within(version, f.versions)]
    tagged = {f.name: values(f, version) for f in present if f.tag is not None and within(version, f.tagged)}
    plain = {f.name: values(f, version) for f in present if f.name not in tagged}
    return st.fixed_dictionaries(plain, optional=tagged)


def with_defaults(fields: tuple[Field, ...], given: dict[str, Any]) -> dict[str, Any]:
    complete = {}
    for field in fields:
        if field.name not in given:
            complete[field.name] = [] if field.default == () else field.default
        elif field.type == "[]struct" and given[field.name] is not None:
            complete[field.name] = [with_defaults(field.fields, item) for item in given[field.name]]
        else:
            complete[field.name] = given[field.name]
    return complete


records = st.sampled_from(
    [(schema, version) for schema in SCHEMAS.values() for version in range(schema.max_version + 1)]
).flatmap(lambda pick: st.tuples(st.just(pick[0]), st.just(pick[1]), structs(pick[0].fields, pick[1])))


@settings(max_examples=400)
@given(records)
def test_a_record_of_every_type_and_version_is_read_back(record: tuple[Any, int, dict[str, Any]]) -> None:
    schema, version, fields = record
    value = encode_record(schema.name, fields, version)
    for buffer in (value, memoryview(value)):
        decoded = decode_metadata_value(buffer)
        assert decoded.type == schema.name
        assert decoded.version == version
        assert decoded.fields == with_defaults(schema.fields, fields)


@settings(max_examples=100)
@given(records)
def test_a_record_cut_at_any_byte_is_malformed(record: tuple[Any, int, dict[str, Any]]) -> None:
    schema, version, fields = record
    value = encode_record(schema.name, fields, version)
    for end in range(len(value)):
        with pytest.raises(MalformedFrame):
            decode_metadata_value(value[:end])
    with pytest.raises(MalformedFrame, match="ends at byte"):
        decode_metadata_value(value + b"\0")


flips = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=400)
@given(records, flips)
def test_flipped_bytes_are_refused_or_valid(
    record: tuple[Any, int, dict[str, Any]], flips: list[tuple[int, int]]
) -> None:
    schema, version, fields = record
    value = bytearray(encode_record(schema.name, fields, version))
    for position, byte in flips:
        value[position % len(value)] = byte
    try:
        decode_metadata_value(value)
    except (MalformedFrame, UnsupportedApi):
        pass


@given(st.binary(max_size=200), st.integers(0, 28), st.integers(0, 4))
def test_garbage_is_refused_or_valid(data: bytes, api_key: int, version: int) -> None:
    for value in (data, bytes((1, api_key, version)) + data):
        try:
            decode_metadata_value(value)
        except (MalformedFrame, UnsupportedApi):
            pass


def test_what_is_newer_than_the_tables_is_refused_not_skipped() -> None:
    with pytest.raises(UnsupportedApi, match="PartitionRecord v3 is newer than Kafka"):
        decode_metadata_value(b"\x01\x03\x03")
    with pytest.raises(UnsupportedApi, match="type 99 v0"):
        decode_metadata_value(b"\x01\x63\x00")
    for frame_version in (0, 2):
        with pytest.raises(MalformedFrame, match="frame version"):
            decode_metadata_value(bytes((frame_version, 2, 0)))


def test_a_tag_longer_or_shorter_than_its_field_is_malformed() -> None:
    head = b"\x01\x05\x00" + b"\0" * 20 + b"\x01\x01"  # PartitionChangeRecord, one tag: the leader, an int32
    assert decode_metadata_value(head + b"\x04\0\0\0\x07").fields["leader"] == 7
    for size in (3, 5):
        with pytest.raises(MalformedFrame):
            decode_metadata_value(head + bytes((size,)) + b"\0" * size)


def test_decoded_lists_belong_to_their_record_alone() -> None:
    value = encode_record("PartitionRecord", {"partition_id": 1}, 0)
    first = decode_metadata_value(value).fields
    first["directories"].append(b"x")
    assert decode_metadata_value(value).fields["directories"] == []


def test_counts_beyond_the_record_allocate_nothing() -> None:
    tracemalloc.start()
    try:
        partition = b"\x01\x03\x00" + b"\0" * 20
        for value in (
            partition + b"\xff\xff\xff\xff\x0f",
            b"\x01\x0e\x00\xff\xff\xff\x7f",
            b"\x01\x14\x00\xff\xff\xff\x7f",
        ):
            with pytest.raises(MalformedFrame, match="fit"):
                decode_metadata_value(value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
