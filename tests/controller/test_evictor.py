"""Partitions that a cluster without cordons placed on link brokers, beside those that link brokers follow on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.alter_partition import alter_partition_item
from linker import evictor as evictors
from linker.evictor import Evictor
from tests.controller.kraft_model import Kraft, Partition
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 1)
OURS = frozenset({800, 801})


class World:
    """A topic of which partition 0 is in sync, and partition 1 was added since."""

    def __init__(self, replicas: Sequence[int], *, mirrored: int = 0) -> None:
        self.kraft = Kraft(topic_ids={"t": b"\x01" * 16})
        for broker in (1, 2, 3, 800, 801):
            self.kraft.register(broker)
        self.kraft.partitions[TopicPartition("t", 0)] = Partition((1, 2, 3, 800), (1, 2, 3, 800), leader=1)
        self.kraft.partitions[TP] = Partition(tuple(replicas), tuple(sorted(replicas)), leader=replicas[0])
        self.kept = 1
        self.mirrored = mirrored
        self.operations = SimpleNamespace(
            reassign=self.reassign, elect_preferred=self.elect_preferred, alter_isr=self.alter_isr
        )
        self.cordoned, self.broker_id = False, 800
        self.membership = self.mirrors = self
        self.evictor = Evictor(self)  # type: ignore[arg-type]

    # The broker and its membership

    @property
    def image(self) -> Any:
        found = self.kraft.image()
        topics = {}
        for name, topic in found.topics_by_name.items():
            parts = {at: SimpleNamespace(index=at, **vars(one)) for at, one in topic.partitions.items()}
            topics[name] = replace(topic, partitions=parts)  # type: ignore[arg-type]
        brokers = {
            at: SimpleNamespace(log_dirs=(), cordoned_log_dirs=(), **vars(one))
            for at, one in found.brokers.items()
        }
        return SimpleNamespace(
            topics_by_name=topics,
            topics_by_id={topic.id: topic for topic in topics.values()},
            brokers=brokers,
            live_brokers=lambda but: [b for b in brokers.values() if b.id not in but and not b.fenced],
        )

    def link_brokers(self) -> frozenset[int]:
        return OURS

    def kept_in_sync(self, topic: str) -> int:
        return self.kept

    def by_id(self, topic_id: bytes) -> Any:
        there = SimpleNamespace(partition=lambda index: index if index < self.mirrored else None)
        return there if self.mirrored else None

    async def reassign(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        for tp, to in targets.items():
            assert self.kraft.reassign(tp, to) == 0

    async def elect_preferred(self, tps: Sequence[TopicPartition]) -> None:
        assert set(self.kraft.elect_preferred(tps).values()) == {0}

    async def alter_isr(self, wished: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, int]:
        self.isrs = [*getattr(self, "isrs", []), dict(wished)]
        codes: dict[TopicPartition, int] = {}
        for tp, isr in wished.items():
            item = alter_partition_item(self.image, tp, isr)
            answer = self.kraft.alter_partition((item.leader.broker_id, item.leader.broker_epoch), [item])
            assert isinstance(answer, dict)
            codes |= answer
        return codes

    # The others

    def brokers_follow(self) -> None:
        """Real ones do, and link brokers what is kept in sync, which is brought there, too."""
        partition = self.kraft.partitions[TP]
        kept = self.kept > TP.partition
        real = [b for b in partition.replicas if b not in OURS]
        if (
            kept
            and real
            and not partition.adding
            and not partition.removing
            and 800 not in partition.replicas
        ):
            self.kraft.reassign(TP, (*real, 800))
            partition = self.kraft.partitions[TP]
        came = [b for b in partition.replicas if b not in partition.isr and (kept or b not in OURS)]
        if came and partition.leader not in OURS:
            item = alter_partition_item(self.image, TP, (*partition.isr, *came))
            self.kraft.alter_partition((item.leader.broker_id, item.leader.broker_epoch), [item])

    async def settle(self, looks: int = 30) -> Partition:
        for _ in range(looks):
            await self.evictor._look()
            self.brokers_follow()
        return self.kraft.partitions[TP]


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictors, "_GRACE", -1.0)


@pytest.mark.parametrize("replicas", [(800,), (1, 2, 800), (800, 1, 2), (2, 800, 801)])
@pytest.mark.parametrize("followed", [False, True], ids=["alone", "followed from the third look on"])
def test_a_partition_that_is_added_to_a_topic_in_sync_gets_all_its_real_replicas(
    replicas: tuple[int, ...], followed: bool
) -> None:
    """Left as it is it would have one less for good, or none, and nobody who serves it."""

    async def main() -> None:
        world = World(replicas)
        await world.settle(2)
        world.kept = 2 if followed else 1
        partition = await world.settle()
        real = [b for b in partition.replicas if b not in OURS]
        assert len(real) == len(replicas) and partition.leader in real
        assert (800 in partition.replicas) is followed
        assert not partition.adding and not partition.removing
        assert not world.evictor._found
        assert world.kraft.partitions[TopicPartition("t", 0)].replicas == (1, 2, 3, 800)

    asyncio.run(main())


def test_a_link_broker_that_follows_is_not_taken_out_of_the_isr_again_and_again() -> None:
    async def main() -> None:
        world = World((1, 2, 800))
        world.evictor._touched = {b"\x01" * 16}
        await world.evictor._look()  # found
        world.kept, world.isrs = 2, []
        partition = await world.settle()
        assert [b for b in partition.replicas if b not in OURS] == [1, 2, 3]
        assert world.isrs == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kept", "mirrored", "replicas", "left"),
    [
        (2, 0, (1, 2, 800), True),
        (2, 0, (800, 801), False),
        (0, 2, (800, 1, 2), True),
        (0, 1, (800, 1, 2), False),
        (1, 0, (1, 2, 800), False),
        (0, 0, (1, 2, 800), False),
    ],
    ids=["in sync", "in sync with nobody", "mirror", "beyond the mirror", "beyond what is in sync", "placed"],
)
def test_what_link_brokers_have_on_purpose_is_left_alone(
    kept: int, mirrored: int, replicas: tuple[int, ...], left: bool
) -> None:
    world = World(replicas, mirrored=mirrored)
    world.kept = kept
    found = [tp for tp, _ in world.evictor._strangers(b"\x01" * 16)]
    assert (TP not in found) is left


def test_a_partition_in_sync_that_somebody_reassigned_to_link_brokers_alone_is_left_alone() -> None:
    """Its records are at the other cluster only: a real broker would lead an empty log, and the copies truncate to it."""
    world = World((800,))
    world.kept = 2
    assert [tp for tp, _ in world.evictor._strangers(b"\x01" * 16)] == [TP]
    world.kraft.partitions[TP] = replace(world.kraft.partitions[TP], leader_epoch=1)
    assert world.evictor._strangers(b"\x01" * 16) == []
