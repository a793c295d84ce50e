"""All of it at a glance, doctor, health, errors."""

from __future__ import annotations

from datetime import datetime

from pydantic import (
    Field,
)

from admin.base import Model
from admin.models.common import Forwarding, Traffic
from admin.models.fleet import FleetStatus, SidecarStatus
from admin.models.groups import GroupsStatus
from admin.models.links import LinkSummary
from admin.models.mirrors import ClientLeft, HeldReader, MirrorSummary, RemainingCopy
from admin.models.promotes import PromoteJobStatus
from admin.models.states import CheckResult, MirrorState, PeriodicState
from admin.validation_models import LinkValidation


class LinkStatus(LinkSummary):
    mirror_list: list[MirrorSummary]
    partitions: int
    lag: int | None = None
    lag_ms: int | None = None
    copying: RemainingCopy | None = Field(default=None, description="The copies of all its mirrors together.")
    forwarding: Forwarding
    traffic: Traffic
    groups: GroupsStatus = GroupsStatus()
    validation: LinkValidation | None = None
    held_readers: list[HeldReader] = Field(
        default=[], description="Consumers that get no records of a mirror before its promote."
    )
    clients_left: list[ClientLeft] = Field(
        default=[], description="Of topics that were switched: clients that have not moved to the target."
    )


class TaskStatus(Model):
    """Something that a sidecar does at intervals."""

    name: str
    link: str | None = Field(default=None, description="null: it belongs to no link.")
    state: PeriodicState = Field(description="FAILING: the last attempt failed; it tries again.")
    interval_ms: int = Field(description="0: only on request.")
    last_success: datetime | None = None
    failing_since: datetime | None = None
    reason: str | None = Field(default=None, description="Why the last attempt failed.")
    well: bool = Field(
        default=True,
        description="false: it has failed for longer than three intervals, and for longer than 30 s.",
    )

    @property
    def trouble(self) -> str:
        """In words for people, while it is not well."""
        whose = "" if self.link is None else f" of link {self.link}"
        since = "" if self.failing_since is None else f" since {self.failing_since:%H:%M:%S} UTC"
        never = "" if self.last_success is not None else ", and has not succeeded yet"
        return f"{self.name}{whose} fails{since}{never}: {self.reason}"


class Status(Model):
    at: datetime
    version: str
    sidecar: SidecarStatus
    fleet: FleetStatus | None = Field(default=None, description="null: the sidecar has no others beside it.")
    target_cluster_id: str
    state: MirrorState = Field(description="State of the worst link.")
    links: list[LinkStatus]
    promotes: list[PromoteJobStatus] = Field(default=[], description="Promotes that run.")
    tasks: list[TaskStatus] = Field(
        default=[], description="The periodic tasks of the sidecar that answers, as far as it runs them."
    )
    window_bytes: int = Field(default=0, description="Memory held by read-ahead windows.")
    window_limit_bytes: int = 0


class Check(Model):
    name: str
    result: CheckResult
    detail: str
    remedy: str | None = None


class DoctorReport(Model):
    link: str
    checks: list[Check]

    @property
    def failed(self) -> bool:
        return any(check.result is CheckResult.FAIL for check in self.checks)


class Health(Model):
    status: str
    reason: str | None = None


class ErrorBody(Model):
    """Body of every answer that is not 2xx."""

    error_code: int
    message: str
