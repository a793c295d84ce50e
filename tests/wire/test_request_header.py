"""Request headers by hand against the schemas and hostile bytes."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from wire.errors import MalformedFrame
from wire.frames.primitives import MAX_TAGGED_FIELDS
from wire.frames.request_header import FIRST_FLEXIBLE, parse_request_header
from wire.schema import codec


def test_the_table_agrees_with_the_schemas() -> None:
    assert set(FIRST_FLEXIBLE) - {4, 5, 6} == set(api_key_map)
    for key, api in api_key_map.items():
        for version in schema_name_map[api]:
            entity_type: Any = codec._schema(api, version, EntityType.request)
            assert (version >= FIRST_FLEXIBLE[key]) == (entity_type.__header_schema__.__version__ == 2), (
                api,
                version,
            )


@pytest.mark.parametrize("client_id", [None, "", "me", "клиент"])
def test_the_body_starts_where_the_codec_puts_it(client_id: str | None) -> None:
    for api, version in (
        ("metadata", 1),
        ("metadata", 12),
        ("api_versions", 0),
        ("api_versions", 3),
        ("fetch", 17),
    ):
        frame = codec.encode_request(api, version, {}, correlation_id=77, client_id=client_id)
        header, offset = parse_request_header(memoryview(bytearray(frame)))
        assert header == codec.decode_request(frame)[0]
        entity_type: Any = codec._schema(api, version, EntityType.request)
        entity, end = codec.read_entity(entity_type, frame, offset)
        assert end == len(frame)
        assert entity == codec.decode_request(frame)[1]


def test_more_tagged_fields_than_anybody_sends_are_refused() -> None:
    most = struct.pack(">hhih", 3, 12, 1, -1) + bytes([MAX_TAGGED_FIELDS]) + b"\x05\0" * MAX_TAGGED_FIELDS
    assert parse_request_header(most)[1] == len(most)
    beyond = struct.pack(">hhih", 3, 12, 1, -1) + bytes([MAX_TAGGED_FIELDS + 1]) + b"\x05\0" * 17
    with pytest.raises(MalformedFrame):
        parse_request_header(beyond)


def test_tagged_fields_in_a_header_are_skipped() -> None:
    frame = struct.pack(">hhih", 3, 12, 1, -1) + b"\x01\x05\x03abc" + b"body"
    _, offset = parse_request_header(frame)
    assert frame[offset:] == b"body"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03",
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        struct.pack(">hhih", 3, -1, 1, -1),
        struct.pack(">hhih", 3, 1, 1, -2),
        struct.pack(">hhih", 3, 1, 1, 100) + b"short",
        struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe",
        struct.pack(">hhih", 3, 12, 1, -1),
        struct.pack(">hhih", 3, 12, 1, -1) + b"\x01\x05\x7f",
        struct.pack(">hhih", 3, 12, 1, -1) + b"\xff" * 6,
        struct.pack(">hhih", 3, 12, 1, -1) + b"\xff\x07" + bytes(5000),
    ],
)
def test_garbage(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parse_request_header(frame)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_only_ever_raise_malformed_frame(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(300):
        frame = struct.pack(">hh", source.randrange(-2, 95), source.randrange(-2, 20)) + source.randbytes(
            source.randrange(40)
        )
        try:
            _, offset = parse_request_header(frame)
        except MalformedFrame:
            continue
        assert 10 <= offset <= len(frame), f"seed {seed}"
