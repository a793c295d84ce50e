"""Checks after the opening of a group: it runs, and its members began at the committed offsets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from controller.group_phases import GroupPhase
from controller.judge.group_offsets import Offsets, behind_by
from groups.gate_keeper import GateKeeper
from groups.gates.base import GroupMember
from groups.group_book import joined
from groups.group_run import some, who
from groups.tools import Tools
from groups.views import GroupView
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

log = logging.getLogger(__name__)

LOOK = 0.3  # between looks at a group that is waited for
CONFIRM_TIMEOUT = 15.0
POSITIONS_TIMEOUT = 3.0  # after the members have partitions: some are read elsewhere, and never seen


class OpeningCheck:
    """Watches one group after its opening, and records the result."""

    def __init__(self, tools: Tools, keeper: GateKeeper) -> None:
        self._tools = tools
        self._keeper = keeper
        self._name = keeper.name

    async def confirm(
        self,
        final: Offsets,
        began_at: Mapping[TopicPartition, Mapping[str, int]],
        reason: str | None,
    ) -> None:
        """Check that the group runs on the target, if it has members, and that they began at the committed offsets."""
        running_since: float | None = None
        deadline = time.monotonic() + CONFIRM_TIMEOUT
        while True:
            group = self._tools.book.get(self._name)
            if group is None or group.phase is not GroupPhase.PROMOTED:
                return  # it is demoted already
            view = await self._keeper.look(self._tools.target)
            now = time.monotonic()
            running = [member for member in view.members if member.partitions]
            if running and running_since is None:
                running_since = now
            places = positions(running, final, began_at)
            whole = len(places) == sum(tp in final for member in running for tp in member.partitions)
            seen_enough = running_since is not None and (whole or now - running_since > POSITIONS_TIMEOUT)
            if view.empty or seen_enough or now > deadline:
                break
            await asyncio.sleep(LOOK)
        behind = behind_by(final, await self._keeper.read_target())
        text, wrong = confirmation(view, running, final, places, behind)
        if wrong:
            log.error("link %s: group %s: %s", self._tools.book.link, shown_id(self._name), text)
        await self.say(reason, text)

    async def say(self, reason: str | None, text: str) -> None:
        known = self._tools.book.get(self._name)
        if known is not None and known.phase is GroupPhase.PROMOTED:
            await self._tools.book.amend(self._name, reason=joined(reason, text))


def positions(
    running: Sequence[GroupMember],
    final: Offsets,
    began_at: Mapping[TopicPartition, Mapping[str, int]],
) -> dict[TopicPartition, int]:
    """First fetch positions of the members that have partitions, where they were seen."""
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
    """The text about an opened group, and whether something is wrong with it."""
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
