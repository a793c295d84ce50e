"""Produce of one batch at one go against the general functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.test_produce import garbled, ids, int32, int64, names, natural32
from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.produce import (
    ProduceResult,
    encode_produce_request,
    encode_produce_response,
    parse_produce_response,
)
from wire.frames.produce_single import SingleAnswer, SingleRequest

ID = bytes(range(16))
versions = st.integers(9, 13)


@given(versions, ids, names, int32, st.none() | names, int32, st.sampled_from([-1, 1]), natural32, st.data())
def test_a_request_is_the_same_bytes(
    version: int,
    topic_id: bytes,
    name: str,
    index: int,
    client_id: str | None,
    correlation_id: int,
    acks: int,
    timeout_ms: int,
    data: st.DataObject,
) -> None:
    key: str | bytes = topic_id if version >= 13 else name
    single = SingleRequest(version, client_id, key, index)
    for records in data.draw(st.lists(st.binary(max_size=300), min_size=1, max_size=3)):
        made = single.encode(correlation_id, acks, timeout_ms, records)
        general = encode_produce_request(
            version, correlation_id, client_id, None, acks, timeout_ms, [(key, [(index, records)])]
        )
        assert b"".join(made) == b"".join(general)
        assert any(one is records for one in made), "records are handed on, not copied"


@pytest.mark.parametrize("size", [0, 126, 127, 16_382, 16_383, 2_097_150, 2_097_151])
def test_sizes_of_every_length(size: int) -> None:
    records = bytes(size)
    made = SingleRequest(13, "c", ID, 0).encode(1, 1, 1, records)
    assert b"".join(made) == b"".join(encode_produce_request(13, 1, "c", None, 1, 1, [(ID, [(0, records)])]))


@given(versions, ids, names, int32, int32, st.integers(0, 2**63 - 1), int64, int64, natural32)
def test_an_answer_is_the_same_bytes_and_read_as_it_was_meant(
    version: int,
    topic_id: bytes,
    name: str,
    index: int,
    correlation_id: int,
    base_offset: int,
    append_time: int,
    log_start: int,
    throttle_ms: int,
) -> None:
    key: str | bytes = topic_id if version >= 13 else name
    single = SingleAnswer(version, key, index)
    what = base_offset, append_time, log_start, throttle_ms
    made = b"".join(single.encode(correlation_id, what))
    result = ProduceResult(index, 0, base_offset, append_time, log_start)
    general = encode_produce_response(version, correlation_id, [(key, [result])], throttle_ms=throttle_ms)
    assert made == b"".join(general)
    assert single.acknowledged(memoryview(made)[4:]) == what


OTHERS = [
    [(ID, [ProduceResult(3, 6)])],
    [(ID, [ProduceResult(3, 46, 7)])],
    [(ID, [ProduceResult(3, 0)])],  # without an offset
    [(ID, [ProduceResult(3, 0, 7, current_leader=(1, 2))])],
    [(ID, [ProduceResult(3, 0, 7, error_message="")])],
    [(ID, [ProduceResult(3, 0, 7, record_errors=[(0, None)])])],
    [(ID, [ProduceResult(4, 0, 7)])],
    [(bytes(16), [ProduceResult(3, 0, 7)])],
    [(ID, [ProduceResult(3, 0, 7), ProduceResult(4, 0, 7)])],
    [(ID, [])],
    [],
]


@pytest.mark.parametrize("topics", OTHERS, ids=lambda topics: repr(topics)[:60])
def test_anything_else_is_for_the_general_function(topics: list[tuple[bytes, list[ProduceResult]]]) -> None:
    frame = b"".join(encode_produce_response(13, 1, topics))[4:]
    assert parse_produce_response(frame, 13).topics == topics
    assert SingleAnswer(13, ID, 3).acknowledged(frame) is None


def test_a_garbled_answer_is_no_success() -> None:
    """Whatever is changed in one: it is read as the general function reads it, or left to that."""
    single = SingleAnswer(13, ID, 3)
    frame = b"".join(single.encode(1, (5, -1, 2, 0)))[4:]
    read = 0
    for changed in garbled(frame, 4):
        what = single.acknowledged(changed)
        try:
            general = parse_produce_response(changed, 13)
        except MalformedFrame:
            assert what is None, changed
            continue
        if what is not None:
            read += 1
            assert general.topics == [(ID, [ProduceResult(3, 0, *what[:3])])]
            assert general.throttle_ms == what[3]
    assert read > 50  # other offsets, other times


@pytest.mark.parametrize("version", [8, 14])
def test_other_versions_look_otherwise(version: int) -> None:
    with pytest.raises(LocalProtocolError):
        SingleRequest(version, "c", "orders", 0)
    with pytest.raises(LocalProtocolError):
        SingleAnswer(version, "orders", 0)
