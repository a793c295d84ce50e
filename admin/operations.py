# mypy: disable-error-code="empty-body"
"""All operations of the admin API, one row each. Routes, client calls, reference and tests are made from these rows.

A row is a function without a body. Its name is the name of the service method, the client call and the OpenAPI operation.
Parameters named in the path go there, `request` is the body, all others are the query. `linker.service` has an async method
of the same signature. It may raise ServiceError (shown to the user as it is) or any other LinkerError (shown as a failure of
a cluster). With dry_run, it makes all checks and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from admin.models import (
    AccessReport,
    ApplyAccessRequest,
    ChangeResult,
    ControllerDescription,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DemoteGroupsRequest,
    DoctorReport,
    FailoverPlan,
    FailoverRequest,
    FinishRequest,
    GroupDescription,
    GroupName,
    GroupSummary,
    LagReport,
    LinkDescription,
    LinkName,
    LinkSummary,
    MirrorDescription,
    MirrorSummary,
    PromoteGroupsRequest,
    PromoteJobStatus,
    PromotePlan,
    PromoteRequest,
    ReassignRequest,
    RestorePlan,
    RestoreRequest,
    SidecarDescription,
    SidecarStatus,
    Status,
    SyncRequest,
    TopicName,
    Topology,
    UpdateLinkRequest,
)
from admin.operation import AdminOperation, operation
from admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    StartValidationRequest,
    ValidationRun,
)

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
SidecarId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Operations:
    """The table. A subclass carries a row out in `call`."""

    def call(self, operation: AdminOperation[..., Any], arguments: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    @operation("GET", "/links", "link list")
    def list_links(self) -> list[LinkSummary]:
        """List the links."""

    @operation("POST", "/links", "link create", status=201, location="/links/{request.name}")
    def create_link(self, request: CreateLinkRequest, *, dry_run: bool = False) -> ChangeResult:
        """Create a link to a source."""

    @operation("GET", "/links/{link}", "link describe")
    def describe_link(self, link: LinkName) -> LinkDescription:
        """Show a link."""

    @operation("PATCH", "/links/{link}", "link update")
    def update_link(
        self, link: LinkName, request: UpdateLinkRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Change properties and options of a link."""

    @operation("DELETE", "/links/{link}", "link delete")
    def delete_link(self, link: LinkName, *, dry_run: bool = False, force: bool = False) -> ChangeResult:
        """Delete a link. Refused while it has a mirror that is not PROMOTED. Refused too, unless forced, while the source
        still refuses writes because of an abandoned promote: without the link nobody would undo that."""

    @operation("GET", "/links/{link}/lag", "lag")
    def lag(
        self, link: LinkName, topics: Annotated[Sequence[TopicName], Field(alias="topic")] = ()
    ) -> LagReport:
        """Show the lag of every partition of these topics, or of all mirrors of the link."""

    @operation("GET", "/links/{link}/doctor", "doctor")
    def doctor(self, link: LinkName) -> DoctorReport:
        """Check versions, rights, sizes, ids, groups and clocks on both clusters."""

    @operation("GET", "/links/{link}/mirrors", "mirror list")
    def list_mirrors(self, link: LinkName) -> list[MirrorSummary]:
        """List the mirrors of a link."""

    @operation("POST", "/links/{link}/mirrors", "mirror create", status=201, location="/links/{link}/mirrors")
    def create_mirrors(
        self, link: LinkName, request: CreateMirrorsRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Mirror topics, all or none: every topic is checked before the first one is created."""

    @operation("POST", "/links/{link}/mirrors:promote", "mirror promote", planning=True)
    def plan_promote(self, link: LinkName, request: PromoteRequest) -> PromotePlan:
        """Show what a promote would do."""

    @operation(
        "POST",
        "/links/{link}/mirrors:promote",
        "mirror promote",
        status=202,
        location="/promotes/{answer.id}",
    )
    def promote(self, link: LinkName, request: PromoteRequest) -> PromoteJobStatus:
        """Start a promote and return at once. The job is durable by then."""

    @operation("POST", "/links/{link}/mirrors:failover", "mirror failover", planning=True)
    def plan_failover(self, link: LinkName, request: FailoverRequest) -> FailoverPlan:
        """Show what a failover would take over, and what it would leave behind."""

    @operation(
        "POST",
        "/links/{link}/mirrors:failover",
        "mirror failover",
        status=202,
        location="/promotes/{answer.id}",
    )
    def failover(self, link: LinkName, request: FailoverRequest) -> PromoteJobStatus:
        """Start a failover and return at once; a job like a promote's. Refused while the source answers, unless it is
        forced."""

    @operation("POST", "/links/{link}/mirrors:restore", "mirror restore", planning=True)
    def plan_restore(self, link: LinkName, request: RestoreRequest) -> RestorePlan:
        """Show the records that a source has beyond the failover or promote that left it, or where its restore stands."""

    @operation("POST", "/links/{link}/mirrors:restore", "mirror restore", status=202)
    def restore_mirrors(self, link: LinkName, request: RestoreRequest) -> RestorePlan:
        """Have the source follow the target after a failover or a promote, and return at once. Records that only the source
        has are exported to files, then its brokers truncate them, and the topics are as after a switch. All of these topics
        or none."""

    @operation("POST", "/links/{link}/mirrors:reassign", "mirror reassign")
    def reassign_mirrors(
        self, link: LinkName, request: ReassignRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Move replicas of mirrors to other brokers of the target, of all of these topics or of none. Replicas that are
        reassigned away copy on until the promote, which does not wait for them."""

    @operation("POST", "/links/{link}/mirrors:sync", "mirror sync")
    def sync_mirrors(self, link: LinkName, request: SyncRequest, *, dry_run: bool = False) -> ChangeResult:
        """Have link brokers follow the topics as in-sync replicas of the cluster that owns them, which then acknowledges
        acks=all only once every replica of the mirror has the records; or end that. All of these topics or none."""

    @operation("POST", "/links/{link}/mirrors:switch", "mirror switch", planning=True)
    def plan_switch(self, link: LinkName, request: PromoteRequest) -> PromotePlan:
        """Show what a switch would do."""

    @operation(
        "POST",
        "/links/{link}/mirrors:switch",
        "mirror switch",
        status=202,
        location="/promotes/{answer.id}",
    )
    def switch_mirrors(self, link: LinkName, request: PromoteRequest) -> PromoteJobStatus:
        """Start a switch and return at once; its job is like that of a promote. Afterwards the other cluster owns the
        topics, and the cluster that they left follows it. Topics that were switched before go back."""

    @operation("POST", "/links/{link}/mirrors:finish", "mirror finish")
    def finish_mirrors(
        self, link: LinkName, request: FinishRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """End the switch of topics for good: the target keeps them, and at the source they are closed or deleted. They
        cannot be switched back afterwards."""

    @operation("GET", "/links/{link}/mirrors/{topic}", "mirror describe")
    def describe_mirror(self, link: LinkName, topic: TopicName) -> MirrorDescription:
        """Show a mirror, partition by partition."""

    @operation("DELETE", "/links/{link}/mirrors/{topic}", "mirror delete")
    def delete_mirror(
        self,
        link: LinkName,
        topic: TopicName,
        *,
        dry_run: bool = False,
        keep_data: bool = False,
        force: bool = False,
    ) -> ChangeResult:
        """Forget the mirror, and delete its topic unless keep_data. A PROMOTED topic is never deleted. Refused, unless
        forced, while the source still refuses writes to it because of an abandoned promote, and while the topic holds
        acknowledged records that are nowhere else."""

    @operation("POST", "/links/{link}/mirrors/{topic}:pause", "mirror pause")
    def pause_mirror(self, link: LinkName, topic: TopicName, *, dry_run: bool = False) -> ChangeResult:
        """Stop reading from the source; produces are still forwarded."""

    @operation("POST", "/links/{link}/mirrors/{topic}:resume", "mirror resume")
    def resume_mirror(
        self, link: LinkName, topic: TopicName, *, dry_run: bool = False, restart: bool = False
    ) -> ChangeResult:
        """Go on with a paused mirror. With restart, begin a FAILED one again from the source's present log start; the
        target's copies of the failed partitions are dropped."""

    @operation("POST", "/links/{link}/mirrors/{topic}:repair", "mirror repair")
    def repair_mirror(
        self, link: LinkName, topic: TopicName, *, dry_run: bool = False, drop_target_records: bool = False
    ) -> ChangeResult:
        """Have the link broker lead partitions again that have no leader and for which none can be elected; the copies stay.
        With drop_target_records also if a real broker may have led meanwhile; records that it took are truncated."""

    @operation("GET", "/links/{link}/access", "acl diff")
    def describe_access(self, link: LinkName) -> AccessReport:
        """Compare ACLs, client quotas and SCRAM users of the link's clients at both clusters."""

    @operation("POST", "/links/{link}/access:apply", "acl diff")
    def apply_access(
        self, link: LinkName, request: ApplyAccessRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Give the target the ACLs and quotas that it lacks. Those that it has stay as they are."""

    @operation("GET", "/links/{link}/groups", "group list")
    def list_groups(self, link: LinkName) -> list[GroupSummary]:
        """List the consumer groups of a link."""

    @operation("POST", "/links/{link}/groups:promote", "group promote", status=202)
    def promote_groups(
        self, link: LinkName, request: PromoteGroupsRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Begin the promote of these groups, of all or of none, and return when that is durable; describe a group to
        follow it. A refusal names every reason."""

    @operation("POST", "/links/{link}/groups:demote", "group demote", status=202)
    def demote_groups(
        self, link: LinkName, request: DemoteGroupsRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Begin to give promoted groups back to the source."""

    # A group id may hold any character. A slash in it need not be percent-encoded.
    @operation("GET", "/links/{link}/groups/{group:rest}", "group describe")
    def describe_group(self, link: LinkName, group: GroupName) -> GroupDescription:
        """Show a group, partition by partition."""

    @operation("GET", "/links/{link}/validation", "validate status")
    def validation(self, link: LinkName) -> LinkValidationDescription:
        """Show the validation of a link and its last runs."""

    @operation("PATCH", "/links/{link}/validation", "validate run")
    def continue_validation(
        self, link: LinkName, request: ContinuousValidationRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        """Begin, change or end the continuous validation of a link."""

    @operation(
        "POST",
        "/links/{link}/validation:run",
        "validate run",
        status=202,
        location="/validations/{answer.id}",
    )
    def start_validation(self, link: LinkName, request: StartValidationRequest) -> ValidationRun:
        """Begin a validation run and return at once."""

    @operation("GET", "/validations/{run}", "validate attach")
    def describe_validation(self, run: JobId) -> ValidationRun:
        """Show a validation run."""

    @operation("POST", "/validations/{run}:cancel", "validate run")
    def cancel_validation(self, run: JobId) -> ValidationRun:
        """End a validation run. Partitions that it has proved by then stay proved."""

    @operation("GET", "/links/{link}/promotes", "validate report")
    def list_promotes(self, link: LinkName) -> list[PromoteJobStatus]:
        """List the promotes and failovers of a link, the newest first."""

    @operation("GET", "/promotes/{promote_id}", "mirror promote")
    def describe_promote(self, promote_id: JobId) -> PromoteJobStatus:
        """Show a promote or failover."""

    @operation("GET", "/sidecars", "sidecar list")
    def list_sidecars(self) -> list[SidecarStatus]:
        """List the sidecars of the fleet."""

    @operation(
        "GET",
        "/sidecars/{sidecar_id}",
        without_command="`sidecar drain` and `sidecar leave` follow it, `sidecar list` has its summary",
    )
    def describe_sidecar(self, sidecar_id: SidecarId) -> SidecarDescription:
        """Show a sidecar and the partitions that it still leads."""

    @operation("POST", "/sidecars/{sidecar_id}:drain", "sidecar drain")
    def drain_sidecar(
        self, sidecar_id: SidecarId, *, dry_run: bool = False, undo: bool = False
    ) -> ChangeResult:
        """Have a sidecar lead nothing until it is started anew, or let it lead again (undo). Returns when that is durable;
        describe the sidecar to follow. Refused if no other sidecar could lead."""

    @operation("POST", "/sidecars/{sidecar_id}:leave", "sidecar leave")
    def leave_sidecar(
        self, sidecar_id: SidecarId, *, dry_run: bool = False, dead: bool = False
    ) -> ChangeResult:
        """Have a sidecar of a fleet give up everything, unregister and be forgotten. Returns when that is durable.
        `dead`: its process is gone for good; refused if the sidecar is still heard of. A sidecar without others
        unregisters at once; refused while it leads a partition."""

    @operation("GET", "/controller", "controller describe")
    def describe_controller(self) -> ControllerDescription:
        """Show the link controller and its store."""

    @operation("GET", "/status", "status")
    def status(self) -> Status:
        """Show links, mirrors, lag, forwarding and running promotes; the worst state wins."""

    @operation("GET", "/topology", "topology")
    def topology(self) -> Topology:
        """Show the clusters that links reach, directly and behind their sources, and the ways that topics come."""


def all_operations() -> Iterator[AdminOperation[..., Any]]:
    """In the order in which their paths are matched."""
    return (one for one in vars(Operations).values() if isinstance(one, AdminOperation))
