"""The fleet as people see and drive it: its sidecars, draining, leaving, and who is the link controller.

Changes are marks in the state (`SidecarIdentity.draining`, `.leaving`); what follows from them is done by the
balancer, by linker.fleet.departures, and by the sidecar that leaves. So nothing is lost if the link controller changes
in the middle.
"""

from __future__ import annotations

import time
from collections import Counter

from controller.errors import NotFound
from controller.fleet.head import Head
from controller.manager import wall_clock_ms
from controller.state import JobStatus, PromoteJob
from linker.admin.models import (
    Action,
    ChangeResult,
    ControllerDescription,
    FleetMember,
    FleetStatus,
    LeaseHolder,
    MovingPartition,
    SidecarDescription,
    SidecarState,
    SidecarStatus,
    StayingPartition,
    Trouble,
    WaitingCommand,
)
from linker.admin.service import IllegalState, NoLinkController, SidecarNotFound
from linker.fleet.departures import others_to_lead
from linker.links import status as view
from linker.service.base import ServiceBase
from linker.target import StillHosting
from linker.target.registration import hosted_partitions
from wire.types import TopicPartition, format_address

_LEAVE_TIMEOUT = 30.0
_MOST_SHOWN = 200


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


class FleetService(ServiceBase):
    def _head(self) -> Head:
        head = self._sidecar.fleet.head
        if head is None:
            raise NoLinkController("this sidecar is not the link controller; try again in a few seconds")
        return head

    # --- looking ------------------------------------------------------------------------------------------------

    def _heartbeat_age_ms(self) -> int | None:
        age = time.monotonic() - self._sidecar.target.registration.last_heartbeat
        return None if age == float("inf") else int(age * 1000)

    def _sidecar_status(self) -> SidecarStatus:
        """This one."""
        target = self._sidecar.target
        leading, in_isr = self._load_of_sidecars()
        not_ready = self._sidecar.not_ready()
        head = self._sidecar.fleet.head
        if head is not None and not self._sidecar.fleet.alone:
            return self._status_of(target.broker_id, head, leading, in_isr)
        return SidecarStatus(
            id=target.broker_id,
            state=SidecarState.STARTING
            if not_ready
            else SidecarState.FENCED
            if target.registration.fenced
            else SidecarState.RUNNING,
            version=self._sidecar.version,
            advertised_listeners=[
                f"{listener.name}://{format_address(listener.host, listener.port)}"
                for listener in self._sidecar.advertised
            ],
            rack=target.registration.rack,
            controller=self._sidecar.controller.is_head,
            leading_partitions=leading[target.broker_id],
            isr_partitions=in_isr[target.broker_id],
            last_heard_ms=0,
            heartbeat_age_ms=self._heartbeat_age_ms(),
            reason=not_ready,
        )

    def _load_of_sidecars(self) -> tuple[Counter[int], Counter[int]]:
        """Partitions led, and those in whose ISR a broker is, by broker id: as the target has it."""
        leading: Counter[int] = Counter()
        in_isr: Counter[int] = Counter()
        for topic in self._sidecar.target.image.topics_by_id.values():
            for partition in topic.partitions.values():
                leading[partition.leader] += 1
                in_isr.update(partition.isr)
        return leading, in_isr

    def _ids(self, head: Head) -> list[int]:
        return sorted(self._image.identities.keys() | head.members.keys())

    def _status_of(
        self, broker_id: int, head: Head, leading: Counter[int], in_isr: Counter[int]
    ) -> SidecarStatus:
        target = self._sidecar.target
        mine = broker_id == target.broker_id
        member, identity = head.members.get(broker_id), self._image.identities.get(broker_id)
        broker = target.image.brokers.get(broker_id)
        said = None if member is None else member.said
        not_ready = self._sidecar.not_ready() if mine else None if said is None else said.not_ready
        draining, leaving = (identity.draining, identity.leaving) if identity is not None else (False, False)
        heard = head.heard_ago(broker_id)
        reason = not_ready
        if member is None or broker_id not in head.alive():
            state = SidecarState.AWAY
            reason = (
                "not heard of since this link controller began"
                if heard is None
                else f"not heard of for {heard:.1f} s"
            )
        elif leaving:
            state = SidecarState.LEAVING
        elif broker is None or (not_ready is not None and broker.fenced):
            state = SidecarState.STARTING
        elif broker.fenced:
            state = SidecarState.FENCED
        else:
            state = SidecarState.DRAINING if draining else SidecarState.RUNNING
        age = None if said is None else said.heartbeat_age
        return SidecarStatus(
            id=broker_id,
            state=state,
            version=None if member is None else member.hello.version or None,
            advertised_listeners=[]
            if broker is None
            else [
                f"{name}://{format_address(end.host, end.port)}"
                for name, end in sorted(broker.endpoints.items())
            ],
            rack=member.hello.rack if member is not None else None if broker is None else broker.rack,
            controller=mine,
            leading_partitions=leading[broker_id],
            isr_partitions=in_isr[broker_id],
            draining=draining,
            leaving=leaving,
            lease_ms=_ms(head.lease_left(broker_id)),
            last_heard_ms=_ms(heard),
            heartbeat_age_ms=self._heartbeat_age_ms() if mine else _ms(age),
            reason=reason,
        )

    async def list_sidecars(self) -> list[SidecarStatus]:
        if self._sidecar.fleet.alone:
            return [self._sidecar_status()]
        head = self._head()
        leading, in_isr = self._load_of_sidecars()
        return [self._status_of(broker_id, head, leading, in_isr) for broker_id in self._ids(head)]

    async def describe_sidecar(self, sidecar_id: int) -> SidecarDescription:
        for one in await self.list_sidecars():
            if one.id == sidecar_id:
                staying = self._staying(sidecar_id, leaving=one.leaving)
                return SidecarDescription(
                    **one.model_dump(), staying_partitions=len(staying), staying=staying[:_MOST_SHOWN]
                )
        raise SidecarNotFound(sidecar_id)

    def _staying(self, broker_id: int, *, leaving: bool) -> list[StayingPartition]:
        """Stuck ones first."""
        leads, hosts = hosted_partitions(self._sidecar.target.image, broker_id)
        balancer = self._sidecar.reign.balancer
        reasons = {} if balancer is None else balancer.why_led(broker_id)
        unknown = "the link controller has just begun" if balancer is None else "no mirror of this fleet"
        found = [_staying(tp, True, reasons.get(tp, unknown)) for tp in leads]
        if leaving:
            isr = {tp for tp in hosts if self._alone_in_isr(tp, broker_id)}
            found += [
                _staying(tp, False, "nobody else is in its ISR: it would be lost" if tp in isr else None)
                for tp in hosts
            ]
        return sorted(found, key=lambda one: (one.reason is None, not one.leads, one.topic, one.partition))

    def _alone_in_isr(self, tp: TopicPartition, broker_id: int) -> bool:
        topic = self._sidecar.target.image.topics_by_name.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        return partition is not None and tuple(partition.isr) == (broker_id,)

    def _fleet_status(self) -> FleetStatus | None:
        """None without others, or while another sidecar is the link controller."""
        fleet = self._sidecar.fleet
        head = fleet.head
        if fleet.alone or head is None:
            return None
        ids, there = self._ids(head), head.alive() & head.members.keys()
        balancer = self._sidecar.reign.balancer
        return FleetStatus(
            sidecars_alive=len(there),
            sidecars=len(ids),
            controller=self._sidecar.target.broker_id,
            controller_epoch=head.controller.controller_epoch,
            moving_partitions=0 if balancer is None else len(balancer.moving),
            trouble=0 if balancer is None else len(balancer.trouble),
            draining=sorted(head.draining()),
            away=[broker_id for broker_id in ids if broker_id not in there],
        )

    async def describe_controller(self) -> ControllerDescription:
        head = self._head()
        fleet, config = self._sidecar.fleet, self._sidecar.config
        balancer = self._sidecar.reign.balancer
        now = fleet.clock()
        ids = self._ids(head)
        connected = {member.holder for member in head.members.values()}
        return ControllerDescription(
            id=self._sidecar.target.broker_id,
            controller_epoch=head.controller.controller_epoch,
            since=view.moment(wall_clock_ms() - int(head.reigning_for * 1000)),
            store=config.store.type,
            lease_ms=None if fleet.alone else _ms(fleet.settings.lease),
            control=fleet.candidate.control or None,
            admin=fleet.candidate.admin,
            sidecars_alive=len(head.alive() & head.members.keys()),
            sidecars=len(ids),
            members=[
                FleetMember(
                    id=broker_id,
                    session=member.hello.session,
                    address="this sidecar" if member.local else member.channel.peer,
                    version=member.hello.version,
                    connected_ms=int(max(0.0, now - member.connected_at) * 1000),
                    last_heard_ms=_ms(head.heard_ago(broker_id)) or 0,
                    lease_ms=_ms(head.lease_left(broker_id)),
                )
                for broker_id, member in sorted(head.members.items())
            ],
            # One that is alone has no others to wait for, and its own lease does not end.
            away=[]
            if fleet.alone
            else [
                LeaseHolder(
                    id=holder.broker_id,
                    session=holder.session,
                    lease_ms=int(max(0.0, head.leases.until(holder) - now) * 1000),
                )
                for holder in head.leases.may_hold(now)
                if holder not in connected
            ],
            moving=[]
            if balancer is None
            else [
                MovingPartition(topic=tp.topic, partition=tp.partition, change=what)
                for tp, what in sorted(balancer.moving.items())
            ],
            trouble=[]
            if balancer is None
            else [Trouble(what=what, reason=why) for what, why in sorted(balancer.trouble.items())],
            promotes=[view.job_id(job) for job in self._running_jobs()],
            waiting=[
                WaitingCommand(
                    command=command.what,
                    link=command.link,
                    partitions=len(command.partitions),
                    sidecars=silent,
                )
                for command, silent in head.commands.waiting()
                if silent
            ],
        )

    def _running_jobs(self) -> list[PromoteJob]:
        return [job for job in self._image.jobs.values() if job.status is JobStatus.RUNNING]

    # --- draining and leaving -------------------------------------------------------------------------------------

    def _known(self, sidecar_id: int) -> Head:
        head = self._head()
        if sidecar_id not in self._image.identities:
            raise SidecarNotFound(sidecar_id)
        return head

    def _is_away(self, head: Head, sidecar_id: int) -> bool:
        return sidecar_id not in head.members or sidecar_id not in head.alive()

    async def drain_sidecar(self, sidecar_id: int, *, undo: bool, dry_run: bool) -> ChangeResult:
        if self._sidecar.fleet.alone:
            if sidecar_id != self._sidecar.target.broker_id:
                raise SidecarNotFound(sidecar_id)
            raise IllegalState(f"sidecar {sidecar_id} is the only one: nobody could lead in its place")
        async with self._changing:
            head = self._known(sidecar_id)
            name = f"sidecar {sidecar_id}"
            if undo:
                await self._mark(sidecar_id, draining=False, dry_run=dry_run)
                return ChangeResult(
                    dry_run=dry_run,
                    actions=[Action(action="end draining", resource=name, detail="it may lead again")],
                )
            if self._is_away(head, sidecar_id):
                raise IllegalState(
                    f"{name} is away: the others lead what it led; if it is gone for good: linker sidecar leave "
                    f"{sidecar_id} --dead"
                )
            if not others_to_lead(head, self._sidecar.target.image, sidecar_id):
                raise IllegalState(
                    f"no other sidecar could lead in the place of {name}: {self._others(head, sidecar_id)}"
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
            head = self._known(sidecar_id)
            name = f"sidecar {sidecar_id}"
            away = self._is_away(head, sidecar_id)
            heard = head.heard_ago(sidecar_id)
            if dead and not away:
                raise IllegalState(
                    f"{name} is not dead, it was heard of {heard or 0:.1f} s ago: leave out --dead"
                )
            if away and not dead:
                raise IllegalState(
                    f"{name} is away: start it, or, if it is gone for good, say --dead: its broker is unregistered then"
                )
            staying = self._staying(sidecar_id, leaving=True)
            if not others_to_lead(head, self._sidecar.target.image, sidecar_id):
                if staying:
                    raise IllegalState(
                        f"{name} leads or hosts {len(staying)} partitions and no other sidecar could: "
                        f"{self._others(head, sidecar_id)}; promote or delete their mirrors first"
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

    def _others(self, head: Head, sidecar_id: int) -> str:
        leading, in_isr = self._load_of_sidecars()
        others = [b for b in self._ids(head) if b != sidecar_id]
        return (
            ", ".join(f"{b} is {self._status_of(b, head, leading, in_isr).state}" for b in others)
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
            raise IllegalState(f"promote {view.job_id(running[0])} is not over yet")

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
        try:
            if dry_run:
                self._sidecar.check_may_leave()
            else:
                await self._sidecar.leave(_LEAVE_TIMEOUT)
        except StillHosting as error:
            raise IllegalState(str(error)) from error
        return ChangeResult(dry_run=dry_run, actions=actions)


def _staying(tp: TopicPartition, leads: bool, reason: str | None) -> StayingPartition:
    return StayingPartition(topic=tp.topic, partition=tp.partition, leads=leads, reason=reason)


def _stuck(staying: list[StayingPartition]) -> list[str]:
    """What cannot move as things are, by its reason."""
    reasons = Counter(one.reason for one in staying if one.reason is not None)
    first = {one.reason: one for one in reversed(staying)}
    return [
        f"{first[reason].topic}-{first[reason].partition}"
        + (f" and {count - 1} more" if count > 1 else "")
        + f" cannot move now: {reason}"
        for reason, count in reasons.items()
    ]
