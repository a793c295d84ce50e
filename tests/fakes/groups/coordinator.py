"""The apis of the group coordinator over sockets, on top of the pure groups. One state for all nodes; a node that does not
coordinate a group answers NOT_COORDINATOR.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.fakes.groups.classic import ClassicGroup
from tests.fakes.groups.classic import Member as ClassicMember
from tests.fakes.groups.consumer import ConsumerGroup
from tests.fakes.groups.consumer import Member as ConsumerMember
from tests.fakes.groups.offsets import Offsets
from tests.fakes.groups.transactions import GroupTransactions

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.cluster import FakeCluster

UNKNOWN_SERVER_ERROR = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_METADATA_TOO_LARGE = 12
LOAD_IN_PROGRESS = 14
NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
GROUP_ID_NOT_FOUND = 69
UNSTABLE_OFFSET_COMMIT = 88
STALE_MEMBER_EPOCH = 113

CONSUMER_SESSION = 45.0


class FakeGroups:
    """The coordinators of one FakeCluster. `now` is theirs; move it with `advance`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.now = 1000.0
        self.groups: dict[str, ClassicGroup | ConsumerGroup] = {}
        self.offsets = Offsets()
        self.transactions = GroupTransactions(self)
        self.max_session = 1800.0
        self.offset_metadata_max = 4096  # offset.metadata.max.bytes
        self.most_in_a_batch = 10_000  # partitions of one OffsetCommit: stands for max.message.bytes
        #: Who coordinates what, where that is not the first node: (key type, key) -> node.
        self.placed: dict[tuple[int, str], int] = {}
        self.loading: set[int] = set()  # nodes
        #: Called whenever a transaction has ended or an offset was committed: the moments that clients could use.
        self.on_change: Callable[[], None] = lambda: None
        #: FindCoordinator answers so often COORDINATOR_NOT_AVAILABLE: __consumer_offsets is being created.
        self.missing = 0
        handlers = cluster.handlers
        handlers["find_coordinator"] = self.find_coordinator
        handlers["consumer_group_heartbeat"] = self.consumer_group_heartbeat
        handlers["consumer_group_describe"] = self.consumer_group_describe
        handlers["describe_groups"] = self.describe_groups
        handlers["list_groups"] = self.list_groups
        handlers["join_group"] = self.join_group
        handlers["sync_group"] = self.sync_group
        handlers["heartbeat"] = self.heartbeat
        handlers["leave_group"] = self.leave_group
        handlers["offset_commit"] = self.offset_commit
        handlers["offset_fetch"] = self.offset_fetch
        handlers["txn_offset_commit"] = self.txn_offset_commit

    # --- what a test does -----------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time goes by; whoever has not been heard of is expired."""
        self.now += seconds
        for group in self.groups.values():
            group.expire(self.now)
        self.transactions.expire(self.now)

    def reload(self) -> None:
        """Every coordinator was restarted."""
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                group.reload(self.now)
            else:
                group.reload(self.now, CONSUMER_SESSION)

    def move(self, kind: int, key: str, node: int) -> None:
        self.placed[kind, key] = node
        group = self.groups.get(key)
        if kind == 0 and isinstance(group, ClassicGroup):
            group.reload(self.now)

    def consumer_group(self, name: str) -> ConsumerGroup:
        """As ConsumerGroupHeartbeat with epoch 0 finds it: created, or converted from a classic group."""
        found = self.groups.get(name)
        if isinstance(found, ConsumerGroup):
            return found
        made = self.groups[name] = ConsumerGroup(name, self.partitions)
        if found is not None:
            made.epoch = found.generation
            for old in found.members.values():
                made.members[old.member_id] = ConsumerMember(
                    old.member_id,
                    old.client_id,
                    tuple(self.cluster.topics),
                    epoch=found.generation,
                    deadline=old.deadline,
                    classic=True,
                )
                if old.joining is not None:
                    old.joining.cancel()
        return made

    def classic_group(self, name: str) -> ClassicGroup:
        found = self.groups.get(name)
        if not isinstance(found, ClassicGroup):
            found = self.groups[name] = ClassicGroup(name)
        return found

    def partitions(self, topic: str) -> Sequence[int]:
        found = self.cluster.topics.get(topic)
        return () if found is None else tuple(sorted(found.partitions))

    def refused(self, broker: FakeBroker, kind: int, key: str) -> int:
        if broker.id in self.loading:
            return LOAD_IN_PROGRESS
        return 0 if self.place(kind, key) == broker.id else NOT_COORDINATOR

    def place(self, kind: int, key: str) -> int:
        return self.placed.get((kind, key), next(iter(self.cluster.brokers)))

    # --- lookups --------------------------------------------------------------------------------------------

    async def find_coordinator(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error
        if self.missing:
            self.missing -= 1
            code = NOT_AVAILABLE
        keys = entity.coordinator_keys if request.version >= 4 else [entity.key]
        found = []
        for key in keys:
            node = self.cluster.brokers[self.place(entity.key_type, key)]
            gone = code or (0 if node.running else NOT_AVAILABLE)
            place = {"node_id": node.id, "host": node.host, "port": node.port}
            named = {"key": key} if request.version >= 4 else {}
            found.append({**named, "error_code": gone, **({} if gone else place)})
        return {"coordinators": found} if request.version >= 4 else found[0]

    # --- the consumer protocol ------------------------------------------------------------------------------

    async def consumer_group_heartbeat(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self.refused(broker, 0, entity.group_id)
        if code:
            return {"error_code": code, "member_epoch": 0}
        if entity.member_epoch == 0:
            group = self.consumer_group(entity.group_id)
        else:
            known = self.groups.get(entity.group_id)
            if not isinstance(known, ConsumerGroup):
                return {"error_code": GROUP_ID_NOT_FOUND, "member_epoch": 0}
            group = known
        if entity.member_epoch == -1:
            return {
                "error_code": group.leave(entity.member_id),
                "member_id": entity.member_id,
                "member_epoch": -1,
            }
        owned = None
        if entity.topic_partitions is not None:
            owned = {
                (topic.name, index)
                for item in entity.topic_partitions
                if item.topic_id is not None
                and (topic := self.cluster.topic_by_id(item.topic_id.bytes)) is not None
                for index in item.partitions
            }
        if entity.member_epoch == 0 and owned:
            return {"error_code": 42, "error_message": "TopicPartitions must be empty when (re-)joining."}
        names = entity.subscribed_topic_names
        code, member, told = group.heartbeat(
            entity.member_id,
            entity.member_epoch,
            self.now,
            CONSUMER_SESSION,
            client_id=request.header.client_id or "",
            topics=None if names is None else tuple(sorted(names)),
            owned=owned,
        )
        if member is None:
            return {"error_code": code, "member_epoch": 0}
        return {
            "error_code": 0,
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": 5000,
            "assignment": {"topic_partitions": self._by_id(member.assigned)} if told else None,
        }

    def _by_id(self, partitions: set[tuple[str, int]], *, named: bool = False) -> list[dict[str, object]]:
        return [
            {
                **({"topic_name": name} if named else {}),
                "topic_id": uuid.UUID(bytes=self.cluster.topics[name].topic_id),
                "partitions": sorted(index for topic, index in partitions if topic == name),
            }
            for name in sorted({topic for topic, _ in partitions})
        ]

    async def consumer_group_describe(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        return {"groups": [self._describe(broker, request, name) for name in request.entity.group_ids]}

    def _describe(self, broker: FakeBroker, request: Request, name: str) -> dict[str, object]:
        group = self.groups.get(name)
        code = request.forced_error or self.refused(broker, 0, name)
        if code or not isinstance(group, ConsumerGroup):
            return {"group_id": name, "error_code": code or GROUP_ID_NOT_FOUND}
        return {
            "group_id": name,
            "group_state": group.state,
            "group_epoch": group.epoch,
            "members": [
                {
                    "member_id": member.member_id,
                    "member_epoch": member.epoch,
                    "client_id": member.client_id,
                    "client_host": "/127.0.0.1",
                    **({"member_type": 0 if member.classic else 1} if request.version >= 1 else {}),
                    "assignment": {"topic_partitions": self._by_id(member.assigned, named=True)},
                    "target_assignment": {
                        "topic_partitions": self._by_id(group.target.get(member.member_id, set()), named=True)
                    },
                }
                for member in group.members.values()
            ],
        }

    async def list_groups(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        """Those that this node coordinates, groups that only have offsets among them."""
        names = self.groups.keys() | self.offsets.committed.keys()
        listed = []
        for name in sorted(names) if not request.forced_error else ():
            group = self.groups.get(name)
            if self.place(0, name) == broker.id:
                listed.append(
                    {
                        "group_id": name,
                        "protocol_type": "consumer" if group is not None and group.members else "",
                        "group_state": "Empty" if group is None else group.state,
                        "group_type": "consumer" if isinstance(group, ConsumerGroup) else "classic",
                    }
                )
        return {"error_code": request.forced_error, "groups": listed}

    # --- the classic protocol -------------------------------------------------------------------------------

    async def describe_groups(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        found = []
        for name in request.entity.groups:
            group = self.groups.get(name)
            code = request.forced_error or self.refused(broker, 0, name)
            if not code and not isinstance(group, ClassicGroup):
                code = GROUP_ID_NOT_FOUND if request.version >= 6 else 0
                found.append({"group_id": name, "error_code": code, "group_state": "Dead"})
            elif code or not isinstance(group, ClassicGroup):
                found.append({"group_id": name, "error_code": code})
            else:
                members = [self._described(group, member) for member in group.members.values()]
                found.append(
                    {
                        "group_id": name,
                        "group_state": group.state,
                        "protocol_type": "consumer" if members else "",
                        "protocol_data": group.protocol,
                        "members": members,
                    }
                )
        return {"groups": found}

    @staticmethod
    def _described(group: ClassicGroup, member: ClassicMember) -> dict[str, object]:
        assignment = member.assignment if group.state == "Stable" else b""
        return {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "client_host": "/127.0.0.1",
            "member_assignment": assignment,
        }

    async def join_group(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self.refused(broker, 0, entity.group_id)
        session = entity.session_timeout.total_seconds()
        if not code and session > self.max_session:
            code = INVALID_SESSION_TIMEOUT
        if code:
            return {"error_code": code, "generation_id": -1, "member_id": entity.member_id, "leader": ""}
        answer = await self.classic_group(entity.group_id).join(
            entity.member_id,
            request.header.client_id or "",
            [protocol.name for protocol in entity.protocols],
            session,
            self.now,
            request.version >= 4,
        )
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": "consumer",
            "protocol_name": answer.protocol,
            "leader": answer.leader,
            "member_id": answer.member_id,
            "members": [{"member_id": member, "metadata": b""} for member in answer.members],
        }

    def _classic(self, broker: FakeBroker, request: Request) -> tuple[int, ClassicGroup | None]:
        name = request.entity.group_id
        code = request.forced_error or self.refused(broker, 0, name)
        group = self.groups.get(name)
        if code or isinstance(group, ClassicGroup):
            return code, group if isinstance(group, ClassicGroup) else None
        return UNKNOWN_MEMBER_ID, None

    async def sync_group(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code, group = self._classic(broker, request)
        if code or group is None:
            return {"error_code": code, "assignment": b""}
        given = {item.member_id: item.assignment for item in entity.assignments}
        code, assignment = await group.sync(entity.member_id, entity.generation_id, given, self.now)
        return {"error_code": code, "protocol_type": "consumer", "assignment": assignment}

    async def heartbeat(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        group = self.groups.get(entity.group_id)
        if (
            isinstance(group, ConsumerGroup)
            and entity.member_id in group.members
            and not request.forced_error
        ):
            group.members[entity.member_id].deadline = self.now + CONSUMER_SESSION
            return {"error_code": REBALANCE_IN_PROGRESS}  # GroupMetadataManager: it has to join again
        code, classic = self._classic(broker, request)
        if code or classic is None:
            return {"error_code": code}
        return {"error_code": classic.heartbeat(entity.member_id, entity.generation_id, self.now)}

    async def leave_group(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self.refused(broker, 0, entity.group_id)
        if code:
            return {"error_code": code}
        group = self.groups.get(entity.group_id)
        left = [
            {
                "member_id": item.member_id,
                "error_code": UNKNOWN_MEMBER_ID if group is None else group.leave(item.member_id),
            }
            for item in entity.members
        ]
        return {"error_code": 0, "members": left}

    # --- offsets --------------------------------------------------------------------------------------------

    def _may_commit(self, name: str, member_id: str, generation: int, version: int, *, pending: bool) -> int:
        group = self.groups.get(name)
        if group is None:
            if generation < 0:
                self.classic_group(name)
                return 0
            return GROUP_ID_NOT_FOUND if version >= 9 and not pending else ILLEGAL_GENERATION
        if generation < 0 and not group.members:
            return 0
        if generation < 0 and not member_id:
            return 0 if pending else UNKNOWN_MEMBER_ID
        if isinstance(group, ClassicGroup):
            code = group.check(member_id, generation)
            if code or pending:
                return code
            group.members[member_id].deadline = self.now + group.members[member_id].session
            return REBALANCE_IN_PROGRESS if group.state == "CompletingRebalance" else 0
        member = group.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER_ID
        if not member.classic and version < 9 and not pending:
            return 35
        return 0 if generation == member.epoch else STALE_MEMBER_EPOCH

    async def offset_commit(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self.refused(broker, 0, entity.group_id)
        code = code or self._may_commit(
            entity.group_id,
            entity.member_id,
            entity.generation_id_or_member_epoch,
            request.version,
            pending=False,
        )
        size = sum(len(topic.partitions) for topic in entity.topics)
        code = code or (UNKNOWN_SERVER_ERROR if size > self.most_in_a_batch else 0)
        return {"topics": self._take_offsets(entity, code, None)}

    async def txn_offset_commit(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        code = request.forced_error or self.refused(broker, 0, entity.group_id)
        code = code or self._may_commit(
            entity.group_id, entity.member_id, entity.generation_id, request.version, pending=True
        )
        code = code or self.transactions.verify(entity)
        return {"topics": self._take_offsets(entity, code, entity.producer_id)}

    def _refusal(self, topic: str, item: Any) -> int:
        """Of one partition: KafkaApis knows the topic and partition, OffsetMetadataManager the length of the text."""
        known = self.cluster.topics.get(topic)
        if known is None or item.partition_index >= len(known.partitions):
            return UNKNOWN_TOPIC_OR_PARTITION
        too_long = len(item.committed_metadata or "") > self.offset_metadata_max
        return OFFSET_METADATA_TOO_LARGE if too_long else 0

    def _take_offsets(self, entity: Any, code: int, producer_id: int | None) -> list[dict[str, object]]:
        answer = []
        for topic in entity.topics:
            codes = {
                item.partition_index: code or self._refusal(topic.name, item) for item in topic.partitions
            }
            for item in topic.partitions:
                if codes[item.partition_index]:
                    continue
                place = (topic.name, item.partition_index)
                value = (item.committed_offset, item.committed_metadata or "")
                if producer_id is None:
                    self.offsets.commit(entity.group_id, place, *value)
                else:
                    self.offsets.put_pending(producer_id, entity.group_id, place, *value)
            partitions = [
                {"partition_index": index, "error_code": refused} for index, refused in codes.items()
            ]
            answer.append({"name": topic.name, "partitions": partitions})
        self.on_change()
        return answer

    async def offset_fetch(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        return {
            "groups": [
                self._fetched(broker, request, group, request.entity.require_stable)
                for group in request.entity.groups
            ]
        }

    def _fetched(
        self, broker: FakeBroker, request: Request, asked: Any, require_stable: bool
    ) -> dict[str, object]:
        name = asked.group_id
        code = request.forced_error or self.refused(broker, 0, name)
        if code:
            return {"group_id": name, "topics": [], "error_code": code}
        topics = []
        for topic, indexes in self._asked(name, asked.topics):
            partitions = []
            for index in indexes:
                place = (topic, index)
                found = self.offsets.get(name, place)
                unstable = require_stable and self.offsets.unstable(name, place)
                partitions.append(
                    {
                        "partition_index": index,
                        "committed_offset": -1 if unstable or found is None else found.offset,
                        "metadata": "" if unstable or found is None else found.metadata,
                        "error_code": UNSTABLE_OFFSET_COMMIT if unstable else 0,
                    }
                )
            topics.append({"name": topic, "partitions": partitions})
        return {"group_id": name, "topics": topics, "error_code": 0}

    def _asked(self, group: str, topics: Any) -> list[tuple[str, Sequence[int]]]:
        """No topics: all that the group has committed, or that is pending (OffsetMetadataManager.fetchAllOffsets)."""
        if topics is not None:
            return [(topic.name, topic.partition_indexes) for topic in topics]
        known: dict[str, set[int]] = {}
        pending = [groups.get(group, {}) for groups in self.offsets.pending.values()]
        for places in (self.offsets.committed.get(group, {}), *pending):
            for topic, index in places:
                known.setdefault(topic, set()).add(index)
        return [(topic, sorted(indexes)) for topic, indexes in sorted(known.items())]
