"""AlterPartition v0 and v1, by Kafka's schema as it stands here."""

from __future__ import annotations

import struct

import pytest

from wire.errors import MalformedFrame
from wire.frames.primitives import compact_string
from wire.frames.request_header import parse_request_header
from wire.schema import codec


def request(version: int) -> bytes:
    partition = {
        "partition_index": 3,
        "leader_epoch": 7,
        "new_isr": [800, 1],
        "new_isr_with_epochs": [],  # of v3
        "leader_recovery_state": 0,
        "partition_epoch": 12,
    }
    fields = {
        "broker_id": 800,
        "broker_epoch": 99,
        "topics": [{"topic_name": "orders", "partitions": [partition]}],
    }
    return codec.encode_request("alter_partition", version, fields, correlation_id=5, client_id="me")


def answer(version: int) -> bytes:
    recovery = b"\0" if version else b""
    partition = struct.pack(">ihii", 3, 41, 1, 8) + b"\3" + struct.pack(">ii", 1, 2) + recovery
    partition += struct.pack(">i", 13) + b"\0"
    topic = compact_string("orders") + b"\2" + partition + b"\0"
    return struct.pack(">i", 5) + b"\0" + struct.pack(">ih", 0, 0) + b"\2" + topic + b"\0"


@pytest.mark.parametrize("version", [0, 1])
def test_a_request_names_its_topics(version: int) -> None:
    frame = request(version)
    header, offset = parse_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id) == (56, version, 5)
    recovery = b"\0" if version else b""
    isr = b"\3" + struct.pack(">ii", 800, 1)
    partition = struct.pack(">ii", 3, 7) + isr + recovery + struct.pack(">i", 12) + b"\0"
    topics = b"\2" + compact_string("orders") + b"\2" + partition + b"\0"
    assert frame[offset:] == struct.pack(">iq", 800, 99) + topics + b"\0"


@pytest.mark.parametrize("version", [0, 1])
def test_an_answer_names_them_too(version: int) -> None:
    found = codec.decode_response("alter_partition", version, answer(version))
    [topic] = found.topics
    assert (found.error_code, topic.topic_name) == (0, "orders")
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(3, 41)]


@pytest.mark.parametrize("version", [0, 1])
def test_an_answer_that_is_cut_is_refused(version: int) -> None:
    whole = answer(version)
    for end in range(5, len(whole)):
        with pytest.raises(MalformedFrame):
            codec.decode_response("alter_partition", version, whole[:end])


def test_versions_with_ids_are_as_they_were() -> None:
    assert (codec.min_version("alter_partition"), codec.max_version("alter_partition")) == (0, 3)
    fields = {"broker_id": 800, "broker_epoch": 99, "topics": []}
    for version in (2, 3):
        frame = codec.encode_request("alter_partition", version, fields, correlation_id=5, client_id=None)
        assert codec.decode_request(frame)[1].broker_id == 800
