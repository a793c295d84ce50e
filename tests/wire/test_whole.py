"""Messages that are read by hand to their last byte."""

from __future__ import annotations

import struct

import pytest

from wire.errors import MalformedFrame
from wire.frames.fetch import parse_fetch_request
from wire.frames.produce import parse_produce_request
from wire.frames.whole import add_entries, whole

LEGACY_NULL, COMPACT_NULL = b"\xff\xff\xff\xff", b"\0"


@whole("produce", "request")
def a_number(frame: bytes, pos: int, version: int) -> tuple[int, int]:
    return struct.unpack_from(">i", frame, pos)[0], pos + 4


def test_to_the_last_byte() -> None:
    assert a_number(b"--\0\0\0\7", 2, 3) == 7
    with pytest.raises(MalformedFrame, match=r"request of 7 bytes ends at byte 6 \(produce v3\)"):
        a_number(b"--\0\0\0\7-", 2, 3)
    with pytest.raises(MalformedFrame, match=r"request is garbled: .* \(produce v3\)"):
        a_number(b"--\0\0\0", 2, 3)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b"\xff\xff" + struct.pack(">hi", 1, 30_000) + LEGACY_NULL),
        (9, COMPACT_NULL + struct.pack(">hi", 1, 30_000) + COMPACT_NULL + b"\0"),
    ],
)
def test_a_produce_without_a_list_of_topics(version: int, body: bytes) -> None:
    with pytest.raises(MalformedFrame, match="null"):
        parse_produce_request(body, 0, version)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (4, struct.pack(">iiiib", -1, 500, 1, 1000, 0) + LEGACY_NULL),
        (12, struct.pack(">iiiibii", -1, 500, 1, 1000, 0, 0, -1) + COMPACT_NULL + b"\1\1\0"),
    ],
)
def test_a_fetch_without_a_list_of_topics(version: int, body: bytes) -> None:
    with pytest.raises(MalformedFrame, match="null"):
        parse_fetch_request(body, 0, version)


def test_entries_are_counted() -> None:
    assert add_entries(2, 3, 5) == 5
    with pytest.raises(MalformedFrame, match="more than 5"):
        add_entries(3, 3, 5)
    with pytest.raises(MalformedFrame, match="null"):
        add_entries(0, -1, 5)
