"""What is durable about a link's groups: reading it, and changing it through the link controller.

Gates write their records often (a younger transaction, a member epoch). Saves that come while a commit is under way go
together with the next one, so that thousands of gates cost the store a few commits a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from controller import group_decisions
from controller.group_phases import GroupPhase
from controller.groups import GateRecord
from controller.image import ControllerImage
from controller.manager import LinkController, wall_clock_ms
from controller.state import MirrorGroup, Record


class GroupBook:
    """The groups of one link in the controller's state."""

    def __init__(self, link: str, controller: LinkController, now: Callable[[], int] = wall_clock_ms) -> None:
        self.link = link
        self.controller = controller
        self.now = now
        self._turn = asyncio.Lock()
        self._pending: dict[str, tuple[GateRecord, list[asyncio.Future[None]]]] = {}

    @property
    def image(self) -> ControllerImage:
        return self.controller.image

    def get(self, name: str) -> MirrorGroup | None:
        return self.image.groups.get((self.link, name))

    def all(self) -> list[MirrorGroup]:
        return self.image.link_groups(self.link)

    async def commit(self, decide: Callable[[ControllerImage], Sequence[Record]]) -> None:
        await self.controller.decide(lambda image: (decide(image), None))

    async def step(self, name: str, phase: GroupPhase, **fields: Any) -> None:
        """Move a group to a phase, durably."""
        now = self.now()
        await self.commit(lambda image: group_decisions.step(image, self.link, name, phase, now, **fields))

    async def amend(self, name: str, **fields: Any) -> None:
        await self.commit(lambda image: group_decisions.amend(image, self.link, name, **fields))

    async def save_gate(self, record: GateRecord) -> None:
        """Returns when it is durable. A group that is no longer mirrored has nothing to save."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _, waiting = self._pending.get(record.group, (record, []))
        self._pending[record.group] = (record, [*waiting, done])
        async with self._turn:
            if not done.done():
                await self._save_pending()
        await done

    async def _save_pending(self) -> None:
        taken, self._pending = self._pending, {}
        waiting = [done for _, futures in taken.values() for done in futures]

        def decide(image: ControllerImage) -> list[Record]:
            records: list[Record] = []
            for name, (record, _) in taken.items():
                if (self.link, name) in image.groups:
                    records += group_decisions.amend(image, self.link, name, gate_state=record)
            return records

        try:
            await self.commit(decide)
        except BaseException as error:
            # One caller does it for all of them: whatever ends it, the others must not wait for ever.
            failure = error if isinstance(error, Exception) else asyncio.CancelledError()
            for done in waiting:
                if not done.done():
                    done.set_exception(failure) if isinstance(failure, Exception) else done.cancel()
            raise
        for done in waiting:
            if not done.done():
                done.set_result(None)
