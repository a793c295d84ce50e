"""Removal of sidecars that leave or are gone for good: the link controller's part and the leaving sidecar's.

    asked for: `leaving` in the state -> the balancer takes leadership, ISR and places in the replica lists from it
    nothing needs it any more -> it unregisters its broker and ends (of a dead one: the link controller unregisters it)
    unregistered, and no lease of it may be in force -> its record is removed

The record goes last: a later link controller knows the lease by it. A leaving link controller hands over its seat
first, if another sidecar can take it. All of it goes on from the state and the target as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from controller.image import ControllerImage
from fleet.fleet_controller import FleetController
from linker.membership import TargetCluster
from linker.membership.hosting import hosted_partitions
from wire.errors import LinkerError
from wire.metadata.image import ClusterImage
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_LOOK = 0.2
_RETRY = 1.0
_CALL_TIMEOUT = 10.0
_LEAVE_TIMEOUT = 30.0


def others_to_lead(fleet_controller: FleetController, image: ClusterImage, broker_id: int) -> list[int]:
    """Other sidecars that could lead partitions now: heard of lately, unfenced, neither draining nor leaving."""
    able = (
        (fleet_controller.alive() & fleet_controller.members.keys())
        - fleet_controller.draining()
        - {broker_id}
    )
    return sorted(b for b in able if b in image.brokers and not image.brokers[b].fenced)


def others_to_decide(fleet_controller: FleetController, broker_id: int) -> list[int]:
    """Other sidecars that could be the link controller: heard of lately, and not leaving themselves."""
    leaving = {i.broker_id for i in fleet_controller.controller.image.identities.values() if i.leaving}
    return sorted((fleet_controller.alive() & fleet_controller.members.keys()) - leaving - {broker_id})


class Departures:
    """Runs while this sidecar is the link controller."""

    def __init__(
        self, fleet_controller: FleetController, target: TargetCluster, resign: Callable[[str], None]
    ) -> None:
        self._fleet_controller = fleet_controller
        self._target = target
        self._resign = resign
        self._told: dict[int, str] = {}
        self.task = PeriodicTask("departures", self._look_at_all, _LOOK)

    async def _look_at_all(self) -> str | None:
        failed = None
        for identity in list(self._fleet_controller.controller.image.identities.values()):
            if not identity.leaving:
                continue
            try:
                await self.look(identity.broker_id)
            except (LinkerError, TimeoutError) as error:
                text = str(error) or repr(error)
                if self._told.get(identity.broker_id) != text:
                    log.warning("sidecar %d cannot leave yet: %s", identity.broker_id, text)
                self._told[identity.broker_id] = text
                failed = f"sidecar {identity.broker_id} cannot leave yet: {text}"
        return failed

    async def look(self, broker_id: int) -> None:
        """Take the next step of a leaving sidecar, if it is due."""
        fleet_controller, image = self._fleet_controller, self._target.image
        if broker_id == self._target.broker_id:
            if others_to_decide(fleet_controller, broker_id):
                self._resign("it leaves the fleet")
            return  # the last one removes itself (`Leaving`)
        if any(hosted_partitions(image, broker_id)):
            return
        connected = broker_id in fleet_controller.members
        if broker_id in image.brokers:
            if not connected and broker_id not in fleet_controller.alive():
                await self._target.operations.unregister_broker(broker_id, timeout=_CALL_TIMEOUT)
                log.info("the broker of sidecar %d, which is gone, was unregistered", broker_id)
            return
        if await fleet_controller.remove_departed(broker_id):
            self._told.pop(broker_id, None)
            log.info("sidecar %d has left the fleet", broker_id)


class Leaving:
    """Runs in every sidecar: it goes when its record says that it leaves, and nothing needs it any more."""

    def __init__(
        self,
        target: TargetCluster,
        session: str,
        state: Callable[[], ControllerImage],
        fleet_controller: Callable[[], FleetController | None],
        forget: Callable[[int], Awaitable[None]],
        needed_elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        """needed_elsewhere: whether a partition of a source names it."""
        self._needed_elsewhere = needed_elsewhere
        self._target = target
        self._session = session
        self._state = state
        self._fleet_controller = fleet_controller
        self._forget = forget

    @property
    def asked(self) -> bool:
        """Whether this very process is to leave."""
        identity = self._state().identities.get(self._target.broker_id)
        return identity is not None and identity.leaving and identity.session == self._session

    async def run(self) -> None:
        """Return when this sidecar has left the target cluster."""
        me = self._target.broker_id
        while True:
            await asyncio.sleep(_LOOK)
            fleet_controller = self._fleet_controller()
            if not self.asked or (fleet_controller is not None and others_to_decide(fleet_controller, me)):
                continue  # the seat goes first
            if any(hosted_partitions(self._target.image, me)) or self._needed_elsewhere():
                continue
            try:
                await self._target.leave(_LEAVE_TIMEOUT)
                if fleet_controller is not None:
                    await self._forget(me)  # no other sidecar is left to do it
            except LinkerError as error:
                if me not in self._target.image.brokers:
                    log.warning("sidecar %d has left, but its record stays: %s", me, error)
                    return
                log.warning("leaving the target cluster: %s", error)
                await asyncio.sleep(_RETRY)
                continue
            return
