"""Streams groups (KIP-1071) and share groups (KIP-932) beside the groups of a FakeGroups: `others = OtherKinds(groups)`.

Modelled as GroupMetadataManager.java has it: listed and described by their own apis only; OffsetCommit by nobody is taken by
a streams group without members; AlterShareGroupOffsets makes a group that is not there, and refuses one with members.
Members are there because a test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from controller.mirror_group import GroupProtocol
from tests.fakes.groups.coordinator import (
    GROUP_ID_NOT_FOUND,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    FakeGroups,
)

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request

NON_EMPTY_GROUP = 68


@dataclass
class OtherGroup:
    kind: GroupProtocol
    topics: tuple[str, ...] = ()  # that its members or its topology name
    changelogs: tuple[str, ...] = ()
    members: dict[str, str] = field(default_factory=dict)  # member id -> client id
    starts: dict[tuple[str, int], int] = field(default_factory=dict)  # of a share group
    lags: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"


class OtherKinds:
    def __init__(self, groups: FakeGroups) -> None:
        self._fake = groups
        self.groups: dict[str, OtherGroup] = {}
        self.altered: list[
            dict[tuple[str, int], int]
        ] = []  # each AlterShareGroupOffsets that was carried out
        handlers = groups.cluster.handlers
        handlers["streams_group_describe"] = self.streams_group_describe
        handlers["share_group_describe"] = self.share_group_describe
        handlers["describe_share_group_offsets"] = self.describe_share_group_offsets
        handlers["alter_share_group_offsets"] = self.alter_share_group_offsets
        handlers["list_groups"] = self.list_groups
        handlers["offset_commit"] = self.offset_commit

    def _of(
        self, kind: GroupProtocol, broker: FakeBroker, request: Request, name: str
    ) -> tuple[OtherGroup | None, int]:
        code = request.forced_error or self._fake.refused(broker, 0, name)
        group = self.groups.get(name)
        if not code and (group is None or group.kind is not kind):
            code = GROUP_ID_NOT_FOUND
        return group, code

    async def list_groups(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        answer = dict(await self._fake.list_groups(broker, request))
        listed = [one for one in answer["groups"] if one["group_id"] not in self.groups]  # type: ignore[attr-defined]
        for name, group in self.groups.items() if not request.forced_error else ():
            kinds = {
                "group_id": name,
                "protocol_type": group.kind.value,
                "group_type": group.kind.value.title(),
            }
            if self._fake.place(0, name) == broker.id:
                listed.append({**kinds, "group_state": group.state})
        return {**answer, "groups": listed}

    async def streams_group_describe(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        return {"groups": [self._streams(broker, request, name) for name in request.entity.group_ids]}

    def _streams(self, broker: FakeBroker, request: Request, name: str) -> dict[str, object]:
        group, code = self._of(GroupProtocol.STREAMS, broker, request, name)
        if group is None or code:
            return {"group_id": name, "error_code": code}
        nothing = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        tasks = {**nothing, "active_tasks": [{"subtopology_id": "0", "partitions": [0]}]}
        part = {
            "subtopology_id": "0",
            "source_topics": list(group.topics),
            "repartition_sink_topics": [],
            "state_changelog_topics": [{"name": one, "topic_configs": []} for one in group.changelogs],
            "repartition_source_topics": [],
        }
        members = [
            {"member_id": key, "client_id": client, "client_host": "/127.0.0.1", "assignment": tasks}
            for key, client in group.members.items()
        ]
        topology = {"epoch": 0, "subtopologies": [part]}
        return {"group_id": name, "group_state": group.state, "topology": topology, "members": members}

    async def share_group_describe(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        found = []
        for name in request.entity.group_ids:
            group, code = self._of(GroupProtocol.SHARE, broker, request, name)
            if group is None or code:
                found.append({"group_id": name, "error_code": code})
                continue
            members = [
                {
                    "member_id": key,
                    "client_id": client,
                    "client_host": "/127.0.0.1",
                    "subscribed_topic_names": list(group.topics),
                    "assignment": {"topic_partitions": []},
                }
                for key, client in group.members.items()
            ]
            found.append({"group_id": name, "group_state": group.state, "members": members})
        return {"groups": found}

    async def describe_share_group_offsets(
        self, broker: FakeBroker, request: Request
    ) -> Mapping[str, object]:
        found = []
        for asked in request.entity.groups:
            group, code = self._of(GroupProtocol.SHARE, broker, request, asked.group_id)
            starts = {} if group is None or code else group.starts
            topics = [
                {
                    "topic_name": topic,
                    "partitions": [
                        {
                            "partition_index": index,
                            "start_offset": start,
                            "lag": group.lags.get((topic, index), -1),
                        }
                        for (_, index), start in some
                        if group is not None
                    ],
                }
                for topic, some in itertools.groupby(sorted(starts.items()), lambda one: one[0][0])
            ]
            found.append({"group_id": asked.group_id, "error_code": code, "topics": topics})
        return {"groups": found}

    async def alter_share_group_offsets(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self._fake.refused(broker, 0, entity.group_id)
        group = self.groups.get(entity.group_id) or OtherGroup(GroupProtocol.SHARE)
        if not code and (group.kind is not GroupProtocol.SHARE or entity.group_id in self._fake.groups):
            code = GROUP_ID_NOT_FOUND
        if not code and group.members:
            code = NON_EMPTY_GROUP
        if code:
            return {"error_code": code, "responses": []}
        self.groups[entity.group_id] = group
        taken: dict[tuple[str, int], int] = {}
        responses = []
        for topic in entity.topics:
            known = self._fake.partitions(topic.topic_name)
            partitions = []
            for one in topic.partitions:
                there = one.partition_index in known
                if there:
                    taken[topic.topic_name, one.partition_index] = one.start_offset
                refused = 0 if there else UNKNOWN_TOPIC_OR_PARTITION
                partitions.append({"partition_index": one.partition_index, "error_code": refused})
            responses.append({"topic_name": topic.topic_name, "partitions": partitions})
        group.starts.update(taken)
        self.altered.append(taken)
        return {"error_code": 0, "responses": responses}

    async def offset_commit(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        group = self.groups.get(request.entity.group_id)
        if group is not None and group.members and not request.forced_error:
            request = replace(request, forced_error=UNKNOWN_MEMBER_ID)
        return await self._fake.offset_commit(broker, request)
