"""ListOffsets, OffsetForLeaderEpoch and WriteTxnMarkers as a broker reads and answers them, without the schema codec.

With the schema codec an entry of such a request costs some fifteen microseconds, and a request may have a million of
them, so one connection could hold up all others. Here an entry costs less than one, and a request has at most
MAX_ENTRIES.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from wire.errors import MalformedFrame
from wire.frames.primitives import (
    INT32,
    compact_string,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    skip_tags,
    string,
    uvarint,
)
from wire.frames.types import Buffer
from wire.frames.whole import add_entries, whole

MAX_ENTRIES: Final = 40_000
"""The most topics plus partitions in one request: twenty thousand topics of one partition each. A follower or a client asks
a broker once for each partition that it leads."""

LIST_OFFSETS_VERSIONS: Final = (1, 11)
OFFSET_FOR_LEADER_EPOCH_VERSIONS: Final = (2, 4)
#: Version 0 is that of coordinators before Kafka 2.8, which ask nobody for versions; 4.0 has dropped it.
WRITE_TXN_MARKERS_VERSIONS: Final = (0, 2)


class AskedPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # Kafka's name; hides tuple.index
    current_leader_epoch: int
    wanted: int
    """ListOffsets: the timestamp; OffsetForLeaderEpoch: the leader epoch."""


class OffsetsRequest(NamedTuple):
    """Of either api, any version; fields that the version lacks hold Kafka's defaults."""

    replica_id: int
    isolation_level: int
    topics: list[tuple[str, list[AskedPartition]]]

    @property
    def entries(self) -> int:
        return len(self.topics) + sum(len(partitions) for _, partitions in self.topics)

    def named_twice(self) -> set[tuple[str, int]]:
        """Partitions that are listed more than once. No client library does that."""
        seen: set[tuple[str, int]] = set()
        again: set[tuple[str, int]] = set()
        for name, partitions in self.topics:
            for one in partitions:
                key = (name, one.index)
                (again if key in seen else seen).add(key)
        return again


class OffsetAnswer(NamedTuple):
    """One partition of an answer. `timestamp` is of ListOffsets only."""

    index: int  # type: ignore[assignment]  # Kafka's name; hides tuple.index
    error: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


Answers = Iterable[tuple[str, list[OffsetAnswer]]]

_LISTED: Final = {1: struct.Struct(">iq"), 4: struct.Struct(">iiq"), 6: struct.Struct(">iiqB")}
_EPOCHS: Final = {2: struct.Struct(">iii"), 4: struct.Struct(">iiiB")}
_LISTED_ANSWER: Final = {1: struct.Struct(">ihqq"), 4: struct.Struct(">ihqqi"), 6: struct.Struct(">ihqqiB")}
_EPOCH_ANSWER: Final = {2: struct.Struct(">hiiq"), 4: struct.Struct(">hiiqB")}
_MARKER: Final = struct.Struct(">qhB")  # producer id, producer epoch, commit or abort
_MARKED: Final = struct.Struct(">ihB")  # partition, error, number of tags
_MARKED_0: Final = struct.Struct(">ih")
_INT64: Final = struct.Struct(">q")


def _check(api: str, version: int, versions: tuple[int, int]) -> None:
    if not versions[0] <= version <= versions[1]:
        raise MalformedFrame("no such version", api=api, version=version)


def parse_list_offsets(frame: Buffer, body_offset: int, version: int) -> OffsetsRequest:
    """The body that begins at body_offset. Anything wrong in it is a MalformedFrame."""
    _check("list_offsets", version, LIST_OFFSETS_VERSIONS)
    return _list_offsets(frame, body_offset, version)


def parse_offset_for_leader_epoch(frame: Buffer, body_offset: int, version: int) -> OffsetsRequest:
    """The body that begins at body_offset. Anything wrong in it is a MalformedFrame."""
    _check("offset_for_leader_epoch", version, OFFSET_FOR_LEADER_EPOCH_VERSIONS)
    return _offset_for_leader_epoch(frame, body_offset, version)


