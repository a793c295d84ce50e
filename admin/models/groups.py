"""Consumer groups of a link."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import (
    Field,
    model_validator,
)

from admin.base import Model
from admin.models.common import GroupName, Millis
from admin.models.states import GroupState


class GroupsRequest(Model):
    """Either groups or all: an empty list never means everything."""

    groups: list[GroupName] = Field(default=[], max_length=10_000)
    all: bool = False
    timeout_ms: Millis | None = Field(
        default=None,
        description="Longest wait for the members that are still there; then it is given up and nothing has moved. "
        "null: no limit.",
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if bool(self.groups) == self.all:
            raise ValueError("give either groups or all")
        if len(set(self.groups)) != len(self.groups):
            raise ValueError("a group is named twice")
        return self


class PromoteGroupsRequest(GroupsRequest):
    force: bool = Field(
        default=False,
        description="Do not wait for members at the source: records that they read after this are read once more on the "
        "target. Where the source does not answer, the offsets that were brought over last count. A group that is refused "
        "or failed is taken for promoted, with the offsets that it has on the target.",
    )
    partial: bool = Field(
        default=False, description="Also groups that read topics which the link does not mirror."
    )


class DemoteGroupsRequest(GroupsRequest):
    pass


# --- answers


class GroupMemberStatus(Model):
    """Somebody in a group, as a person would look for it."""

    client_id: str
    host: str
    member_id: str
    instance_id: str | None = None
    partitions: list[str] = []


class GroupSummary(Model):
    """A consumer group of the source that is held on the target until its promote."""

    link: str
    group: str
    state: GroupState
    reason: str | None = Field(default=None, description="Why it is there, or what it waits for.")
    protocol: str = Field(
        description="At the source: classic or consumer (KIP-848), streams (KIP-1071), share (KIP-932; never held)."
    )
    gate: str = Field(description="The kind of gate that holds it on the target.")
    policy: str
    topics: list[str]
    unmirrored: list[str] = Field(default=[], description="Topics it reads that the link does not mirror.")
    source_members: int | None = Field(default=None, description="Members of the group at the source.")
    sync_age_ms: int | None = Field(
        default=None,
        description="Time since the target had all offsets of the source; null: not yet, or not held.",
    )
    difference: int | None = Field(
        default=None, description="Offsets that the target's commits are behind, of all partitions."
    )


class GroupPartition(Model):
    """Committed offsets of one partition."""

    topic: str
    partition: int
    source_offset: int | None = None
    target_offset: int | None = None
    difference: int | None = Field(
        default=None, description="The offset that the target should have, minus the one it has."
    )
    metadata: str = Field(default="", description="The text that the consumer attached.")
    note: str | None = Field(
        default=None, description="Why the target has not got this commit, or not with its text."
    )


class GroupDescription(GroupSummary):
    since: datetime
    asked_at: datetime | None = Field(default=None, description="When the move under way was asked for.")
    until: datetime | None = None
    force: bool = False
    automatic: bool = False
    members_at_source: list[GroupMemberStatus] = []
    members_at_target: list[GroupMemberStatus] = Field(
        default=[], description="Those who wait or run there; the gate is not among them."
    )
    waiting_for: list[GroupMemberStatus] = Field(
        default=[], description="The move under way waits for these."
    )
    unheld: list[str] = Field(
        default=[], description="Partitions that the gate does not keep clients from, as far as it knows."
    )
    partition_status: list[GroupPartition] = []


class GroupsStatus(Model):
    """The groups of a link in one line."""

    groups: int = 0
    states: dict[GroupState, int] = {}
    gated: int = Field(default=0, description="Groups whose gate is closed, by this process.")
    sync_age_ms: int | None = Field(
        default=None, description="Sync age of the held group where it is longest."
    )
    sync_ms: int | None = Field(default=None, description="How long the newest round of the sync took.")
    reason: str | None = Field(default=None, description="Why not all groups of the source are known.")
    left_out: list[str] = Field(
        default=[],
        description="Groups of the source whose ids cannot be kept, and why not; the first of them.",
    )
