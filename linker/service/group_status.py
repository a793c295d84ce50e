"""Groups as shown to people: durable state joined with the running managers. Read only; unknown numbers are None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from admin.models import (
    GroupDescription,
    GroupMemberStatus,
    GroupPartition,
    GroupsStatus,
    GroupState,
    GroupSummary,
)
from controller.group_phases import HELD_GROUPS, GroupPhase
from controller.judge.group_gates import unheld
from controller.judge.group_offsets import Committed, differences
from controller.mirror_group import GroupProtocol, MirrorGroup
from groups.excluded import Excluded
from groups.gates.base import GroupMember
from groups.group_run import GroupRun
from groups.manager import GroupManager
from groups.views import GroupView
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

_MOST_LEFT_OUT = 20
_MOST_EXCLUDED = 100
_NONE = "none"
_GONE = "the source does not have it any more: its offsets stay as they were synced last"


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def reason_of(group: MirrorGroup, run: GroupRun | None) -> str | None:
    """The state that a person should know first."""
    if run is None:
        return group.reason
    if group.move is not None:
        return run.waiting_for or run.any_trouble or group.reason
    if group.phase in HELD_GROUPS or group.phase is GroupPhase.DISCOVERED:
        weakness = None if run.gate is None else run.gate.weakness()
        return (
            run.any_trouble
            or (None if weakness is None else f"held by a part of its gate only: {weakness}")
            or run.left_out.said(run.source or {})
            or (_GONE if run.gone else None)
            or group.reason
        )
    if _followed(group) and run.sync_trouble is not None:
        return f"{run.sync_trouble}; {group.reason}"
    return group.reason or run.trouble


def _followed(group: MirrorGroup) -> bool:
    """Whether the target's offsets are to be those of the source."""
    return _unheld(group) or group.phase in HELD_GROUPS


def _unheld(group: MirrorGroup) -> bool:
    """Whether the group rests without a gate and is of a kind that is promoted without one."""
    return group.phase is GroupPhase.REFUSED and unheld(group.protocol) is not None


def _behind(group: MirrorGroup, run: GroupRun | None) -> Mapping[TopicPartition, int] | None:
    if run is None or run.target is None or run.source is None or not _followed(group):
        return None
    return differences(run.left_out.fitting(run.wanted), run.target)


def group_summary(group: MirrorGroup, manager: GroupManager | None) -> GroupSummary:
    run = None if manager is None else manager.runs.get(group.group)
    behind = _behind(group, run)
    age = None if run is None or not _followed(group) else run.sync_age()
    view = None if run is None else run.source_view
    return GroupSummary(
        link=group.link,
        group=group.group,
        state=GroupState(group.phase.value),
        reason=reason_of(group, run),
        protocol=group.protocol.value,
        gate=_NONE if _unheld(group) or group.protocol is GroupProtocol.SHARE else group.gate.value,
        policy=group.policy.value,
        topics=list(group.topics),
        unmirrored=list(group.unmirrored),
        source_members=None if view is None else len(view.members),
        sync_age_ms=None if age is None else round(age * 1000),
        difference=None if behind is None else sum(abs(step) for step in behind.values()),
    )


def group_summaries(groups: Sequence[MirrorGroup], manager: GroupManager | None) -> list[GroupSummary]:
    """All groups of a link, and after them the first of those that its patterns leave out."""
    listed = [group_summary(group, manager) for group in groups]
    if manager is None:
        return listed
    return listed + [_excluded_summary(one, manager) for one in manager.excluded_readers()[:_MOST_EXCLUDED]]


def _excluded_summary(one: Excluded, manager: GroupManager) -> GroupSummary:
    mirrored = manager.mirrored
    return GroupSummary(
        link=manager.link,
        group=one.group,
        state=GroupState.EXCLUDED,
        reason=one.reason,
        protocol=one.protocol.value,
        gate=_NONE,
        policy=_NONE,
        topics=sorted(one.topics & mirrored),
        unmirrored=sorted(one.topics - mirrored),
        source_members=one.members,
    )


