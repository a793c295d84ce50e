"""What is to be seen of a group after its opening: that it runs, and that its members began at the committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.judge.group_offsets import Offsets
from groups.gates import GroupMember
from groups.group_run import who
from groups.views import GroupView
from wire.frames.types import TopicPartition

CONFIRM_TIMEOUT = 15.0
POSITIONS_TIMEOUT = 3.0  # after the members have partitions: some are read elsewhere, and never seen


def positions(
    running: Sequence[GroupMember],
    final: Offsets,
    began_at: Mapping[TopicPartition, Mapping[str, int]],
) -> dict[TopicPartition, int]:
    """Where members that have partitions began to read them, as far as that was seen."""
    return {
        tp: began_at[tp][member.client_id]
        for member in running
        for tp in member.partitions
        if tp in final and member.client_id in began_at.get(tp, {})
    }


def confirmation(
    view: GroupView,
    running: Sequence[GroupMember],
    final: Offsets,
    places: Mapping[TopicPartition, int],
    behind: Mapping[TopicPartition, int],
) -> tuple[str, bool]:
    """What is said of a group that was opened, and whether something is wrong with it."""
    if view.empty:
        text = "open; nobody is in it on the target yet"
    elif not running:
        text = f"open, but its members have no partitions after {CONFIRM_TIMEOUT:.0f} s: {who(view.members)}"
    else:
        text = f"runs on the target: {len(view.members)} members, {len(running)} with partitions"
    elsewhere = {tp: at for tp, at in places.items() if at != final[tp].offset}
    if elsewhere:
        shown = [
            f"{tp.topic}-{tp.partition} at {at}, not {final[tp].offset}"
            for tp, at in sorted(elsewhere.items())[:5]
        ]
        text += f"; clients of its members' ids began elsewhere: {', '.join(shown)}"
    elif places:
        text += f"; {len(places)} partitions were seen to be read from their committed offsets on"
    if behind:
        text += f"; its offsets went back after the opening: {some(behind)}"
    return text, bool(elsewhere or behind)


def some(left: Mapping[TopicPartition, int]) -> str:
    """Partitions with their differences, the first of them."""
    shown = [f"{tp.topic}-{tp.partition} by {step}" for tp, step in sorted(left.items())[:5]]
    return ", ".join(shown) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
