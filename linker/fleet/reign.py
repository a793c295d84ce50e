"""What only the link controller does: links decide, leadership is balanced, those that leave are seen off.

Not here: how one becomes the link controller (controller.fleet), what is decided (controller.fleet.balancer, departures).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Final

from controller.fleet.balancer import Balancer
from controller.fleet.balancer_ports import BalancerSettings
from controller.fleet.head import Head
from linker.fleet.departures import Departures
from linker.fleet.leadership import FleetLeadership
from linker.links.new_leaders import wait_named
from wire.types import TopicPartition

if TYPE_CHECKING:
    from linker.sidecar import Sidecar

log = logging.getLogger(__name__)

_RESTART: Final = 1.0
_NAMED_TIMEOUT: Final = 0.15  # longer than that a client's own retries do better


class Reign:
    """Of one sidecar, whenever it is the link controller; `async with reign(head):` is one time."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._registered = asyncio.Event()
        #: While this sidecar is the link controller of a fleet.
        self.balancer: Balancer | None = None

    def registered(self) -> None:
        """This sidecar is a link broker of the target now."""
        self._registered.set()

    @contextlib.asynccontextmanager
    async def __call__(self, head: Head) -> AsyncIterator[None]:
        links = self._sidecar.links
        for runtime in links.values():
            runtime.begin_reign()
        deciding = (
            []
            if self._sidecar.fleet.alone
            else [
                asyncio.create_task(self._balance(head), name="balancer"),
                asyncio.create_task(self._see_off(head), name="departures"),
            ]
        )
        try:
            yield
        finally:
            for task in deciding:
                task.cancel()
            await asyncio.gather(*deciding, return_exceptions=True)
            await asyncio.gather(*(runtime.end_reign() for runtime in links.values()))

    async def settle_moves(self) -> None:
        """Before a promote: a change of leader that is under way comes to its end."""
        if self.balancer is not None:
            await self.balancer.settled()

    async def _balance(self, head: Head) -> None:
        """Leadership over the fleet's link brokers, from the moment this sidecar is one of them."""
        await self._registered.wait()
        sidecar = self._sidecar
        ports = FleetLeadership(
            head, sidecar.target, sidecar.links, sidecar.link_brokers, known=self._wait_named
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

    async def _see_off(self, head: Head) -> None:
        """Those that leave the fleet."""
        await self._registered.wait()
        departures = Departures(head, self._sidecar.target, self._sidecar.fleet.runner.resign)
        while True:
            try:
                await departures.run()
            except Exception:
                log.exception("seeing sidecars off hit a bug and begins again")
            await asyncio.sleep(_RESTART)

    async def _wait_named(self, tps: Collection[TopicPartition]) -> None:
        target = self._sidecar.target
        await wait_named(
            target.cluster, target.image, tps, self._sidecar.link_brokers(), timeout=_NAMED_TIMEOUT
        )
