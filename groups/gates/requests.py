"""Requests of every kind of gate: describe a group, commit, read committed offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from groups.gates import codes
from groups.gates.base import CommitFailed, GroupMember, OffsetAndMetadata
from groups.gates.coordinators import Coordinators, KeyType
from groups.gates.pieces import pieces, smaller
from groups.gates.topology import read_by
from wire.errors import UnsupportedApi, error_name
from wire.frames.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    UNSUPPORTED_VERSION,
)
from wire.frames.types import TopicPartition

# OffsetCommit and OffsetFetch v10 name topics by id; a commit by name reaches topics that are still being created.
_BY_NAME = 9
_CONSUMER_TYPE = 1


@dataclass(frozen=True, slots=True)
class CoordinatorMember(GroupMember):
    epoch: int = -1  # the consumer protocol's; -1 for a classic group
    classic: bool = True  # joined by JoinGroup; also where it is not told (ConsumerGroupDescribe before v1)


@dataclass(frozen=True, slots=True)
class CoordinatorGroup:
    """A group as its coordinator describes it; `protocol` is classic, consumer, streams, or empty where there is none."""

    protocol: str
    state: str
    members: tuple[CoordinatorMember, ...]
    epoch: int = -1  # as its members'

    def others(self, member_id: str) -> tuple[CoordinatorMember, ...]:
        return tuple(member for member in self.members if member.member_id != member_id)

    def member(self, member_id: str) -> CoordinatorMember | None:
        return next((member for member in self.members if member.member_id == member_id), None)


async def describe(
    coordinators: Coordinators, group: str, *, streams: bool = False, timeout: float
) -> CoordinatorGroup:
    """Ask by both protocols: DescribeGroups answers GROUP_ID_NOT_FOUND for a group of the consumer type. `streams`: by
    that of streams groups before them."""
    if streams and (found := await _describe_streams(coordinators, group, timeout)) is not None:
        return found
    try:
        found = await coordinators.describe(group, "consumer_group_describe", timeout=timeout)
        code = int(found.error_code)
        if code not in (GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION):
            codes.check(code, "consumer_group_describe", group, message=found.error_message)
            return CoordinatorGroup(
                "consumer", found.group_state, tuple(map(_consumer_member, found.members)), found.group_epoch
            )
    except UnsupportedApi:
        pass  # a target without KIP-848
    found = await coordinators.describe(group, "describe_groups", timeout=timeout)
    code = int(found.error_code)
    if code == GROUP_ID_NOT_FOUND:
        return CoordinatorGroup("", "Dead", ())
    codes.check(code, "describe_groups", group)
    protocol = "" if found.group_state == "Dead" else "classic"
    return CoordinatorGroup(protocol, found.group_state, tuple(map(_classic_member, found.members)))


async def _describe_streams(
    coordinators: Coordinators, group: str, timeout: float
) -> CoordinatorGroup | None:
    try:
        found = await coordinators.describe(group, "streams_group_describe", timeout=timeout)
    except UnsupportedApi:
        return None
    code = int(found.error_code)
    if code in (GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION):
        return None
    codes.check(code, "streams_group_describe", group, message=found.error_message)
    read = topics_of_tasks(found)
    members = tuple(
        CoordinatorMember(
            raw.member_id,
            raw.client_id,
            raw.client_host.lstrip("/"),
            raw.instance_id,
            tuple(partitions_of_tasks(raw.assignment.active_tasks, read)),
            raw.member_epoch,
            False,
        )
        for raw in found.members
    )
    return CoordinatorGroup("streams", found.group_state, members, found.group_epoch)


def topics_of_tasks(group: Any) -> dict[str, list[str]]:
    """By subtopology of a described streams group: the topics that its tasks read."""
    topology = getattr(group, "topology", None)
    parts = () if topology is None else topology.subtopologies or ()
    return {part.subtopology_id: read_by(part) for part in parts}


def partitions_of_tasks(tasks: Any, read: Mapping[str, list[str]]) -> Iterator[TopicPartition]:
    for task in tasks:
        for topic in read.get(task.subtopology_id, ()):
            for index in task.partitions:
                yield TopicPartition(topic, index)


def _consumer_member(raw: Any) -> CoordinatorMember:
    return CoordinatorMember(
        raw.member_id,
        raw.client_id,
        raw.client_host.lstrip("/"),
        raw.instance_id,
        _named(raw.assignment),
        raw.member_epoch,
        raw.member_type != _CONSUMER_TYPE,
    )


def _named(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def _classic_member(raw: Any) -> CoordinatorMember:
    return CoordinatorMember(
        raw.member_id,
        raw.client_id,
        raw.client_host.lstrip("/"),
        getattr(raw, "group_instance_id", None),
        assigned_partitions(raw.member_assignment),
    )


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a ConsumerProtocolAssignment; nothing for bytes that are something else."""
    try:
        _, topics = struct.unpack_from(">hi", data)
        place = 6
        found: list[TopicPartition] = []
        for _ in range(topics):
            (size,) = struct.unpack_from(">h", data, place)
            name = data[place + 2 : place + 2 + size].decode()
            place += 2 + size
            (count,) = struct.unpack_from(">i", data, place)
            if count < 0 or size < 0:
                return ()
            indexes = struct.unpack_from(f">{count}i", data, place + 4)
            place += 4 + 4 * count
            found += [TopicPartition(name, index) for index in indexes]
    except (struct.error, UnicodeDecodeError, MemoryError):
        return ()
    return tuple(found)


