"""The fleet as people drive it: draining and leaving.

Changes are marks in the state (`SidecarIdentity.draining`, `.leaving`); the balancer, linker.fleet.departures
and the leaving sidecar act on them. So nothing is lost if the link controller changes in the middle.
"""

from __future__ import annotations

from collections import Counter

from admin.models import Action, ChangeResult, StayingPartition
from admin.service import IllegalState, SidecarNotFound
from controller.errors import NotFound
from fleet.fleet_controller import FleetController
from linker.fleet.departures import others_to_lead
from linker.links import job_status
from linker.membership import StillHosting
from linker.service.base import shown_as
from linker.service.sidecars import SidecarViews

_LEAVE_TIMEOUT = 30.0


class FleetService(SidecarViews):
    """Each change is a mark in the state, or refused with what is in its way."""

    def _known(self, sidecar_id: int) -> FleetController:
        fleet_controller = self._fleet_controller()
        if sidecar_id not in self._image.identities:
            raise SidecarNotFound(sidecar_id)
        return fleet_controller

    def _is_away(self, fleet_controller: FleetController, sidecar_id: int) -> bool:
        return sidecar_id not in fleet_controller.members or sidecar_id not in fleet_controller.alive()

    async def drain_sidecar(self, sidecar_id: int, *, undo: bool, dry_run: bool) -> ChangeResult:
        if self._sidecar.fleet.alone:
            if sidecar_id != self._sidecar.target.broker_id:
                raise SidecarNotFound(sidecar_id)
            raise IllegalState(f"sidecar {sidecar_id} is the only one: nobody could lead in its place")
        async with self._changing:
            fleet_controller = self._known(sidecar_id)
            name = f"sidecar {sidecar_id}"
            if undo:
                await self._mark(sidecar_id, draining=False, dry_run=dry_run)
                return ChangeResult(
                    dry_run=dry_run,
                    actions=[Action(action="end draining", resource=name, detail="it may lead again")],
                )
            if self._is_away(fleet_controller, sidecar_id):
                raise IllegalState(
                    f"{name} is away: the others lead what it led; if it is gone for good: linker sidecar leave "
                    f"{sidecar_id} --dead"
                )
            if not others_to_lead(fleet_controller, self._sidecar.target.image, sidecar_id):
                raise IllegalState(
                    f"no other sidecar could lead in the place of {name}: {self._others(fleet_controller, sidecar_id)}"
                )
            staying = self._staying(sidecar_id, leaving=False)
            await self._mark(sidecar_id, draining=True, dry_run=dry_run)
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(action="drain", resource=name, detail=f"{len(staying)} partitions get another leader"),
            ],
            warnings=_stuck(staying),
            pending=not dry_run,
        )

    async def leave_sidecar(self, sidecar_id: int, *, dead: bool, dry_run: bool) -> ChangeResult:
        if self._sidecar.fleet.alone:
            return await self._leave_alone(sidecar_id, dead=dead, dry_run=dry_run)
        async with self._changing:
            fleet_controller = self._known(sidecar_id)
            name = f"sidecar {sidecar_id}"
            away = self._is_away(fleet_controller, sidecar_id)
            heard = fleet_controller.heard_ago(sidecar_id)
            if dead and not away:
                raise IllegalState(
                    f"{name} is not dead, it was heard of {heard or 0:.1f} s ago: leave out --dead"
                )
            if away and not dead:
                raise IllegalState(
                    f"{name} is away: start it, or, if it is gone for good, say --dead: its broker is unregistered then"
                )
            staying = self._staying(sidecar_id, leaving=True)
            if not others_to_lead(fleet_controller, self._sidecar.target.image, sidecar_id):
                if staying:
                    raise IllegalState(
                        f"{name} leads or hosts {len(staying)} partitions and no other sidecar could: "
                        f"{self._others(fleet_controller, sidecar_id)}; promote or delete their mirrors first"
                    )
                self._refuse_while_promoting()
            await self._mark(sidecar_id, leaving=True, dry_run=dry_run)
        actions = [
            Action(
                action="drain",
                resource=name,
                detail=f"{len(staying)} partitions get other link brokers" if staying else "it hosts nothing",
            ),
            Action(action="unregister broker", resource=str(sidecar_id), detail="from the target cluster"),
            Action(action="forget", resource=name),
        ]
        if not dead:
            actions.insert(2, Action(action="stop", resource=name))
        if sidecar_id == self._sidecar.target.broker_id:
            actions.insert(
                0, Action(action="hand over", resource="link controller", detail="to another sidecar")
            )
        return ChangeResult(dry_run=dry_run, actions=actions, warnings=_stuck(staying), pending=not dry_run)

    def _others(self, fleet_controller: FleetController, sidecar_id: int) -> str:
        leading, in_isr = self._load_of_sidecars()
        others = [b for b in self._ids(fleet_controller) if b != sidecar_id]
        return (
            ", ".join(f"{b} is {self._status_of(b, fleet_controller, leading, in_isr).state}" for b in others)
            or "it is the only one"
        )

    async def _mark(
        self, sidecar_id: int, *, draining: bool | None = None, leaving: bool | None = None, dry_run: bool
    ) -> None:
        try:
            await self._sidecar.controller.mark_sidecar(
                sidecar_id, draining=draining, leaving=leaving, dry_run=dry_run
            )
        except NotFound as error:
            raise SidecarNotFound(sidecar_id) from error

    def _refuse_while_promoting(self) -> None:
        running = self._running_jobs()
        if running:
            # After the hand-over it leads nothing any more, but configs may still have to be put back.
            raise IllegalState(f"promote {job_status.job_id(running[0])} is not over yet")

    async def _leave_alone(self, sidecar_id: int, *, dead: bool, dry_run: bool) -> ChangeResult:
        if sidecar_id != self._sidecar.target.broker_id:
            raise SidecarNotFound(sidecar_id)
        if dead:
            raise IllegalState(f"sidecar {sidecar_id} is not dead, it answers this: leave out --dead")
        self._refuse_while_promoting()
        actions = [
            Action(action="unregister broker", resource=str(sidecar_id), detail="from the target cluster"),
            Action(action="stop", resource=f"sidecar {sidecar_id}"),
        ]
        with shown_as(IllegalState, StillHosting):
            if dry_run:
                for broker in (self._sidecar.broker, *self._sidecar.joined.values()):
                    broker.check_may_leave()
            else:
                await self._sidecar.leave(_LEAVE_TIMEOUT)
        return ChangeResult(dry_run=dry_run, actions=actions)


def _stuck(staying: list[StayingPartition]) -> list[str]:
    """Partitions that cannot move as things are, by their reason."""
    reasons = Counter(one.reason for one in staying if one.reason is not None)
    first = {one.reason: one for one in reversed(staying)}
    return [
        f"{first[reason].topic}-{first[reason].partition}"
        + (f" and {count - 1} more" if count > 1 else "")
        + f" cannot move now: {reason}"
        for reason, count in reasons.items()
    ]
