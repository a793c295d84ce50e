"""What a delete, or a new beginning, would drop: told in offsets, and what of it is nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from linker.checks.holdings import (
    Held,
    described,
    drop_actions,
    holdings,
    lost_records,
    only_at_target,
    warnings,
)
from linker.checks.replica_logs import Extent
from tests.fakes import FakeCluster
from tests.fakes.log import FakeLog
from tests.links.conftest import client
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage, TopicImage

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
COPIES = {1: Extent(0, 10), 2: Extent(0, 8)}


@pytest.mark.parametrize(
    ("held", "records"),
    [
        (Held(T0, COPIES, (), Extent(0, 10)), None),
        (Held(T0, COPIES, (), Extent(0, 12)), None),
        (Held(T0, COPIES, (), Extent(0, 6)), (6, 4)),  # the source lost data
        (Held(T0, COPIES, (), None), (0, 10)),  # it has the topic no more
        (Held(T0, COPIES, (), None, source_known=False), None),  # not known, which is said
        (Held(T0, COPIES, (), Extent(0, 20), leader=1, fork=7), (7, 3)),
        (Held(T0, COPIES, (), Extent(0, 20), leader=1), None),
        (Held(T0, COPIES, (), None, leader=1, added=True), (0, 10)),
        (Held(T0, {1: Extent(3, 3)}, (), None), None),
        (Held(T0, {}, (1,), None), None),
    ],
)
def test_what_is_at_the_target_alone(held: Held, records: tuple[int, int] | None) -> None:
    assert only_at_target(held) == records


def test_every_kind_of_loss_and_of_doubt_is_said_with_its_reason() -> None:
    assert "6 acknowledged records" not in str(warnings([Held(T0, COPIES, (), Extent(0, 10))]))
    lost = warnings(
        [Held(T0, COPIES, (), Extent(0, 6)), Held(T1, COPIES, (), Extent(0, 20), leader=3, fork=7)]
    )
    assert "orders-0: up to 4 acknowledged records, from offset 6 on" in lost[0]
    assert "broker 3 of the target was its leader" in lost[1]
    assert lost[2].startswith("7 acknowledged records exist at the target alone")
    assert "is not known" in warnings([Held(T0, COPIES, (), Extent(0, 9), leader=3)])[0]
    assert "does not answer" in warnings([Held(T0, COPIES, (), None, source_known=False)])[0]


def test_copies_are_counted_once_where_they_agree() -> None:
    assert (
        described(Held(T0, {1: Extent(2, 10), 2: Extent(2, 10)}, (), None))
        == "8 offsets (2 to 10) in each copy, on 1, 2"
    )
    assert described(Held(T0, COPIES, (3,), None)) == (
        "broker 1: 10 offsets (0 to 10); broker 2: 8 offsets (0 to 8); not told: broker 3"
    )
    many = [Held(TopicPartition("orders", at), {1: Extent(0, 5)}, (), Extent(0, 5)) for at in range(25)]
    actions = drop_actions(many)
    assert len(actions) == 21
    assert "125 offsets in all 25 partitions" in actions[-1].detail


@pytest_asyncio.fixture
async def clusters() -> AsyncIterator[tuple[FakeCluster, FakeCluster]]:
    """Source and target with the topic orders; partition 0 was forked by broker 2, partition 1 is led by broker 900."""
    async with FakeCluster(nodes=1) as source, FakeCluster(nodes=[1, 2, 900]) as target:
        source.add_topic("orders", partitions=2)
        target.add_topic("orders", partitions=3)
        for at in range(2):
            source.topics["orders"].partitions[at].add(9)
        theirs = target.topics["orders"].partitions
        for one in theirs.values():
            one.replicas, one.leader, one.leader_epoch = [1, 2, 900], 900, 3
        theirs[0].add(6)
        theirs[0].leader, theirs[0].leader_epoch = 2, 5
        theirs[0].add(4)
        theirs[1].add(9)
        behind = FakeLog()
        behind.add(5, leader_epoch=3)
        theirs[1].replica_logs = {2: behind}
        theirs[2].leader, theirs[2].replicas = 1, [1, 2]
        theirs[2].add(40)
        yield source, target


async def test_of_clusters_that_answer(clusters: tuple[FakeCluster, FakeCluster]) -> None:
    fake_source, fake_target = clusters
    source, target = client(fake_source, "source"), client(fake_target, "target")
    mirror = MirrorTopic(link="east", topic="orders", topic_id=b"m" * 16, source_topic_id=None, partitions=2)
    states = [
        MirrorPartition(link="east", topic="orders", partition=at, phase=Phase.FAILED, session_epoch=3)
        for at in range(2)
    ]
    image = TopicImage(
        b"m" * 16,
        "orders",
        {
            at: PartitionImage(
                at, tuple(one.replicas), (one.leader,), (), (), one.leader, one.leader_epoch, 0
            )
            for at, one in fake_target.topics["orders"].partitions.items()
        },
    )
    runtime: Any = SimpleNamespace(
        name="east",
        source=source,
        target=SimpleNamespace(cluster=target, image=SimpleNamespace(topics_by_name={"orders": image})),
        controller=SimpleNamespace(image=SimpleNamespace(topic_partitions=lambda *_: states)),
    )
    try:
        await source.connect(timeout=5)
        await target.connect(timeout=5)
        found = await holdings(runtime, mirror, image, {900}, wanted=range(3))
        assert [(held.fork, held.leader, held.added) for held in found] == [
            (6, 2, False),
            (None, None, False),
            (None, 1, True),
        ]
        assert found[1].copies == {1: Extent(0, 9), 2: Extent(0, 5)}
        assert [only_at_target(held) for held in found] == [(6, 4), None, (0, 40)]
        assert lost_records(found) == 44
        del fake_source.topics["orders"]
        gone = await holdings(runtime, mirror, image, {900}, wanted=[1])
        assert only_at_target(gone[0]) == (0, 9)
    finally:
        await source.close()
        await target.close()
    silent = await holdings(runtime, mirror, image, {900}, wanted=[1])
    assert silent[0].silent == (1, 2)
    assert not silent[0].source_known
