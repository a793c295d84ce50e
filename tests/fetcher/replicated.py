"""A source partition whose nodes have logs of their own, with ISR, log ends and high watermark by a Kafka leader's rules.

Only what is told by fetches counts for the follower under test: its log end is the offset of its last fetch, session or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.broker import FakeBroker, Request
from tests.fakes.cluster import FakeCluster
from tests.fakes.fetch import handle
from tests.fakes.log import FakeLog

US = 800


class ReplicatedPartition:
    def __init__(self, cluster: FakeCluster, topic: str = "t", index: int = 0) -> None:
        self.cluster = cluster
        self.partition = cluster.partition(topic, index)
        self.key = (cluster.topics[topic].topic_id, index)
        self.partition.replicas = [*cluster.brokers, US]
        self.partition.isr = list(cluster.brokers)
        self.partition.replica_logs = {node: FakeLog() for node in cluster.brokers}
        for log in self.partition.replica_logs.values():
            log.high_watermark = 0
        #: What the follower under test told this leader last; -1: nothing yet.
        self.told = -1
        self.heard_at = time.monotonic()
        #: Where real followers end, as this leader knows by their fetches.
        self.ends: dict[int, int] = {}
        self.epoch_start = 0
        self.waiting: dict[int, bytes] = {}  # acks=all: base offset -> batch
        self.acked: list[bytes] = []
        self.truncated_acked: list[bytes] = []

    @property
    def leader_log(self) -> FakeLog:
        return self.partition.replica_logs[self.partition.leader]

    @property
    def in_sync(self) -> bool:
        return US in self.partition.isr

    # --- writing

    def write(self, *, acks_all: bool, **batch: Any) -> None:
        log = self.leader_log
        base = log.add(leader_epoch=self.partition.leader_epoch, **batch)
        if acks_all:
            self.waiting[base] = log.batches[-1].data
        self.advance()

    def replicate(self, node: int) -> None:
        """A real follower copies everything, and truncates what the leader does not have first."""
        log, leader = self.partition.replica_logs[node], self.leader_log
        if log is leader:
            return
        theirs = {stored.info.base_offset: stored.data for stored in leader.batches}
        while log.batches and theirs.get(log.batches[-1].info.base_offset) != log.batches[-1].data:
            log.truncate(log.batches[-1].info.base_offset)
        for stored in leader.batches:
            if stored.info.base_offset >= log.log_end_offset:
                log._store(stored.data, stored.info.base_offset, stored.info.leader_epoch)
        self.ends[node] = log.log_end_offset
        if node not in self.partition.isr:
            self.partition.isr.append(node)
        self.advance()
        log.high_watermark = max(log.high_watermark, min(leader.high_watermark, log.log_end_offset))

    def elect(self, node: int) -> None:
        """The leader dies, and another in-sync node leads, with the log and the high watermark that it has."""
        self.partition.isr = [one for one in self.partition.isr if one != self.partition.leader] or [node]
        self.partition.leader = node
        self.partition.leader_epoch += 1
        self.told = -1
        self.heard_at = time.monotonic()
        self.ends.clear()
        self.epoch_start = self.leader_log.log_end_offset
        # Partition.makeLeader has the epoch in the cache before there is a record of it.
        self.leader_log.epochs.append((self.partition.leader_epoch, self.epoch_start))
        kept = {stored.data for stored in self.leader_log.batches}
        self.waiting = {base: data for base, data in self.waiting.items() if data in kept}
        self.truncated_acked += [data for data in self.acked if data not in kept]
        self.advance()

    # --- Partition.maybeIncrementLeaderHW, maybeExpandIsr, maybeShrinkIsr

    def advance(self) -> None:
        log = self.leader_log
        others = [node for node in self.partition.isr if node not in (US, self.partition.leader)]
        ends = [self.ends.get(node, -1) for node in others]
        if self.in_sync:
            ends.append(self.told)
        reached = min([log.log_end_offset, *ends])
        if reached > log.high_watermark:
            log.high_watermark = reached
            for base in sorted(self.waiting):
                if base < reached:
                    self.acked.append(self.waiting.pop(base))
        self.cluster.notify()

    def drop_silent(self, lag: float) -> None:
        """The follower under test goes out of the ISR if it has told nothing for so many seconds
        (replica.lag.time.max.ms)."""
        if self.in_sync and time.monotonic() - self.heard_at > lag:
            self.partition.isr.remove(US)
            self.advance()

    def hear(self, offset: int) -> None:
        """The follower under test asks for `offset`: it has everything before it."""
        if offset > self.leader_log.log_end_offset:
            return
        self.told = offset
        self.heard_at = time.monotonic()
        if not self.in_sync and offset >= max(self.leader_log.high_watermark, self.epoch_start):
            self.partition.isr.append(US)
        self.advance()


def listen(
    cluster: FakeCluster, parts: list[ReplicatedPartition], check: Callable[[ReplicatedPartition, Any], None]
) -> None:
    """Have the nodes take note of what the follower under test asks for; `check` sees each of it first."""
    by_key = {part.key: part for part in parts}
    sessions: dict[tuple[int, int], dict[Any, Any]] = {}

    async def fetch(broker: FakeBroker, request: Request) -> Mapping[str, object] | None:
        entity = request.entity
        replica = entity.replica_state.replica_id if request.version >= 15 else entity.replica_id
        if replica != US:
            return await handle(broker, request)
        key = (broker.id, entity.session_id)
        held = dict(sessions.get(key, {})) if entity.session_epoch > 0 else {}
        for topic in entity.forgotten_topics_data:
            for index in topic.partitions:
                held.pop((topic.topic_id.bytes, index), None)
        for topic in entity.topics:
            for one in topic.partitions:
                held[topic.topic_id.bytes, one.partition] = one
        for name, one in held.items():
            part = by_key.get(name)
            if part is None or part.partition.leader != broker.id:
                continue
            if one.current_leader_epoch != part.partition.leader_epoch:
                continue
            log = part.leader_log
            epoch, end = log.epoch_end(one.last_fetched_epoch, part.partition.leader_epoch)
            if one.last_fetched_epoch >= 0 and (epoch < one.last_fetched_epoch or end < one.fetch_offset):
                continue  # DivergingEpoch: the position is none of this log
            check(part, one)
            part.hear(one.fetch_offset)
        answer = await handle(broker, request)
        if answer and answer.get("session_id"):
            sessions[broker.id, int(str(answer["session_id"]))] = held
        return answer

    cluster.handlers["fetch"] = fetch
