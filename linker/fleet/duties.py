"""Tasks of the link controller only: link decisions, balancing of leadership, removal of leaving sidecars."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import Final

from fleet.balancer import Balancer
from fleet.balancer_ports import BalancerSettings
from fleet.fleet_controller import FleetController
from linker.fleet.departures import Departures
from linker.fleet.leadership import FleetLeadership
from linker.links.running import RunningLinks
from linker.promote.new_leaders import wait_named
from linker.running import Running
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_RESTART: Final = 1.0
_NAMED_TIMEOUT: Final = 0.15  # beyond that a client's own retries do better


class ControllerDuties:
    """One sidecar's tasks as link controller; `async with duties(fleet_controller):` is one term."""

    def __init__(self, links: RunningLinks, alone: Callable[[], bool]) -> None:
        self._links = links
        self._alone = alone
        self._registered = asyncio.Event()
        self._running: Running | None = None
        #: While this sidecar is the link controller of a fleet.
        self.balancer: Balancer | None = None
        self.departures: Departures | None = None

    @property
    def periodic_tasks(self) -> list[PeriodicTask]:
        return [part.task for part in (self.balancer, self.departures) if part is not None]

    def registered(self, running: Running) -> None:
        """This sidecar is a link broker of the target now."""
        self._running = running
        self._registered.set()

    @contextlib.asynccontextmanager
    async def __call__(self, fleet_controller: FleetController) -> AsyncIterator[None]:
        links = self._links
        for runtime in links.values():
            runtime.begin_duties()
        deciding = (
            []
            if self._alone()
            else [
                asyncio.create_task(self._balance(fleet_controller), name="balancer"),
                asyncio.create_task(self._see_off(fleet_controller), name="departures"),
            ]
        )
        try:
            yield
        finally:
            for task in deciding:
                task.cancel()
            await asyncio.gather(*deciding, return_exceptions=True)
            await asyncio.gather(*(runtime.end_duties() for runtime in links.values()))

    async def settle_moves(self) -> None:
        """Before a promote: finish the change of leader that is under way."""
        if self.balancer is not None:
            await self.balancer.settled()

    async def _balance(self, fleet_controller: FleetController) -> None:
        """Balance leadership over the link brokers, from the moment this sidecar is one of them."""
        sidecar = await self._when_registered()
        ports = FleetLeadership(
            fleet_controller,
            sidecar.target,
            sidecar.links,
            sidecar.link_brokers,
            known=partial(_wait_named, sidecar),
        )
        try:
            while True:
                self.balancer = Balancer(
                    ports, BalancerSettings(link_brokers=sidecar.config.fleet.link_brokers)
                )
                try:
                    await self.balancer.run()
                except Exception:
                    log.exception("balancing leadership hit a bug and begins again")
                await asyncio.sleep(_RESTART)
        finally:
            self.balancer = None
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


async def _wait_named(sidecar: Running, tps: Collection[TopicPartition]) -> None:
    target = sidecar.target
    await wait_named(target.cluster, target.image, tps, sidecar.link_brokers(), timeout=_NAMED_TIMEOUT)
