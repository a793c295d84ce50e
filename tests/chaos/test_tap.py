"""What is read off the wire, in pieces of any size and in every version that clients use."""

from __future__ import annotations

import struct
import uuid

import pytest

from tests.chaos.checker import Answer
from tests.chaos.tap import ProduceTap
from wire.frames.produce import ProduceResult, encode_produce_request, encode_produce_response
from wire.frames.types import TopicPartition
from wire.schema import codec
from wire.schema.codec import encode_response

ID = uuid.UUID(int=77)


def request(version: int, correlation: int) -> bytes:
    key: str | bytes = ID.bytes if version >= 13 else "orders"
    topics = [(key, [(1, memoryview(b"records"))])]
    parts = encode_produce_request(
        version, correlation, "client", acks=-1, timeout_ms=1000, topics=topics, transactional_id=None
    )
    return b"".join(bytes(part) for part in parts)


def response(version: int, correlation: int, error: int = 0, base_offset: int = 42) -> bytes:
    key: str | bytes = ID.bytes if version >= 13 else "orders"
    parts = encode_produce_response(
        version, correlation, [(key, [ProduceResult(1, error, base_offset, -1, 0)])]
    )
    return b"".join(bytes(part) for part in parts)


def answers(tap: ProduceTap) -> list[Answer]:
    assert tap.unread == []
    return tap.answers({ID.bytes: "orders"})


EXPECTED = Answer("link broker 900", TopicPartition("orders", 1), 42, 5.0)


@pytest.mark.parametrize("version", [9, 11, 12, 13])
def test_an_acknowledged_produce_is_told(version: int) -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, request(version, 7), 5.0)
    tap.answered(1, response(version, 7))
    assert answers(tap) == [EXPECTED]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_pieces_of_any_size(size: int) -> None:
    tap = ProduceTap("link broker 900")
    asked, told = request(9, 7) + request(9, 8), response(9, 7) + response(9, 8, base_offset=43)
    for at in range(0, len(asked), size):
        tap.asked(1, asked[at : at + size], 5.0)
    for at in range(0, len(told), size):
        tap.answered(1, told[at : at + size])
    assert [one.base_offset for one in answers(tap)] == [42, 43]


def test_a_refused_produce_promises_nothing() -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, request(9, 7), 5.0)
    tap.answered(1, response(9, 7, error=6))
    assert answers(tap) == []


def test_answers_to_other_requests_and_other_connections_are_none() -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, request(9, 7), 5.0)
    tap.answered(2, response(9, 7))
    tap.answered(1, encode_response("heartbeat", 4, 8, {"error_code": 0, "throttle_time_ms": 0}))
    tap.asked(1, struct.pack(">ihhi", 8, 1, 9, 6), 5.0)  # a fetch
    tap.answered(1, response(9, 6))
    assert answers(tap) == []
    tap.answered(1, response(9, 7))
    assert answers(tap) == [EXPECTED]


def test_a_connection_that_ended_is_forgotten() -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, request(9, 7), 5.0)
    tap.closed(1)
    tap.answered(1, response(9, 7))
    assert answers(tap) == []


def test_what_is_no_frame_ends_the_reading_of_that_connection_only() -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, b"\xff" * 20, 5.0)
    tap.asked(1, request(9, 7), 5.0)
    tap.asked(2, request(9, 7), 5.0)
    for connection in (1, 2):
        tap.answered(connection, response(9, 7))
    assert answers(tap) == [EXPECTED]


def test_an_answer_that_cannot_be_read_is_not_passed_over() -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, request(9, 7), 5.0)
    cut = response(9, 7)[4:-6]
    tap.answered(1, len(cut).to_bytes(4, "big") + cut)
    assert len(tap.unread) == 1


def test_of_a_reader_the_open_requests_and_the_last_answer_are_told() -> None:
    tap = ProduceTap("link broker 900")
    tap.asked(1, request(9, 1), 1.0)  # no reader
    assert tap.reading(9.0, 2.0) == []
    fetch = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "topics": [], "forgotten_topics_data": []}
    metadata = codec.encode_request("metadata", 9, {"topics": None}, correlation_id=2, client_id="reader")
    for frame, at in (
        (codec.encode_request("fetch", 12, fetch, correlation_id=1, client_id="reader"), 2.0),
        (metadata, 3.0),
        (codec.encode_request("fetch", 12, fetch, correlation_id=3, client_id="reader"), 8.5),
    ):
        tap.asked(2, len(frame).to_bytes(4, "big") + frame, at)
    part = {
        "partition_index": 4,
        "error_code": 74,
        "high_watermark": 20,
        "last_stable_offset": 10,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "records": None,
    }
    answer = {"session_id": 0, "responses": [{"topic": "orders", "partitions": [part]}]}
    reply = encode_response("fetch", 12, 1, answer)
    tap.answered(2, len(reply).to_bytes(4, "big") + reply)
    told = (
        "link broker 900: reader: 2 fetches, unanswered: api key 3 v9 for 6.0 s; the last answer: asked 7.0 s ago, v12, "
        "error 0, 4: error 74, 0 bytes, high watermark 20, last stable 10"
    )
    assert tap.reading(9.0, 2.0) == [told]
    tap.closed(2)
    assert tap.reading(9.0, 2.0) == []
