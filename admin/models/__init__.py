"""Requests and answers of the admin API: one vocabulary for service, HTTP API, client and CLI.

- `common`: names, patterns and the base of all models
- `fleet`: sidecars and the link controller
- `groups`: consumer groups of a link
- `links`: what is asked for, and what they are
- `mirrors`: mirror topics, their partitions and replicas
- `promotes`: promote and failover: options, plans, jobs, producers at the source
- `states`: states and phases, in Kafka's capitals
- `status`: all of it at a glance, doctor, health, errors
"""

from __future__ import annotations

from admin.base import LINK_NAME_PATTERN, TOPIC_NAME_PATTERN, LinkName, TopicName
from admin.models.common import (
    Action,
    ChangeResult,
    Forwarding,
    GateChoice,
    GroupName,
    GroupPromotePolicy,
    Millis,
    Model,
    Patterns,
    ReadsPolicy,
    Traffic,
    patterns,
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
    GroupsRequest,
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
    UpdateLinkRequest,
)
from admin.models.mirrors import (
    CreateMirrorsRequest,
    HeldReader,
    LagReport,
    MirrorDescription,
    MirrorSummary,
    PartitionLag,
    PartitionStatus,
    ReplicaStatus,
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
from admin.validation_models import LinkValidation, Policy, PromoteValidation

__all__ = [
    "LINK_NAME_PATTERN",
    "SEVERITY",
    "TOPIC_NAME_PATTERN",
    "Action",
    "ChangeResult",
    "Check",
    "CheckResult",
    "ControllerDescription",
    "CreateLinkRequest",
    "CreateMirrorsRequest",
    "DemoteGroupsRequest",
    "DoctorReport",
    "ErrorBody",
    "FailoverPartition",
    "FailoverPlan",
    "FailoverRequest",
    "FleetMember",
    "FleetStatus",
    "Forwarding",
    "GateChoice",
    "GroupDescription",
    "GroupMemberStatus",
    "GroupName",
    "GroupPartition",
    "GroupPromotePolicy",
    "GroupState",
    "GroupSummary",
    "GroupsRequest",
    "GroupsStatus",
    "Health",
    "HeldReader",
    "LagReport",
    "LeaseHolder",
    "LinkDescription",
    "LinkName",
    "LinkOptions",
    "LinkOptionsUpdate",
    "LinkStatus",
    "LinkSummary",
    "LinkValidation",
    "Millis",
    "MirrorDescription",
    "MirrorState",
    "MirrorSummary",
    "Model",
    "MovingPartition",
    "OpenTransaction",
    "PartitionLag",
    "PartitionStatus",
    "Patterns",
    "PeriodicState",
    "Policy",
    "PromoteGroupsRequest",
    "PromoteJobStatus",
    "PromoteOptions",
    "PromotePhase",
    "PromotePlan",
    "PromoteRequest",
    "PromoteTopic",
    "PromoteValidation",
    "ReadsPolicy",
    "ReplicaStatus",
    "SidecarDescription",
    "SidecarState",
    "SidecarStatus",
    "SourceProducer",
    "Status",
    "StayingPartition",
    "TaskStatus",
    "TopicName",
    "Traffic",
    "Trouble",
    "UpdateLinkRequest",
    "WaitingCommand",
    "patterns",
    "worst_state",
]
