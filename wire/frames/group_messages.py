"""OffsetCommit, OffsetFetch and ConsumerGroupDescribe for thousands of groups, without the schema codec.

kio still handles older versions, newer ones that name topics by id, and requests with further fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wire.frames.primitives import (
    INT16,
    INT32,
    compact_string,
    read_array_count,
    read_compact_string,
    read_name,
    skip_tags,
    uvarint,
)
from wire.schema.fast_messages import Message, Messages

_COMMIT = struct.Struct(">iqi")  # partition, offset, leader epoch
_FETCHED = struct.Struct(">iq4x")  # partition, offset; its leader epoch is passed over
_RESULT = struct.Struct(">ih")  # partition, error
_TYPE = struct.Struct(">b")


class CommitResult(NamedTuple):
    partition_index: int
    error_code: int


class FetchedOffset(NamedTuple):
    partition_index: int
    committed_offset: int
    metadata: str | None
    error_code: int


class TopicResults(NamedTuple):
    name: str
    partitions: Sequence[Any]  # CommitResult or FetchedOffset


class CommitAnswer(NamedTuple):
    topics: Sequence[TopicResults]


class FetchedGroup(NamedTuple):
    group_id: str
    topics: Sequence[TopicResults]
    error_code: int


class FetchAnswer(NamedTuple):
    groups: Sequence[FetchedGroup]


class AssignedTopic(NamedTuple):
    topic_name: str
    partitions: Sequence[int]


class Assignment(NamedTuple):
    topic_partitions: Sequence[AssignedTopic]


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    assignment: Assignment
    member_type: int | None  # -1 unknown, 0 classic, 1 of the consumer protocol; None before version 1


class DescribedGroup(NamedTuple):
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignor_name: str
    members: Sequence[DescribedMember]


class DescribeAnswer(NamedTuple):
    groups: Sequence[DescribedGroup]


# --- requests -----------------------------------------------------------------------------------------------


def _offset_commit(fields: Mapping[str, Any]) -> bytearray:
    topics = fields["topics"]
    out = bytearray(compact_string(fields["group_id"]))
    out += INT32.pack(fields["generation_id_or_member_epoch"])
    out += compact_string(fields["member_id"])
    out += b"\0"  # no group.instance.id
    out += uvarint(len(topics) + 1)
    for topic in topics:
        partitions = topic["partitions"]
        out += compact_string(topic["name"])
        out += uvarint(len(partitions) + 1)
        for one in partitions:
            out += _COMMIT.pack(
                one["partition_index"], one["committed_offset"], one["committed_leader_epoch"]
            )
            out += compact_string(one["committed_metadata"])
            out.append(0)
        out.append(0)
    out.append(0)
    return out


def _offset_fetch_v8(fields: Mapping[str, Any]) -> bytearray:
    return _offset_fetch(fields, b"")


def _offset_fetch_v9(fields: Mapping[str, Any]) -> bytearray:
    return _offset_fetch(fields, b"\0\xff\xff\xff\xff")  # asked as nobody: no member id, no epoch


def _offset_fetch(fields: Mapping[str, Any], member: bytes) -> bytearray:
    groups = fields["groups"]
    out = bytearray(uvarint(len(groups) + 1))
    for group in groups:
        out += compact_string(group["group_id"])
        out += member
        topics = group["topics"]
        out += uvarint(0 if topics is None else len(topics) + 1)
        for topic in topics or ():
            indexes = topic["partition_indexes"]
            out += compact_string(topic["name"])
            out += uvarint(len(indexes) + 1)
            out += struct.pack(f">{len(indexes)}i", *indexes)
            out.append(0)
        out.append(0)
    out.append(fields["require_stable"])
    out.append(0)
    return out


def _describe(fields: Mapping[str, Any]) -> bytearray:
    names = fields["group_ids"]
    out = bytearray(uvarint(len(names) + 1))
    for name in names:
        out += compact_string(name)
    out += b"\0\0"  # without authorized operations
    return out


# --- answers ------------------------------------------------------------------------------------------------


def _commit_answer(data: bytes, pos: int) -> tuple[CommitAnswer, int]:
    topics = []
    count, pos = read_array_count(data, pos + 4, 3)
    for _ in range(count):
        name, pos = read_name(data, pos)
        size, pos = read_array_count(data, pos, 7)
        results = []
        for _ in range(size):
            results.append(CommitResult._make(_RESULT.unpack_from(data, pos)))
            pos = skip_tags(data, pos + 6)
        pos = skip_tags(data, pos)
        topics.append(TopicResults(name, results))
    return CommitAnswer(topics), skip_tags(data, pos)


def _fetch_answer(data: bytes, pos: int) -> tuple[FetchAnswer, int]:
    groups = []
    count, pos = read_array_count(data, pos + 4, 5)
    for _ in range(count):
        group, pos = read_name(data, pos)
        topic_count, pos = read_array_count(data, pos, 3)
        topics = []
        for _ in range(topic_count):
            name, pos = read_name(data, pos)
            size, pos = read_array_count(data, pos, 20)
            offsets = []
            for _ in range(size):
                index, offset = _FETCHED.unpack_from(data, pos)
                metadata, pos = read_compact_string(data, pos + 16)
                (error,) = INT16.unpack_from(data, pos)
                offsets.append(FetchedOffset(index, offset, metadata, error))
                pos = skip_tags(data, pos + 2)
            pos = skip_tags(data, pos)
            topics.append(TopicResults(name, offsets))
        (error,) = INT16.unpack_from(data, pos)
        pos = skip_tags(data, pos + 2)
        groups.append(FetchedGroup(group, topics, error))
    return FetchAnswer(groups), skip_tags(data, pos)


def _describe_answer(data: bytes, pos: int, *, typed: bool) -> tuple[DescribeAnswer, int]:
    groups = []
    count, pos = read_array_count(data, pos + 4, 20)
    for _ in range(count):
        (error,) = INT16.unpack_from(data, pos)
        message, pos = read_compact_string(data, pos + 2)
        group, pos = read_name(data, pos)
        state, pos = read_name(data, pos)
        (epoch,) = INT32.unpack_from(data, pos)
        assignor, pos = read_name(data, pos + 8)  # after the assignment's epoch
        size, pos = read_array_count(data, pos, 16)
        members = []
        for _ in range(size):
            member, pos = _member(data, pos, typed=typed)
            members.append(member)
            pos = skip_tags(data, pos)
        pos = skip_tags(data, pos + 4)  # after the authorized operations
        groups.append(DescribedGroup(error, message, group, state, epoch, assignor, members))
    return DescribeAnswer(groups), skip_tags(data, pos)


def _member(data: bytes, pos: int, *, typed: bool) -> tuple[DescribedMember, int]:
    member_id, pos = read_name(data, pos)
    instance, pos = read_compact_string(data, pos)
    _, pos = read_compact_string(data, pos)  # the rack
    (epoch,) = INT32.unpack_from(data, pos)
    client, pos = read_name(data, pos + 4)
    host, pos = read_name(data, pos)
    count, pos = read_array_count(data, pos, 1)
    subscribed = []
    for _ in range(count):
        name, pos = read_name(data, pos)
        subscribed.append(name)
    _, pos = read_compact_string(data, pos)  # the regular expression
    assignment, pos = _assignment(data, pos)
    _, pos = _assignment(data, pos)  # the target of it
    kind = None
    if typed:
        (kind,) = _TYPE.unpack_from(data, pos)
        pos += 1
    return DescribedMember(member_id, instance, epoch, client, host, subscribed, assignment, kind), pos


def _assignment(data: bytes, pos: int) -> tuple[Assignment, int]:
    count, pos = read_array_count(data, pos, 19)
    topics = []
    for _ in range(count):
        name, pos = read_name(data, pos + 16)  # after the topic's id
        size, pos = read_array_count(data, pos, 4)
        topics.append(AssignedTopic(name, struct.unpack_from(f">{size}i", data, pos)))
        pos = skip_tags(data, pos + 4 * size)
    return Assignment(topics), skip_tags(data, pos)


def _describe_v0(data: bytes, pos: int) -> tuple[DescribeAnswer, int]:
    return _describe_answer(data, pos, typed=False)


def _describe_v1(data: bytes, pos: int) -> tuple[DescribeAnswer, int]:
    return _describe_answer(data, pos, typed=True)


_COMMITS = frozenset({"group_id", "generation_id_or_member_epoch", "member_id", "topics"})
_FETCHES = frozenset({"groups", "require_stable"})
_DESCRIBES = frozenset({"group_ids"})
MESSAGES: Messages = {
    ("offset_commit", 8): Message(_COMMITS, _offset_commit, _commit_answer),
    ("offset_commit", 9): Message(_COMMITS, _offset_commit, _commit_answer),
    ("offset_fetch", 8): Message(_FETCHES, _offset_fetch_v8, _fetch_answer),
    ("offset_fetch", 9): Message(_FETCHES, _offset_fetch_v9, _fetch_answer),
    ("consumer_group_describe", 0): Message(_DESCRIBES, _describe, _describe_v0),
    ("consumer_group_describe", 1): Message(_DESCRIBES, _describe, _describe_v1),
}
