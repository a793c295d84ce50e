"""ListOffsets, OffsetForLeaderEpoch and WriteTxnMarkers by hand: as the schema has them, in every version."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import pytest

from wire.errors import MalformedFrame
from wire.frames.offset_requests import (
    LIST_OFFSETS_VERSIONS,
    MAX_ENTRIES,
    OFFSET_FOR_LEADER_EPOCH_VERSIONS,
    WRITE_TXN_MARKERS_VERSIONS,
    OffsetAnswer,
    answer_write_txn_markers,
    encode_list_offsets,
    encode_offset_for_leader_epoch,
    parse_list_offsets,
    parse_offset_for_leader_epoch,
)
from wire.frames.primitives import uvarint
from wire.frames.request_header import parse_request_header
from wire.schema import codec

LIST_OFFSETS = range(LIST_OFFSETS_VERSIONS[0], LIST_OFFSETS_VERSIONS[1] + 1)
EPOCHS = range(OFFSET_FOR_LEADER_EPOCH_VERSIONS[0], OFFSET_FOR_LEADER_EPOCH_VERSIONS[1] + 1)
MARKERS = range(1, WRITE_TXN_MARKERS_VERSIONS[1] + 1)  # the schema of today has no older one


def request(api: str, version: int, fields: dict[str, Any]) -> tuple[bytes, int]:
    frame = codec.encode_request(api, version, fields, correlation_id=7, client_id="app")
    return frame, parse_request_header(memoryview(frame))[1]


@pytest.mark.parametrize("version", LIST_OFFSETS)
def test_list_offsets(version: int) -> None:
    asked = {
        "replica_id": -1,
        "isolation_level": 1,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": 4, "timestamp": timestamp}
                    for index, timestamp in enumerate((-1, -2, 1_700_000_000_000))
                ],
            }
            for name in ("orders", "päckchen", "e" * 200)
        ],
    }
    frame, at = request("list_offsets", version, asked)
    read = parse_list_offsets(frame, at, version)
    epoch = 4 if version >= 4 else -1
    assert read.replica_id == -1
    assert read.isolation_level == (1 if version >= 2 else 0)
    assert [name for name, _ in read.topics] == ["orders", "päckchen", "e" * 200]
    assert [tuple(one) for one in read.topics[0][1]] == [
        (0, epoch, -1),
        (1, epoch, -2),
        (2, epoch, 1_700_000_000_000),
    ]
    assert read.entries == 12
    answers = [("orders", [OffsetAnswer(3, 6), OffsetAnswer(4, 0, 99, 1 << 40, 5)]), ("e" * 200, [])]
    reply = encode_list_offsets(version, 7, answers)
    assert int.from_bytes(reply[:4], "big") == len(reply) - 4
    by_schema = codec.encode_response(
        "list_offsets",
        version,
        7,
        {
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": one.index,
                            "error_code": one.error,
                            "timestamp": one.timestamp,
                            "offset": one.offset,
                            "leader_epoch": one.leader_epoch,
                        }
                        for one in parts
                    ],
                }
                for name, parts in answers
            ]
        },
    )
    assert bytes(reply[4:]) == by_schema


@pytest.mark.parametrize("version", EPOCHS)
def test_offset_for_leader_epoch(version: int) -> None:
    parts = [{"partition": index, "current_leader_epoch": 5, "leader_epoch": index + 1} for index in range(3)]
    frame, at = request(
        "offset_for_leader_epoch",
        version,
        {"replica_id": 2, "topics": [{"topic": name, "partitions": parts} for name in ("a", "b")]},
    )
    read = parse_offset_for_leader_epoch(frame, at, version)
    assert read.replica_id == (2 if version >= 3 else -2)
    assert [tuple(one) for one in read.topics[1][1]] == [(0, 5, 1), (1, 5, 2), (2, 5, 3)]
    reply = encode_offset_for_leader_epoch(
        version, 7, [("a", [OffsetAnswer(1, 0, -1, 77, 3), OffsetAnswer(2, 76)])]
    )
    fields = [
        {"partition": 1, "error_code": 0, "leader_epoch": 3, "end_offset": 77},
        {"partition": 2, "error_code": 76, "leader_epoch": -1, "end_offset": -1},
    ]
    by_schema = codec.encode_response(
        "offset_for_leader_epoch", version, 7, {"topics": [{"topic": "a", "partitions": fields}]}
    )
    assert bytes(reply[4:]) == by_schema


@pytest.mark.parametrize("version", MARKERS)
def test_write_txn_markers(version: int) -> None:
    markers = [
        {
            "producer_id": 1 << 40,
            "producer_epoch": 3,
            "transaction_result": True,
            "topics": [
                {"name": "orders", "partition_indexes": [0, 5]},
                {"name": "x", "partition_indexes": []},
            ],
            "coordinator_epoch": 8,
        },
        {
            "producer_id": 2,
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": [],
            "coordinator_epoch": 1,
        },
    ]
    frame, at = request("write_txn_markers", version, {"markers": markers})
    reply = answer_write_txn_markers(frame, at, version, 7)
    answer = codec.decode_response("write_txn_markers", version, memoryview(reply)[4:])
    assert [marker.producer_id for marker in answer.markers] == [1 << 40, 2]
    assert [
        (topic.name, [(one.partition_index, int(one.error_code)) for one in topic.partitions])
        for topic in answer.markers[0].topics
    ] == [("orders", [(0, 0), (5, 0)]), ("x", [])]


def test_write_txn_markers_of_a_coordinator_before_2_8() -> None:
    """`WriteTxnMarkersRequest.json` of Kafka 2.7: version 0, with no other one, and nothing flexible."""
    name = struct.pack(">h6s", 6, b"orders")
    head = struct.pack(">hhih3s", 27, 0, 7, 3, b"app")
    topics = struct.pack(">i", 1) + name + struct.pack(">iii", 2, 0, 5)
    frame = (
        head + struct.pack(">i", 1) + struct.pack(">qh?", 1 << 40, 3, True) + topics + struct.pack(">i", 8)
    )
    header, at = parse_request_header(memoryview(frame))
    assert (header.client_id, at) == ("app", len(head))
    reply = answer_write_txn_markers(frame, at, 0, 7, lambda _topic, index: 6 if index else 0)
    told = struct.pack(">i", 1) + struct.pack(">q", 1 << 40) + struct.pack(">i", 1) + name
    told += struct.pack(">i", 2) + struct.pack(">ihih", 0, 0, 5, 6)
    assert reply == struct.pack(">ii", 4 + len(told), 7) + told
    for end in range(at, len(frame)):
        with pytest.raises(MalformedFrame):
            answer_write_txn_markers(frame[:end], at, 0, 7)
    with pytest.raises(MalformedFrame):
        answer_write_txn_markers(frame + b"\0", at, 0, 7)


def _frames() -> list[tuple[Any, int, bytes, int]]:
    part = {"partition_index": 1, "current_leader_epoch": 4, "timestamp": -1}
    epoch = {"partition": 1, "current_leader_epoch": 4, "leader_epoch": 2}
    marker = {
        "producer_id": 1,
        "producer_epoch": 3,
        "transaction_result": True,
        "topics": [{"name": "orders", "partition_indexes": [0, 5]}],
        "coordinator_epoch": 8,
    }
    made = []
    for version in LIST_OFFSETS:
        fields: dict[str, Any] = {"replica_id": -1, "topics": [{"name": "orders", "partitions": [part] * 2}]}
        made.append((parse_list_offsets, version, *request("list_offsets", version, fields)))
    for version in EPOCHS:
        fields = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [epoch] * 2}]}
        made.append(
            (parse_offset_for_leader_epoch, version, *request("offset_for_leader_epoch", version, fields))
        )

    def mark(frame: bytes, at: int, version: int) -> bytearray:
        return answer_write_txn_markers(frame, at, version, 7)

    made += [
        (mark, version, *request("write_txn_markers", version, {"markers": [marker]})) for version in MARKERS
    ]
    return made


def test_whatever_is_sent_is_read_or_refused() -> None:
    rng = random.Random(40)
    refused = 0
    for read, version, frame, at in _frames():
        for cut in range(at, len(frame)):
            with pytest.raises(MalformedFrame):
                read(frame[:cut], at, version)
        with pytest.raises(MalformedFrame):
            read(frame + b"\0", at, version)
        with pytest.raises(MalformedFrame):
            read(frame, at, 99)
        for _ in range(300):
            wrong = bytearray(frame)
            for _ in range(rng.randint(1, 3)):
                wrong[rng.randrange(at, len(wrong))] = rng.randrange(256)
            try:
                read(bytes(wrong), at, version)
            except MalformedFrame:
                refused += 1
    assert refused > 100


def test_a_million_topics_without_a_name_are_refused_at_once() -> None:
    """Four MiB. By the schema they took twelve seconds."""
    count = 1_390_000
    head, at = request("list_offsets", 7, {"replica_id": -1, "topics": []})
    body = head[at : at + 5] + uvarint(count + 1) + b"\x01\x01\x00" * count + b"\0"
    started = time.process_time()
    with pytest.raises(MalformedFrame, match=f"more than {MAX_ENTRIES}"):
        parse_list_offsets(head[:at] + body, at, 7)
    assert time.process_time() - started < 0.1


def test_partitions_named_twice() -> None:
    part = {"partition_index": 1, "current_leader_epoch": -1, "timestamp": -1}
    other = {**part, "partition_index": 2}
    topics = [{"name": "a", "partitions": [part, other]}, {"name": "a", "partitions": [part]}]
    frame, at = request("list_offsets", 7, {"replica_id": -1, "topics": topics})
    assert parse_list_offsets(frame, at, 7).named_twice() == {("a", 1)}
