"""A gate over a fake target cluster, and what a test does with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from controller.codec import decode_gate, encode_gate
from controller.groups import GateKind, GateRecord
from groups.gates.base import Gate, OffsetAndMetadata
from groups.gates.coordinators import Coordinators
from groups.gates.factory import make_gate, plan_gate
from groups.gates.settings import GateSettings
from tests.fakes import FakeCluster
from tests.fakes.groups import FakeGroups
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition

GROUP = "readers"
TOPIC = "orders"
KINDS = [kind for kind in GateKind if kind is not GateKind.STREAMS]  # see test_streams_gate
MEMBER_KINDS = [kind for kind in KINDS if kind is not GateKind.TRANSACTION]
PAIRS = [GateKind.CONSUMER_AND_TRANSACTION, GateKind.CLASSIC_AND_TRANSACTION]
QUICK = GateSettings(
    operation_timeout=10.0,
    take_timeout=10.0,
    heartbeat_timeout=2.0,
    join_timeout=1.0,
    classic_session=300.0,
)


def partitions(topic: str = TOPIC, count: int = 3) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


def at(offset: int, topic: str = TOPIC, count: int = 3) -> dict[TopicPartition, int]:
    return {tp: offset + tp.partition for tp in partitions(topic, count)}


def offsets(offset: int, topic: str = TOPIC, count: int = 3) -> dict[TopicPartition, OffsetAndMetadata]:
    return {tp: OffsetAndMetadata(value, "m") for tp, value in at(offset, topic, count).items()}


class StoreGone(Exception):
    """The state store does not take records."""


@dataclass
class Target:
    """A fake target cluster with one group to be gated, and a store that keeps one record."""

    fake: FakeCluster
    groups: FakeGroups
    cluster: Cluster
    coordinators: Coordinators
    settings: GateSettings = QUICK
    stored: GateRecord | None = None
    saves: int = 0
    #: Called with each record before it is stored; may raise.
    on_save: Callable[[GateRecord], None] | None = None
    slept: list[float] = field(default_factory=list)

    async def save(self, record: GateRecord) -> None:
        if self.on_save is not None:
            self.on_save(record)
        self.stored = decode_gate(record.group, encode_gate(record))
        self.saves += 1

    async def sleep(self, seconds: float) -> None:
        """Gates wait in the coordinators' time."""
        self.slept.append(seconds)
        self.groups.advance(seconds)

    def gate(self, kind: GateKind | None = None, **given: object) -> Gate:
        """A new gate (kind given), or one that takes over what is stored."""
        if kind is not None:
            record = plan_gate("link", GROUP, kind)
        elif self.stored is not None:
            record = self.stored
        else:
            raise ValueError("nothing is stored")
        return make_gate(
            record,
            self.coordinators,
            self.save,
            stored=kind is None,
            settings=self.settings,
            clock=lambda: self.groups.now,
            sleep=self.sleep,
            jitter=lambda: 0.5,
        )

    async def renew_for(self, gate: Gate, seconds: float) -> None:
        """Time goes by, and the gate is renewed whenever it is due."""
        until = self.groups.now + seconds
        while self.groups.now < until:
            self.groups.advance(max(0.01, min(gate.due(), until) - self.groups.now))
            await gate.renew()

    def committed(self, topic: str = TOPIC) -> Mapping[int, int]:
        found = self.groups.offsets.committed.get(GROUP, {})
        return {index: value.offset for (name, index), value in sorted(found.items()) if name == topic}


@asynccontextmanager
async def target(
    nodes: int = 1, *, settings: GateSettings = QUICK, **narrowed: object
) -> AsyncIterator[Target]:
    async with FakeCluster(nodes, api_versions=narrowed.get("api_versions")) as fake:  # type: ignore[arg-type]
        fake.add_topic(TOPIC, 3)
        groups = FakeGroups(fake)
        cluster = Cluster("target", fake.bootstrap, ClientSecurity(), "gate")
        await cluster.connect()
        coordinators = Coordinators(cluster)
        try:
            yield Target(fake, groups, cluster, coordinators, settings)
        finally:
            await coordinators.close()
            await cluster.close()
