"""Addresses and topic ids."""

from __future__ import annotations

import pytest

from wire.frames.types import (
    METADATA_TOPIC_ID,
    Node,
    TopicPartition,
    format_address,
    parse_topic_id,
    topic_id_from_uuid,
    topic_id_str,
    topic_id_to_uuid,
)


def test_topic_id_round_trip() -> None:
    raw = bytes(range(16))
    assert parse_topic_id(topic_id_str(raw)) == raw
    assert topic_id_str(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert topic_id_from_uuid(topic_id_to_uuid(raw)) == raw
    assert topic_id_from_uuid(None) == bytes(16)


@pytest.mark.parametrize("text", ["AAAA", "", "not base64!"])
def test_bad_topic_id(text: str) -> None:
    with pytest.raises(ValueError):
        parse_topic_id(text)


def test_how_they_are_shown() -> None:
    assert format_address("::1", 9092) == "[::1]:9092"
    assert Node(1, "a", 2).address == "a:2"
    assert str(TopicPartition("t", 0)) == "t-0"
