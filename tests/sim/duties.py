"""The work of a sidecar while it is the link controller: leaders, replicas, promotes and switches."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from controller.decide.reverse import reverse_name, set_sync
from controller.phases import ENDED, Phase
from controller.plan.in_sync import InSync
from fleet.balancer import Balancer, BalancerSettings
from fleet.fleet_controller import FleetController
from linker.fleet.leadership import FleetLeadership
from linker.links.reassignments import Reassignments
from linker.promote.driver import PromoteDriver
from linker.promote.fleet_ports import TargetHandOver
from linker.promote.ports import PromotePorts, PromoteSettings
from linker.promote.source_fence_debts import SourceFenceDebts
from tests.links.link_context import context
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.place import Place
    from tests.sim.sidecar import Sidecar

LINK = "l"
BACK = reverse_name(LINK)
_IN_SYNC = 5.0  # for link brokers to be among the in-sync replicas
PROMOTE = PromoteSettings(
    catch_up_timeout=4.0,
    fence_drain_timeout=3.0,
    fence_deadline=4.5,
    call_timeout=1.0,
    settle_timeout=1.0,
    insist_timeout=6.0,
    poll=0.02,
    idle_poll=0.1,
    max_backoff=0.5,
)


SWITCH = replace(PROMOTE, call_timeout=2.0, fence_deadline=7.0, switch_partitions=1)


class Fence:
    """linker.promote.ports.Fencer (linker.promote.fleet_ports.FleetFence without its connections)."""

    def __init__(self, head: FleetController, link: str) -> None:
        self._head = head
        self._link = link

    def absent(self) -> str | None:
        return self._head.absent()

    async def prepare(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        return None

    async def fence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.fence(self._link, tps, timeout=timeout)

    async def unfence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.tell("unfence", self._link, tps, timeout=timeout)

    async def handed_over(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.tell("handed_over", self._link, tps, timeout=timeout / 2)

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.tell("answered", self._link, tps, timeout=timeout)


class Duties:
    def __init__(self, sidecar: Sidecar, head: FleetController) -> None:
        self._sidecar = sidecar
        self._world = sidecar.world
        self._name = sidecar.process.name
        self._head = head
        self._balancers: dict[str, Balancer] = {}
        self.wanted = asyncio.Event()

    def works(self) -> list[Coroutine[Any, Any, None]]:
        works = [self._promotes()]
        for place in self._sidecar.places.values():
            works += [self._balance(place), self._replicas(place)]
            if self._world.switching:
                debts = SourceFenceDebts(
                    place.link, self._head.controller, cast(Any, None), lambda: True, place.switch.fence
                )
                switch = place.switch
                works += [switch.task.run(), switch.replicas.task.run(), debts.task.run()]
                works += [switch.rescues.task.run()]
        return works

    def _note(self, what: str) -> None:
        self._world.note(f"{self._name}: {what}")

    async def _balance(self, place: Place) -> None:
        async def known(tps: object) -> None:
            return None

        ports = FleetLeadership(
            self._head, cast(Any, place.seen), {}, place.link_brokers, known=known, at=place.cluster.at
        )
        settings = BalancerSettings(call_timeout=1.0, hold_timeout=0.5, retry_first=0.1, retry_max=0.5)
        self._balancers[place.link] = balancer = Balancer(ports, settings)
        try:
            await balancer.run()
        finally:
            ports.close()

    async def _replicas(self, place: Place) -> None:
        """As the bring-up of mirrors does it."""
        controller = self._head.controller
        copies = SimpleNamespace(partitions={})
        reassignments = Reassignments(
            context(
                place.link,
                None,
                place.seen,
                controller,
                brokers=place.link_brokers(),
                head=self._head,
                without_owner=place.without_owner,
            ),
            cast(Any, copies),
        )
        while True:
            await asyncio.sleep(0.2)
            mirrors = controller.image.link_mirrors(place.link)
            if not mirrors:
                continue
            try:
                if place.link == LINK:
                    wanted, self._sidecar.moves = self._sidecar.moves, {}
                    if wanted:
                        await reassignments.move(wanted)
                topics = {one.topic: cast(Any, place.seen.image.topics_by_name[one.topic]) for one in mirrors}
                await reassignments.follow(mirrors, topics)
                await reassignments.open(
                    [controller.image.mirrors[place.link, one.topic] for one in mirrors], topics
                )
            except (LinkerError, KeyError) as error:
                self._note(f"replicas: {error}")

    # Promotes and switches.

    def _ports(self, place: Place) -> PromotePorts:
        progress = place.progress()
        assert progress is not None
        return PromotePorts(
            fencer=Fence(self._head, place.link),
            progress=progress,
            source_ends=place,
            tail_check=place,
            hand_over=TargetHandOver(cast(Any, place.seen), place.link_brokers),
            configs=place,
            switch=place.switch.fence() if self._world.switching else None,
        )

    def _driver(self, place: Place) -> PromoteDriver:
        settings = SWITCH if self._world.switching else PROMOTE
        return PromoteDriver(self._head.controller, place.link, self._ports(place), settings)

    async def _promotes(self) -> None:
        while self._sidecar.runner.fleet_controller is None:
            await asyncio.sleep(0.001)
        for place in self._sidecar.places.values():
            await self._settle(place)
        self._sidecar.duties = self
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            place, topics = self._to_promote()
            if place is None:
                continue
            try:
                if self._world.switching:
                    await self._in_sync(place, topics)
                job = await self._head.controller.begin_promote(
                    place.link, topics, switch=self._world.switching
                )
                self._note(f"promote {job.id} of {place.link} begins")
                for balancer in self._balancers.values():
                    await balancer.settled()
                outcome = await self._driver(place).run(job)
                self._note(f"promote {job.id} of {place.link}: {outcome.reason or 'done'}")
            except LinkerError as error:
                self._note(f"promote: {error}")
                await self._settle(place)

    def _to_promote(self) -> tuple[Place | None, list[str]]:
        """A link that mirrors topics from their owner, and these. Where they have different owners, either's."""
        image, found = self._head.controller.image, []
        for place in self._sidecar.places.values():
            ready = [
                mirror.topic
                for mirror in image.link_mirrors(place.link)
                if mirror.topic in self._world.asked
                and all(
                    state.phase is Phase.ACTIVE or state.phase in ENDED
                    for state in image.topic_partitions(place.link, mirror.topic)
                )
            ]
            if ready:
                found.append((place, ready))
        if len(found) > 1:
            return self._world.rng_waves.choice(found)
        return found[0] if found else (None, [])

    async def _in_sync(self, place: Place, topics: Sequence[str]) -> None:
        """As the command to switch does it first."""
        await self._head.controller.decide(lambda image: (set_sync(image, place.link, topics, True), None))
        until = self._world.loop.time() + _IN_SYNC
        while True:
            found = [place.switch.replicas.state(topic) for topic in topics]
            if all(one is not None and one[0] is InSync.IN_SYNC for one in found):
                return
            if self._world.loop.time() > until:
                raise LinkerError(f"not in sync: {found}")
            await asyncio.sleep(0.05)

    async def _settle(self, place: Place) -> None:
        controller = self._head.controller
        while True:
            try:
                await controller.refresh()
                if not controller.image.running_jobs(place.link):
                    return
                driver = self._driver(place)
                await driver.retreat()
                for outcome in await driver.resume():
                    self._note(f"settled {outcome.job_id}: {outcome.reason or 'done'}")
                return
            except LinkerError as error:
                self._note(f"settling: {error}")
                await asyncio.sleep(0.2)