def group_description(
    group: MirrorGroup,
    manager: GroupManager | None,
    at_source: GroupView | None,
    at_target: GroupView | None,
) -> GroupDescription:
    """A group with its present members, as the coordinators of both clusters tell them now."""
    run = None if manager is None else manager.runs.get(group.group)
    move = group.move
    gate = None if run is None else run.gate
    return GroupDescription(
        **group_summary(group, manager).model_dump(exclude={"source_members"}),
        source_members=None if at_source is None else len(at_source.members),
        since=_moment(group.since),
        asked_at=None if move is None else _moment(move.asked_at),
        until=None if move is None or move.until is None else _moment(move.until),
        force=move is not None and move.force,
        automatic=move is not None and move.automatic,
        members_at_source=_members(() if at_source is None else at_source.members),
        members_at_target=_members(
            [one for one in (() if at_target is None else at_target.members) if not _ours(one, group)]
        ),
        waiting_for=_members(() if run is None else run.still_there),
        unheld=[f"{tp.topic}-{tp.partition}" for tp in sorted(gate.unheld())] if gate is not None else [],
        partition_status=_partitions(group, run),
    )


def _ours(member: GroupMember, group: MirrorGroup) -> bool:
    record = group.gate_state
    parts = () if record is None else (record.consumer, record.classic)
    return any(part is not None and part.member_id == member.member_id for part in parts)


def _members(members: Sequence[GroupMember]) -> list[GroupMemberStatus]:
    return [
        GroupMemberStatus(
            client_id=one.client_id,
            host=one.host,
            member_id=one.member_id,
            instance_id=one.instance_id,
            partitions=[f"{tp.topic}-{tp.partition}" for tp in sorted(one.partitions)],
        )
        for one in members
    ]


def _partitions(group: MirrorGroup, run: GroupRun | None) -> list[GroupPartition]:
    opened = {one.tp: one.offset for one in group.offsets}
    source = {} if run is None or run.source is None else dict(run.source)
    target = {} if run is None or run.target is None else dict(run.target)
    behind = _behind(group, run)
    rows = []
    for tp in sorted(source.keys() | opened.keys()):
        committed, found = source.get(tp), target.get(tp)
        rows.append(
            GroupPartition(
                topic=tp.topic,
                partition=tp.partition,
                source_offset=None if committed is None else committed.offset,
                target_offset=opened.get(tp) if found is None else found.offset,
                difference=None if behind is None or tp.topic not in group.topics else behind.get(tp, 0),
                metadata="" if committed is None else committed.metadata,
                note=None if run is None or committed is None else _note(run, tp, committed),
            )
        )
    return rows


def _note(run: GroupRun, tp: TopicPartition, committed: Committed) -> str | None:
    if (said := run.left_out.of(tp, committed.metadata)) is not None:
        return said
    wanted = run.wanted.get(tp)
    if wanted is None or wanted.offset <= committed.offset:
        return None
    return f"the mirror begins at {wanted.offset}: the {wanted.offset - committed.offset} before that are not at the target"


def groups_status(groups: Sequence[MirrorGroup], manager: GroupManager | None) -> GroupsStatus:
    """All groups of a link."""
    states = Counter(GroupState(group.phase.value) for group in groups)
    if manager is not None and (excluded := manager.excluded_readers()):
        states[GroupState.EXCLUDED] = len(excluded)
    runs = {} if manager is None else manager.runs
    held = [run for group in groups if group.phase in HELD_GROUPS and (run := runs.get(group.group))]
    ages = [age for run in held if (age := run.sync_age()) is not None]
    return GroupsStatus(
        groups=len(groups),
        states=states,
        gated=sum(run.gate is not None for run in held),
        sync_age_ms=round(max(ages) * 1000) if ages and len(ages) == len(held) else None,
        sync_ms=round(manager.stats.last_seconds * 1000)
        if manager is not None and manager.stats.rounds
        else None,
        reason=None if manager is None else manager.trouble,
        left_out=[]
        if manager is None
        else [f"{shown_id(name)}: {why}" for name, why in list(manager.left_out.items())[:_MOST_LEFT_OUT]],
    )
