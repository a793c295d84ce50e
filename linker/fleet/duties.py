"""Tasks of the link controller only: link decisions, balancing of leadership, removal of leaving sidecars."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from typing import Final

from fleet.balancer import Balancer
from fleet.balancer_ports import BalancerSettings
from fleet.fleet_controller import FleetController
from linker.fleet.departures import Departures
from linker.fleet.leadership import FleetLeadership
from linker.link_broker import LinkBroker
from linker.links.runtime import LinkRuntime
from linker.promote.new_leaders import wait_named
from linker.running import Running
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_RESTART: Final = 1.0
_NAMED_TIMEOUT: Final = 0.15  # beyond that a client's own retries do better


class ControllerDuties:
    """One sidecar's tasks as link controller; `async with duties(fleet_controller):` is one term."""

    def __init__(self, links: Callable[[], Iterable[LinkRuntime]], alone: Callable[[], bool]) -> None:
        """links: those that run in this process, in either direction."""
        self._links = links
        self._alone = alone
        self._registered = asyncio.Event()
        self._running: Running | None = None
        #: While this sidecar is the link controller of a fleet; in the target.
        self.balancer: Balancer | None = None
        #: In the sources that it has joined, by link.
        self._balancers: dict[str, Balancer] = {}
        self.departures: Departures | None = None

    @property
    def periodic_tasks(self) -> list[PeriodicTask]:
        parts = (self.balancer, *self._balancers.values(), self.departures)
        return [part.task for part in parts if part is not None]

    def registered(self, running: Running) -> None:
        """This sidecar is a link broker of the target now."""
        self._running = running
        self._registered.set()

    @contextlib.asynccontextmanager
    async def __call__(self, fleet_controller: FleetController) -> AsyncIterator[None]:
        for runtime in self._links():
            runtime.begin_duties()
        deciding = (
            []
            if self._alone()
            else [
                asyncio.create_task(self._balance(fleet_controller), name="balancer"),
                asyncio.create_task(self._balance_sources(fleet_controller), name="balancers of sources"),
                asyncio.create_task(self._see_off(fleet_controller), name="departures"),
            ]
        )
        try:
            yield
        finally:
            for task in deciding:
                task.cancel()
            await asyncio.gather(*deciding, return_exceptions=True)
            await asyncio.gather(*(runtime.end_duties() for runtime in self._links()))

    async def settle_moves(self) -> None:
        """Before a promote: finish the changes of leaders that are under way."""
        for balancer in (self.balancer, *self._balancers.values()):
            if balancer is not None:
                await balancer.settled()

    async def _balance(self, fleet_controller: FleetController) -> None:
        """Balance leadership over the link brokers, from the moment this sidecar is one of them."""
        sidecar = await self._when_registered()

        def note(balancer: Balancer | None) -> None:
            self.balancer = balancer

        await self._balance_in(fleet_controller, sidecar, sidecar.broker, "", note)

    async def _balance_sources(self, fleet_controller: FleetController) -> None:
        """The same in each source that this sidecar has joined, for the topics that were switched."""
        sidecar = await self._when_registered()
        running: dict[str, tuple[LinkBroker, asyncio.Task[None]]] = {}
        try:
            while True:
                sections = sidecar.config.sources
                # A controller of before KRaft has other rules for reassignments, and fleets switch nothing there.
                joined = {
                    link: broker
                    for link, broker in sidecar.joined.items()
                    if sections[link].zookeeper_connect is None
                }
                for link in [link for link, (broker, _) in running.items() if joined.get(link) is not broker]:
                    await _ended(running.pop(link)[1])
                for link, broker in joined.items():
                    if link not in running:
                        work = self._balance_in(
                            fleet_controller, sidecar, broker, link, partial(self._note, link)
                        )
                        running[link] = broker, asyncio.create_task(work, name=f"balancer of source {link}")
                await asyncio.sleep(_RESTART)
        finally:
            for _, task in running.values():
                await _ended(task)

    def _note(self, link: str, balancer: Balancer | None) -> None:
        if balancer is None:
            self._balancers.pop(link, None)
        else:
            self._balancers[link] = balancer

    async def _balance_in(
        self,
        fleet_controller: FleetController,
        sidecar: Running,
        broker: LinkBroker,
        at: str,
        note: Callable[[Balancer | None], None],
    ) -> None:
        ports = FleetLeadership(
            fleet_controller,
            broker.membership,
            broker.links,
            broker.link_brokers,
            known=partial(_wait_named, broker),
            at=at,
        )
        settings = BalancerSettings(link_brokers=sidecar.config.fleet.link_brokers)
        try:
            while True:
                balancer = Balancer(ports, settings)
                note(balancer)
                try:
                    await balancer.run()
                except Exception:
                    log.exception("balancing leadership hit a bug and begins again")
                await asyncio.sleep(_RESTART)
        finally:
            note(None)
            ports.close()

    async def _see_off(self, fleet_controller: FleetController) -> None:
        """Remove sidecars that leave the fleet."""
        sidecar = await self._when_registered()
        self.departures = Departures(fleet_controller, sidecar.target, sidecar.fleet.runner.resign)
        while True:
            try:
                await self.departures.task.run()
            except Exception:
                log.exception("seeing sidecars off hit a bug and begins again")
            await asyncio.sleep(_RESTART)

    async def _when_registered(self) -> Running:
        while self._running is None:
            await self._registered.wait()
        return self._running


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _wait_named(broker: LinkBroker, tps: Collection[TopicPartition]) -> None:
    there = broker.membership
    await wait_named(there.cluster, there.image, tps, broker.link_brokers(), timeout=_NAMED_TIMEOUT)
