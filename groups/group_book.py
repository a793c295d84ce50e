"""The durable state of a link's groups: read here, changed through the link controller.

Gates write their records often (a younger transaction, a member epoch). Saves that arrive during a commit go together
with the next one, as many as fit, so that thousands of gates cost the store a few commits a second. The commit belongs
to the book, not to one of its callers: cancelling a caller does not cancel the commit of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from controller.decide import groups
from controller.group_phases import GroupPhase
from controller.groups import GateRecord
from controller.image import ControllerImage
from controller.judge.group_offsets import Offsets
from controller.mirror_group import GroupOffset, MirrorGroup
from controller.portions import MOST_BYTES, weight
from controller.state import Record
from fleet.link_controller import LinkController, wall_clock_ms
from wire.errors import LinkerError


class GroupBook:
    """The groups of one link in the controller's state; `close` when no task works on them any more."""

    def __init__(self, link: str, controller: LinkController) -> None:
        self.link = link
        self.controller = controller
        self.now = wall_clock_ms
        # By group: the newest record, and one future per caller that waits for it to be durable.
        self._pending: dict[str, tuple[GateRecord, list[asyncio.Future[None]]]] = {}
        self._saver: asyncio.Task[None] | None = None
        self._closed = False

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
        await self.commit(lambda image: groups.step(image, self.link, name, phase, now, **fields))

    async def amend(self, name: str, **fields: Any) -> None:
        await self.commit(lambda image: groups.amend(image, self.link, name, **fields))

    async def save_gate(self, record: GateRecord) -> None:
        """Returns when it is durable; nothing to do for a group that is no longer mirrored. A cancelled caller does
        not know whether the record was saved, as with any commit."""
        if self._closed:
            raise self._closing()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _, waiting = self._pending.get(record.group, (record, []))
        self._pending[record.group] = (record, [*waiting, done])
        if self._saver is None or self._saver.done():
            self._saver = asyncio.create_task(self._save_pending(), name=f"{self.link}: gates are saved")
        await done

    async def close(self) -> None:
        """Give up the commit under way, and tell its callers."""
        self._closed = True
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.wait([self._saver])
        pending, self._pending = self._pending, {}
        for _, waiting in pending.values():
            _fail(waiting, self._closing())

    def _closing(self) -> LinkerError:
        return LinkerError(f"link {self.link}: its groups are not looked after here any more")

    async def _save_pending(self) -> None:
        """Commit after commit until nothing is pending. Errors go to the callers."""
        while self._pending:
            taken = self._taken()
            # A record without a waiting caller belongs to a step that is not taken.
            wanted = {
                name: record
                for name, (record, futures) in taken.items()
                if not all(done.done() for done in futures)
            }
            waiting = [done for _, futures in taken.values() for done in futures]
            try:
                await self._save(wanted)
            except asyncio.CancelledError:
                _fail(waiting, self._closing())
                raise
            except Exception as error:
                _fail(waiting, error)
            else:
                for done in waiting:
                    if not done.done():
                        done.set_result(None)

    def _taken(self) -> dict[str, tuple[GateRecord, list[asyncio.Future[None]]]]:
        """Those that waited longest, as many as fit in one commit of every store; the others go with the next one."""
        taken: dict[str, tuple[GateRecord, list[asyncio.Future[None]]]] = {}
        room = MOST_BYTES
        for name, (record, waiting) in tuple(self._pending.items()):
            known = self.get(name)
            room -= 0 if known is None else weight(replace(known, gate_state=record))
            if taken and room < 0:
                break
            del self._pending[name]
            taken[name] = (record, waiting)
        return taken

    async def _save(self, gates: dict[str, GateRecord]) -> None:
        def decide(image: ControllerImage) -> list[Record]:
            records: list[Record] = []
            for name, record in gates.items():
                if (self.link, name) in image.groups:
                    records += groups.amend(image, self.link, name, gate_state=record)
            return records

        if gates:
            await self.commit(decide)


def _fail(waiting: Iterable[asyncio.Future[None]], error: Exception) -> None:
    for done in waiting:
        if not done.done():
            done.set_exception(error)


def joined(reason: str | None, more: str) -> str:
    return more if reason is None else f"{reason}; {more}"


def group_offsets(offsets: Offsets) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(tp.topic, tp.partition, commit.offset, commit.metadata)
        for tp, commit in sorted(offsets.items())
    )
