"""Requests of a controller before KRaft, in all their versions: by Kafka's schemas as they stand here, and hostile."""

from __future__ import annotations

import functools
import random
import struct
from typing import Any

import pytest

from wire.errors import MalformedFrame, WireError
from wire.frames.control_requests import (
    LEADER_AND_ISR,
    STOP_REPLICA,
    UPDATE_METADATA,
    answer_control_request,
    parse_control_request,
)
from wire.frames.primitives import compact_string, read_uvarint, string, uvarint
from wire.frames.request_header import parse_request_header

# (name, type, first version, last version, fields of a struct), in the order of the messages of Kafka 3.9.
_LAI_PARTITION: list[Any] = [
    ("topic", "string", 0, 1),
    ("index", "i", 0, 99),
    *((name, "i", 0, 99) for name in ("controller epoch", "leader", "leader epoch")),
    ("isr", "[]i", 0, 99),
    ("partition epoch", "i", 0, 99),
    ("replicas", "[]i", 0, 99),
    ("adding", "[]i", 3, 99),
    ("removing", "[]i", 3, 99),
    ("new", "?", 1, 99),
    ("recovery", "b", 6, 99),
]
_UM_PARTITION: list[Any] = [
    ("topic", "string", 0, 4),
    ("index", "i", 0, 99),
    *((name, "i", 0, 99) for name in ("controller epoch", "leader", "leader epoch")),
    ("isr", "[]i", 0, 99),
    ("zk version", "i", 0, 99),
    ("replicas", "[]i", 0, 99),
    ("offline", "[]i", 4, 99),
]
_SCHEMAS: dict[int, tuple[int, int, list[Any]]] = {
    LEADER_AND_ISR: (
        7,
        4,
        [
            ("controller", "i", 0, 99),
            ("kraft", "?", 7, 99),
            ("controller epoch", "i", 0, 99),
            ("broker epoch", "q", 2, 99),
            ("type", "b", 5, 99),
            ("flat", "[]struct", 0, 1, _LAI_PARTITION),
            (
                "topics",
                "[]struct",
                2,
                99,
                [
                    ("topic", "string", 2, 99),
                    ("id", "uuid", 5, 99),
                    ("partitions", "[]struct", 2, 99, _LAI_PARTITION),
                ],
            ),
            (
                "leaders",
                "[]struct",
                0,
                99,
                [("id", "i", 0, 99), ("host", "string", 0, 99), ("port", "i", 0, 99)],
            ),
        ],
    ),
    STOP_REPLICA: (
        4,
        2,
        [
            ("controller", "i", 0, 99),
            ("kraft", "?", 4, 99),
            ("controller epoch", "i", 0, 99),
            ("broker epoch", "q", 1, 99),
            ("delete", "?", 0, 2),
            ("flat", "[]struct", 0, 0, [("topic", "string", 0, 0), ("index", "i", 0, 0)]),
            ("topics", "[]struct", 1, 2, [("topic", "string", 1, 2), ("partitions", "[]i", 1, 2)]),
            (
                "topics",
                "[]struct",
                3,
                99,
                [
                    ("topic", "string", 3, 99),
                    (
                        "partitions",
                        "[]struct",
                        3,
                        99,
                        [("index", "i", 3, 99), ("leader epoch", "i", 3, 99), ("delete", "?", 3, 99)],
                    ),
                ],
            ),
        ],
    ),
    UPDATE_METADATA: (
        8,
        6,
        [
            ("controller", "i", 0, 99),
            ("kraft", "?", 8, 99),
            ("controller epoch", "i", 0, 99),
            ("broker epoch", "q", 5, 99),
            ("flat", "[]struct", 0, 4, _UM_PARTITION),
            (
                "topics",
                "[]struct",
                5,
                99,
                [
                    ("topic", "string", 5, 99),
                    ("id", "uuid", 7, 99),
                    ("partitions", "[]struct", 5, 99, _UM_PARTITION),
                ],
            ),
        ],
    ),
}
_TOPICS = {"orders": [0, 3, 1], "a" * 200: list(range(300)), "ü": [7]}
_VERSIONS = [(key, version) for key, (newest, _, _) in _SCHEMAS.items() for version in range(newest + 1)]


class _Encoder:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible, self.chance = version, flexible, random.Random(version)

    def struct(self, fields: list[Any], **known: Any) -> bytes:
        out = b""
        for name, kind, first, last, *inner in fields:
            if first <= self.version <= last:
                out += self.value(kind, known.get(name, self.any(name, kind)), *inner)
        return out + (b"\0" if self.flexible else b"")

    def any(self, name: str, kind: str) -> Any:
        if kind == "[]i":
            return [self.chance.randrange(9) for _ in range(self.chance.randrange(4))]
        values = {"string": name, "uuid": name.encode().ljust(16, b"x"), "?": True, "[]struct": []}
        return values.get(kind, self.chance.randrange(100))

    def value(self, kind: str, value: Any, fields: list[Any] | None = None) -> bytes:
        if kind == "string":
            return compact_string(value) if self.flexible else string(value)
        if kind == "uuid":
            return bytes(value)
        if kind.startswith("[]"):
            count = uvarint(len(value) + 1) if self.flexible else struct.pack(">i", len(value))
            if fields is None:
                return count + struct.pack(f">{len(value)}i", *value)
            return count + b"".join(self.struct(fields, **one) for one in value)
        return struct.pack(f">{kind}", value)


