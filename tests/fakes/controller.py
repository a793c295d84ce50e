"""A KRaft quorum that speaks the wire protocol on real sockets: what a link broker needs of it, and ways to
break it.

`FakeQuorum` is the shared truth (the metadata log, brokers, topics, who leads); each `FakeController` is one
node with a listener. A node answers Metadata too, so that it can stand for the target's brokers. `hooks[api]`
gets every decoded request and may answer a dict (the response's fields), bytes (as they are), DROP (close the
connection), SILENCE (never answer), or None (go on as usual). Rules are Kafka's where the product depends on
them; nothing else is imitated.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.fakes.metadata_records import encode_record
from tests.fakes.quorum import FEATURES, FakeBroker, FakePartition, FakeQuorum
from wire.client.security import ListenerSecurity
from wire.frames.types import METADATA_TOPIC_ID
from wire.schema import codec
from wire.server.listener import Exchange, Listener, ListenerInfo, start_listener

DROP = object()
SILENCE = object()
Hook = Callable[[Any], object]

NOT_LEADER, FENCED_EPOCH, UNKNOWN_EPOCH = 6, 74, 75
NEVER = bytes(16)
SUPPORTED = {
    "api_versions": (0, 4),
    "metadata": (0, 12),
    "describe_cluster": (0, 2),
    "describe_quorum": (0, 2),
    "fetch": (4, 18),
    "fetch_snapshot": (0, 1),
    "broker_registration": (0, 4),
    "broker_heartbeat": (0, 2),
    "unregister_broker": (0, 0),
    "alter_partition": (2, 3),
    "alter_partition_reassignments": (0, 1),
    "allocate_producer_ids": (0, 0),
    "create_partitions": (0, 3),
    "create_topics": (2, 7),
    "delete_topics": (1, 6),
    "incremental_alter_configs": (0, 1),
    "elect_leaders": (0, 2),
    "describe_configs": (1, 4),
}


class FakeController:
    """One node: `async with FakeController(quorum, 0) as node`."""

    def __init__(self, quorum: FakeQuorum, node_id: int) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.hooks: dict[str, Hook] = {}
        self.requests: list[tuple[str, int, Any]] = []
        self.seen: Counter[str] = Counter()
        self.supported = dict(SUPPORTED)
        self.features = dict(FEATURES)
        self.port = 0
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []

    async def __aenter__(self) -> FakeController:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self.errors:
            raise self.errors[0]

    async def start(self) -> None:
        self._listener = await start_listener(
            "127.0.0.1",
            self.port,
            ListenerInfo("CONTROLLER", "PLAINTEXT"),
            ListenerSecurity(),
            self._handle,
        )
        self.port = self._listener.port
        self.quorum.nodes[self.node_id] = self

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def leads(self) -> bool:
        return self.quorum.leader == self.node_id

    # --- dispatch

    def _handle(self, exchange: Exchange) -> None:
        header, request = codec.decode_request(exchange.frame)
        api = codec.api_name(header.api_key)
        self.requests.append((api, header.api_version, request))
        self.seen[api] += 1
        task = asyncio.ensure_future(self._answer(exchange, api, header.api_version, request))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(task.exception() or RuntimeError())

    async def _answer(self, exchange: Exchange, api: str, version: int, request: Any) -> None:
        hook = self.hooks.get(api)
        outcome = hook(request) if hook is not None else None
        if outcome is SILENCE:
            return
        if outcome is DROP:
            exchange.connection.abort()
            return
        if outcome is None:
            outcome = await getattr(self, f"_{api}")(request, version)
        if isinstance(outcome, bytes):
            body = exchange.header.correlation_id.to_bytes(4, "big") + outcome
            exchange.reply([len(body).to_bytes(4, "big") + body])
            return
        assert isinstance(outcome, dict)
        body = codec.encode_response(api, version, exchange.header.correlation_id, outcome)
        exchange.reply([len(body).to_bytes(4, "big") + body])

    # --- finding the way

    async def _api_versions(self, request: Any, version: int) -> dict[str, object]:
        return {
            "api_keys": [
                {"api_key": codec.api_key(api), "min_version": low, "max_version": high}
                for api, (low, high) in self.supported.items()
            ],
            "supported_features": [
                {"name": name, "min_version": low, "max_version": high}
                for name, (low, high, _) in self.features.items()
                if low > 0 or version >= 4
            ],
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, (_, _, level) in self.features.items()
            ],
        }

    async def _metadata(self, request: Any, version: int) -> dict[str, object]:
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
            "cluster_id": self.quorum.cluster_id,
            "controller_id": 1,
            "topics": [],
        }

    async def _describe_cluster(self, request: Any, version: int) -> dict[str, object]:
        return {
            "cluster_id": self.quorum.cluster_id,
            "controller_id": 1,
            "brokers": [{"broker_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
            "cluster_authorized_operations": 0xFFF,
        }

    async def _describe_quorum(self, request: Any, version: int) -> dict[str, object]:
        quorum = self.quorum
        partition: dict[str, object] = {"partition_index": 0, "error_code": NOT_LEADER, "leader_id": -1}
        if self.leads:
            partition |= {
                "error_code": 0,
                "leader_id": quorum.leader,
                "leader_epoch": quorum.epoch,
                "high_watermark": quorum.high_watermark,
            }
        return {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [partition]}],
            "nodes": [
                {"node_id": i, "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": n.port}]}
                for i, n in quorum.nodes.items()
            ],
        }

    # --- the metadata log (KafkaRaftClient.handleFetchRequest)

    def _leader_error(self, epoch: int) -> int:
        if epoch < self.quorum.epoch:
            return FENCED_EPOCH
        if epoch > self.quorum.epoch:
            return UNKNOWN_EPOCH
        return 0 if self.leads else NOT_LEADER

    def _fetch_answer(self, asked: Any) -> dict[str, object]:
        quorum = self.quorum
        answer: dict[str, object] = {
            "partition_index": 0,
            "high_watermark": -1,
            "current_leader": {"leader_id": quorum.leader, "leader_epoch": quorum.epoch},
            "records": None,
        }
        if code := self._leader_error(asked.current_leader_epoch):
            return answer | {"error_code": code}
        answer["high_watermark"] = quorum.high_watermark
        offset, epoch = asked.fetch_offset, asked.last_fetched_epoch
        if quorum.snapshot is not None and (offset == 0 or offset < quorum.log_start):
            return answer | {"snapshot_id": {"end_offset": quorum.snapshot[0], "epoch": quorum.snapshot[1]}}
        end_epoch, end = quorum.epoch_end(epoch)
        known = quorum.snapshot[1] if quorum.snapshot is not None else 0
        if offset > 0 and epoch > known and (end_epoch != epoch or end < offset):
            return answer | {"diverging_epoch": {"epoch": end_epoch, "end_offset": end}}
        data = b"".join(d for _, next_offset, _, d in quorum.batches if next_offset > offset)
        return answer | {"records": data}

    async def _fetch(self, request: Any, version: int) -> dict[str, object]:
        if request.cluster_id not in (None, self.quorum.cluster_id):
            return {"error_code": 104}
        asked = request.topics[0].partitions[0]
        deadline = asyncio.get_running_loop().time() + request.max_wait.total_seconds()
        known = getattr(asked, "high_watermark", 1 << 62)
        while True:
            moved = self.quorum.moved
            answer = self._fetch_answer(asked)
            waited = asyncio.get_running_loop().time() >= deadline
            news = answer.get("error_code") or answer["records"] or "snapshot_id" in answer
            if waited or news or "diverging_epoch" in answer or known < self.quorum.high_watermark:
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await moved.wait()
            except TimeoutError:
                continue
        topic = {"topic": "__cluster_metadata", "topic_id": METADATA_TOPIC_ID, "partitions": [answer]}
        return {"responses": [topic]}

    async def _fetch_snapshot(self, request: Any, version: int) -> dict[str, object]:
        asked = request.topics[0].partitions[0]
        quorum = self.quorum
        answer: dict[str, object] = {
            "index": 0,
            "current_leader": {"leader_id": quorum.leader, "leader_epoch": quorum.epoch},
            "snapshot_id": {"end_offset": asked.snapshot_id.end_offset, "epoch": asked.snapshot_id.epoch},
        }
        wanted = (asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        if code := self._leader_error(asked.current_leader_epoch):
            answer["error_code"] = code
        elif quorum.snapshot is None or quorum.snapshot[:2] != wanted:
            answer["error_code"] = 98
        else:
            data = quorum.snapshot[2]
            # A few bytes at a time, so that positions lie inside batches.
            answer |= {
                "size": len(data),
                "position": asked.position,
                "unaligned_records": data[asked.position : asked.position + 100],
            }
        return {"topics": [{"name": "__cluster_metadata", "partitions": [answer]}]}

    # --- brokers (ClusterControlManager, BrokerHeartbeatManager)

    async def _broker_registration(self, request: Any, version: int) -> dict[str, object]:
        quorum = self.quorum
        if not self.leads:
            return {"error_code": 41}
        if request.cluster_id != quorum.cluster_id:
            return {"error_code": 104}
        offered = {f.name: (f.min_supported_version, f.max_supported_version) for f in request.features}
        for name, (_, _, level) in self.features.items():
            low, high = offered.get(name, (0, 0))
            if not low <= level <= high:
                return {"error_code": 35}
        incarnation = request.incarnation_id.bytes
        existing = quorum.brokers.get(request.broker_id)
        if existing is not None and existing.session and existing.incarnation != incarnation:
            return {"error_code": 101}
        if existing is not None and existing.incarnation == incarnation:
            epoch, fenced = existing.epoch, existing.fenced
        else:
            epoch, fenced = quorum.next_offset, True
        quorum.brokers[request.broker_id] = FakeBroker(epoch, incarnation, fenced)
        quorum.append(
            "RegisterBrokerRecord",
            {
                "broker_id": request.broker_id,
                "incarnation_id": incarnation,
                "broker_epoch": epoch,
                "end_points": [
                    {"name": e.name, "host": e.host, "port": e.port, "security_protocol": e.security_protocol}
                    for e in request.listeners
                ],
                "rack": request.rack,
                "fenced": fenced,
                "log_dirs": [d.bytes for d in request.log_dirs],
            },
        )
        return {"broker_epoch": epoch}

    async def _broker_heartbeat(self, request: Any, version: int) -> dict[str, object]:
        quorum = self.quorum
        if not self.leads:
            return {"error_code": 41}
        broker = quorum.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return {"error_code": 77}
        broker.session = True
        broker.cordoned = getattr(request, "cordoned_log_dirs", None)
        caught_up = request.current_metadata_offset >= broker.epoch
        fenced = broker.fenced
        if request.want_shut_down or request.want_fence:
            fenced = True
        elif caught_up:
            fenced = False
        if fenced != broker.fenced:
            broker.fenced = fenced
            name = "FenceBrokerRecord" if fenced else "UnfenceBrokerRecord"
            quorum.append(name, {"id": request.broker_id, "epoch": broker.epoch})
        return {
            "is_caught_up": caught_up,
            "is_fenced": fenced,
            "should_shut_down": request.want_shut_down,
        }

    async def _unregister_broker(self, request: Any, version: int) -> dict[str, object]:
        broker = self.quorum.brokers.pop(request.broker_id, None)
        if broker is None:
            return {"error_code": 102}
        self.quorum.append(
            "UnregisterBrokerRecord", {"broker_id": request.broker_id, "broker_epoch": broker.epoch}
        )
        return {}

    # --- topics (ReplicationControlManager)

    async def _create_topics(self, request: Any, version: int) -> dict[str, object]:
        answers = []
        for topic in request.topics:
            code = 36 if topic.name in self.quorum.topics else 0
            if code == 0 and not request.validate_only:
                topic_id = struct.pack(">qq", 5, next(self.quorum.topic_numbers))
                parts = {
                    a.partition_index: FakePartition(list(a.broker_ids), list(a.broker_ids), a.broker_ids[0])
                    for a in topic.assignments
                }
                self.quorum.topics[topic.name] = (topic_id, parts)
                values = [encode_record("TopicRecord", {"name": topic.name, "topic_id": topic_id})]
                values += [
                    encode_record(
                        "ConfigRecord",
                        {"resource_type": 2, "resource_name": topic.name, "name": c.name, "value": c.value},
                    )
                    for c in topic.configs
                ]
                values += [
                    encode_record(
                        "PartitionRecord",
                        {
                            "partition_id": index,
                            "topic_id": topic_id,
                            "replicas": part.replicas,
                            "isr": part.isr,
                            "leader": part.leader,
                            "leader_epoch": 0,
                            "partition_epoch": 0,
                            "directories": [NEVER] * len(part.replicas),
                        },
                    )
                    for index, part in parts.items()
                ]
                self.quorum.append_values(values)
            answers.append({"name": topic.name, "error_code": code, "configs": None})
        return {"topics": answers}

    async def _create_partitions(self, request: Any, version: int) -> dict[str, object]:
        """As createPartitions: as many replicas as the first partition has, and all of them that are alive in the ISR."""
        answers = []
        for topic in request.topics:
            parts = self.quorum.topics[topic.name][1]
            code, replicas = 0, [list(a.broker_ids) for a in topic.assignments or ()]
            if topic.count <= len(parts):
                code = 37
            elif len(replicas) != topic.count - len(parts) or any(
                len(one) != len(parts[0].replicas)
                or len(set(one)) != len(one)
                or set(one) - self.quorum.brokers.keys()
                for one in replicas
            ):
                code = 39
            else:
                for members in replicas:
                    self.quorum.add_partition(topic.name, members)
            answers.append({"name": topic.name, "error_code": code})
        return {"results": answers}

    async def _delete_topics(self, request: Any, version: int) -> dict[str, object]:
        names = {topic_id: name for name, (topic_id, _) in self.quorum.topics.items()}
        asked = (
            [(t.name or names.get(t.topic_id.bytes), 3 if t.name else 100) for t in request.topics]
            if version >= 6
            else [(name, 3) for name in request.topic_names]
        )
        answers = []
        for name, unknown in asked:
            topic = self.quorum.topics.pop(name, None)
            if topic is not None:
                self.quorum.append("RemoveTopicRecord", {"topic_id": topic[0]})
            answers.append({"name": name, "error_code": 0 if topic else unknown})
        return {"responses": answers}

    async def _alter_partition_reassignments(self, request: Any, version: int) -> dict[str, object]:
        answers = []
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                known = self.quorum.topics.get(topic.name, (NEVER, {}))[1].get(part.partition_index)
                code = 3 if known is None else 0
                if known is not None and part.replicas is None:
                    code = 0 if known.adding else 85
                    if known.adding:
                        self.quorum.change(
                            topic.name,
                            part.partition_index,
                            replicas=[r for r in known.replicas if r not in known.adding],
                            adding_replicas=[],
                            removing_replicas=[],
                            leader=known.leader,  # a new leader epoch: a replica has gone
                        )
                elif known is not None:
                    target = list(part.replicas)
                    adding = [r for r in target if r not in known.replicas]
                    removing = [r for r in known.replicas if r not in target]
                    # As changePartitionReassignment: an empty list leaves what was there.
                    changes = {
                        "replicas": target + removing if target + removing != known.replicas else None,
                        "adding_replicas": adding,
                        "removing_replicas": removing,
                    }
                    changes = {name: value for name, value in changes.items() if value}
                    if removing and not adding and not known.adding and set(target) <= set(known.isr):
                        # Nothing is waited for: it completes at once, under a new leader epoch.
                        changes = {
                            "replicas": target,
                            "isr": [r for r in known.isr if r in target],
                            "removing_replicas": [],
                            "leader": known.leader if known.leader in target else target[0],
                        }
                    if changes:
                        self.quorum.change(topic.name, part.partition_index, **changes)
                results.append({"partition_index": part.partition_index, "error_code": code})
            answers.append({"name": topic.name, "partitions": results})
        return {"responses": answers}

    async def _alter_partition(self, request: Any, version: int) -> dict[str, object]:
        quorum = self.quorum
        names = {topic_id: name for name, (topic_id, _) in quorum.topics.items()}
        broker = quorum.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return {"error_code": 77}
        answers = []
        for topic in request.topics:
            name = names[topic.topic_id.bytes]
            results = []
            for asked in topic.partitions:
                part = quorum.topics[name][1][asked.partition_index]
                if version >= 3:
                    isr = [(s.broker_id, s.broker_epoch) for s in asked.new_isr_with_epochs]
                else:
                    isr = [(b, -1) for b in asked.new_isr]
                code = 0
                if asked.leader_epoch != part.leader_epoch:
                    code = FENCED_EPOCH
                elif asked.partition_epoch != part.partition_epoch:
                    code = 95
                elif any(b not in quorum.brokers or e not in (-1, quorum.brokers[b].epoch) for b, e in isr):
                    code = 107
                elif part.adding and set(part.adding) <= {b for b, _ in isr}:
                    code = 108
                    kept = [r for r in part.replicas if r not in part.removing]
                    quorum.change(
                        name,
                        asked.partition_index,
                        replicas=kept,
                        isr=kept,
                        adding_replicas=[],
                        removing_replicas=[],
                        leader=part.leader if part.leader in kept else kept[0],
                    )
                else:
                    quorum.change(name, asked.partition_index, isr=[b for b, _ in isr])
                results.append({"partition_index": asked.partition_index, "error_code": code})
            answers.append({"topic_id": topic.topic_id, "partitions": results})
        return {"topics": answers}

    async def _elect_leaders(self, request: Any, version: int) -> dict[str, object]:
        for asked in request.topic_partitions:
            parts = self.quorum.topics.get(asked.topic, (NEVER, {}))[1]
            for index in asked.partitions:
                part = parts.get(index)
                if part is not None and part.leader != part.replicas[0] and part.replicas[0] in part.isr:
                    self.quorum.change(asked.topic, index, leader=part.replicas[0])
        return {
            "replica_election_results": [
                {
                    "topic": t.topic,
                    "partition_result": [{"partition_id": p, "error_code": 84} for p in t.partitions],
                }
                for t in request.topic_partitions
            ]
        }

    async def _incremental_alter_configs(self, request: Any, version: int) -> dict[str, object]:
        refused = self.quorum.refused_configs
        for resource in request.resources:
            for config in resource.configs:
                if request.validate_only or resource.resource_name in refused:
                    continue
                self.quorum.append(
                    "ConfigRecord",
                    {
                        "resource_type": resource.resource_type,
                        "resource_name": resource.resource_name,
                        "name": config.name,
                        "value": config.value if config.config_operation == 0 else None,
                    },
                )
        return {
            "responses": [
                {
                    "resource_type": r.resource_type,
                    "resource_name": r.resource_name,
                    "error_code": 40 if r.resource_name in refused else 0,
                    "error_message": refused.get(r.resource_name),
                }
                for r in request.resources
            ]
        }

    async def _allocate_producer_ids(self, request: Any, version: int) -> dict[str, object]:
        if not self.leads:
            return {"error_code": 41}
        start = self.quorum.next_producer_id
        self.quorum.next_producer_id += 1000
        broker = self.quorum.brokers[request.broker_id]
        self.quorum.append(
            "ProducerIdsRecord",
            {"broker_id": request.broker_id, "broker_epoch": broker.epoch, "next_producer_id": start + 1000},
        )
        return {"producer_id_start": start, "producer_id_len": 1000}
