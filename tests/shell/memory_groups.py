"""The groups of a MemoryService: every state goes one step on each time it is looked at."""

from __future__ import annotations

from typing import Any

from admin.models import (
    Action,
    ChangeResult,
    DemoteGroupsRequest,
    GroupDescription,
    GroupMemberStatus,
    GroupPartition,
    GroupState,
    GroupSummary,
    PromoteGroupsRequest,
)
from admin.service import GroupNotFound, IllegalState, LinkNotFound
from tests.shell.memory_moment import NOW

_WAY = {
    GroupState.DRAINING: GroupState.FINAL_SYNC,
    GroupState.FINAL_SYNC: GroupState.OPENING,
    GroupState.OPENING: GroupState.PROMOTED,
    GroupState.DEMOTING: GroupState.DEMOTED,
    GroupState.DEMOTED: GroupState.GATED,
}
MEMBER = GroupMemberStatus(
    client_id="app-1", host="10.0.0.7", member_id="m1", instance_id="i1", partitions=["orders-0"]
)


class MemoryGroups:
    links: dict[str, Any]

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], GroupState] = {}
        self.group_calls: list[str] = []
        self.stays = False  # somebody stays in it at the source: a promote is given up

    def _group(self, link: str, group: str) -> GroupDescription:
        if (link, group) not in self.groups:
            raise GroupNotFound(link, group)
        state = self.groups[link, group]
        waits = state is GroupState.DRAINING
        return GroupDescription(
            link=link,
            group=group,
            state=state,
            reason="still in the group at the source: app-1 at 10.0.0.7 (orders-0)"
            if waits or (self.stays and state is GroupState.GATED)
            else None,
            protocol="classic",
            gate="consumer+transaction",
            policy="manual",
            topics=["orders"],
            unmirrored=["audit"],
            source_members=1,
            sync_age_ms=400,
            difference=3,
            since=NOW,
            members_at_source=[MEMBER],
            waiting_for=[MEMBER] if waits else [],
            partition_status=[
                GroupPartition(topic="orders", partition=0, source_offset=10, target_offset=7, difference=3)
            ],
        )

    def _names(self, link: str) -> list[str]:
        names = [name for owner, name in self.groups if owner == link]
        if not names and link not in self.links:
            raise LinkNotFound(link)
        return names

    async def list_groups(self, link: str) -> list[GroupSummary]:
        return [
            GroupSummary.model_validate(
                self._group(link, name).model_dump(include=set(GroupSummary.model_fields))
            )
            for name in self._names(link)
        ]

    async def describe_group(self, link: str, group: str) -> GroupDescription:
        found = self._group(link, group)
        if found.state is GroupState.DRAINING and self.stays:
            self.groups[link, group] = GroupState.GATED
        else:
            self.groups[link, group] = _WAY.get(found.state, found.state)
        return found

    async def promote_groups(
        self, link: str, request: PromoteGroupsRequest, *, dry_run: bool
    ) -> ChangeResult:
        return self._begin(link, request, GroupState.GATED, GroupState.DRAINING, dry_run)

    async def demote_groups(self, link: str, request: DemoteGroupsRequest, *, dry_run: bool) -> ChangeResult:
        return self._begin(link, request, GroupState.PROMOTED, GroupState.DEMOTING, dry_run)

    def _begin(
        self,
        link: str,
        request: PromoteGroupsRequest | DemoteGroupsRequest,
        wanted: GroupState,
        next_: GroupState,
        dry_run: bool,
    ) -> ChangeResult:
        names = self._names(link) if request.all else request.groups
        for name in names:
            found = self._group(link, name)
            if found.state is not wanted:
                raise IllegalState(f"group {name}: it is {found.state}")
        for name in names:
            if not dry_run:
                self.groups[link, name] = next_
                self.group_calls.append(f"{next_} {name} {request.model_dump(exclude_defaults=True)}")
        return ChangeResult(
            dry_run=dry_run,
            actions=[Action(action="move group", resource=name) for name in names],
            pending=not dry_run,
        )