@functools.cache
def _request(key: int, version: int) -> bytes:
    _, first_flexible, fields = _SCHEMAS[key]
    encoder = _Encoder(version, version >= first_flexible)
    flat = [{"topic": name, "index": index} for name, indexes in _TOPICS.items() for index in indexes]
    bare = key == STOP_REPLICA and version in (1, 2)
    topics = [
        {
            "topic": name,
            "id": name.encode().ljust(16, b"i")[:16],
            "partitions": indexes if bare else [{"index": index} for index in indexes],
        }
        for name, indexes in _TOPICS.items()
    ]
    head = struct.pack(">hhih", key, version, 77, -1) + (b"\0" if encoder.flexible else b"")
    known = {"flat": flat, "topics": topics, "controller": 4, "controller epoch": 9}
    return head + encoder.struct(fields, **known)


@pytest.mark.parametrize(("key", "version"), _VERSIONS)
def test_the_partitions_of_each_version_are_read(key: int, version: int) -> None:
    frame = _request(key, version)
    header, offset = parse_request_header(frame)
    request = parse_control_request(frame, offset, header.api_key, header.api_version)
    assert (request.controller_id, request.controller_epoch) == (4, 9)
    assert {name: indexes for name, (_, indexes) in request.topics.items()} == _TOPICS
    if key != STOP_REPLICA and version == _SCHEMAS[key][0]:
        assert request.topics["orders"][0] == b"orders".ljust(16, b"i")


@pytest.mark.parametrize(("key", "version"), _VERSIONS)
def test_each_version_is_answered_partition_by_partition(key: int, version: int) -> None:
    frame = _request(key, version)
    _, offset = parse_request_header(frame)
    answer = answer_control_request(parse_control_request(frame, offset, key, version), 77)
    size, correlation = struct.unpack_from(">ii", answer)
    assert (size, correlation) == (len(answer) - 4, 77)
    flexible = version >= _SCHEMAS[key][1]
    at = 8 + flexible  # the tags of the header
    assert answer[at : at + 2] == b"\0\0"
    at += 2
    if key != UPDATE_METADATA:
        by_id = key == LEADER_AND_ISR and version >= 5
        count, at = _count(answer, at, flexible)
        assert count == (len(_TOPICS) if by_id else sum(map(len, _TOPICS.values())))
        for name, indexes in _TOPICS.items():
            if by_id:
                assert answer[at : at + 16] == name.encode().ljust(16, b"i")[:16]
                inner, at = _count(answer, at + 16, flexible)
                assert inner == len(indexes)
            for index in indexes:
                if not by_id:
                    text = compact_string(name) if flexible else string(name)
                    assert answer[at : at + len(text)] == text
                    at += len(text)
                assert struct.unpack_from(">ih", answer, at) == (index, 0)
                at += 6 + flexible
            at += by_id
    assert at + flexible == len(answer)


def _count(answer: bytes, at: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        value, at = read_uvarint(answer, at)
        return value - 1, at
    return struct.unpack_from(">i", answer, at)[0], at + 4


@pytest.mark.parametrize(("key", "version"), _VERSIONS)
def test_one_that_is_cut_is_refused(key: int, version: int) -> None:
    """LeaderAndIsr is read up to its live leaders, which nobody needs."""
    frame = _request(key, version)
    _, offset = parse_request_header(frame)
    unread = 6 if key == LEADER_AND_ISR else 2
    for end in random.Random(key).sample(range(offset, len(frame) - unread), 40):
        with pytest.raises(MalformedFrame):
            parse_control_request(frame[:end], offset, key, version)


def test_garbage_is_an_error_of_the_wire_and_nothing_else() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        key, version = chance.choice(_VERSIONS)
        frame = bytearray(_request(key, version))
        _, offset = parse_request_header(bytes(frame))
        for _ in range(chance.randrange(1, 6)):
            frame[chance.randrange(offset, len(frame))] = chance.randrange(256)
        try:
            request = parse_control_request(bytes(frame), offset, key, version)
        except WireError:
            continue
        answer_control_request(request, 1)


@pytest.mark.parametrize("key", _SCHEMAS)
def test_a_version_that_no_kafka_has_is_refused(key: int) -> None:
    with pytest.raises(WireError, match="no Kafka has this version"):
        parse_control_request(b"", 0, key, _SCHEMAS[key][0] + 1)
