"""Which brokers of the target count as lost, and which replicas are moved then. Time is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import Link, MirrorPartition, MirrorTopic
from linker.links.lost_brokers import LostBrokers
from tests.links.link_context import context
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def partition(index: int, phase: Phase) -> MirrorPartition:
    return MirrorPartition(link="east", topic="orders", partition=index, phase=phase, session_epoch=0)


class Rig:
    """Four brokers and the link broker; a mirror with two partitions."""

    def __init__(
        self, *, after_ms: int = 60_000, replicas: tuple[tuple[int, ...], ...] = ((1, 2), (3, 1))
    ) -> None:
        self.now = 1000.0
        self.moved: list[dict[TopicPartition, tuple[int, ...]]] = []
        state = ControllerImage()
        mirror = MirrorTopic(
            link="east",
            topic="orders",
            topic_id=bytes(16),
            source_topic_id=None,
            partitions=2,
            target_replicas=replicas,
        )
        options = {"broker_lost_after_ms": after_ms}
        state.replay([Link(name="east", source_cluster_id="c", properties={}, options=options)])
        state.replay([mirror])
        for index in (0, 1):
            state.replay([partition(index, Phase.ACTIVE)])
        self.image = ClusterImage()
        for broker in (1, 2, 3, 4, 900):
            self.image.brokers[broker] = BrokerImage(broker, 1, bytes(16), None, {}, False, False, ())
        self.state = state
        self.mirror = mirror
        controller: Any = SimpleNamespace(image=state)
        target: Any = SimpleNamespace(image=self.image)

        async def move(plan: dict[TopicPartition, tuple[int, ...]], *, afresh: bool) -> None:
            assert not afresh
            self.moved.append(dict(plan))

        bring_up: Any = SimpleNamespace(move=move)
        self.lost = LostBrokers(context("east", None, target, controller), bring_up, clock=lambda: self.now)

    def fence(self, broker: int, fenced: bool = True) -> None:
        self.image.brokers[broker] = BrokerImage(broker, 1, bytes(16), None, {}, fenced, False, ())

    async def after(self, seconds: float) -> str | None:
        self.now += seconds
        return await self.lost._once()


async def test_a_broker_that_is_down_for_long() -> None:
    rig = Rig()
    rig.fence(2)
    assert await rig.after(0) is None
    assert await rig.after(59) is None
    assert rig.moved == []
    assert await rig.after(2) is None
    assert rig.moved == [{T0: (1, 3)}]


async def test_one_that_returns_begins_anew() -> None:
    rig = Rig()
    rig.fence(2)
    await rig.after(0)
    rig.fence(2, fenced=False)
    await rig.after(59)
    rig.fence(2)
    await rig.after(1)
    await rig.after(59)
    assert rig.moved == []


async def test_one_that_is_not_registered_any_more_is_not_waited_for() -> None:
    rig = Rig(after_ms=-1)
    del rig.image.brokers[2]
    assert await rig.after(0) is None
    assert await rig.after(9) is None
    assert rig.moved == []
    await rig.after(2)
    assert rig.moved == [{T0: (1, 3)}]


async def test_replicas_that_came_between_two_looks() -> None:
    rig = Rig()
    assert await rig.after(0) is None
    rig.fence(4)
    assert await rig.after(1) is None  # nothing of ours is there
    rig.state.replay([replace(rig.mirror, target_replicas=((1, 4), (2, 3)))])
    assert await rig.after(1) is None
    assert await rig.after(61) is None
    assert list(rig.moved[0]) == [T0]


async def test_for_ever() -> None:
    rig = Rig(after_ms=-1)
    rig.fence(2)
    await rig.after(0)
    await rig.after(10**9)
    assert rig.moved == []


async def test_half_of_the_brokers_is_an_outage_after_which_all_have_the_same_time() -> None:
    rig = Rig()
    rig.fence(2)
    rig.fence(4)
    assert "most brokers of the target are down" in (await rig.after(0) or "")
    assert "most brokers of the target are down" in (await rig.after(600) or "")
    rig.fence(4, fenced=False)
    assert await rig.after(59) is None
    assert rig.moved == []
    await rig.after(2)
    assert rig.moved == [{T0: (1, 3)}]


async def test_where_nobody_can_take_it_an_operator_is_told_how() -> None:
    rig = Rig(replicas=((1, 2), (3, 1)))
    del rig.image.brokers[4]
    rig.fence(2)
    await rig.after(0)
    assert await rig.after(61) is None
    assert rig.moved == [{T0: (1, 3)}]
    rig = Rig(replicas=((1, 2, 3), (3, 1, 2)))
    del rig.image.brokers[4]
    rig.fence(2)
    await rig.after(0)
    told = await rig.after(61) or ""
    assert "linker mirror reassign --link east orders --away-from 2 --fewer-replicas" in told
    assert rig.moved == []


def test_a_partition_whose_writes_are_held_is_left_out() -> None:
    rig = Rig()
    image = rig.lost._controller.image
    image.replay([partition(1, Phase.FENCED)])
    plan = rig.lost.plan(image.link_mirrors("east"), {1})
    assert set(plan.moves) == {T0}
    assert plan.old == {T0: (1, 2)}
