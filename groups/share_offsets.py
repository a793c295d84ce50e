"""Start offsets of share groups (KIP-932): read, and set for a group without members.

A share-partition stores its start offset and the records beyond it that were acknowledged already. The admin API tells
and sets the start alone, so these records are delivered again; the lag tells how many there are at the most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.judge.group_offsets import Committed, Offsets
from groups.group_reader import PURPOSE, GroupReader
from groups.views import Offsets as GroupOffsets
from wire.errors import LinkerError, UnsupportedApi, error_name
from wire.frames.error_codes import GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

_MOST_PARTITIONS = 500  # of one request: the share coordinators write a record for each


@dataclass(slots=True)
class ShareOffsets(GroupOffsets):
    """Start offsets, and the number of records that are not acknowledged by partition."""

    lag: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)


async def read(reader: GroupReader, names: Collection[str], *, timeout: float) -> ShareOffsets:
    """A partition of which nothing was fetched yet has no start offset, and is left out."""
    answer = ShareOffsets()

    async def ask(node: int, some: Sequence[str]) -> None:
        fields = {"groups": [{"group_id": name, "topics": None} for name in some]}
        try:
            response = await reader.cluster.call(
                "describe_share_group_offsets", fields, node_id=node, timeout=timeout, purpose=PURPOSE
            )
        except UnsupportedApi as error:
            answer.failed.update(dict.fromkeys(some, str(error)))
            return
        for group in response.groups:
            _take(reader, group, answer)

    await reader.by_node(names, answer.failed, timeout, ask)
    return answer


def _take(reader: GroupReader, group: object, into: ShareOffsets) -> None:
    name, code = group.group_id, int(group.error_code)  # type: ignore[attr-defined]
    if code and code != GROUP_ID_NOT_FOUND:
        reader.note_failure(name, code, into.failed)
        return
    found, lag = into.found.setdefault(name, {}), into.lag.setdefault(name, {})
    for topic in group.topics:  # type: ignore[attr-defined]
        for one in topic.partitions:
            tp = TopicPartition(topic.topic_name, one.partition_index)
            if int(one.error_code):
                into.failed[name] = f"{topic.topic_name}-{one.partition_index}: {error_name(one.error_code)}"
            elif one.start_offset >= 0:
                found[tp] = Committed(one.start_offset)
                if getattr(one, "lag", -1) >= 0:
                    lag[tp] = one.lag
    if name in into.failed:
        del into.found[name]


async def alter(reader: GroupReader, name: str, offsets: Offsets, *, timeout: float) -> set[TopicPartition]:
    """Set the start offsets of a group that has no members, or is not there. LinkerError if it has members, or if a
    partition was refused after all others were set. Returns the partitions that the cluster does not have."""
    absent: set[TopicPartition] = set()
    refused: dict[TopicPartition, str] = {}
    failed: dict[str, str] = {}

    async def ask(node: int, _: Sequence[str]) -> None:
        for piece in _pieces(offsets):
            response = await reader.cluster.call(
                "alter_share_group_offsets",
                {"group_id": name, "topics": piece},
                node_id=node,
                timeout=timeout,
                purpose=PURPOSE,
            )
            if code := int(response.error_code):
                reader.note_failure(name, code, failed)
                return
            for topic in response.responses:
                for one in topic.partitions:
                    tp = TopicPartition(topic.topic_name, one.partition_index)
                    if int(one.error_code) == UNKNOWN_TOPIC_OR_PARTITION:
                        absent.add(tp)
                    elif int(one.error_code):
                        refused[tp] = f"{error_name(int(one.error_code))}: {one.error_message or ''}"

    await reader.by_node([name], failed, timeout, ask)
    if failed:
        raise LinkerError(f"start offsets of group {shown_id(name)} were not set: {failed[name]}")
    for tp, why in sorted(refused.items()):
        raise LinkerError(
            f"start offset of group {shown_id(name)} in {tp.topic}-{tp.partition} was not set: {why}"
        )
    return absent


def _pieces(offsets: Offsets) -> Iterator[list[dict[str, object]]]:
    """Topics of a request with their partitions, a limited number at a time."""
    ordered = sorted(offsets)
    for first in range(0, len(ordered), _MOST_PARTITIONS):
        by_topic: dict[str, list[dict[str, int]]] = {}
        for tp in ordered[first : first + _MOST_PARTITIONS]:
            by_topic.setdefault(tp.topic, []).append(
                {"partition_index": tp.partition, "start_offset": offsets[tp].offset}
            )
        yield [{"topic_name": topic, "partitions": some} for topic, some in by_topic.items()]


def acknowledged_beyond(
    start: Offsets, lag: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> int:
    """How many records beyond the start offsets may be acknowledged already: up to the end, less those that are not.
    Offsets without a record (transactions' markers, compaction) count as well."""
    return sum(
        max(0, ends[tp] - start[tp].offset - lag[tp]) for tp in start.keys() & lag.keys() & ends.keys()
    )