@whole("list_offsets", "request")
def _list_offsets(frame: Buffer, pos: int, version: int) -> tuple[OffsetsRequest, int]:
    (replica_id,) = INT32.unpack_from(frame, pos)
    pos += 4
    isolation_level = 0
    if version >= 2:
        isolation_level = frame[pos]
        pos += 1
    flexible = version >= 6
    layout = _LISTED[6 if flexible else 4 if version >= 4 else 1]
    topics, pos = _topics(frame, pos, layout, with_epoch=version >= 4, flexible=flexible)
    if version >= 10:
        INT32.unpack_from(frame, pos)  # the broker's own timeout: there is no remote storage here
        pos += 4
    if flexible:
        pos = skip_tags(frame, pos)
    return OffsetsRequest(replica_id, isolation_level, topics), pos


@whole("offset_for_leader_epoch", "request")
def _offset_for_leader_epoch(frame: Buffer, pos: int, version: int) -> tuple[OffsetsRequest, int]:
    replica_id = -2
    if version >= 3:
        (replica_id,) = INT32.unpack_from(frame, pos)
        pos += 4
    flexible = version >= 4
    topics, pos = _topics(frame, pos, _EPOCHS[4 if flexible else 2], with_epoch=True, flexible=flexible)
    if flexible:
        pos = skip_tags(frame, pos)
    return OffsetsRequest(replica_id, 0, topics), pos


def _topics(
    frame: Buffer, pos: int, layout: struct.Struct, *, with_epoch: bool, flexible: bool
) -> tuple[list[tuple[str, list[AskedPartition]]], int]:
    topics: list[tuple[str, list[AskedPartition]]] = []
    unpack, size = layout.unpack_from, layout.size
    new = tuple.__new__
    topic_count, pos = read_compact_count(frame, pos, 3) if flexible else read_count(frame, pos, 6)
    entries = add_entries(0, topic_count, MAX_ENTRIES)
    for _ in range(topic_count):
        name, pos = _name(frame, pos, flexible=flexible)
        count, pos = read_compact_count(frame, pos, size) if flexible else read_count(frame, pos, size)
        entries = add_entries(entries, count, MAX_ENTRIES)
        partitions: list[AskedPartition] = []
        append = partitions.append
        for _ in range(count):
            values = unpack(frame, pos)
            pos += size
            if not with_epoch:
                append(AskedPartition(values[0], -1, values[1]))
                continue
            append(new(AskedPartition, values[:3]))
            if flexible and values[3]:
                pos = skip_tags(frame, pos - 1)
        if flexible:
            pos = skip_tags(frame, pos)
        topics.append((name, partitions))
    return topics, pos


def _name(frame: Buffer, pos: int, *, flexible: bool) -> tuple[str, int]:
    name, pos = read_compact_string(frame, pos) if flexible else read_string(frame, pos)
    if name is None:
        raise MalformedFrame("topic is null")
    return name, pos


def encode_list_offsets(version: int, correlation_id: int, topics: Answers) -> bytearray:
    """An answer with its size prefix."""
    flexible = version >= 6
    pack = _LISTED_ANSWER[6 if flexible else 4 if version >= 4 else 1].pack
    with_epoch = version >= 4
    out = _begin(correlation_id, flexible=flexible, throttle=version >= 2)
    parts = list(topics)
    out += _count(len(parts), flexible=flexible)
    for name, partitions in parts:
        out += compact_string(name) if flexible else string(name)
        out += _count(len(partitions), flexible=flexible)
        if flexible:
            for one in partitions:
                out += pack(*one, 0)
            out.append(0)
        elif with_epoch:
            for one in partitions:
                out += pack(*one)
        else:
            for one in partitions:
                out += pack(*one[:4])
    return _end(out, flexible=flexible)


