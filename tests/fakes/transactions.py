"""A transaction coordinator, as clients from before transactions V2 see it (TransactionCoordinator.scala).

One per cluster, on whatever node FindCoordinator names. Markers are written in the same moment as the outcome,
unless `marker_delay` says otherwise: then the transaction stays "prepared" and other requests are answered
CONCURRENT_TRANSACTIONS meanwhile, as Kafka does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.fakes import init_producer_id

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.cluster import FakeCluster

INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
PRODUCER_FENCED = 90


@dataclass
class FakeTransaction:
    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    state: str = "empty"  # empty, ongoing, prepared, committed, aborted
    partitions: set[tuple[str, int]] = field(default_factory=set)


class FakeCoordinator:
    """`FakeCoordinator(cluster)` lets a FakeCluster speak transactions."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.transactions: dict[str, FakeTransaction] = {}
        self.marker_delay = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        cluster.handlers["init_producer_id"] = self.init_producer_id
        cluster.handlers["add_partitions_to_txn"] = self.add_partitions
        cluster.handlers["end_txn"] = self.end_txn

    async def init_producer_id(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        if entity.transactional_id is None or request.forced_error:
            return await init_producer_id.handle(broker, request)
        code, found = self._init(entity)
        if code:
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        return {"error_code": 0, "producer_id": found.producer_id, "producer_epoch": found.epoch}

    def _init(self, entity: Any) -> tuple[int, FakeTransaction]:
        known = self.transactions.get(entity.transactional_id)
        if known is None:
            known = FakeTransaction(next(self.cluster.producer_ids))
            self.transactions[entity.transactional_id] = known
        expected = entity.producer_epoch if entity.producer_id >= 0 else None
        if expected is not None and entity.producer_id != known.producer_id:
            return PRODUCER_FENCED, known
        if known.state == "prepared":
            return CONCURRENT_TRANSACTIONS, known
        if known.state == "ongoing":
            known.last_epoch, known.epoch = known.epoch, known.epoch + 1
            self._decide(known, commit=False)
            return CONCURRENT_TRANSACTIONS, known
        if expected is None:
            known.last_epoch, known.epoch = -1, known.epoch + 1
        elif expected == known.epoch:
            known.last_epoch, known.epoch = known.epoch, known.epoch + 1
        elif expected != known.last_epoch:
            return PRODUCER_FENCED, known
        known.state = "empty"
        return 0, known

    async def add_partitions(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        known = self.transactions.get(entity.v3_and_below_transactional_id)
        wanted = {(topic.name, index) for topic in entity.v3_and_below_topics for index in topic.partitions}
        code = request.forced_error or self._check(
            known, entity.v3_and_below_producer_id, entity.v3_and_below_producer_epoch
        )
        if not code and known is not None:
            known.state = "ongoing"
            known.partitions |= wanted
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": code} for index in topic.partitions
                    ],
                }
                for topic in entity.v3_and_below_topics
            ]
        }

    async def end_txn(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        known = self.transactions.get(entity.transactional_id)
        code = request.forced_error or self._check(known, entity.producer_id, entity.producer_epoch)
        if code or known is None:
            return {"error_code": code}
        done = "committed" if entity.committed else "aborted"
        if known.state == done:
            return {"error_code": 0}
        if known.state != "ongoing":
            return {"error_code": INVALID_TXN_STATE}
        if self.marker_delay:
            known.state = "prepared"
            task = asyncio.get_running_loop().create_task(self._decide_later(known, entity.committed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._decide(known, commit=entity.committed)
        return {"error_code": 0}

    def _check(self, known: FakeTransaction | None, producer_id: int, epoch: int) -> int:
        if known is None or known.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return PRODUCER_FENCED
        return CONCURRENT_TRANSACTIONS if known.state == "prepared" else 0

    async def _decide_later(self, known: FakeTransaction, commit: bool) -> None:
        await asyncio.sleep(self.marker_delay)
        self._decide(known, commit=commit)

    def _decide(self, known: FakeTransaction, *, commit: bool) -> None:
        for topic, index in known.partitions:
            partition = self.cluster.partition(topic, index)
            log = partition.log
            log.end_transaction(
                known.producer_id, known.epoch, commit=commit, leader_epoch=partition.leader_epoch
            )
            # A marker of a higher epoch fences the older ones at the leader too.
            state = log.producers.get(known.producer_id)
            if state is not None and state.epoch < known.epoch:
                state.epoch = known.epoch
                state.batches.clear()
        known.partitions.clear()
        known.state = "committed" if commit else "aborted"
        self.cluster.notify()
