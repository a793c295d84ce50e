"""The topology of a streams group (KIP-1071), exactly as its application sends it when a member joins.

A coordinator compares a joining member's topology with the group's, field by field and in order, and ends an application
that brings another one (GroupMetadataManager.maybeUpdateTopology). StreamsGroupDescribe leaves two fields out, so the gate's
member is given the coordinator's own record, whose layout is that of the request.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from kio.schema.streams_group_heartbeat.v0.request import Topology

from wire.errors import MalformedFrame
from wire.schema.entity_reader import read_entity

#: The part of a topology that StreamsGroupDescribe tells as the application sent it.
Described = tuple[object, ...]
_LARGEST = 256 << 10  # bytes: it becomes part of the gate's record in the state


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    """One topology; `text` is the form that a gate's record has."""

    text: str
    entity: Any  # of the request
    described: Described

    @property
    def internal(self) -> frozenset[str]:
        """Topics that a coordinator has created where they are missing."""
        return frozenset(
            topic.name
            for part in self.entity.subtopologies
            for topic in (*part.state_changelog_topics, *part.repartition_source_topics)
        )

    @property
    def sources(self) -> frozenset[str]:
        """Topics whose partitions make up the tasks."""
        return frozenset(name for part in self.entity.subtopologies for name in read_by(part))

    @property
    def topics(self) -> frozenset[str]:
        return self.internal | self.sources


def read_by(part: Any) -> list[str]:
    """The topics that the tasks of a subtopology read."""
    return [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]


def parsed(text: str) -> StreamsTopology:
    """From a gate's record. MalformedFrame for anything else."""
    try:
        return _parsed(base64.b64decode(text, validate=True), text)
    except binascii.Error as error:
        raise MalformedFrame(f"a topology is no base64: {error}") from error


def from_record(value: bytes) -> StreamsTopology:
    """From the value of a StreamsGroupTopology record. MalformedFrame if it is another version, or damaged."""
    if len(value) > _LARGEST:
        raise MalformedFrame(f"a topology of {len(value)} bytes, at most {_LARGEST} are taken")
    if value[:2] != b"\0\0":
        raise MalformedFrame(f"a topology record of version {int.from_bytes(value[:2], 'big')}")
    return _parsed(value[2:], base64.b64encode(value[2:]).decode())


def _parsed(data: bytes, text: str) -> StreamsTopology:
    entity, end = read_entity(Topology, data, 0)
    if end != len(data):
        raise MalformedFrame(f"{len(data) - end} bytes follow a topology")
    return StreamsTopology(text, entity, described(entity))


def described(entity: Any) -> Described:
    """The comparable part of a topology, of the request or of StreamsGroupDescribe; empty for none."""
    if entity is None or entity.subtopologies is None:
        return ()
    return (
        entity.epoch,
        *sorted(
            (
                part.subtopology_id,
                tuple(sorted(part.source_topics)),
                tuple(sorted(part.repartition_sink_topics)),
                _infos(part.repartition_source_topics),
                _infos(part.state_changelog_topics),
            )
            for part in entity.subtopologies
        ),
    )


def _infos(topics: Any) -> tuple[object, ...]:
    """The topics without their numbers of partitions: once the coordinator has decided these, it tells its own."""
    return tuple(
        sorted(
            (topic.name, tuple(sorted((one.key, one.value) for one in topic.topic_configs)))
            for topic in topics
        )
    )
