"""The part that all steps of a group share: the group, its tools, and the wait until nobody is in it at a cluster."""

from __future__ import annotations

import asyncio

from controller.decide import groups
from controller.group_phases import GroupPhase
from controller.mirror_group import MirrorGroup
from groups.confirm import LOOK
from groups.gate_keeper import GateKeeper, is_gate
from groups.group_book import GroupBook
from groups.group_reader import GroupReader
from groups.group_run import who
from groups.source_patience import GaveUp, SourcePatience
from groups.tools import Tools
from groups.views import GroupView


class GroupWaits:
    """Of one group."""

    def __init__(self, tools: Tools, keeper: GateKeeper) -> None:
        self._tools = tools
        self._keeper = keeper
        self._source = SourcePatience(tools.book, keeper)

    @property
    def _name(self) -> str:
        return self._keeper.name

    @property
    def _book(self) -> GroupBook:
        return self._tools.book

    async def _wait_empty(self, group: MirrorGroup, reader: GroupReader, where: str) -> GroupView:
        """Wait until the group has no member but our gate's; at the source, or until a promote need not wait for that
        any more. GaveUp when the move's time is over."""
        run = self._keeper
        while True:
            view = await self._keeper.look(reader)
            if reader is self._tools.source:
                run.source_view = view
                self._source.answered()
            if group.phase is GroupPhase.DEMOTING:
                self._see_way_back(group)
            # The gate's member may have joined meanwhile, under a member id that was saved before.
            known = self._book.get(self._name) or group
            others = tuple(one for one in view.members if not is_gate(one.member_id, known))
            forced = known.move is not None and known.move.force and reader is self._tools.source
            if view.empty or (view.members and not others) or forced:
                run.waiting_for, run.still_there = None, ()
                return view
            run.still_there = others
            run.waiting_for = f"still in the group at the {where}: {who(others) or view.state}"
            until = None if known.move is None else known.move.until
            if until is not None and self._book.now() >= until:
                raise GaveUp(run.waiting_for)
            await asyncio.sleep(LOOK)

    def _see_way_back(self, group: MirrorGroup) -> None:
        """Raise GaveUp if a topic of the group was promoted, or failed over, since the demote was accepted."""
        if (why := groups.no_way_back(self._book.image, group)) is not None:
            raise GaveUp(why)
