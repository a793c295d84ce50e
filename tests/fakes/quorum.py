"""What a fake KRaft quorum agrees on: metadata log, brokers, topics. Its nodes are in controller.py."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.metadata_records import encode_batch, encode_record, leader_change, snapshot_bytes

if TYPE_CHECKING:
    from tests.fakes.controller import FakeController

FEATURES = {"metadata.version": (7, 30, 30), "kraft.version": (0, 1, 1)}  # name: min, max, finalized


@dataclasses.dataclass
class FakePartition:
    replicas: list[int]
    isr: list[int]
    leader: int
    adding: list[int] = dataclasses.field(default_factory=list)
    leader_epoch: int = 0
    partition_epoch: int = 0
    removing: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class FakeBroker:
    epoch: int
    incarnation: bytes
    fenced: bool
    session: bool = True
    cordoned: tuple[Any, ...] | None = None


class FakeQuorum:
    """The log and what it adds up to. Records are committed at once unless `hold` is set."""

    def __init__(self, cluster_id: str = "fake-cluster-id-00000") -> None:
        self.cluster_id = cluster_id
        self.epoch = 1
        self.leader = 0
        self.nodes: dict[int, FakeController] = {}
        self.batches: list[tuple[int, int, int, bytes]] = []  # base offset, next offset, epoch, bytes
        self.next_offset = 0
        self.high_watermark = 0
        self.hold = False
        self.snapshot: tuple[int, int, bytes] | None = None  # end offset, epoch, bytes
        self.log_start = 0
        self.moved = asyncio.Event()
        self.brokers: dict[int, FakeBroker] = {}
        self.topics: dict[str, tuple[bytes, dict[int, FakePartition]]] = {}
        self.topic_numbers = itertools.count(1)  # an id is given once
        self.next_producer_id = 0
        #: Why the controller refuses to change the configs of a topic.
        self.refused_configs: dict[str, str] = {}
        self._append_raw(leader_change(0, self.epoch), 1)
        for name, (_, _, level) in FEATURES.items():
            self.append("FeatureLevelRecord", {"name": name, "feature_level": level})

    # --- the log

    def append(self, name: str, fields: Mapping[str, Any], version: int | None = None) -> int:
        return self.append_values([encode_record(name, fields, version)])

    def append_values(self, values: list[bytes]) -> int:
        offset = self.next_offset
        self._append_raw(encode_batch(offset, self.epoch, values), len(values))
        return offset + len(values) - 1

    def _append_raw(self, data: bytes, count: int) -> None:
        self.batches.append((self.next_offset, self.next_offset + count, self.epoch, data))
        self.next_offset += count
        if not self.hold:
            self.commit()

    def commit(self) -> None:
        self.high_watermark = self.next_offset
        self._wake()

    def _wake(self) -> None:
        self.moved.set()
        self.moved = asyncio.Event()

    def truncate(self, end_offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch[1] <= end_offset]
        self.next_offset = self.batches[-1][1] if self.batches else self.log_start

    def elect(self, node_id: int) -> None:
        """A new leader in a new epoch."""
        self.leader = node_id
        self.epoch += 1
        self._append_raw(leader_change(self.next_offset, self.epoch), 1)
        self._wake()

    def take_snapshot(self, values: list[bytes], *, drop_log: bool = True) -> None:
        """A snapshot at the end of the log with these records; by default the log before it is gone."""
        self.snapshot = (self.next_offset, self.epoch, snapshot_bytes(self.epoch, values))
        if drop_log:
            self.log_start = self.next_offset
            self.batches = []

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the newest epoch not above the given one."""
        known = [(e, end) for _, end, e, _ in self.batches if e <= epoch]
        return max(known) if known else (0, 0)

    # --- brokers and topics

    def add_broker(
        self, broker_id: int, *, rack: str | None = None, port: int = 9, fenced: bool = False
    ) -> None:
        incarnation = struct.pack(">qq", 7, broker_id)
        epoch = self.next_offset
        self.brokers[broker_id] = FakeBroker(epoch, incarnation, fenced, session=not fenced)
        self.append(
            "RegisterBrokerRecord",
            {
                "broker_id": broker_id,
                "incarnation_id": incarnation,
                "broker_epoch": epoch,
                "end_points": [
                    {"name": "PLAINTEXT", "host": "127.0.0.1", "port": port, "security_protocol": 0}
                ],
                "rack": rack,
                "fenced": fenced,
                "log_dirs": [struct.pack(">qq", 9, broker_id)],
            },
        )

    def add_partition(self, name: str, replicas: list[int]) -> None:
        """One more of a topic, led by the first of its replicas that is alive."""
        topic_id, partitions = self.topics[name]
        isr = [b for b in replicas if not self.brokers[b].fenced]
        part = partitions[len(partitions)] = FakePartition(list(replicas), isr, isr[0])
        self.append(
            "PartitionRecord",
            {
                "partition_id": len(partitions) - 1,
                "topic_id": topic_id,
                "replicas": part.replicas,
                "isr": part.isr,
                "leader": part.leader,
                "leader_epoch": 0,
                "partition_epoch": 0,
                "directories": [bytes(16)] * len(part.replicas),
            },
        )

    def change(self, name: str, index: int, **fields: Any) -> None:
        """A PartitionChangeRecord, replayed here as well."""
        topic_id, partitions = self.topics[name]
        part = partitions[index]
        self.append("PartitionChangeRecord", {"topic_id": topic_id, "partition_id": index, **fields})
        part.partition_epoch += 1
        part.isr = list(fields.get("isr") or part.isr)
        part.replicas = list(fields.get("replicas") or part.replicas)
        part.adding = list(
            part.adding if fields.get("adding_replicas") is None else fields["adding_replicas"]
        )
        if fields.get("removing_replicas") is not None:
            part.removing = list(fields["removing_replicas"])
        if fields.get("leader", -2) != -2:
            part.leader = fields["leader"]
            part.leader_epoch += 1
