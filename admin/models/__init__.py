"""Requests and answers of the admin API: one vocabulary for service, HTTP API, client and CLI.

- `acls`: rights, quotas and users of a link's clients: the difference between source and target
- `common`: names and patterns, and answers that several operations share
- `fleet`: sidecars and the link controller
- `groups`: consumer groups of a link
- `links`: what is asked for, and what they are
- `mirrors`: mirror topics, their partitions and replicas
- `promotes`: promote and failover: options, plans, jobs, producers at the source
- `restores`: restoring a source after a failover
- `states`: states and phases, in Kafka's capitals
- `status`: all of it at a glance, doctor, health, errors
- `topology`: the clusters that a sidecar's links reach, and the ways that topics come
"""

from __future__ import annotations

from admin.base import LinkName, Model, TopicName
from admin.models.acls import (
    AccessReport,
    AclRow,
    AclSyncStatus,
    ApplyAccessRequest,
    LackingRight,
    LeftOutAcl,
    MissingScramUser,
    QuotaRow,
)
from admin.models.common import (
    Action,
    ChangeResult,
    Forwarding,
    GroupName,
    Traffic,
    patterns,
    principal_rules,
)
from admin.models.fleet import (
    ControllerDescription,
    FleetMember,
    FleetStatus,
    LeaseHolder,
    MovingPartition,
    SidecarDescription,
    SidecarStatus,
    StayingPartition,
    Trouble,
    WaitingCommand,
)
from admin.models.groups import (
    DemoteGroupsRequest,
    GroupDescription,
    GroupMemberStatus,
    GroupPartition,
    GroupsStatus,
    GroupSummary,
    PromoteGroupsRequest,
)
from admin.models.links import (
    CreateLinkRequest,
    LinkDescription,
    LinkOptions,
    LinkOptionsUpdate,
    LinkSummary,
    SourceMembership,
    UnmirroredTopic,
    UpdateLinkRequest,
)
from admin.models.mirrors import (
    ClientLeft,
    CreateMirrorsRequest,
    Direction,
    FinishRequest,
    HeldReader,
    LagReport,
    MirrorDescription,
    MirrorSummary,
    PartitionLag,
    PartitionStatus,
    ReassignRequest,
    RemainingCopy,
    ReplicaStatus,
    SyncRequest,
    SyncState,
)
from admin.models.promotes import (
    FailoverPartition,
    FailoverPlan,
    FailoverRequest,
    OpenTransaction,
    PromoteJobStatus,
    PromoteOptions,
    PromotePlan,
    PromoteRequest,
    PromoteTopic,
    SourceProducer,
)
from admin.models.restores import RestorePartition, RestorePlan, RestoreRequest, RestoreState
from admin.models.states import (
    SEVERITY,
    CheckResult,
    GroupState,
    MirrorState,
    PeriodicState,
    PromotePhase,
    SidecarState,
    worst_state,
)
from admin.models.status import Check, DoctorReport, ErrorBody, Health, LinkStatus, Status, TaskStatus
from admin.models.topology import TopicWay, Topology, UpstreamCluster

__all__ = [
    "SEVERITY",
    "AccessReport",
    "AclRow",
    "AclSyncStatus",
    "Action",
    "ApplyAccessRequest",
    "ChangeResult",
    "Check",
    "CheckResult",
    "ClientLeft",
    "ControllerDescription",
    "CreateLinkRequest",
    "CreateMirrorsRequest",
    "DemoteGroupsRequest",
    "Direction",
    "DoctorReport",
    "ErrorBody",
    "FailoverPartition",
    "FailoverPlan",
    "FailoverRequest",
    "FinishRequest",
    "FleetMember",
    "FleetStatus",
    "Forwarding",
    "GroupDescription",
    "GroupMemberStatus",
    "GroupName",
    "GroupPartition",
    "GroupState",
    "GroupSummary",
    "GroupsStatus",
    "Health",
    "HeldReader",
    "LackingRight",
    "LagReport",
    "LeaseHolder",
    "LeftOutAcl",
    "LinkDescription",
    "LinkName",
    "LinkOptions",
    "LinkOptionsUpdate",
    "LinkStatus",
    "LinkSummary",
    "MirrorDescription",
    "MirrorState",
    "MirrorSummary",
    "MissingScramUser",
    "Model",
    "MovingPartition",
    "OpenTransaction",
    "PartitionLag",
    "PartitionStatus",
    "PeriodicState",
    "PromoteGroupsRequest",
    "PromoteJobStatus",
    "PromoteOptions",
    "PromotePhase",
    "PromotePlan",
    "PromoteRequest",
    "PromoteTopic",
    "QuotaRow",
    "ReassignRequest",
    "RemainingCopy",
    "ReplicaStatus",
    "RestorePartition",
    "RestorePlan",
    "RestoreRequest",
    "RestoreState",
    "SidecarDescription",
    "SidecarState",
    "SidecarStatus",
    "SourceMembership",
    "SourceProducer",
    "Status",
    "StayingPartition",
    "SyncRequest",
    "SyncState",
    "TaskStatus",
    "TopicName",
    "TopicWay",
    "Topology",
    "Traffic",
    "Trouble",
    "UnmirroredTopic",
    "UpdateLinkRequest",
    "UpstreamCluster",
    "WaitingCommand",
    "patterns",
    "principal_rules",
    "worst_state",
]
