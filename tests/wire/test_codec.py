"""The schema codec: dict conveniences, agreement with kio's own reader, hostile bytes."""

from __future__ import annotations

import datetime
import random
import struct
import subprocess
import sys
from typing import Any

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader as native_reader
from kio.static.constants import EntityType

from wire.errors import LocalProtocolError, MalformedFrame
from wire.schema import codec
from wire.schema.entity_reader import read_entity

EVERY_VERSION = [(api, version) for api in api_key_map.values() for version in schema_name_map[api]]


def request(api: str, version: int, **fields: object) -> bytes:
    return codec.encode_request(api, version, fields, correlation_id=5, client_id="me")


def test_every_api_and_version_round_trips_and_agrees_with_the_native_reader() -> None:
    for api, version in EVERY_VERSION:
        for kind, frame in (
            (EntityType.request, request(api, version)),
            (EntityType.response, codec.encode_response(api, version, 5, {})),
        ):
            entity_type: Any = codec._schema(api, version, kind)
            header, offset = read_entity(entity_type.__header_schema__, frame, 0)
            assert (header, offset) == native_reader(entity_type.__header_schema__)(frame, 0)
            entity, end = read_entity(entity_type, frame, offset)
            expected, size = native_reader(entity_type)(frame, offset)
            assert (entity, end) == (expected, offset + size), (api, version)
            assert end == len(frame)


def test_a_dict_serves_every_version() -> None:
    fields = {"topics": [{"name": "t", "topic_id": bytes(16)}], "allow_auto_topic_creation": False}
    for version in range(codec.min_version("metadata"), codec.max_version("metadata") + 1):
        header, entity = codec.decode_request(request("metadata", version, **fields))
        assert header == (3, version, 5, "me")
        assert entity.topics[0].name == "t"
    assert codec.decode_request(request("metadata", 12, topics=None))[1].topics is None


def test_conversions_at_the_edge() -> None:
    topic_id = bytes(range(16))
    _, entity = codec.decode_request(
        request(
            "fetch", 17, max_wait_ms=500, topics=[{"topic_id": topic_id, "partitions": [{"partition": 3}]}]
        )
    )
    assert entity.max_wait == datetime.timedelta(milliseconds=500)
    assert entity.topics[0].topic_id.bytes == topic_id
    assert entity.topics[0].partitions[0].fetch_offset == 0
    assert entity.max_bytes == 2**31 - 1  # the schema's default, not a neutral zero
    answer = codec.decode_response(
        "produce",
        9,
        codec.encode_response(
            "produce",
            9,
            1,
            {"responses": [{"name": "t", "partition_responses": [{"error_code": 6, "log_append_time": -1}]}]},
        ),
    )
    assert answer.responses[0].partition_responses[0].error_code == 6
    assert answer.responses[0].partition_responses[0].log_append_time is None


def test_a_name_no_version_knows_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match="topicz"):
        request("metadata", 12, topicz=[])
    with pytest.raises(LocalProtocolError, match="nmae"):
        request("metadata", 12, topics=[{"nmae": "t"}])


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("metadata", 12, {"topics": 3}),
        ("metadata", 99, {}),
        ("no_such_api", 0, {}),
        ("fetch", 12, {"max_wait_ms": "soon"}),
        ("fetch", 12, {"session_id": 2**40}),
        ("fetch", 13, {"topics": [{"topic_id": b"short"}]}),
    ],
)
def test_bad_values_are_our_bug(api: str, version: int, fields: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode_request(api, version, fields, correlation_id=1, client_id=None)


def test_trailing_garbage() -> None:
    with pytest.raises(MalformedFrame, match="follow"):
        codec.decode_request(request("metadata", 12) + b"x")
    with pytest.raises(MalformedFrame, match="follow"):
        codec.decode_response("metadata", 12, codec.encode_response("metadata", 12, 1, {}) + b"x")


def test_a_request_too_large_to_decode_in_one_go() -> None:
    frame = request("sasl_authenticate", 2, auth_bytes=bytes(codec.MAX_DECODED_REQUEST))
    with pytest.raises(MalformedFrame, match="at most"):
        codec.decode_request(frame)


def test_unknown_api_and_version_in_a_request() -> None:
    with pytest.raises(MalformedFrame, match="api key 999"):
        codec.decode_request(struct.pack(">hhih", 999, 0, 1, -1))
    with pytest.raises(MalformedFrame, match="version"):
        codec.decode_request(struct.pack(">hhih", 3, 99, 1, -1))
    with pytest.raises(MalformedFrame):
        codec.decode_request(b"")


def test_an_error_code_newer_than_our_table_is_readable() -> None:
    frame = codec.encode_response(
        "find_coordinator", 4, 1, {"coordinators": [{"key": "g", "error_code": 9999}]}
    )
    (found,) = codec.decode_response("find_coordinator", 4, frame).coordinators
    assert found.error_code == 9999
    assert not found.error_code.retriable
    assert found.error_code.name == "unknown_error_9999"


def test_every_prefix_is_malformed_or_complete() -> None:
    frame = codec.encode_response(
        "metadata",
        12,
        1,
        {
            "brokers": [{"node_id": 1, "host": "h", "port": 1, "rack": "r"}],
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replica_nodes": [1, 2]}]}],
        },
    )
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            codec.decode_response("metadata", 12, frame[:end])


@pytest.mark.parametrize("seed", range(5))
def test_hostile_bytes_never_do_more_than_raise(seed: int) -> None:
    source = random.Random(seed)
    for api, version in EVERY_VERSION:
        frame = bytearray(request(api, version))
        reply = bytearray(codec.encode_response(api, version, 5, {}))
        for target, start in ((frame, 8), (reply, 4)):
            position = source.randrange(start, len(target) + 1)
            target[position : position + 5] = source.choice(
                [b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\xff" * 8, source.randbytes(5)]
            )
        for decode in (
            lambda f=frame: codec.decode_request(f),
            lambda f=reply, a=api, v=version: codec.decode_response(a, v, f),
        ):
            try:
                decode()
            except MalformedFrame:
                pass


def test_a_name_of_any_other_version_is_taken_for_a_known_one() -> None:
    """Neither the oldest version of Metadata has it nor the newest."""
    assert request("metadata", 0, include_cluster_authorized_operations=True) == request("metadata", 0)
    with pytest.raises(LocalProtocolError, match="'include_cluster'"):
        request("metadata", 0, include_cluster=True)


def test_versions_that_nobody_speaks_are_not_loaded() -> None:
    """Fields that only other versions have are looked up, and each version takes memory for ever."""
    program = (
        "import sys; from wire.schema import codec\n"
        "partition = {'partition': 0, 'replica_directory_id': bytes(16), 'log_start_offset': 0}\n"
        "fields = {'replica_id': 1, 'topics': [{'topic': 't', 'topic_id': bytes(16), 'partitions': [partition]}]}\n"
        "codec.encode_request('fetch', 16, fields, correlation_id=1, client_id=None)\n"
        "print(*sorted({name.split('.')[3] for name in sys.modules if name.startswith('kio.schema.fetch.')}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "v16 v18 v4\n"
