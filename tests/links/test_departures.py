"""Who leaves goes in steps, and its record goes last: a later link controller knows its lease by it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from controller.state import SidecarIdentity
from fleet.stored_controller import StoredController
from linker.fleet.departures import Departures, Leaving, others_to_decide, others_to_lead
from linker.membership.hosting import hosted_partitions
from tests.controller.memory_store import MemoryStore
from wire.errors import BrokerError
from wire.metadata.image import PartitionImage


def partition(*, leader: int = 901, isr: tuple[int, ...] = (901,), **lists: Any) -> PartitionImage:
    fields = {"replicas": (1, 900, 901), "adding": (), "removing": ()} | lists
    return PartitionImage(index=0, leader=leader, leader_epoch=1, partition_epoch=1, isr=isr, **fields)


class Stage:
    """Sidecars 900 (this one, the link controller) and 901; what the target shows is set by the test."""

    def __init__(self, controller: StoredController) -> None:
        self.controller = controller
        self.brokers: dict[int, Any] = {b: SimpleNamespace(fenced=False) for b in (1, 900, 901)}
        self.partition: PartitionImage | None = None
        self.members = {900, 901}
        self.dead: set[int] = set()
        self.lease = {901: 0.0}
        self.done: list[str] = []
        self.failing = False
        self.head: Any = SimpleNamespace(
            controller=controller,
            members=dict.fromkeys(self.members),
            alive=lambda: frozenset({900, 901}) - self.dead,
            draining=lambda: frozenset(i.broker_id for i in self.identities if i.draining or i.leaving),
            remove_departed=self.remove_departed,
        )
        self.target: Any = SimpleNamespace(broker_id=900, image=self, operations=self, leave=self.leave)

    async def remove_departed(self, broker_id: int) -> bool:
        if broker_id in self.head.members or self.lease[broker_id]:
            return False
        await self.controller.remove_sidecar(broker_id)
        return True

    @property
    def identities(self) -> list[SidecarIdentity]:
        return list(self.controller.image.identities.values())

    @property
    def topics_by_id(self) -> dict[bytes, Any]:
        if self.partition is None:
            return {}
        return {b"t": SimpleNamespace(name="t", partitions={0: self.partition})}

    async def unregister_broker(self, broker_id: int, *, timeout: float) -> None:
        self.done.append(f"unregister {broker_id}")
        if self.failing:
            raise BrokerError(50, api="unregister_broker")
        self.brokers.pop(broker_id, None)

    async def leave(self, timeout: float) -> None:
        self.done.append("leave")
        self.brokers.pop(900, None)

    def departures(self) -> Departures:
        return Departures(self.head, self.target, lambda why: self.done.append(f"resign: {why}"))


async def stage(*leaving: int) -> Stage:
    controller = await StoredController.open(MemoryStore())
    for broker_id in (900, 901):
        identity = SidecarIdentity(
            broker_id=broker_id,
            incarnation_id=bytes(16),
            log_dir_id=bytes(16),
            session=f"s{broker_id}",
            leaving=broker_id in leaving,
        )
        await controller.save_identity(identity)
    return Stage(controller)


def test_who_needs_a_broker() -> None:
    for one, led, hosted in (
        (partition(leader=901), 1, 0),
        (partition(leader=900, isr=(900, 901)), 0, 1),
        (partition(leader=900, isr=(900,)), 0, 1),
        (partition(leader=900, isr=(900,), removing=(901,)), 0, 0),
        (partition(leader=900, isr=(900, 901), removing=(901,)), 0, 1),
        (partition(leader=900, isr=(900,), adding=(901,), removing=(900,)), 0, 1),
    ):
        image: Any = SimpleNamespace(topics_by_id={b"t": SimpleNamespace(name="t", partitions={0: one})})
        leads, hosts = hosted_partitions(image, 901)
        assert (len(leads), len(hosts)) == (led, hosted), one


async def test_a_dead_one_is_unregistered_then_its_lease_is_waited_for_then_it_is_forgotten() -> None:
    scene = await stage(901)
    scene.dead = {901}
    del scene.head.members[901]
    scene.lease[901] = 4.0
    scene.partition = partition(leader=900, isr=(900,))
    departures = scene.departures()
    await departures.look(901)
    assert scene.done == [], "a partition still lists it"
    scene.partition = partition(leader=900, isr=(900,), removing=(901,))
    await departures.look(901)
    assert scene.done == ["unregister 901"]
    await departures.look(901)
    assert 901 in scene.controller.image.identities, "it may still acknowledge writes"
    scene.lease[901] = 0.0
    await departures.look(901)
    assert 901 not in scene.controller.image.identities
    assert 900 in scene.controller.image.identities


async def test_one_that_lives_unregisters_by_itself() -> None:
    scene = await stage(901)
    departures = scene.departures()
    await departures.look(901)
    assert scene.done == []
    del scene.brokers[901]
    await departures.look(901)
    assert 901 in scene.controller.image.identities, "its connection is still there"
    del scene.head.members[901]
    await departures.look(901)
    assert 901 not in scene.controller.image.identities


async def test_one_that_only_lost_its_connection_is_not_unregistered() -> None:
    scene = await stage(901)
    del scene.head.members[901]
    await scene.departures().look(901)
    assert scene.done == []


async def test_a_failure_is_tried_again() -> None:
    scene = await stage(901)
    scene.dead, scene.failing = {901}, True
    del scene.head.members[901]
    running = asyncio.create_task(scene.departures().task.run())
    try:
        async with asyncio.timeout(30):
            while scene.done.count("unregister 901") < 2:
                await asyncio.sleep(0.02)
            scene.failing = False
            while 901 in scene.controller.image.identities:
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_link_controller_hands_over_its_seat_first() -> None:
    scene = await stage(900)
    await scene.departures().look(900)
    assert scene.done == ["resign: it leaves the fleet"]
    assert others_to_decide(scene.head, 900) == [901]
    assert others_to_lead(scene.head, scene.target.image, 900) == [901]
    scene.dead = {901}
    await scene.departures().look(900)
    assert len(scene.done) == 1, "nobody else is there"
    assert others_to_lead(scene.head, scene.target.image, 900) == []


def leaving(scene: Stage, session: str = "s900", *, head: bool = True) -> Leaving:
    return Leaving(
        scene.target,
        session,
        lambda: scene.controller.image,
        lambda: scene.head if head else None,
        scene.controller.remove_sidecar,
    )


async def ends(one: Leaving, within: float = 0.8) -> bool:
    try:
        async with asyncio.timeout(within):
            await one.run()
    except TimeoutError:
        return False
    return True


async def test_a_sidecar_goes_when_nothing_needs_it() -> None:
    scene = await stage(900)
    scene.partition = partition(leader=901, isr=(900, 901))
    one = leaving(scene, head=False)
    assert one.asked
    assert not await ends(one)
    scene.partition = partition(leader=901, isr=(901,), removing=(900,))
    assert await ends(one)
    assert scene.done == ["leave"]
    assert 900 in scene.controller.image.identities, "the link controller removes it"


async def test_the_link_controller_does_not_go_before_its_seat_unless_it_is_the_last() -> None:
    scene = await stage(900)
    assert not await ends(leaving(scene))
    scene.dead = {901}
    assert await ends(leaving(scene))
    assert 900 not in scene.controller.image.identities


async def test_a_mark_for_another_process_is_not_followed() -> None:
    scene = await stage(900)
    one = leaving(scene, session="new", head=False)
    assert not one.asked
    assert not await ends(one)
    assert scene.done == []