def by_topic(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, object]]:
    """The topics of OffsetCommit and TxnOffsetCommit. No leader epoch: the source's means nothing here."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": tp.partition,
                    "committed_offset": offsets[tp].offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": offsets[tp].metadata,
                }
                for tp in tps
            ],
        }
        for topic, tps in groupby(sorted(offsets), key=lambda tp: tp.topic)
    ]


async def offset_commit(
    coordinators: Coordinators,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member_id: str = "",
    generation_or_epoch: int = -1,
    timeout: float,
) -> dict[TopicPartition, int]:
    """Commit as a member, or without one (allowed while the group is empty). Returns error codes other than NONE by
    partition; a refused partition does not keep others from being committed."""
    failed: dict[TopicPartition, int] = {}
    left = list(pieces(group, offsets))
    while left:
        piece = left.pop(0)
        refused = await _commit_piece(
            coordinators,
            group,
            piece,
            member_id=member_id,
            generation_or_epoch=generation_or_epoch,
            timeout=timeout,
        )
        halves = smaller(group, piece, refused.values())
        left[:0] = halves
        if not halves:
            failed |= refused
    return failed


async def _commit_piece(
    coordinators: Coordinators,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member_id: str,
    generation_or_epoch: int,
    timeout: float,
) -> dict[TopicPartition, int]:
    answer = await coordinators.call(
        KeyType.GROUP,
        group,
        "offset_commit",
        {
            "group_id": group,
            "generation_id_or_member_epoch": generation_or_epoch,
            "member_id": member_id,
            "topics": by_topic(offsets),
        },
        timeout=timeout,
        max_version=_BY_NAME,
    )
    return failed_partitions(answer)


def failed_partitions(answer: Any) -> dict[TopicPartition, int]:
    """The error codes other than NONE of an OffsetCommit or TxnOffsetCommit answer."""
    return {
        TopicPartition(topic.name, item.partition_index): int(item.error_code)
        for topic in answer.topics
        for item in topic.partitions
        if int(item.error_code)
    }


def explained(failed: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    return {tp: error_name(code) for tp, code in failed.items()}


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    """Committed offsets, and the partitions that a transaction holds back (only with require_stable)."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]  # partitions with a commit only
    unstable: frozenset[TopicPartition]


async def offset_fetch(
    coordinators: Coordinators,
    group: str,
    partitions: Iterable[TopicPartition],
    *,
    require_stable: bool,
    timeout: float,
) -> FetchedOffsets:
    """The group's committed offsets of the partitions (OffsetFetch v8 or 9, which every target of ours has)."""
    ordered = sorted(partitions)
    if not ordered:
        return FetchedOffsets({}, frozenset())
    topics = [
        {"name": topic, "partition_indexes": [tp.partition for tp in tps]}
        for topic, tps in groupby(ordered, key=lambda tp: tp.topic)
    ]
    answer = await coordinators.call(
        KeyType.GROUP,
        group,
        "offset_fetch",
        {"groups": [{"group_id": group, "topics": topics}], "require_stable": require_stable},
        timeout=timeout,
        max_version=_BY_NAME,
    )
    found = answer.groups[0]
    codes.check(int(found.error_code), "offset_fetch", group)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    unstable: set[TopicPartition] = set()
    for topic in found.topics:
        for item in topic.partitions:
            tp = TopicPartition(topic.name, item.partition_index)
            code = int(item.error_code)
            if code == UNSTABLE_OFFSET_COMMIT:
                unstable.add(tp)
            elif code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            else:
                codes.check(code, "offset_fetch", group, resource=tp.topic)
                if item.committed_offset >= 0:
                    offsets[tp] = OffsetAndMetadata(item.committed_offset, item.metadata or "")
    return FetchedOffsets(offsets, frozenset(unstable))


async def commit_as_nobody(
    coordinators: Coordinators,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    timeout: float,
) -> bool:
    """Commit without a member, which the coordinator allows while the group is empty. False if it is not."""
    failed = await offset_commit(coordinators, group, offsets, timeout=timeout)
    if UNKNOWN_MEMBER_ID in failed.values() or GROUP_ID_NOT_FOUND in failed.values():
        return False
    for tp, code in failed.items():
        if code in (GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED):
            codes.check(code, "offset_commit", group, resource=tp.topic)
    if failed:
        raise CommitFailed(group, explained(failed), codes=failed)
    return True
