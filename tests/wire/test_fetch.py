"""Fetch by hand against the schema codec: every version, random contents, both directions; hostile bytes."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_request,
    parse_fetch_response,
)
from wire.frames.fetch_request import HIGH_WATERMARK_UNSUPPORTED
from wire.frames.primitives import uvarint
from wire.frames.types import Node
from wire.schema import codec

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural32 = st.integers(0, 2**31 - 1)
names = st.text(st.characters(codec="utf-8"), min_size=0, max_size=20)
ids = st.binary(min_size=16, max_size=16)
errors = st.sampled_from([0, 1, 3, 6, 74, 75, 100, -1])


def keys(version: int) -> st.SearchStrategy[Any]:
    return ids if version >= 13 else names


@st.composite
def requests(draw: st.DrawFn, low: int = 4, high: int = 18) -> FetchRequest:
    version = draw(st.integers(low, high))
    partition = st.builds(
        FetchPartition,
        int32,
        int32 if version >= 9 else st.just(-1),
        int64,
        int32 if version >= 12 else st.just(-1),
        int64 if version >= 5 else st.just(-1),
        int32,
        st.integers(-1, 2**62) if version >= 18 else st.just(-1),
    )
    return FetchRequest(
        version=version,
        replica_id=draw(int32),
        replica_epoch=draw(int64) if version >= 15 else -1,
        max_wait_ms=draw(natural32),
        min_bytes=draw(int32),
        max_bytes=draw(int32),
        isolation_level=draw(st.integers(-128, 127)),
        session_id=draw(int32) if version >= 7 else 0,
        session_epoch=draw(int32) if version >= 7 else -1,
        topics=draw(st.lists(st.tuples(keys(version), st.lists(partition, max_size=4)), max_size=4)),
        forgotten=draw(st.lists(st.tuples(keys(version), st.lists(int32, max_size=4)), max_size=3))
        if version >= 7
        else [],
        rack_id=draw(names) if version >= 11 else "",
    )


def request_fields(request: FetchRequest) -> dict[str, object]:
    """The same request for the schema codec."""
    version = request.version
    key = "topic_id" if version >= 13 else "topic"
    topics = []
    for name, partitions in request.topics:
        entries = []
        for p in partitions:
            entry: dict[str, object] = {
                "partition": p.index,
                "fetch_offset": p.fetch_offset,
                "partition_max_bytes": p.max_bytes,
                "current_leader_epoch": p.current_leader_epoch,
                "last_fetched_epoch": p.last_fetched_epoch,
                "log_start_offset": p.log_start_offset,
            }
            if version >= 18:
                entry["high_watermark"] = p.high_watermark
            entries.append(entry)
        topics.append({key: name, "partitions": entries})
    fields: dict[str, object] = {
        "max_wait_ms": request.max_wait_ms,
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation_level,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": topics,
        "forgotten_topics_data": [{key: name, "partitions": p} for name, p in request.forgotten],
        "rack_id": request.rack_id,
    }
    if version >= 15:
        fields["replica_state"] = {
            "replica_id": request.replica_id,
            "replica_epoch": request.replica_epoch if request.replica_id != -1 else -1,
        }
    else:
        fields["replica_id"] = request.replica_id
    return fields


def schema_request(request: FetchRequest, client_id: str | None = "client") -> tuple[bytes, int]:
    frame = codec.encode_request(
        "fetch", request.version, request_fields(request), correlation_id=77, client_id=client_id
    )
    return frame, 10 + len((client_id or "").encode()) + (request.version >= 12)


@given(requests())
def test_a_request_is_parsed_as_the_schema_codec_wrote_it(request: FetchRequest) -> None:
    frame, body = schema_request(request)
    if request.replica_id == -1:
        request.replica_epoch = -1
    for buffer in (frame, bytearray(frame), memoryview(frame)):
        assert parse_fetch_request(buffer, body, request.version) == request


@given(requests(12, 17), st.none() | names)
def test_a_request_is_built_byte_for_byte_as_by_the_schema_codec(
    request: FetchRequest, client_id: str | None
) -> None:
    expected, _ = schema_request(request, client_id)
    if request.replica_id == -1:
        request.replica_epoch = -1
    built = encode_fetch_request(request.version, 77, client_id, request)
    assert built[:4] == struct.pack(">i", len(expected))
    assert built[4:] == expected


def test_every_version_of_a_request_round_trips() -> None:
    for version in range(12, 18):
        key = b"\1" * 16 if version >= 13 else "topic"
        request = FetchRequest(version, topics=[(key, [FetchPartition(1, 2, 3, 4, 5, 6)])], rack_id="a")
        frame = encode_fetch_request(version, 1, "c", request)
        assert parse_fetch_request(memoryview(frame)[4:], 12, version) == request


def test_a_follower_that_does_not_track_the_high_watermark_shows_as_minus_one() -> None:
    request = FetchRequest(
        18, 1, 5, topics=[(b"\1" * 16, [FetchPartition(0, 1, 2, 3, 4, 5, HIGH_WATERMARK_UNSUPPORTED)])]
    )
    frame, body = schema_request(request)
    assert parse_fetch_request(frame, body, 18).topics[0][1][0].high_watermark == -1


def test_unknown_and_unneeded_tagged_fields_of_a_request_are_skipped() -> None:
    directory = struct.pack(">iiqiqi", 0, 1, 2, 3, 4, 5) + b"\x02\x00\x10" + b"d" * 16 + b"\x09\x02zz"
    body = (
        struct.pack(">iiibii", 500, 1, 1024, 0, 0, -1)
        + b"\x02" + b"\1" * 16 + b"\x02" + directory + b"\x01\x05\x01x"
        + b"\x01"  # nothing forgotten
        + b"\x01"  # rack
        + b"\x02\x00\x03\x02id\x7f\x01y"  # cluster id and an unknown tag
    )  # fmt: skip
    request = parse_fetch_request(body, 0, 17)
    assert request.topics == [(b"\1" * 16, [FetchPartition(0, 1, 2, 3, 4, 5)])]
    assert request.replica_id == -1


@pytest.mark.parametrize("where", ["request", "partition"])
def test_a_request_of_tagged_fields_is_refused_before_they_are_read(where: str) -> None:
    """They would be two bytes each, and 57 million of them fit into the largest request."""
    many = uvarint(1_000_000) + b"\x07\0" * 1_000_000
    partition = struct.pack(">iiqiqi", 0, 1, 2, 3, 4, 5) + (many if where == "partition" else b"\0")
    topics = b"\x02" + b"\1" * 16 + b"\x02" + partition + b"\0"
    body = struct.pack(">iiibii", 500, 1, 1024, 0, 0, -1) + topics + b"\x01\x01"
    body += many if where == "request" else b"\0"
    began = time.process_time()
    with pytest.raises(MalformedFrame, match="1000000 tagged fields"):
        parse_fetch_request(body, 0, 17)
    assert time.process_time() - began < 0.1


@st.composite
def responses(draw: st.DrawFn, low: int = 4, high: int = 18) -> tuple[int, list[Any], dict[str, Any]]:
    version = draw(st.integers(low, high))
    topics = []
    for key in draw(st.lists(keys(version), max_size=3)):
        partitions = []
        for index in draw(st.lists(natural32, max_size=4)):
            records = draw(st.lists(st.binary(min_size=1, max_size=200), max_size=3))
            partitions.append(
                FetchPartitionResult(
                    index=index,
                    error=draw(errors),
                    high_watermark=draw(int64),
                    last_stable_offset=draw(int64),
                    log_start_offset=draw(int64) if version >= 5 else -1,
                    records=[memoryview(r) for r in records],
                    size=sum(map(len, records)),
                    diverging=draw(st.none() | st.tuples(natural32, int64)) if version >= 12 else None,
                    current_leader=draw(st.none() | st.tuples(natural32, int32)) if version >= 12 else None,
                    preferred_read_replica=draw(int32) if version >= 11 else -1,
                    aborted=draw(st.none() | st.lists(st.tuples(int64, int64), max_size=3)),
                )
            )
        topics.append((key, partitions))
    top: dict[str, Any] = {"throttle_ms": draw(natural32)}
    if version >= 7:
        top |= {"error": draw(errors), "session_id": draw(int32)}
    if version >= 16:
        top["node_endpoints"] = draw(
            st.lists(st.builds(Node, natural32, names, natural32, st.none() | names), max_size=2)
        )
    return version, topics, top


def schema_response(version: int, topics: list[Any], top: dict[str, Any]) -> bytes:
    key_name = "topic_id" if version >= 13 else "topic"
    fields: dict[str, object] = {
        "throttle_time_ms": top["throttle_ms"],
        "error_code": top.get("error", 0),
        "session_id": top.get("session_id", 0),
        "node_endpoints": [
            {"node_id": n.id, "host": n.host, "port": n.port, "rack": n.rack}
            for n in top.get("node_endpoints", ())
        ],
    }
    responses = []
    for key, partitions in topics:
        entries = []
        for p in partitions:
            entry: dict[str, object] = {
                "partition_index": p.index,
                "error_code": p.error,
                "high_watermark": p.high_watermark,
                "last_stable_offset": p.last_stable_offset,
                "log_start_offset": p.log_start_offset,
                "preferred_read_replica": p.preferred_read_replica,
                "aborted_transactions": None
                if p.aborted is None
                else [{"producer_id": a, "first_offset": b} for a, b in p.aborted],
                "records": b"".join(p.records),
            }
            if p.diverging is not None:
                entry["diverging_epoch"] = {"epoch": p.diverging[0], "end_offset": p.diverging[1]}
            if p.current_leader is not None:
                entry["current_leader"] = {
                    "leader_id": p.current_leader[0],
                    "leader_epoch": p.current_leader[1],
                }
            entries.append(entry)
        responses.append({key_name: key, "partitions": entries})
    fields["responses"] = responses
    return codec.encode_response("fetch", version, 4711, fields)


@given(responses())
def test_a_response_is_built_byte_for_byte_as_by_the_schema_codec(
    response: tuple[int, list[Any], dict[str, Any]],
) -> None:
    version, topics, top = response
    buffers, total = encode_fetch_response(version, 4711, topics, **top)
    frame = b"".join(buffers)
    expected = schema_response(version, topics, top)
    assert total == len(frame) == len(expected) + 4
    assert frame[:4] == struct.pack(">i", len(expected))
    assert frame[4:] == expected


@given(responses())
def test_the_record_views_of_a_response_are_passed_on_not_copied(
    response: tuple[int, list[Any], dict[str, Any]],
) -> None:
    version, topics, top = response
    buffers, _ = encode_fetch_response(version, 1, topics, **top)
    views = [view for _, partitions in topics for p in partitions for view in p.records]
    passed = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert [id(view) for view in passed] == [id(view) for view in views]


@given(responses(12, 18))
def test_a_response_is_parsed_as_the_schema_codec_wrote_it(
    response: tuple[int, list[Any], dict[str, Any]],
) -> None:
    version, topics, top = response
    frame = schema_response(version, topics, top)
    parsed = parse_fetch_response(memoryview(frame), version)
    assert (parsed.error, parsed.session_id, parsed.throttle_ms) == (
        top["error"],
        top["session_id"],
        top["throttle_ms"],
    )
    expected = [(key, p) for key, partitions in topics for p in partitions]
    assert len(parsed.partitions) == len(expected)
    for got, (key, p) in zip(parsed.partitions, expected, strict=True):
        assert got[:9] == (
            key,
            p.index,
            p.error,
            p.high_watermark,
            p.last_stable_offset,
            p.log_start_offset,
            p.diverging,
            p.current_leader,
            p.preferred_read_replica,
        )
        assert got.aborted == p.aborted
        assert frame[got.records_start : got.records_end] == b"".join(p.records)


@pytest.mark.parametrize("version", range(4, 19))
def test_a_full_message_of_every_version_is_as_the_schema_codec_has_it(version: int) -> None:
    """Random contents may miss a field of one version; this one has every field in each."""
    key: Any = b"\1" * 16 if version >= 13 else "topic"
    partition = FetchPartition(
        7,
        8 if version >= 9 else -1,
        9,
        10 if version >= 12 else -1,
        11 if version >= 5 else -1,
        12,
        13 if version >= 18 else -1,
    )
    request = FetchRequest(
        version, 5, 6 if version >= 15 else -1, 500, 1, 1 << 20, 1, topics=[(key, [partition, partition])]
    )
    if version >= 7:
        request.session_id, request.session_epoch, request.forgotten = 3, 4, [(key, [1, 2, 3])]
    if version >= 11:
        request.rack_id = "rack"
    frame, body = schema_request(request)
    assert parse_fetch_request(frame, body, version) == request
    if 12 <= version <= 17:
        assert encode_fetch_request(version, 77, "client", request)[4:] == frame

    result = FetchPartitionResult(0, 6, 9, 8, 1 if version >= 5 else -1, [memoryview(b"r" * 70)], 70)
    result.aborted = [(1, 2), (3, 4)]
    top: dict[str, Any] = {"throttle_ms": 5}
    if version >= 7:
        top |= {"error": 70, "session_id": 71}
    if version >= 11:
        result.preferred_read_replica = 72
    if version >= 12:
        result.diverging, result.current_leader = (1, 2), (3, 4)
    if version >= 16:
        top["node_endpoints"] = [Node(1, "host", 9092, "rack"), Node(2, "other", 9093, None)]
    topics = [(key, [result, FetchPartitionResult(1)])]
    built = b"".join(encode_fetch_response(version, 4711, topics, **top)[0])
    expected = schema_response(version, topics, top)
    assert built[4:] == expected
    if version >= 12:
        first, second = parse_fetch_response(expected, version).partitions
        assert (first.diverging, first.current_leader, first.preferred_read_replica) == ((1, 2), (3, 4), 72)
        assert (first.aborted, first.records_end - first.records_start) == ([(1, 2), (3, 4)], 70)
        assert (second.index, second.aborted, second.records_end - second.records_start) == (1, None, 0)


def test_a_tag_of_a_later_version_is_unknown_to_an_earlier_one() -> None:
    partition = struct.pack(">iiqiqi", 0, 1, 2, 3, 4, 5) + b"\x01\x01\x08" + struct.pack(">q", 99)
    body = (
        struct.pack(">iiibii", 500, 1, 1024, 0, 0, -1)
        + b"\x02"
        + b"\1" * 16
        + b"\x02"
        + partition
        + b"\0\x01\x01\0"
    )
    assert parse_fetch_request(body, 0, 17).topics[0][1][0].high_watermark == -1
    assert parse_fetch_request(body, 0, 18).topics[0][1][0].high_watermark == 99
    with pytest.raises(MalformedFrame, match="8 bytes"):
        parse_fetch_request(body.replace(b"\x01\x01\x08", b"\x01\x01\x07"), 0, 18)


def test_null_records_are_parsed_and_a_snapshot_id_is_passed_over() -> None:
    frame = codec.encode_response(
        "fetch",
        17,
        1,
        {
            "responses": [
                {
                    "topic_id": b"\1" * 16,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "records": None,
                            "snapshot_id": {"end_offset": 100, "epoch": 7},
                        }
                    ],
                }
            ]
        },
    )
    partition = parse_fetch_response(frame, 17).partitions[0]
    assert partition.diverging is None and partition.current_leader is None
    assert partition.records_start == partition.records_end


FULL_REQUEST = FetchRequest(
    18,
    3,
    9,
    500,
    1,
    1 << 20,
    1,
    7,
    8,
    [(b"\1" * 16, [FetchPartition(0, 1, 2, 3, 4, 5, 6), FetchPartition(1, 1, 2, 3, 4, 5)])],
    [(b"\2" * 16, [1, 2, 3])],
    "rack",
)
FULL_RESULT = FetchPartitionResult(
    0, 0, 9, 8, 1, [memoryview(b"r" * 70)], 70, (1, 2), (3, 4), 5, [(1, 2), (3, 4)]
)


@pytest.mark.parametrize("version", range(4, 19))
def test_a_request_cut_at_any_byte_is_malformed(version: int) -> None:
    request = FetchRequest(
        version, topics=[("topic" if version < 13 else b"\1" * 16, FULL_REQUEST.topics[0][1])]
    )
    request.forgotten = [("topic" if version < 13 else b"\2" * 16, [1, 2])]
    frame, body = schema_request(request)
    for end in range(body, len(frame)):
        with pytest.raises(MalformedFrame):
            parse_fetch_request(frame[:end], body, version)
    with pytest.raises(MalformedFrame):
        parse_fetch_request(frame + b"\0", body, version)


@pytest.mark.parametrize("version", range(12, 19))
def test_a_response_cut_at_any_byte_is_malformed(version: int) -> None:
    frame = schema_response(
        version, [("t" if version < 13 else b"\1" * 16, [FULL_RESULT])], {"throttle_ms": 1}
    )
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            parse_fetch_response(frame[:end], version)
    with pytest.raises(MalformedFrame):
        parse_fetch_response(frame + b"\0", version)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(4, 18),
)
def test_flipped_bytes_of_a_request_are_malformed_or_valid(
    flips: list[tuple[int, int]], version: int
) -> None:
    request = FetchRequest(
        version, topics=[("topic" if version < 13 else b"\1" * 16, FULL_REQUEST.topics[0][1])]
    )
    frame, body = schema_request(request)
    damaged = bytearray(frame)
    for position, value in flips:
        damaged[body + position % (len(frame) - body)] = value
    try:
        parse_fetch_request(damaged, body, version)
    except MalformedFrame as error:
        assert error.api == "fetch"
        assert error.version == version


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(12, 18),
)
def test_flipped_bytes_of_a_response_are_malformed_or_point_into_the_frame(
    flips: list[tuple[int, int]], version: int
) -> None:
    frame = bytearray(
        schema_response(version, [("t" if version < 13 else b"\1" * 16, [FULL_RESULT])], {"throttle_ms": 1})
    )
    for position, value in flips:
        frame[position % len(frame)] = value
    try:
        response = parse_fetch_response(frame, version)
    except MalformedFrame:
        return
    for partition in response.partitions:
        assert 0 <= partition.records_start <= partition.records_end <= len(frame)


@given(st.binary(max_size=300), st.integers(4, 18))
@example(b"\xff" * 100, 18)
def test_garbage_is_malformed_or_valid(data: bytes, version: int) -> None:
    for parse in (
        lambda: parse_fetch_request(data, 0, version),
        lambda: parse_fetch_response(data, max(version, 12)),
    ):
        try:
            parse()
        except MalformedFrame:
            pass


def test_counts_beyond_the_frame_allocate_nothing() -> None:
    head = struct.pack(">iiibii", 500, 1, 1024, 0, 0, -1)
    huge = b"\xff\xff\xff\xff\x0f"
    bodies = [
        (head + huge, 17),
        (head + b"\x02" + b"\1" * 16 + huge, 17),
        (head + b"\x01" + huge, 17),
        (head + b"\x01\x02" + b"\1" * 16 + huge, 17),
        (head + b"\x01\x01\x01" + huge, 17),
        (struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**31 - 1), 4),
    ]
    tracemalloc.start()
    try:
        for body, version in bodies:
            with pytest.raises(MalformedFrame):
                parse_fetch_request(body, 0, version)
        with pytest.raises(MalformedFrame):
            parse_fetch_response(b"\0" * 15 + huge, 17)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_request_of_very_many_tiny_entries_is_refused() -> None:
    topics = b"\x01\x01\0" * 200_000  # an empty name, no partitions
    body = struct.pack(">iiiibii", -1, 500, 1, 1024, 0, 0, -1) + b"\xc1\x9a\x0c" + topics + b"\x01\x01\0"
    with pytest.raises(MalformedFrame, match="more than"):
        parse_fetch_request(body, 0, 12)
    partitions = b"\0" * 33 * 100_000
    head = struct.pack(">iiibii", 500, 1, 1024, 0, 0, -1) + b"\x02" + b"\1" * 16 + b"\xa1\x8d\x06"
    with pytest.raises(MalformedFrame, match="more than"):
        parse_fetch_request(head + partitions + b"\0\x01\x01\0", 0, 17)


def test_versions_nobody_serves_are_refused() -> None:
    with pytest.raises(MalformedFrame):
        parse_fetch_request(b"", 0, 3)
    with pytest.raises(MalformedFrame):
        parse_fetch_request(b"", 0, 19)
    with pytest.raises(LocalProtocolError):
        encode_fetch_request(11, 1, "c", FetchRequest(11))
    with pytest.raises(LocalProtocolError):
        encode_fetch_response(3, 1, [])
    with pytest.raises(LocalProtocolError):
        parse_fetch_response(b"", 11)


def test_our_own_mistakes_are_named() -> None:
    result = FetchPartitionResult(0, records=[memoryview(b"abc")], size=2)
    for version, key in ((11, "t"), (17, b"\1" * 16)):
        with pytest.raises(LocalProtocolError, match="size"):
            encode_fetch_response(version, 1, [(key, [result])])
    with pytest.raises(LocalProtocolError, match="topic id"):
        encode_fetch_response(17, 1, [("name", [])])
    for version in (4, 12):
        with pytest.raises(LocalProtocolError, match="name"):
            encode_fetch_response(version, 1, [(b"\1" * 16, [])])
    with pytest.raises(LocalProtocolError, match="topic id"):
        encode_fetch_request(17, 1, "c", FetchRequest(17, topics=[("name", [])]))
    with pytest.raises(LocalProtocolError, match="name"):
        encode_fetch_request(12, 1, "c", FetchRequest(12, topics=[(b"\1" * 16, [])]))