def encode_offset_for_leader_epoch(version: int, correlation_id: int, topics: Answers) -> bytearray:
    """An answer with its size prefix."""
    flexible = version >= 4
    pack = _EPOCH_ANSWER[4 if flexible else 2].pack
    out = _begin(correlation_id, flexible=flexible, throttle=True)
    parts = list(topics)
    out += _count(len(parts), flexible=flexible)
    for name, partitions in parts:
        out += compact_string(name) if flexible else string(name)
        out += _count(len(partitions), flexible=flexible)
        for index, error, _, offset, epoch in partitions:
            out += pack(error, index, epoch, offset, 0) if flexible else pack(error, index, epoch, offset)
        if flexible:
            out.append(0)
    return _end(out, flexible=flexible)


def answer_write_txn_markers(
    frame: Buffer,
    body_offset: int,
    version: int,
    correlation_id: int,
    error_of: Callable[[str, int], int] | None = None,
) -> bytearray:
    """The answer, with its size prefix: no error, or that of each partition. Anything wrong in the request is a
    MalformedFrame.
    """
    _check("write_txn_markers", version, WRITE_TXN_MARKERS_VERSIONS)
    flexible = version >= 1
    out = _begin(correlation_id, flexible=flexible, throttle=False)
    out += _markers(frame, body_offset, version)(error_of, flexible=flexible)
    return _end(out, flexible=flexible)


class _Markers(NamedTuple):
    markers: list[tuple[int, list[tuple[str, tuple[int, ...]]]]]

    def __call__(self, error_of: Callable[[str, int], int] | None, *, flexible: bool) -> bytearray:
        out = bytearray(_count(len(self.markers), flexible=flexible))
        pack, tags = (_MARKED if flexible else _MARKED_0).pack, ((0,) if flexible else ())
        for producer_id, topics in self.markers:
            out += _INT64.pack(producer_id)
            out += _count(len(topics), flexible=flexible)
            for name, indexes in topics:
                out += compact_string(name) if flexible else string(name)
                out += _count(len(indexes), flexible=flexible)
                for index in indexes:
                    out += pack(index, 0 if error_of is None else error_of(name, index), *tags)
                out += bytes(tags)
            out += bytes(tags)
        return out


@whole("write_txn_markers", "request")
def _markers(frame: Buffer, pos: int, version: int) -> tuple[_Markers, int]:
    markers: list[tuple[int, list[tuple[str, tuple[int, ...]]]]] = []
    flexible = version >= 1
    counted = read_compact_count if flexible else read_count
    marker_count, pos = counted(frame, pos, 17)
    entries = add_entries(0, marker_count, MAX_ENTRIES)
    for _ in range(marker_count):
        (producer_id, _, _) = _MARKER.unpack_from(frame, pos)
        pos += _MARKER.size
        topics: list[tuple[str, tuple[int, ...]]] = []
        topic_count, pos = counted(frame, pos, 3)
        entries = add_entries(entries, topic_count, MAX_ENTRIES)
        for _ in range(topic_count):
            name, pos = _name(frame, pos, flexible=flexible)
            count, pos = counted(frame, pos, 4)
            entries = add_entries(entries, count, MAX_ENTRIES)
            topics.append((name, struct.unpack_from(f">{count}i", frame, pos)))
            pos += 4 * count
            pos = skip_tags(frame, pos) if flexible else pos
        INT32.unpack_from(frame, pos)  # the coordinator's epoch
        pos += 4
        if version >= 2:
            pos += 1  # the transaction's version
        pos = skip_tags(frame, pos) if flexible else pos
        markers.append((producer_id, topics))
    return _Markers(markers), skip_tags(frame, pos) if flexible else pos


def _begin(correlation_id: int, *, flexible: bool, throttle: bool) -> bytearray:
    out = bytearray(4)
    out += INT32.pack(correlation_id)
    if flexible:
        out.append(0)
    if throttle:
        out += bytes(4)
    return out


def _count(count: int, *, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else INT32.pack(count)


def _end(out: bytearray, *, flexible: bool) -> bytearray:
    if flexible:
        out.append(0)
    INT32.pack_into(out, 0, len(out) - 4)
    return out
