"""One group's way through its phases: gate, promote, demote.

Each step is durable before the next begins. The next link controller repeats it from the phase in the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from controller.decide import groups
from controller.decide.unheld_groups import refusal
from controller.group_phases import GroupPhase
from controller.groups import GateStage
from controller.judge.group_offsets import (
    Committed,
    Offsets,
    differences,
    not_behind,
    wanted_offsets,
)
from controller.mirror_group import GroupProtocol, MirrorGroup
from groups.application_state import refused, see_copied
from groups.confirm import OpeningCheck
from groups.gate_keeper import CALL_TIMEOUT, GateKeeper, HeldUp
from groups.gates.base import CommitFailed, GateLost, GateRefused, GroupActive, LostReason
from groups.group_book import group_offsets, joined
from groups.group_run import some
from groups.left_out import NO_PARTITION, NOT_MIRRORED, LeftOut, not_as_at_source
from groups.other_kinds import configs_that_differ
from groups.source_patience import GaveUp
from groups.tools import Tools
from groups.waits import GroupWaits
from wire.backoff import Backoff
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


class GroupSteps(GroupWaits):
    """Takes the steps of one group."""

    def __init__(self, tools: Tools, keeper: GateKeeper) -> None:
        super().__init__(tools, keeper)
        self._began_here = False  # the opening: not taken over from another process
        self._opening_check = OpeningCheck(tools, keeper)

    async def tend(self) -> None:
        """Take steps until the group rests: gated, promoted, refused or failed. A step that a cluster refuses is
        retried."""
        run, backoff = self._keeper, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        failed: str | None = None
        while (group := self._book.get(self._name)) is not None and (step := self._step(group)) is not None:
            try:
                if failed is not None and self._too_late(group):
                    await self._give_up(group, f"not done in its time: {failed}")
                else:
                    await self._take(step, group)
            except (LinkerError, TimeoutError) as error:
                if failed != str(error):
                    log.warning(
                        "link %s: group %s: %s; tried again", self._book.link, shown_id(self._name), error
                    )
                failed = run.trouble = str(error)
                wait = backoff.next()
                await asyncio.sleep(backoff.first if self._too_late(group) else wait)
            else:
                failed = run.trouble = None
                backoff.reset()
        run.trouble, run.waiting_for, run.still_there = None, None, ()

    async def _take(self, step: Callable[[MirrorGroup], Awaitable[None]], group: MirrorGroup) -> None:
        try:
            await step(group)
        except GateLost as error:
            await self.lost(error)
        except GaveUp as error:
            await self._give_up(group, str(error))

    def _too_late(self, group: MirrorGroup) -> bool:
        """An opening is never given up."""
        until = None if group.move is None else group.move.until
        return until is not None and self._book.now() > until and group.phase is not GroupPhase.OPENING

    def _step(self, group: MirrorGroup) -> Callable[[MirrorGroup], Awaitable[None]] | None:
        match group.phase:
            case GroupPhase.DISCOVERED:
                return self._gate
            case GroupPhase.GATED:
                return self._attach if self._keeper.gate is None else None
            case GroupPhase.DRAINING:
                return self._drain
            case GroupPhase.FINAL_SYNC:
                return self._final_sync
            case GroupPhase.OPENING:
                return self._open
            case GroupPhase.DEMOTING:
                return self._demote
            case GroupPhase.DEMOTED:
                return self._hold_again
            case _:
                return None

    # --- the gate ----------------------------------------------------------------------------------------------------

    async def _gate(self, group: MirrorGroup) -> None:
        """DISCOVERED -> GATED, or REFUSED with the reason."""
        reason = refusal(self._book.image, group)
        if reason is None:
            try:
                if not await self._keeper.hold(group):
                    return
            except GateRefused as error:
                reason = refused(error, group)
        if reason is not None:
            log.warning("link %s: group %s is refused: %s", self._book.link, shown_id(self._name), reason)
            await self._book.step(self._name, GroupPhase.REFUSED, reason=reason, gate_state=None)
            self._keeper.drop()
            return
        gate = self._keeper.gate
        await self._book.step(
            self._name, GroupPhase.GATED, reason=None, gate_state=None if gate is None else gate.record
        )
        log.info(
            "link %s: group %s is held on the target (%s)", self._book.link, shown_id(self._name), group.gate
        )

    async def _attach(self, group: MirrorGroup) -> None:
        """Take over a gate that this process did not close itself."""
        try:
            await self._keeper.hold(group)
        except GateRefused as error:
            await self._failed(str(error))

    async def lost(self, error: GateLost) -> None:
        """Handle a lost gate: closed again if no client came in meanwhile; otherwise the group has failed."""
        log.error("link %s: %s", self._book.link, error)
        group = self._book.get(self._name)
        if group is None:
            return
        if group.phase is GroupPhase.OPENING:
            # It was to open anyway. The next step checks whether clients began at the final offsets.
            reason = joined(group.reason, f"its gate opened by itself: {error}")
            await self._book.amend(self._name, gate_state=None, reason=reason)
            return
        entered = bool(error.members) or error.reason in (LostReason.SOMEBODY_ELSE, LostReason.CONVERTED)
        if entered and group.phase in (GroupPhase.GATED, GroupPhase.DRAINING, GroupPhase.FINAL_SYNC):
            await self._failed(str(error))
        else:
            await self._book.amend(self._name, gate_state=None)

    async def _failed(self, reason: str) -> None:
        self._keeper.drop()
        await self._book.step(self._name, GroupPhase.FAILED, reason=reason, gate_state=None, move=None)
        log.error("link %s: group %s failed: %s", self._book.link, shown_id(self._name), reason)

    # --- promote -----------------------------------------------------------------------------------------------------

    async def _drain(self, group: MirrorGroup) -> None:
        """DRAINING -> FINAL_SYNC when the group has no members at the source."""
        if not await self._ensure_held(group):
            return
        if group.move is None or not group.move.force:
            await self._source.ask(group, lambda: self._wait_empty(group, self._tools.source, "source"))
        await self._book.step(self._name, GroupPhase.FINAL_SYNC)

    async def _ensure_held(self, group: MirrorGroup) -> bool:
        """False if the group has changed meanwhile."""
        if self._keeper.gate is not None:
            return True
        try:
            return await self._keeper.hold(group)
        except GroupActive as error:
            # The members own the offsets; a sync over them would move a consumer.
            raise lost_to(error, group) from error

    async def _final_sync(self, group: MirrorGroup) -> None:
        """FINAL_SYNC -> OPENING: the target has the source's offsets, read back and compared, and the source stood
        still.

        If the source is dead and the promote may go on without it, the last copied offsets count instead.
        """
        if not await self._ensure_held(group):
            return
        force = group.move is not None and group.move.force
        first = await self._source.ask(group, lambda: self._keeper.read_source(stable=not force))
        last, reason = first, None
        if last is None:
            last, reason = self._source.newest(group, await self._keeper.read_target())
        wanted = await self._commit_last(await self._wanted(group, last), force=force)
        if wanted is None:
            return
        if first is not None and group.protocol is GroupProtocol.STREAMS:
            await see_copied(self._tools, group)
        if not force and first is not None:
            await self._wait_empty(group, self._tools.source, "source")
            if await self._keeper.read_source(stable=True) != first:
                return  # it had members once more: again
        if (without := self._keeper.left_out.said(last)) is not None:
            reason = joined(reason, without)
        if first is not None and (differs := self._not_as_at_source(group, last, wanted)) is not None:
            reason = joined(reason, differs)
        await self._book.step(self._name, GroupPhase.OPENING, offsets=group_offsets(wanted), reason=reason)
        self._began_here = True

    def _not_as_at_source(self, group: MirrorGroup, source: Offsets, wanted: Offsets) -> str | None:
        mirrors, link = self._book.image.mirrors, self._book.link
        found = ((topic, mirrors.get((link, topic))) for topic in group.topics)
        late = {topic for topic, one in found if one is not None and one.start != "earliest"}
        return not_as_at_source(source, wanted, self._keeper.target or {}, group.topics, late)

    async def _commit_last(self, wanted: Offsets, *, force: bool) -> Offsets | None:
        """Commit them through the gate, read them back, and return those that the target can have. None: again."""
        left_out = self._keeper.left_out
        try:
            await self._keeper.commit(wanted)
        except HeldUp as error:
            # Clients wait in it and the transaction alone holds them: opening publishes.
            log.warning("link %s: %s", self._book.link, error)
            return left_out.fitting(wanted)
        except CommitFailed as error:
            if not force or not left_out.give_up(error.codes):
                raise
            return None  # all others are committed: again, without these
        wanted = left_out.fitting(wanted)
        if left := differences(wanted, await self._keeper.read_target()):
            raise LinkerError(
                f"group {shown_id(self._name)}: the target's offsets differ after the final sync: {some(left)}"
            )
        return wanted

    async def _wanted(self, group: MirrorGroup, last: Offsets) -> dict[TopicPartition, Committed]:
        mirrored = [tp for tp in last if tp.topic in group.topics]
        exact = self._tools.bounds.exact
        found = await self._source.ask(group, lambda: exact(mirrored, timeout=CALL_TIMEOUT))
        if found is None:
            found = await exact(mirrored, timeout=CALL_TIMEOUT, ask_source=False)
        self._keeper.left_out.gone((), NOT_MIRRORED)  # by now the source has named its partitions
        self._keeper.left_out.gone(found.gone)
        return self._keeper.left_out.fitting(wanted_offsets(last, group.topics, found.bounds))

    async def _open(self, group: MirrorGroup) -> None:
        """OPENING -> PROMOTED."""
        final: Mapping[TopicPartition, Committed] = {
            one.tp: Committed(one.offset, one.metadata) for one in group.offsets
        }
        final = self._keeper.left_out.fitting(final)
        if not self._began_here:
            final = not_behind(final, await self._keeper.read_target())
        with self._tools.first_fetches(final) as began_at:
            reason = group.reason  # of an opening without the source, or of one whose gate was lost
            if not await self._opened(final):
                reason = reason or "its gate opened by itself"
                await self._keeper.see_final(final)
            await self._promoted(group, reason)
            try:
                await self._confirm(final, began_at, reason)
            except (LinkerError, TimeoutError) as error:
                # It is open, so no step may be repeated.
                log.warning(
                    "link %s: group %s is open; whether its members run on the target could not be checked: %s",
                    self._book.link,
                    shown_id(self._name),
                    error,
                )
                await self._opening_check.say(
                    reason, f"open; whether it runs on the target could not be seen: {error}"
                )

    async def _confirm(
        self, final: Offsets, began_at: Mapping[TopicPartition, Mapping[str, int]], reason: str | None
    ) -> None:
        group = self._book.get(self._name)
        if group is not None and group.protocol is GroupProtocol.STREAMS:
            differ = await configs_that_differ(
                self._tools.source, self._tools.target, self._name, timeout=CALL_TIMEOUT
            )
            reason = joined(reason, "; ".join(differ)) if differ else reason
        await self._opening_check.confirm(final, began_at, reason)

    async def _opened(self, final: Offsets) -> bool:
        """As GateKeeper.open. A partition that was deleted since the final sync fails the opening only once."""
        try:
            return await self._keeper.open(final)
        except CommitFailed as error:
            left_out = self._keeper.left_out
            if left_out.refused_again(error.codes) and (without := left_out.said(final)) is not None:
                group = self._book.get(self._name)
                reason = None if group is None else group.reason
                await self._book.amend(self._name, reason=joined(reason, without))
            raise

    async def _promoted(self, group: MirrorGroup, reason: str | None) -> None:
        bare = tuple(one._replace(metadata="") for one in group.offsets)
        await self._book.step(
            self._name, GroupPhase.PROMOTED, reason=reason, gate_state=None, move=None, offsets=bare
        )
        log.info("link %s: group %s is promoted", self._book.link, shown_id(self._name))

    # --- demote ------------------------------------------------------------------------------------------------------

    async def _demote(self, group: MirrorGroup) -> None:
        """DEMOTING -> DEMOTED: hold it on the target again, return its offsets."""
        run = self._keeper
        self._see_way_back(group)
        if run.gate is None:
            record = group.gate_state
            if record is None or record.stage is not GateStage.HELD:
                await self._wait_empty(group, self._tools.target, "target")
            # Else another process has waited. Later clients wait behind the gate, which needs renewals.
            try:
                if not await self._keeper.hold(group):
                    return
            except GroupActive as error:
                raise LinkerError(str(error)) from error  # a client came in between: wait again
        if run.gate is not None and run.gate.weakness() is not None:
            # The remaining part of the gate does not hold every client: some may be reading here.
            await self._wait_empty(group, self._tools.target, "target")
        await self._wait_empty(group, self._tools.source, "source")
        if run.gate is None:
            return  # lost during the wait: again
        on_target = await self._keeper.read_target()
        back = {tp: commit for tp, commit in on_target.items() if tp.topic in group.topics}
        # After the read: as long as no topic is being promoted, the offsets are inside the source's log.
        self._see_way_back(group)
        if (why := groups.promote_in_the_way(self._book.image, group)) is not None:
            raise LinkerError(f"group {shown_id(self._name)} waits with its offsets: {why}")
        left_out = LeftOut()
        if back:
            refused = await self._tools.source.commit_empty(self._name, back, timeout=CALL_TIMEOUT)
            left_out.gone(refused, NO_PARTITION)
        without = left_out.said(back)
        back = left_out.fitting(back)
        left = differences(back, await self._keeper.read_source())
        if left:
            raise LinkerError(
                f"group {shown_id(self._name)}: the source's offsets differ after the demote: {some(left)}"
            )
        link, name, now = self._book.link, self._name, self._book.now()
        said = "its offsets are at the source again" + (f"; {without}" if without else "")
        await self._book.commit(
            lambda image: groups.end_demote(
                image,
                link,
                name,
                now,
                reason=said,
                move=None,
                offsets=group_offsets(back),
            )
        )
        log.info("link %s: group %s is demoted", self._book.link, shown_id(self._name))

    async def _hold_again(self, _group: MirrorGroup) -> None:
        """DEMOTED -> DISCOVERED: a mirrored group like any other; its gate is already closed."""
        await self._book.step(self._name, GroupPhase.DISCOVERED, offsets=(), reason=None)

    async def _give_up(self, group: MirrorGroup, reason: str) -> None:
        """The move's time is over: restore the phase from before."""
        log.warning(
            "link %s: group %s: %s was given up: %s",
            self._book.link,
            shown_id(self._name),
            group.phase,
            reason,
        )
        if group.phase is GroupPhase.DEMOTING:

            async def promoted_again() -> None:
                await self._book.step(
                    self._name,
                    GroupPhase.PROMOTED,
                    reason=f"demote given up: {reason}",
                    move=None,
                    gate_state=None,
                )

            await self._keeper.release(promoted_again, still=lambda now: now.phase is GroupPhase.DEMOTING)
            return
        await self._rest_again(group, f"promote given up: {reason}")

    async def _rest_again(self, _group: MirrorGroup, reason: str) -> None:
        await self._book.step(self._name, GroupPhase.GATED, reason=reason, move=None)


def lost_to(error: GroupActive, group: MirrorGroup) -> GateLost:
    return GateLost(group.group, group.gate, LostReason.SOMEBODY_ELSE, str(error), members=error.members)
