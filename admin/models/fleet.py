"""Sidecars and the link controller."""

from __future__ import annotations

from datetime import datetime

from pydantic import (
    Field,
)

from admin.base import Model
from admin.models.states import SidecarState


class SidecarStatus(Model):
    """A sidecar, which is a broker of the target cluster."""

    id: int
    state: SidecarState
    version: str | None = Field(
        default=None, description="Version of the program; null: the sidecar is away."
    )
    advertised_listeners: list[str]
    rack: str | None = None
    controller: bool = Field(description="Whether it is the one that decides (the link controller).")
    leading_partitions: int
    isr_partitions: int = Field(
        default=0, description="Partitions in whose ISR it is, those that it leads included."
    )
    draining: bool = False
    leaving: bool = False
    lease_ms: int | None = Field(
        default=None,
        description="For how long it may still acknowledge writes if it is not heard of any more, as the link controller "
        "counts; null: for ever (the store has one user).",
    )
    last_heard_ms: int | None = Field(
        default=None, description="Time since the link controller last heard of it; null: not yet."
    )
    heartbeat_age_ms: int | None = Field(
        default=None,
        description="Time since the target's controller took its heartbeat, as the sidecar says.",
    )
    reason: str | None = None


class StayingPartition(Model):
    """A partition that a sidecar leads or hosts, and why that has not ended."""

    topic: str
    partition: int
    leads: bool
    reason: str | None = Field(default=None, description="null: it goes with one of the next rounds.")


class SidecarDescription(SidecarStatus):
    """A sidecar with what still keeps it from being drained, or from leaving."""

    staying_partitions: int = Field(
        default=0,
        description="Partitions that it leads; while it leaves, also those that list it as a replica.",
    )
    staying: list[StayingPartition] = Field(default=[], description="The first of them, stuck ones first.")


class FleetMember(Model):
    """A sidecar as the link controller has it connected."""

    id: int
    session: str
    address: str
    version: str
    connected_ms: int
    last_heard_ms: int
    lease_ms: int | None = None


class LeaseHolder(Model):
    """A process that is not connected, but may still acknowledge writes: a promote waits for it."""

    id: int
    session: str
    lease_ms: int


class MovingPartition(Model):
    topic: str
    partition: int
    change: str


class Trouble(Model):
    what: str
    reason: str


class WaitingCommand(Model):
    """A command of the link controller that not every sidecar has carried out yet."""

    command: str
    link: str
    partitions: int
    sidecars: list[int]


class ControllerDescription(Model):
    """The link controller: the one sidecar of a fleet that decides."""

    id: int
    controller_epoch: int
    since: datetime
    store: str
    lease_ms: int | None = Field(default=None, description="Length of a lease; null: leases never end.")
    control: str | None = Field(default=None, description="Where the other sidecars connect.")
    admin: str
    sidecars_alive: int
    sidecars: int
    members: list[FleetMember]
    away: list[LeaseHolder] = []
    moving: list[MovingPartition] = []
    trouble: list[Trouble] = []
    promotes: list[str] = Field(default=[], description="Promotes that run.")
    waiting: list[WaitingCommand] = []


class FleetStatus(Model):
    """The fleet in one line."""

    sidecars_alive: int
    sidecars: int
    controller: int
    controller_epoch: int
    moving_partitions: int = 0
    trouble: int = 0
    draining: list[int] = []
    away: list[int] = []
