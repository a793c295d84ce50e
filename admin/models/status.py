"""All of it at a glance, doctor, health, errors."""

from __future__ import annotations

from datetime import datetime

from pydantic import (
    Field,
)

from admin.base import LINK_NAME_PATTERN as LINK_NAME_PATTERN
from admin.base import TOPIC_NAME_PATTERN as TOPIC_NAME_PATTERN
from admin.models.common import Forwarding, Model, Traffic
from admin.models.fleet import FleetStatus, SidecarStatus
from admin.models.groups import GroupsStatus
from admin.models.links import LinkSummary
from admin.models.mirrors import HeldReader, MirrorSummary
from admin.models.promotes import PromoteJobStatus
from admin.models.states import CheckResult, MirrorState
from admin.validation_models import LinkValidation


class LinkStatus(LinkSummary):
    mirror_list: list[MirrorSummary]
    partitions: int
    lag: int | None = None
    lag_ms: int | None = None
    forwarding: Forwarding
    traffic: Traffic
    groups: GroupsStatus = GroupsStatus()
    validation: LinkValidation | None = None
    held_readers: list[HeldReader] = Field(
        default=[], description="Consumers that get no records of a mirror before its promote."
    )


class Status(Model):
    at: datetime
    version: str
    sidecar: SidecarStatus
    fleet: FleetStatus | None = Field(default=None, description="null: the sidecar has no others beside it.")
    target_cluster_id: str
    state: MirrorState = Field(description="The worst link's.")
    links: list[LinkStatus]
    promotes: list[PromoteJobStatus] = Field(default=[], description="Those that run.")
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
