"""Small forms in which a group's steps are written down: its reason, its offsets, and who it was lost to."""

from __future__ import annotations

from controller.judge.group_offsets import Offsets
from controller.state import GroupOffset, MirrorGroup
from groups.gates import GateLost, GroupActive, LostReason


def joined(reason: str | None, more: str) -> str:
    return more if reason is None else f"{reason}; {more}"


def lost_to(error: GroupActive, group: MirrorGroup) -> GateLost:
    return GateLost(group.group, group.gate, LostReason.SOMEBODY_ELSE, str(error), members=error.members)


def group_offsets(offsets: Offsets) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(tp.topic, tp.partition, commit.offset, commit.metadata)
        for tp, commit in sorted(offsets.items())
    )
