"""Link brokers kept among the in-sync replicas of topics, over KRaft's rules: joined, repaired, left, given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.reverse import reverse_name, set_sync
from controller.phases import Phase
from controller.plan.in_sync import InSync
from controller.state import JobStatus, Link, MirrorPartition, MirrorTopic, PromoteJob, SwitchEnd
from fleet.stored_controller import StoredController
from linker.links.configs import TopicConfigs
from linker.switch import sync_replicas
from linker.switch.rescue import Rescues
from linker.switch.sync_replicas import SyncReplicas
from tests.controller.kraft_model import Kraft, Partition
from tests.controller.memory_store import MemoryStore
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


class Member:
    """The membership of a cluster that is a model of its controller."""

    def __init__(self, kraft: Kraft) -> None:
        self.kraft = kraft
        self.operations = SimpleNamespace(reassign=self.reassign, elect_preferred=self.elect_preferred)
        self.cluster = None

    @property
    def membership(self) -> Any:
        return self

    @property
    def image(self) -> Any:
        return SimpleNamespace(**{**vars(self.kraft.image()), "changes": self.kraft.records})

    def link_brokers(self) -> frozenset[int]:
        return frozenset({800, 801})

    async def reassign(self, targets: dict[TopicPartition, Any], *, timeout: float) -> None:
        for tp, to in targets.items():
            assert self.kraft.reassign(tp, to) == 0

    async def elect_preferred(self, tps: Any, *, timeout: float) -> dict[TopicPartition, int]:
        return self.kraft.elect_preferred(tps)


class Rescuer:
    """A take-over that fails as often as it is told to."""

    rescues: Rescues

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.fails = 0

    async def rescue(self, topics: list[str], *, timeout: float) -> None:
        self.asked.append(topics)
        if self.fails:
            self.fails -= 1
            raise LinkerError("none of its brokers is alive")


#: The link broker of the sidecar that leads the mirror.
FOLLOWER: dict[TopicPartition, int | None] = {}


async def rig() -> tuple[Kraft, SyncReplicas, StoredController, Rescuer]:
    FOLLOWER[TP] = 800
    kraft = Kraft(topic_ids={"t": b"\x01" * 16, "other": b"\x02" * 16})
    for broker in (1, 2, 800, 801):
        kraft.register(broker)
    kraft.partitions[TP] = Partition((1, 2), (1, 2), leader=1)
    kraft.partitions[TopicPartition("other", 0)] = Partition((2, 1), (1, 2), leader=2)
    controller = await StoredController.open(MemoryStore())
    await controller.create_link("l", "s", {})
    mirror = MirrorTopic(
        link="l", topic="t", topic_id=b"\x07" * 16, source_topic_id=None, partitions=1, sync=True
    )
    await controller.create_mirror(mirror)
    member, rescuer = Member(kraft), Rescuer()
    sync = SyncReplicas("l", controller, lambda: member, FOLLOWER.get)  # type: ignore[arg-type,return-value]
    rescuer.rescues = Rescues("l", controller, sync.led_alone, lambda: rescuer)  # type: ignore[arg-type,return-value]
    return kraft, sync, controller, rescuer


@pytest.fixture(autouse=True)
def min_insync(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    told = {"min.insync.replicas": "1"}

    async def configs(_cluster: object, topics: list[str], *, timeout: float) -> dict[str, TopicConfigs]:
        return {topic: TopicConfigs(told, {}) for topic in topics}

    monkeypatch.setattr(sync_replicas, "topic_configs", configs)
    return told


def _state(sync: SyncReplicas) -> InSync | None:
    found = sync.state("t")
    return None if found is None else found[0]


def in_isr(kraft: Kraft, *brokers: int) -> None:
    kraft.partitions[TP] = replace(kraft.partitions[TP], isr=brokers, adding=())
    kraft.records += 1


def test_link_brokers_come_last_and_come_back() -> None:
    async def main() -> None:
        kraft, sync, _, _ = await rig()
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2, 800)
        await sync._once()
        assert _state(sync) is InSync.FOLLOWING
        in_isr(kraft, 1, 2, 800)
        await sync._once()
        assert _state(sync) is InSync.IN_SYNC
        # Somebody's reassignment takes it out, or puts it first; it dies for good.
        kraft.reassign(TP, (1, 2))
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2, 800)
        in_isr(kraft, 1, 2, 800)
        kraft.reassign(TP, (800, 2, 1))
        await sync._once()
        assert kraft.partitions[TP].replicas == (2, 1, 800)
        kraft.fence(800)
        await sync._once()
        assert kraft.partitions[TP].replicas == (2, 1, 800)
        assert kraft.partitions[TopicPartition("other", 0)].replicas == (2, 1)

    asyncio.run(main())


def test_the_sidecar_that_leads_the_mirror_follows(min_insync: dict[str, str]) -> None:
    """Another one is silent, and would hold up `acks=all` until the leader takes it out of the ISR."""

    async def main() -> None:
        kraft, sync, _, _ = await rig()
        await sync._once()
        in_isr(kraft, 1, 2, 800)
        FOLLOWER[TP] = 801
        kraft.records += 1
        await sync._once()
        moving = kraft.partitions[TP]
        assert (moving.replicas[:3], moving.adding, moving.removing) == ((1, 2, 801), (801,), (800,))
        assert moving.isr == (1, 2, 800)  # nothing is acknowledged without the one or the other
        FOLLOWER[TP] = 800  # back again, before the other was in the ISR
        kraft.records += 1
        await sync._once()
        back = kraft.partitions[TP]
        assert (back.replicas, back.isr, back.adding, back.removing) == ((1, 2, 800), (1, 2, 800), (), ())
        kraft.partitions[TP] = replace(moving, replicas=(1, 2, 801), isr=(1, 2, 801), adding=(), removing=())
        # Nobody leads the mirror for a moment: all stays as it is.
        FOLLOWER[TP] = None
        kraft.records += 1
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2, 801)
        # One takes the other's place also where no other may come; a sidecar that is not there leaves a place empty.
        min_insync["min.insync.replicas"] = "2"
        sync._read_at = -100.0
        in_isr(kraft, 1, 801)
        FOLLOWER[TP] = 800
        await sync._once()
        assert kraft.partitions[TP].adding == (800,)
        kraft.partitions[TP] = replace(moving, replicas=(1, 2, 800), isr=(1, 2, 800), adding=(), removing=())
        FOLLOWER[TP] = -1
        kraft.records += 1
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2)

    asyncio.run(main())


def test_they_do_not_come_where_real_brokers_would_be_too_few(min_insync: dict[str, str]) -> None:
    async def main() -> None:
        min_insync["min.insync.replicas"] = "2"
        kraft, sync, _, _ = await rig()
        kraft.fence(2)
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2)
        assert _state(sync) is InSync.WAITING
        assert "min.insync.replicas is 2" in (sync.state("t") or ("", ""))[1]
        in_isr(kraft, 1, 2)
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2, 800)

    asyncio.run(main())


def test_they_leave_when_sync_ends() -> None:
    async def main(how: str) -> None:
        kraft, sync, controller, _ = await rig()
        await sync._once()
        in_isr(kraft, 1, 2, 800)
        await sync._once()
        if how == "off":
            await controller.decide(lambda image: (set_sync(image, "l", ["t"], False), None))
        else:
            await controller.delete_mirror("l", "t")
        await sync._once()
        assert kraft.partitions[TP].replicas == (1, 2)
        await sync._once()
        assert sync.state("t") is None

    for how in ("off", "deleted"):
        asyncio.run(main(how))


@pytest.mark.parametrize("mirrored", [True, False])
def test_a_reassignment_that_a_link_broker_keeps_from_its_end_is_cancelled(mirrored: bool) -> None:
    """A request that came late names a broker of the cluster, and a link broker that does not follow: nobody else's request
    could end it. The one that follows then comes back, if there is a mirror."""

    async def main() -> None:
        kraft, sync, controller, _ = await rig()
        kraft.register(3)
        if not mirrored:
            await controller.delete_mirror("l", "t")
            FOLLOWER[TP] = None
        kraft.reassign(TP, (1, 2, 3, 801))
        kraft.reassign(TP, (1, 2, 3))
        assert kraft.partitions[TP].adding == (3, 801)
        kraft.partitions[TP] = replace(kraft.partitions[TP], isr=(1, 2, 3), partition_epoch=4)
        for _ in range(3):
            await sync._once()
            kraft.records += 1
        assert kraft.partitions[TP].replicas == ((1, 2, 800) if mirrored else (1, 2))
        assert kraft.partitions[TP].adding == ((800,) if mirrored else ())

    asyncio.run(main())


def test_one_that_leads_unasked_steps_down() -> None:
    async def main() -> None:
        kraft, sync, _, rescuer = await rig()
        await sync._once()
        in_isr(kraft, 1, 2, 800)
        kraft.fence(1)
        kraft.fence(2)
        assert kraft.partitions[TP].leader == 800
        await sync._once()
        await rescuer.rescues._once()
        assert rescuer.asked == [["t"]]
        kraft.unfence(1)
        in_isr(kraft, 800, 1)
        for _ in range(3):
            await sync._once()
        assert kraft.partitions[TP].leader == 1

    asyncio.run(main())


def test_a_topic_that_is_switched_is_left_alone() -> None:
    async def main() -> None:
        kraft, sync, controller, rescuer = await rig()
        await sync._once()
        in_isr(kraft, 1, 2, 800)
        back = Link(name=reverse_name("l"), source_cluster_id="t", properties={}, reverse_of="l")
        mirror = MirrorTopic(
            link=back.name, topic="t", topic_id=b"\x01" * 16, source_topic_id=None, partitions=1
        )
        state = MirrorPartition(link=back.name, topic="t", partition=0)
        await controller.decide(lambda _: ([back, mirror, state], None))
        kraft.reassign(TP, (800, 1, 2))
        kraft.elect_preferred([TP])
        await sync._once()
        assert kraft.partitions[TP].leader == 800
        assert not rescuer.rescues._led_alone()

    asyncio.run(main())


def test_a_rescue_is_gone_on_with_by_whoever_comes_next() -> None:
    """The one who began it has ended: its time was over, or its process was killed. A job that runs has its own way."""

    async def main() -> None:
        kraft, sync, controller, rescuer = await rig()
        await sync._once()
        in_isr(kraft, 1, 2, 800)
        kraft.fence(1)
        kraft.fence(2)
        back = Link(name=reverse_name("l"), source_cluster_id="t", properties={}, reverse_of="l")
        mirror = MirrorTopic(
            link=back.name,
            topic="t",
            topic_id=b"\x01" * 16,
            source_topic_id=None,
            partitions=1,
            given_back=True,
        )
        state = MirrorPartition(link=back.name, topic="t", partition=0, phase=Phase.TAKING)
        await controller.decide(lambda _: ([back, mirror, state], None))
        rescuer.fails = 1
        assert "none of its brokers is alive" in str(await rescuer.rescues._once())
        assert "none of its brokers is alive" in rescuer.rescues.reasons["t"]
        assert await rescuer.rescues._once() is None
        assert rescuer.rescues.reasons == {}
        assert rescuer.asked == [["t"], ["t"]]
        job = PromoteJob(link="l", id=1, partitions=(TP,), switch=True)
        waiting = controller.image.partitions["l", TP]
        at_work = replace(waiting, phase=Phase.CATCHING_UP)
        await controller.decide(lambda _: ([job, at_work], None))
        assert await rescuer.rescues._once() is None
        await controller.decide(lambda _: ([waiting], None))
        assert rescuer.rescues.topics() == ["t"], "its wave has not come"
        owed = replace(job, status=JobStatus.ABANDONED, source_fenced=("t",))
        await controller.decide(lambda _: ([owed], None))
        assert rescuer.rescues.topics() == [], "it is given back as a debt of the job"
        await controller.decide(lambda _: ([replace(owed, source_fenced=())], None))
        assert rescuer.rescues.topics() == ["t"]
        await controller.decide(lambda _: ([replace(mirror, ending=SwitchEnd.CLOSED)], None))
        assert rescuer.rescues.topics() == [], "it is being finished"
        assert rescuer.asked == [["t"], ["t"]]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("replicas", "epoch"), [((2, 800), 0), ((800, 2), 3)], ids=["placed last", "placed first"]
)
def test_topics_that_the_cluster_places_on_link_brokers_are_not_ours_to_shrink(
    replicas: tuple[int, ...], epoch: int
) -> None:
    """Such a partition gets another broker in their place; taken out here it would have a replica less."""

    async def main() -> None:
        kraft, sync, _, _ = await rig()
        tp = TopicPartition("other", 0)
        kraft.partitions[tp] = Partition(replicas, (2,), leader=2, partition_epoch=epoch)
        await sync._once()
        assert kraft.partitions[tp].replicas == replicas

    asyncio.run(main())


def test_nothing_is_looked_at_while_nothing_moves() -> None:
    async def main() -> None:
        kraft, sync, controller, _ = await rig()
        looks, now = 0, 100.0
        steps = sync._steps

        def counted(*args: object) -> object:
            nonlocal looks
            looks += 1
            return steps(*args)  # type: ignore[arg-type]

        sync._steps, sync._clock = counted, lambda: now  # type: ignore[assignment,method-assign]
        for _ in range(3):  # the second look is after the reassignment of the first
            in_isr(kraft, 1, 2, 800)
            await sync._once()
        seen = looks
        await sync._once()
        assert looks == seen
        kraft.records += 1
        await sync._once()
        assert looks == seen + 1
        await controller.decide(lambda image: (set_sync(image, "l", ["t"], False), None))
        await sync._once()
        assert looks == seen + 2
        await sync._once()  # what that look has sent may not have come of it
        seen = looks
        await sync._once()
        assert looks == seen
        now += 6  # all the same, now and then
        await sync._once()
        assert looks == seen + 1

    asyncio.run(main())
