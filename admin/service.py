"""The LinkService protocol, which the admin API calls, and the errors that it may raise.

`linker.service` implements it. Every method may raise ServiceError (shown to the user as it is) or any other LinkerError
(shown as a failure of a cluster). With dry_run, a method makes all checks and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from admin.models import (
    ChangeResult,
    ControllerDescription,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DemoteGroupsRequest,
    DoctorReport,
    FailoverPlan,
    FailoverRequest,
    GroupDescription,
    GroupSummary,
    LagReport,
    LinkDescription,
    LinkSummary,
    MirrorDescription,
    MirrorSummary,
    PromoteGroupsRequest,
    PromoteJobStatus,
    PromotePlan,
    PromoteRequest,
    SidecarDescription,
    SidecarStatus,
    Status,
    UpdateLinkRequest,
)
from admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    StartValidationRequest,
    ValidationRun,
)
from wire.errors import LinkerError
from wire.shown_id import shown_id


class ServiceError(LinkerError):
    """A refused request: `status` is the HTTP status, `error_code` the finer code (status * 100 + n)."""

    status = 500
    error_code = 50001


class InvalidRequest(ServiceError):
    status, error_code = 400, 40001


class LinkNotFound(ServiceError):
    status, error_code = 404, 40401

    def __init__(self, link: str) -> None:
        super().__init__(f"link {link} does not exist")


class MirrorNotFound(ServiceError):
    status, error_code = 404, 40402

    def __init__(self, link: str, topic: str) -> None:
        super().__init__(f"link {link} has no mirror of topic {topic}")


class PromoteNotFound(ServiceError):
    status, error_code = 404, 40403

    def __init__(self, promote_id: str) -> None:
        super().__init__(f"promote {promote_id} does not exist")


class SidecarNotFound(ServiceError):
    status, error_code = 404, 40404

    def __init__(self, sidecar_id: int) -> None:
        super().__init__(f"sidecar {sidecar_id} does not exist")


class ValidationNotFound(ServiceError):
    status, error_code = 404, 40407

    def __init__(self, run: str) -> None:
        super().__init__(
            f"validation {run} does not exist (the link controller remembers only its own last ones)"
        )


class SourceTopicNotFound(ServiceError):
    status, error_code = 404, 40405

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(f"the source has no topic {', '.join(topics)}")


class GroupNotFound(ServiceError):
    status, error_code = 404, 40406

    def __init__(self, link: str, group: str) -> None:
        super().__init__(f"link {link} has no group {shown_id(group)}")


class NameTaken(ServiceError):
    """A link, mirror or target topic of this name is there already."""

    status, error_code = 409, 40901


class IllegalState(ServiceError):
    """Not possible in the present state: pausing while promoting, leaving while leading."""

    status, error_code = 409, 40902


class PreflightFailed(ServiceError):
    """The clusters do not allow it: same cluster id, missing ACL, segment.bytes too small, target too old."""

    status, error_code = 422, 42201


class NotSupported(ServiceError):
    """This version of the service cannot do it at all."""

    status, error_code = 501, 50101


class NotReady(ServiceError):
    """The sidecar is starting, stopping or without its lease; the same request may work later."""

    status, error_code = 503, 50301


class NoLinkController(ServiceError):
    """No link controller takes the change now: another sidecar has just taken over, or the state store does not
    answer; the same request may work later."""

    status, error_code = 503, 50302


class ControllerAway(ServiceError):
    """The link controller of the fleet does not answer the sidecar that was asked; the message says which one and
    why."""

    status, error_code = 503, 50303


class OutcomeUnknown(ServiceError):
    """The state store did not say in time whether a promote or failover was written down. If it was, it ends ABANDONED
    by itself and nothing of it happens; the message says where to look."""

    status, error_code = 503, 50304


class LinkService(Protocol):
    async def create_link(self, request: CreateLinkRequest, *, dry_run: bool) -> ChangeResult: ...

    async def list_links(self) -> list[LinkSummary]: ...

    async def describe_link(self, link: str) -> LinkDescription: ...

    async def update_link(self, link: str, request: UpdateLinkRequest, *, dry_run: bool) -> ChangeResult: ...

    async def delete_link(self, link: str, *, force: bool, dry_run: bool) -> ChangeResult:
        """Refused with IllegalState while the link has a mirror that is not PROMOTED; and, unless forced, while the source
        still refuses writes because of an abandoned promote, which nobody would undo any more."""

    async def create_mirrors(
        self, link: str, request: CreateMirrorsRequest, *, dry_run: bool
    ) -> ChangeResult:
        """All or none: every topic is checked before the first one is created."""

    async def list_mirrors(self, link: str) -> list[MirrorSummary]: ...

    async def describe_mirror(self, link: str, topic: str) -> MirrorDescription: ...

    async def pause_mirror(self, link: str, topic: str, *, dry_run: bool) -> ChangeResult: ...

    async def resume_mirror(self, link: str, topic: str, *, restart: bool, dry_run: bool) -> ChangeResult:
        """Go on with a paused mirror; with restart, begin a FAILED one again from the source's present log start:
        what the target has copied of the failed partitions is dropped."""

    async def repair_mirror(
        self, link: str, topic: str, *, drop_target_records: bool, dry_run: bool
    ) -> ChangeResult:
        """Have the link broker lead again the partitions that nobody leads and nobody can be elected for; the copies stay.
        With drop_target_records also where a real broker may have led meanwhile: what it took is truncated."""

    async def delete_mirror(
        self, link: str, topic: str, *, keep_data: bool, force: bool, dry_run: bool
    ) -> ChangeResult:
        """Forget the mirror; its topic goes too unless keep_data. A PROMOTED topic is never deleted. Refused, unless
        forced, while the source still refuses writes to it because of an abandoned promote, and while the topic holds
        acknowledged records that are nowhere else."""

    async def plan_promote(self, link: str, request: PromoteRequest) -> PromotePlan: ...

    async def promote(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        """Start a promote and return at once; when it returns, the job is durable."""

    async def plan_failover(self, link: str, request: FailoverRequest) -> FailoverPlan: ...

    async def failover(self, link: str, request: FailoverRequest) -> PromoteJobStatus:
        """Start a failover and return at once; a job like a promote's. IllegalState while the source answers, unless
        it is forced."""

    async def describe_promote(self, promote_id: str) -> PromoteJobStatus: ...

    async def list_groups(self, link: str) -> list[GroupSummary]: ...

    async def describe_group(self, link: str, group: str) -> GroupDescription: ...

    async def promote_groups(
        self, link: str, request: PromoteGroupsRequest, *, dry_run: bool
    ) -> ChangeResult:
        """All of them or none are begun, durably; describe them to follow. Refused with IllegalState and every
        reason."""

    async def demote_groups(
        self, link: str, request: DemoteGroupsRequest, *, dry_run: bool
    ) -> ChangeResult: ...

    async def list_promotes(self, link: str) -> list[PromoteJobStatus]:
        """The newest first."""

    async def validation(self, link: str) -> LinkValidationDescription: ...

    async def start_validation(self, link: str, request: StartValidationRequest) -> ValidationRun:
        """Begin a run and return at once."""

    async def continue_validation(
        self, link: str, request: ContinuousValidationRequest, *, dry_run: bool
    ) -> ChangeResult: ...

    async def describe_validation(self, run: str) -> ValidationRun: ...

    async def cancel_validation(self, run: str) -> ValidationRun:
        """What it has proved by then stays proved."""

    async def list_sidecars(self) -> list[SidecarStatus]: ...

    async def describe_sidecar(self, sidecar_id: int) -> SidecarDescription: ...

    async def drain_sidecar(self, sidecar_id: int, *, undo: bool, dry_run: bool) -> ChangeResult:
        """Have a sidecar lead nothing until it is started anew, or not any more. Returns when that is durable; how far
        it is stands in describe_sidecar. Refused with IllegalState if nobody else could lead."""

    async def leave_sidecar(self, sidecar_id: int, *, dead: bool, dry_run: bool) -> ChangeResult:
        """Have a sidecar of a fleet give up everything, unregister and be forgotten; when that is durable, it
        returns. `dead`: its process is gone for good, IllegalState if it is heard of. A sidecar without others
        unregisters at once; refused with IllegalState while it leads a partition."""

    async def describe_controller(self) -> ControllerDescription: ...

    async def status(self) -> Status: ...

    async def lag(self, link: str, topics: Sequence[str]) -> LagReport:
        """Empty topics: all mirrors of the link."""

    async def doctor(self, link: str) -> DoctorReport: ...

    def ready(self) -> str | None:
        """None when requests and brokers are served, else one line why not. Must not block."""
