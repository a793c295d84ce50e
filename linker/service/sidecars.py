"""The sidecars of a fleet and its link controller, as people see them."""

from __future__ import annotations

import time
from collections import Counter

from admin.models import (
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
from admin.service import NoLinkController, SidecarNotFound
from controller.judge.hand_over import find
from controller.state import JobStatus, PromoteJob
from fleet.fleet_controller import FleetController
from fleet.link_controller import wall_clock_ms
from linker.links import job_status
from linker.links import status as view
from linker.membership.hosting import hosted_partitions
from linker.service.base import ServiceBase
from wire.frames.types import TopicPartition, format_address

_MOST_SHOWN = 200


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


class SidecarViews(ServiceBase):
    """The fleet as the link controller sees it; as any sidecar does, where it is the only one."""

    def _fleet_controller(self) -> FleetController:
        fleet_controller = self._sidecar.fleet.fleet_controller
        if fleet_controller is None:
            raise NoLinkController("this sidecar is not the link controller; try again in a few seconds")
        return fleet_controller

    def _heartbeat_age_ms(self) -> int | None:
        age = time.monotonic() - self._sidecar.target.registration.last_heartbeat
        return None if age == float("inf") else int(age * 1000)

    def _sidecar_status(self) -> SidecarStatus:
        """This one."""
        target = self._sidecar.target
        leading, in_isr = self._load_of_sidecars()
        not_ready = self._sidecar.not_ready()
        fleet_controller = self._sidecar.fleet.fleet_controller
        if fleet_controller is not None and not self._sidecar.fleet.alone:
            return self._status_of(target.broker_id, fleet_controller, leading, in_isr)
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
                for listener in self._sidecar.broker.advertised
            ],
            rack=target.registration.rack,
            controller=self._sidecar.controller.is_controller,
            leading_partitions=leading[target.broker_id],
            isr_partitions=in_isr[target.broker_id],
            last_heard_ms=0,
            heartbeat_age_ms=self._heartbeat_age_ms(),
            reason=not_ready,
        )

    def _load_of_sidecars(self) -> tuple[Counter[int], Counter[int]]:
        """By broker id, how many partitions it leads and in how many ISRs it is, as the target has it."""
        leading: Counter[int] = Counter()
        in_isr: Counter[int] = Counter()
        for topic in self._sidecar.target.image.topics_by_id.values():
            for partition in topic.partitions.values():
                leading[partition.leader] += 1
                in_isr.update(partition.isr)
        return leading, in_isr

    def _ids(self, fleet_controller: FleetController) -> list[int]:
        return sorted(self._image.identities.keys() | fleet_controller.members.keys())

    def _status_of(
        self, broker_id: int, fleet_controller: FleetController, leading: Counter[int], in_isr: Counter[int]
    ) -> SidecarStatus:
        target = self._sidecar.target
        mine = broker_id == target.broker_id
        member, identity = fleet_controller.members.get(broker_id), self._image.identities.get(broker_id)
        broker = target.image.brokers.get(broker_id)
        said = None if member is None else member.said
        not_ready = self._sidecar.not_ready() if mine else None if said is None else said.not_ready
        draining, leaving = (identity.draining, identity.leaving) if identity is not None else (False, False)
        heard = fleet_controller.heard_ago(broker_id)
        reason = not_ready
        if member is None or broker_id not in fleet_controller.alive():
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
            lease_ms=_ms(fleet_controller.lease_left(broker_id)),
            last_heard_ms=_ms(heard),
            heartbeat_age_ms=self._heartbeat_age_ms() if mine else _ms(age),
            reason=reason,
        )

    async def list_sidecars(self) -> list[SidecarStatus]:
        if self._sidecar.fleet.alone:
            return [self._sidecar_status()]
        fleet_controller = self._fleet_controller()
        leading, in_isr = self._load_of_sidecars()
        return [
            self._status_of(broker_id, fleet_controller, leading, in_isr)
            for broker_id in self._ids(fleet_controller)
        ]

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
        balancer = self._sidecar.balancer()
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
        partition = find(self._sidecar.target.image, tp)
        return partition is not None and tuple(partition.isr) == (broker_id,)

    def _fleet_status(self) -> FleetStatus | None:
        """None without others, or while another sidecar is the link controller."""
        fleet = self._sidecar.fleet
        fleet_controller = fleet.fleet_controller
        if fleet.alone or fleet_controller is None:
            return None
        ids, there = self._ids(fleet_controller), fleet_controller.alive() & fleet_controller.members.keys()
        balancer = self._sidecar.balancer()
        return FleetStatus(
            sidecars_alive=len(there),
            sidecars=len(ids),
            controller=self._sidecar.target.broker_id,
            controller_epoch=fleet_controller.controller.controller_epoch,
            moving_partitions=0 if balancer is None else len(balancer.moving),
            trouble=0 if balancer is None else len(balancer.trouble),
            draining=sorted(fleet_controller.draining()),
            away=[broker_id for broker_id in ids if broker_id not in there],
        )

    async def describe_controller(self) -> ControllerDescription:
        fleet_controller = self._fleet_controller()
        fleet, config = self._sidecar.fleet, self._sidecar.config
        balancer = self._sidecar.balancer()
        now = fleet.clock()
        ids = self._ids(fleet_controller)
        connected = {member.holder for member in fleet_controller.members.values()}
        return ControllerDescription(
            id=self._sidecar.target.broker_id,
            controller_epoch=fleet_controller.controller.controller_epoch,
            since=view.moment(wall_clock_ms() - int(fleet_controller.controller_for * 1000)),
            store=config.store.type,
            lease_ms=None if fleet.alone else _ms(fleet.settings.lease),
            control=fleet.candidate.control or None,
            admin=fleet.candidate.admin,
            sidecars_alive=len(fleet_controller.alive() & fleet_controller.members.keys()),
            sidecars=len(ids),
            members=[
                FleetMember(
                    id=broker_id,
                    session=member.hello.session,
                    address="this sidecar" if member.local else member.channel.peer,
                    version=member.hello.version,
                    connected_ms=int(max(0.0, now - member.connected_at) * 1000),
                    last_heard_ms=_ms(fleet_controller.heard_ago(broker_id)) or 0,
                    lease_ms=_ms(fleet_controller.lease_left(broker_id)),
                )
                for broker_id, member in sorted(fleet_controller.members.items())
            ],
            # A sidecar without a fleet waits for nobody, and its own lease does not end.
            away=[]
            if fleet.alone
            else [
                LeaseHolder(
                    id=holder.broker_id,
                    session=holder.session,
                    lease_ms=int(max(0.0, fleet_controller.leases.until(holder) - now) * 1000),
                )
                for holder in fleet_controller.leases.may_hold(now)
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
            promotes=[job_status.job_id(job) for job in self._running_jobs()],
            waiting=[
                WaitingCommand(
                    command=command.what,
                    link=command.link,
                    partitions=len(command.partitions),
                    sidecars=silent,
                )
                for command, silent in fleet_controller.commands.waiting()
                if silent
            ],
        )

    def _running_jobs(self) -> list[PromoteJob]:
        return [job for job in self._image.jobs.values() if job.status is JobStatus.RUNNING]


def _staying(tp: TopicPartition, leads: bool, reason: str | None) -> StayingPartition:
    return StayingPartition(topic=tp.topic, partition=tp.partition, leads=leads, reason=reason)
