"""Produce by hand against the schema codec: every version, both directions; hostile input."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames import produce_request
from wire.frames.produce import (
    ProduceRequest,
    ProduceResult,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
    parse_produce_response,
)
from wire.frames.types import Node
from wire.schema import codec

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural32 = st.integers(0, 2**31 - 1)
names = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.binary(min_size=16, max_size=16)
errors = st.sampled_from([0, 2, 3, 6, 7, 19, 45, 87, -1])


@st.composite
def requests(draw: st.DrawFn, low: int = 3, high: int = 13) -> ProduceRequest:
    version = draw(st.integers(low, high))
    keys = ids if version >= 13 else names
    # Topics are a map in Kafka's schema, so a name comes once.
    partition = st.tuples(int32, st.binary(max_size=200).map(memoryview))
    return ProduceRequest(
        version,
        draw(st.none() | names),
        draw(st.integers(-1, 1)),
        draw(natural32),
        draw(
            st.lists(st.tuples(keys, st.lists(partition, max_size=3)), max_size=3, unique_by=lambda t: t[0])
        ),
    )


def request_fields(request: ProduceRequest) -> dict[str, object]:
    key_name = "topic_id" if request.version >= 13 else "name"
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout_ms": request.timeout_ms,
        "topic_data": [
            {key_name: key, "partition_data": [{"index": i, "records": bytes(r)} for i, r in partitions]}
            for key, partitions in request.topics
        ],
    }


def schema_request(request: ProduceRequest, client_id: str | None = "client") -> tuple[bytes, int]:
    frame = codec.encode_request(
        "produce", request.version, request_fields(request), correlation_id=77, client_id=client_id
    )
    return frame, 10 + len((client_id or "").encode()) + (request.version >= 9)


@given(requests())
def test_a_request_is_parsed_as_the_schema_codec_wrote_it(request: ProduceRequest) -> None:
    frame, body = schema_request(request)
    parsed = parse_produce_request(frame, body, request.version)
    assert parsed == request
    for _, partitions in parsed.topics:
        for _, records in partitions:
            assert records.obj is frame  # a view, no copy


@given(requests(9, 13), st.none() | names)
def test_a_request_is_built_byte_for_byte_as_by_the_schema_codec(
    request: ProduceRequest, client_id: str | None
) -> None:
    expected, _ = schema_request(request, client_id)
    buffers = encode_produce_request(
        request.version,
        77,
        client_id,
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        request.topics,
    )
    frame = b"".join(buffers)
    assert frame[:4] == struct.pack(">i", len(expected))
    assert frame[4:] == expected
    views = [records for _, partitions in request.topics for _, records in partitions]
    assert [id(b) for b in buffers if isinstance(b, memoryview)] == [id(view) for view in views]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_full_message_of_every_version_is_as_the_schema_codec_has_it(version: int) -> None:
    """Random contents may miss a field of one version; this one has every field in each."""
    key: Any = b"\1" * 16 if version >= 13 else "topic"
    records = memoryview(b"r" * 300)
    request = ProduceRequest(version, "tx", -1, 100, [(key, [(0, records), (1, memoryview(b""))])])
    frame, body = schema_request(request)
    assert parse_produce_request(frame, body, version) == request
    result = ProduceResult(0, 6, 5, 7, 1 if version >= 5 else -1)
    if version >= 8:
        result.error_message, result.record_errors = "message", [(0, "bad"), (1, None)]
    if version >= 10:
        result.current_leader = (3, 4)
    nodes = [Node(1, "host", 9092, "rack")] if version >= 10 else []
    topics = [(key, [result, ProduceResult(1, 0)])]
    built = encode_produce_response(version, 4711, topics, throttle_ms=9, node_endpoints=nodes)
    expected = schema_response(version, topics, 9, nodes)
    assert b"".join(built)[4:] == expected
    if version >= 9:
        assert parse_produce_response(expected, version) == (topics, 9)
        rebuilt = encode_produce_request(version, 77, "client", "tx", -1, 100, request.topics)
        assert b"".join(rebuilt)[4:] == frame


def test_a_negative_records_size_other_than_null_is_malformed() -> None:
    head = b"\xff\xff" + struct.pack(">hii", 1, 100, 1) + b"\0\x01t" + struct.pack(">ii", 1, 0)
    assert len(parse_produce_request(head + struct.pack(">i", -1), 0, 3).topics[0][1][0][1]) == 0
    with pytest.raises(MalformedFrame):
        parse_produce_request(head + struct.pack(">i", -2), 0, 3)


def test_null_records_are_an_empty_view() -> None:
    for version in (3, 8, 9, 12):
        frame = codec.encode_request(
            "produce",
            version,
            {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": None}]}]},
            correlation_id=1,
            client_id="client",
        )
        request = parse_produce_request(frame, 16 + (version >= 9), version)
        assert len(request.topics[0][1][0][1]) == 0


@st.composite
def responses(draw: st.DrawFn, low: int = 3, high: int = 13) -> tuple[int, list[Any], int, list[Node]]:
    version = draw(st.integers(low, high))
    keys = ids if version >= 13 else names
    result = st.builds(
        ProduceResult,
        index=int32,
        error=errors,
        base_offset=int64,
        log_append_time=st.integers(-1, 2**40),
        log_start_offset=int64 if version >= 5 else st.just(-1),
        error_message=st.none() | names if version >= 8 else st.none(),
        record_errors=st.lists(st.tuples(int32, st.none() | names), min_size=1, max_size=2) | st.just(())
        if version >= 8
        else st.just(()),
        current_leader=st.none() | st.tuples(natural32, int32) if version >= 10 else st.none(),
    )
    topics = draw(
        st.lists(st.tuples(keys, st.lists(result, max_size=3)), max_size=3, unique_by=lambda t: t[0])
    )
    nodes = draw(st.lists(st.builds(Node, natural32, names, natural32, st.none() | names), max_size=2))
    return version, topics, draw(natural32), nodes if version >= 10 else []


def schema_response(version: int, topics: list[Any], throttle_ms: int, nodes: list[Node]) -> bytes:
    key_name = "topic_id" if version >= 13 else "name"
    responses = []
    for key, results in topics:
        entries = []
        for r in results:
            entry: dict[str, object] = {
                "index": r.index,
                "error_code": r.error,
                "base_offset": r.base_offset,
                "log_append_time_ms": r.log_append_time,
                "log_start_offset": r.log_start_offset,
                "error_message": r.error_message,
                "record_errors": [
                    {"batch_index": index, "batch_index_error_message": message}
                    for index, message in r.record_errors
                ],
            }
            if r.current_leader is not None:
                entry["current_leader"] = {
                    "leader_id": r.current_leader[0],
                    "leader_epoch": r.current_leader[1],
                }
            entries.append(entry)
        responses.append({key_name: key, "partition_responses": entries})
    fields: dict[str, object] = {
        "responses": responses,
        "throttle_time_ms": throttle_ms,
        "node_endpoints": [{"node_id": n.id, "host": n.host, "port": n.port, "rack": n.rack} for n in nodes],
    }
    return codec.encode_response("produce", version, 4711, fields)


@given(responses())
def test_a_response_is_built_byte_for_byte_as_by_the_schema_codec(
    response: tuple[int, list[Any], int, list[Node]],
) -> None:
    version, topics, throttle_ms, nodes = response
    frame = b"".join(
        encode_produce_response(version, 4711, topics, throttle_ms=throttle_ms, node_endpoints=nodes)
    )
    expected = schema_response(*response)
    assert frame[:4] == struct.pack(">i", len(expected))
    assert frame[4:] == expected


@given(responses(9, 13))
def test_a_response_is_parsed_as_the_schema_codec_wrote_it(
    response: tuple[int, list[Any], int, list[Node]],
) -> None:
    version, topics, throttle_ms, _ = response
    parsed, throttle = parse_produce_response(memoryview(schema_response(*response)), version)
    assert parsed == topics
    assert throttle == throttle_ms


def test_fields_a_version_lacks_are_left_out() -> None:
    result = ProduceResult(0, 6, error_message="m", record_errors=[(0, "x")], current_leader=(1, 2))
    for version in range(3, 14):
        key = b"\1" * 16 if version >= 13 else "t"
        frame = encode_produce_response(version, 1, [(key, [result])], node_endpoints=[Node(1, "h", 2, None)])
        entity = codec.decode_response("produce", version, bytes(frame[0])[4:])
        assert int(entity.responses[0].partition_responses[0].error_code) == 6


FULL_RESULT = ProduceResult(0, 6, 5, 7, 1, "message", [(0, "bad"), (1, None)], (3, 4))


@pytest.mark.parametrize("version", range(3, 14))
def test_a_request_cut_at_any_byte_is_malformed(version: int) -> None:
    key = b"\1" * 16 if version >= 13 else "topic"
    records = memoryview(b"r" * 70)
    frame, body = schema_request(
        ProduceRequest(version, "tx", -1, 100, [(key, [(0, records), (1, records)])])
    )
    for end in range(body, len(frame)):
        with pytest.raises(MalformedFrame):
            parse_produce_request(frame[:end], body, version)
    with pytest.raises(MalformedFrame):
        parse_produce_request(frame + b"\0", body, version)


@pytest.mark.parametrize("version", range(9, 14))
def test_a_response_cut_at_any_byte_is_malformed(version: int) -> None:
    key = b"\1" * 16 if version >= 13 else "topic"
    frame = schema_response(version, [(key, [FULL_RESULT])], 1, [Node(1, "h", 2, "r")])
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            parse_produce_response(frame[:end], version)


flips = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=300)
@given(flips, st.integers(3, 13))
def test_flipped_bytes_of_a_request_are_malformed_or_valid(
    flips: list[tuple[int, int]], version: int
) -> None:
    key = b"\1" * 16 if version >= 13 else "topic"
    frame, body = schema_request(
        ProduceRequest(version, "tx", -1, 100, [(key, [(0, memoryview(b"r" * 70))])])
    )
    damaged = bytearray(frame)
    for position, value in flips:
        damaged[body + position % (len(frame) - body)] = value
    try:
        parse_produce_request(damaged, body, version)
    except MalformedFrame as error:
        assert error.api == "produce"


@settings(max_examples=300)
@given(flips, st.integers(9, 13))
def test_flipped_bytes_of_a_response_are_malformed_or_valid(
    flips: list[tuple[int, int]], version: int
) -> None:
    key = b"\1" * 16 if version >= 13 else "topic"
    frame = bytearray(schema_response(version, [(key, [FULL_RESULT])], 1, []))
    for position, value in flips:
        frame[position % len(frame)] = value
    try:
        parse_produce_response(frame, version)
    except MalformedFrame as error:
        assert error.version == version


@given(st.binary(max_size=300), st.integers(3, 13))
def test_garbage_is_malformed_or_valid(data: bytes, version: int) -> None:
    for parse in (
        lambda: parse_produce_request(data, 0, version),
        lambda: parse_produce_response(data, max(version, 9)),
    ):
        try:
            parse()
        except MalformedFrame:
            pass


def test_counts_beyond_the_frame_allocate_nothing() -> None:
    huge = b"\xff\xff\xff\xff\x0f"
    head = b"\0" + struct.pack(">hi", 1, 100)
    tracemalloc.start()
    try:
        for body in (head + huge, head + b"\x02\x02t" + huge, head + b"\x02\x02t\x02\0\0\0\0" + huge):
            with pytest.raises(MalformedFrame):
                parse_produce_request(body, 0, 9)
        with pytest.raises(MalformedFrame):
            parse_produce_request(b"\xff\xff" + struct.pack(">hii", 1, 100, 2**31 - 1), 0, 3)
        with pytest.raises(MalformedFrame):
            parse_produce_response(b"\0" * 5 + huge, 9)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_request_of_very_many_tiny_entries_is_refused() -> None:
    body = b"\0" + struct.pack(">hi", 1, 100) + b"\xc1\x9a\x0c" + b"\x01\x01\0" * 200_000 + b"\0"
    with pytest.raises(MalformedFrame, match="more than"):
        parse_produce_request(body, 0, 9)


def test_versions_and_keys_that_do_not_fit_are_our_mistakes() -> None:
    with pytest.raises(MalformedFrame):
        parse_produce_request(b"", 0, 2)
    with pytest.raises(LocalProtocolError):
        encode_produce_request(8, 1, "c", None, 1, 1, [])
    with pytest.raises(LocalProtocolError):
        encode_produce_response(14, 1, [])
    with pytest.raises(LocalProtocolError):
        parse_produce_response(b"", 8)
    with pytest.raises(LocalProtocolError, match="topic id"):
        encode_produce_request(13, 1, "c", None, 1, 1, [("name", [])])
    for version in (3, 12):
        with pytest.raises(LocalProtocolError, match="name"):
            encode_produce_response(version, 1, [(b"\1" * 16, [])])


def _outcome(parse: Callable[[], object]) -> object:
    try:
        return parse()
    except MalformedFrame:
        return MalformedFrame


def garbled(frame: bytes, start: int) -> Iterator[bytes]:
    """Every byte from `start` on replaced by what may mean something, and the frame cut before it."""
    for at in range(start, len(frame)):
        yield frame[:at]
        for value in {0, 1, 2, 3, 0x7F, 0x80, 0xFF, frame[at] ^ 1}:
            yield frame[:at] + bytes((value,)) + frame[at + 1 :]
    yield frame + b"\0"


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("records", [b"", b"r", bytes(200)])
def test_a_request_of_one_batch_is_read_as_any_other(
    version: int, records: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    key: str | bytes = bytes(range(16)) if version >= 13 else "orders"
    request = ProduceRequest(version, None, -1, 30_000, [(key, [(3, memoryview(records))])])
    frame, body = schema_request(request)
    # Shorter than one batch, and well-formed.
    empty, _ = schema_request(replace(request, topics=[(key, [])]))
    frames = [empty, *garbled(empty, body), *garbled(frame, body)]

    def outcomes() -> list[object]:
        return [_outcome(lambda f=f: parse_produce_request(f, body, version)) for f in frames]  # type: ignore[misc]

    at_one_go = outcomes()
    assert request in at_one_go
    monkeypatch.setattr(produce_request, "_parse_single", lambda *_: None)
    assert at_one_go == outcomes()
