"""Streams groups as their coordinator runs them (GroupMetadataManager.streamsGroupHeartbeat), beside an OtherKinds.

The first member brings the topology, and later ones have to bring the same. Tasks are given out, revoked and waited for as
the partitions of a consumer group: a subtopology stands for a topic there. Left out: standbys, statuses, the initial delay.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import crc32c
from kio.schema.streams_group_heartbeat.v0.request import Topology
from kio.serial import entity_writer

from controller.mirror_group import GroupProtocol
from groups.topology_reader import OFFSETS_TOPIC, java_hash
from tests.fakes.batches import HEADER_SIZE, build_batch
from tests.fakes.groups.consumer import ConsumerGroup
from tests.fakes.groups.coordinator import (
    CONSUMER_SESSION,
    GROUP_ID_NOT_FOUND,
    STALE_MEMBER_EPOCH,
    FakeGroups,
)
from tests.fakes.groups.other_kinds import OtherGroup, OtherKinds
from wire.schema.codec import decode_request, encode_request

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.cluster import FakeCluster

INVALID_REQUEST = 42


def topology(
    sources: Sequence[str], changelogs: Sequence[str] = (), repartitions: Sequence[str] = (), epoch: int = 0
) -> Any:
    """One subtopology, as an application sends it."""

    def info(name: str) -> dict[str, object]:
        return {"name": name, "partitions": 0, "replication_factor": -1, "topic_configs": []}

    part = {
        "subtopology_id": "0",
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [info(one) for one in changelogs],
        "repartition_sink_topics": [],
        "repartition_source_topics": [info(one) for one in repartitions],
        "copartition_groups": [],
    }
    fields = {"group_id": "g", "member_id": "m", "topology": {"epoch": epoch, "subtopologies": [part]}}
    frame = encode_request("streams_group_heartbeat", 0, fields, correlation_id=0, client_id=None)
    return decode_request(frame)[1].topology


def record(value: Any) -> bytes:
    """The value of its StreamsGroupTopology record."""
    out = io.BytesIO()
    entity_writer(Topology)(out, value)
    return b"\0\0" + out.getvalue()


def write_topology(cluster: FakeCluster, group: str, value: Any, *, gzipped: bool = False) -> None:
    """As the coordinator does, between records of other kinds; None removes it."""
    if OFFSETS_TOPIC not in cluster.topics:
        cluster.add_topic(OFFSETS_TOPIC, partitions=4)
    name = group.encode()
    key = struct.pack(">hh", 23, len(name)) + name
    place = java_hash(group) % len(cluster.topics[OFFSETS_TOPIC].partitions)
    other = (struct.pack(">hh", 17, len(name)) + name, b"x")
    records = [other, (key, None if value is None else record(value)), other]
    if not gzipped:
        cluster.add(OFFSETS_TOPIC, place, records)
        return
    plain = build_batch(records, attributes=1)
    packed = gzip.compress(plain[HEADER_SIZE:])
    head = bytearray(plain[:HEADER_SIZE])
    head[8:12] = struct.pack(">i", HEADER_SIZE - 12 + len(packed))
    head[17:21] = struct.pack(">I", crc32c.crc32c(bytes(head[21:]) + packed))
    log = cluster.partition(OFFSETS_TOPIC, place).log
    log._store(bytes(head) + packed, log.log_end_offset, 0)


@dataclass
class StreamsGroup(OtherGroup):
    brought: Any = None  # its topology
    tasks: ConsumerGroup = field(default_factory=lambda: ConsumerGroup("", lambda _: ()))

    @property
    def state(self) -> str:
        return self.tasks.state


class FakeStreams(OtherKinds):
    """OtherKinds, with streams groups that members may join."""

    def __init__(self, groups: FakeGroups) -> None:
        super().__init__(groups)
        self.groups_at = groups
        groups.cluster.handlers["streams_group_heartbeat"] = self.streams_group_heartbeat
        groups.cluster.handlers["delete_groups"] = self.delete_groups

    def joinable(self, name: str) -> StreamsGroup:
        found = self.groups.get(name)
        if isinstance(found, StreamsGroup):
            return found
        made = StreamsGroup(GroupProtocol.STREAMS)
        made.tasks = ConsumerGroup(name, lambda _: self._task_numbers(made))
        self.groups[name] = made
        self.groups_at.groups.pop(name, None)  # an empty classic group becomes a streams group
        return made

    def _task_numbers(self, group: StreamsGroup) -> Sequence[int]:
        parts = group.brought.subtopologies
        topics = [*parts[0].source_topics, *(one.name for one in parts[0].repartition_source_topics)]
        return range(max(len(self.groups_at.partitions(topic)) for topic in topics))

    def join(self, name: str, member_id: str, brought: Any) -> int:
        """As a member that is not there: its error code."""
        return self._beat(name, member_id, 0, brought, member_id)[0]

    def beat(self, name: str, member_id: str) -> set[tuple[str, int]]:
        """As a member that gives back what it is asked for: the tasks that it has."""
        tasks = self.joinable(name).tasks
        known = tasks.members[member_id]
        tasks.heartbeat(
            member_id,
            known.epoch,
            self.groups_at.now,
            CONSUMER_SESSION,
            client_id=known.client_id,
            owned=set(known.assigned),
        )
        return set(known.assigned)

    def _beat(self, name: str, member_id: str, epoch: int, brought: Any, client: str) -> tuple[int, Any]:
        known = self.groups.get(name)
        if epoch != 0 and not isinstance(known, StreamsGroup):
            return GROUP_ID_NOT_FOUND, None
        group = self.joinable(name)
        if epoch == -1:
            return group.tasks.leave(member_id), None
        if brought is not None:
            if group.brought is None:
                group.brought = brought
                part = brought.subtopologies[0]
                group.topics = tuple(part.source_topics)
                group.changelogs = tuple(one.name for one in part.state_changelog_topics)
            elif group.brought != brought:
                return INVALID_REQUEST, None
        code, member, _ = group.tasks.heartbeat(
            member_id,
            epoch,
            self.groups_at.now,
            CONSUMER_SESSION,
            client_id=client,
            topics=("0",) if epoch == 0 else None,
            owned=set() if epoch == 0 else None,
        )
        return code, member

    async def streams_group_heartbeat(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self.groups_at.refused(broker, 0, entity.group_id)
        member = None
        if not code:
            client = request.header.client_id or ""
            code, member = self._beat(
                entity.group_id, entity.member_id, entity.member_epoch, entity.topology, client
            )
        return {
            "error_code": code,
            "error_message": "Topology updates are not supported yet." if code == INVALID_REQUEST else None,
            "member_id": entity.member_id,
            "member_epoch": 0 if member is None else member.epoch,
            "heartbeat_interval_ms": 5000,
            "status": [],
        }

    def _streams(self, broker: FakeBroker, request: Request, name: str) -> dict[str, object]:
        group = self.groups.get(name)
        answer = super()._streams(broker, request, name)
        if not isinstance(group, StreamsGroup) or answer.get("error_code"):
            return answer
        members = [
            {
                "member_id": one.member_id,
                "member_epoch": one.epoch,
                "client_id": one.client_id,
                "client_host": "/127.0.0.1",
                "assignment": {
                    "active_tasks": [
                        {"subtopology_id": "0", "partitions": sorted(index for _, index in one.assigned)}
                    ],
                    "standby_tasks": [],
                    "warmup_tasks": [],
                },
            }
            for one in group.tasks.members.values()
        ]
        told: Any = answer["topology"]
        told["epoch"] = 0 if group.brought is None else group.brought.epoch
        return {**answer, "group_epoch": group.tasks.epoch, "members": members}

    async def offset_commit(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity, group = request.entity, self.groups.get(request.entity.group_id)
        if not isinstance(group, StreamsGroup) or not group.tasks.members:
            return await super().offset_commit(broker, request)
        member = group.tasks.members.get(entity.member_id)
        code = request.forced_error or (25 if member is None else 0)
        if member is not None and member.epoch != entity.generation_id_or_member_epoch:
            code = STALE_MEMBER_EPOCH
        return {"topics": self.groups_at._take_offsets(entity, code, None)}

    async def delete_groups(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        results = []
        for name in request.entity.groups_names:
            group = self.groups.get(name)
            code = 0
            if isinstance(group, StreamsGroup):
                code = 68 if group.tasks.members else 0
                if not code:
                    self.groups.pop(name)
                    self.groups_at.offsets.committed.pop(name, None)
            results.append({"group_id": name, "error_code": code})
        return {"throttle_time_ms": 0, "results": results}
