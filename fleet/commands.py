"""Commands to all sidecars that matter: fences, and the steps around a hand-over.

A fence waits for every sidecar whose lease may still hold; other commands wait for connected sidecars, up to a
deadline.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from controller.errors import ControllerError
from fleet import messages as m
from fleet.lease import Holder
from fleet.progress import CopyReport, ReportBook, decode_copies
from fleet.roster import MemberInfo, Roster
from wire.client.waiting import until_set
from wire.frames.types import TopicPartition

Tell = Literal["unfence", "handed_over", "answered"]

_TICK = 0.1
_ASK_PROGRESS = 0.25


class FleetIncomplete(ControllerError):
    """A sidecar that may still acknowledge writes did not carry out a command in time."""


@dataclass(slots=True)
class _Pending:
    """A command under way."""

    message: m.Command
    waiting: set[Holder]
    everybody: bool  # sidecars that connect meanwhile are told too
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    errors: dict[Holder, str] = field(default_factory=dict)
    again: set[Holder] = field(default_factory=set)
    ends: dict[TopicPartition, int] = field(default_factory=dict)


class Commands:
    """Commands under way, each with the sidecars that have not carried it out yet."""

    def __init__(self, roster: Roster, book: ReportBook, clock: Callable[[], float]) -> None:
        self._roster = roster
        self._book = book
        self._clock = clock
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        #: This very sidecar's copies, if they can be read without a message.
        self.own_copies: Callable[[str, Collection[TopicPartition]], Sequence[CopyReport]] | None = None

    def waiting(self) -> list[tuple[m.Command, list[int]]]:
        """Commands under way, each with the sidecars that have not carried it out yet."""
        return [
            (pending.message, sorted({holder.broker_id for holder in pending.waiting}))
            for pending in self._pending.values()
        ]

    def look(self) -> None:
        """Check the commands after an event outside: a lease is over, a sidecar left."""
        for pending in self._pending.values():
            pending.changed.set()

    def greet(self, member: MemberInfo) -> None:
        """Send a newly connected member the commands under way that concern it."""
        for pending in self._pending.values():
            if pending.everybody or member.holder in pending.waiting:
                pending.waiting.add(member.holder)
                member.channel.send(m.encode(pending.message))

    async def fence(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Return when no sidecar can acknowledge a write of these partitions any more that the source has not answered
        already. FleetIncomplete if a sidecar that may still do so is silent until the deadline."""
        holders = set(self._roster.leases.may_hold(self._clock())) | {
            x.holder for x in self._roster.members.values()
        }
        pending = self._command("fence", link, tps, timeout, holders, everybody=True)
        deadline = self._clock() + timeout
        try:
            while True:
                now = self._clock()
                bound = set(self._roster.leases.may_hold(now))
                connected = {x.holder for x in self._roster.members.values()}
                # Its lease is over, so its acts no longer count. A connected one without a lease yet got the fence first.
                pending.waiting &= bound | connected
                for holder in [h for h in pending.waiting if h not in bound]:
                    pending.waiting.discard(holder)
                if not pending.waiting:
                    return
                if now >= deadline:
                    raise FleetIncomplete(self._silent(pending, now))
                for member in [x for x in self._roster.members.values() if x.holder in pending.again]:
                    self._roster.send(member, pending.message)
                pending.again.clear()
                await until_set(pending.changed, min(deadline - now, _TICK))
        finally:
            self._pending.pop(pending.message.id, None)

    def _silent(self, pending: _Pending, now: float) -> str:
        texts = []
        for holder in sorted(pending.waiting, key=lambda h: h.broker_id):
            why = pending.errors.get(holder)
            if why is None:
                where = "is connected" if holder.broker_id in self._roster.members else "is away"
                why = f"{where}, and {self._roster.lease_end(holder, now)}"
            texts.append(f"sidecar {holder.broker_id}: {why}")
        return f"the fence is not complete: {'; '.join(texts)}"

    async def tell(self, what: Tell, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Send to every connected sidecar; the others follow the image. Returns when all of them have done it or are
        gone, or at the deadline."""
        await self._until_done(what, link, tps, timeout, set(self._roster.members))

    async def ask_progress(
        self, link: str, tps: Collection[TopicPartition], brokers: Collection[int], timeout: float
    ) -> None:
        """fleet.progress.AskProgress"""
        others = set(brokers)
        for member in list(self._roster.members.values()):
            if member.local and self.own_copies is not None and member.hello.broker_id in others:
                # A message takes its turns of the event loop, which are long under load, and is encoded and checked for
                # nothing: a promote looks every few milliseconds while producers wait.
                self._book.note(member.hello.broker_id, self.own_copies(link, tps), self._clock())
                others.discard(member.hello.broker_id)
        if others:
            await self._until_done("progress", link, tps, min(timeout, _ASK_PROGRESS), others)

    async def hold(self, link: str, tps: Collection[TopicPartition], broker: int, *, timeout: float) -> None:
        """Fence at one sidecar, around a planned change of leader: for order and latency, not for safety."""
        await self._until_done("hold", link, tps, timeout, {broker})

    async def release(
        self, link: str, tps: Collection[TopicPartition], broker: int, *, timeout: float
    ) -> None:
        """Undo `hold`: held produces are forwarded, or answered with the new leader if there is one."""
        await self._until_done("release", link, tps, timeout, {broker})

    async def stop_following(
        self, link: str, tps: Collection[TopicPartition], sidecar: int, *, timeout: float
    ) -> dict[TopicPartition, int]:
        """One sidecar, which follows them at the source, asks for nothing more; the end of each, once the replicas of their
        mirrors have it. FleetIncomplete if it does not tell in time."""
        pending = await self._until_done("stop_following", link, tps, timeout, {sidecar})
        if set(pending.ends) < set(tps):
            why = next(iter(pending.errors.values()), "it is away, or does not answer in time")
            raise FleetIncomplete(f"where the source ends is not known: sidecar {sidecar}: {why}")
        return pending.ends

    def follow_again(self, link: str, tps: Collection[TopicPartition]) -> None:
        """Undo `stop_following`, whoever carried it out. Not waited for: the state tells it, too, in the end."""
        brokers = {x.holder for x in self._roster.members.values()}
        self._pending.pop(self._command("follow_again", link, tps, 0.0, brokers, everybody=False).message.id)

    async def _until_done(
        self, what: str, link: str, tps: Collection[TopicPartition], timeout: float, brokers: set[int]
    ) -> _Pending:
        holders = {x.holder for x in self._roster.members.values() if x.hello.broker_id in brokers}
        pending = self._command(what, link, tps, timeout, holders, everybody=False)
        deadline = self._clock() + timeout
        try:
            while True:
                now = self._clock()
                pending.waiting &= {
                    x.holder
                    for x in self._roster.members.values()
                    if not self._roster.is_dead(x.hello.broker_id, now)
                }
                if not pending.waiting or now >= deadline:
                    return pending
                await until_set(pending.changed, min(deadline - now, _TICK))
        finally:
            self._pending.pop(pending.message.id, None)

    def _command(
        self,
        what: str,
        link: str,
        tps: Collection[TopicPartition],
        timeout: float,
        holders: set[Holder],
        *,
        everybody: bool,
    ) -> _Pending:
        message = m.Command.model_validate(
            {
                "id": next(self._ids),
                "controller_epoch": self._roster.controller.controller_epoch,
                "what": what,
                "link": link,
                "partitions": [(tp.topic, tp.partition) for tp in sorted(tps)],
                "timeout": timeout,
            },
            strict=False,
        )
        pending = self._pending[message.id] = _Pending(message, holders, everybody)
        for member in list(self._roster.members.values()):
            if member.holder in holders:
                self._roster.send(member, message)
        return pending

    def done(self, member: MemberInfo, done: m.Done) -> None:
        if done.data is not None:
            self._book.note(member.hello.broker_id, decode_copies(done.data), self._clock())
        pending = self._pending.get(done.command)
        if pending is None:
            return
        if member.holder in pending.waiting:
            pending.ends |= {TopicPartition(topic, index): end for topic, index, end in done.ends or ()}
        if done.error is None:
            pending.waiting.discard(member.holder)
            pending.errors.pop(member.holder, None)
        else:
            pending.errors[member.holder] = done.error
            if pending.everybody:
                pending.again.add(member.holder)  # until it is done, or does not matter any more
            else:
                pending.waiting.discard(member.holder)
        pending.changed.set()
