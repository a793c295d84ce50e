"""One group's way through its phases: gate, promote, demote. Each step is durable before the next begins, and is taken
again by the next link controller from where the store says it stands.

Not here: when offsets are synced and gates renewed (manager.py), which groups there are (discovery.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from controller import group_decisions
from controller.group_phases import GroupPhase
from controller.group_sync import Committed, Offsets, differences, not_behind, to_commit, wanted_offsets
from controller.groups import GateRecord, GateStage
from controller.state import GroupOffset, MirrorGroup
from linker.groups.book import GroupBook
from linker.groups.bounds import TargetBounds
from linker.groups.confirm import CONFIRM_TIMEOUT, POSITIONS_TIMEOUT, confirmation, positions, some
from linker.groups.gates import (
    NO_OFFSET,
    Gate,
    GateLost,
    GateRefused,
    GroupActive,
    LostReason,
    OffsetAndMetadata,
    Save,
)
from linker.groups.group_reader import GroupReader, GroupView
from linker.groups.run import GroupRun, who
from wire.errors import LinkerError
from wire.types import TopicPartition

log = logging.getLogger(__name__)

CALL_TIMEOUT = 10.0
_LOOK = 0.3  # between looks at a group that is waited for
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_FINAL = frozenset({GroupPhase.FINAL_SYNC})


class GateMaker(Protocol):
    """Plans and builds gates on the target."""

    def plan(self, group: MirrorGroup, seen: GroupView | None) -> GateRecord:
        """A new gate of the group's kind; nothing is asked or told yet."""
        ...

    def build(self, record: GateRecord, save: Save) -> Gate: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What the work on one link's groups shares."""

    book: GroupBook
    source: GroupReader
    target: GroupReader
    bounds: TargetBounds
    gates: GateMaker
    #: Partitions of a mirrored topic.
    partitions: Callable[[str], int]
    #: As many gates are closed at the same time.
    closing: asyncio.Semaphore
    #: What clients ask for first, of partitions that are read through this sidecar: client id -> offset.
    first_fetches: Callable[
        [Collection[TopicPartition]],
        AbstractContextManager[Mapping[TopicPartition, Mapping[str, int]]],
    ]


class GaveUp(LinkerError):
    """A promote or demote that waited as long as it was told to."""


class Tender:
    """Takes the steps of one group."""

    def __init__(self, tools: Tools, run: GroupRun) -> None:
        self._tools = tools
        self._run = run
        self._began_here = False  # the opening: not taken over from another process

    @property
    def _name(self) -> str:
        return self._run.name

    @property
    def _book(self) -> GroupBook:
        return self._tools.book

    async def tend(self) -> None:
        """Until the group rests: gated, promoted, refused or failed. What a cluster refuses now is tried again."""
        pause = _FIRST_PAUSE
        while (group := self._book.get(self._name)) is not None:
            step = self._step(group)
            if step is None:
                break
            try:
                await step(group)
                self._run.trouble = None
                pause = _FIRST_PAUSE
            except GateLost as error:
                await self.lost(error)
            except GaveUp as error:
                await self._give_up(group, str(error))
            except (LinkerError, TimeoutError) as error:
                if self._run.trouble != str(error):
                    log.warning("link %s: group %s: %s (again)", self._book.link, self._name, error)
                self._run.trouble = str(error)
                if self._too_late(group):
                    await self._give_up(group, f"not done in its time: {error}")
                    continue
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        self._run.waiting_for, self._run.still_there = None, ()

    def _too_late(self, group: MirrorGroup) -> bool:
        """An opening is never given up."""
        until = None if group.move is None else group.move.until
        return until is not None and self._book.now() > until and group.phase is not GroupPhase.OPENING

    def _step(self, group: MirrorGroup) -> Callable[[MirrorGroup], Awaitable[None]] | None:
        match group.phase:
            case GroupPhase.DISCOVERED:
                return self._gate
            case GroupPhase.GATED:
                return self._attach if self._run.gate is None else None
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
        reason = group_decisions.refusal(self._book.image, group)
        if reason is None:
            try:
                await self.hold(group)
            except GateRefused as error:
                reason = str(error)
        if reason is not None:
            log.warning("link %s: group %s is refused: %s", self._book.link, self._name, reason)
            await self._book.step(self._name, GroupPhase.REFUSED, reason=reason, gate_state=None)
            self._drop_gate()
            return
        gate = self._run.gate
        await self._book.step(
            self._name, GroupPhase.GATED, reason=None, gate_state=None if gate is None else gate.record
        )
        log.info("link %s: group %s is held on the target (%s)", self._book.link, self._name, group.gate)

    async def _attach(self, group: MirrorGroup) -> None:
        """Take over what this process did not close itself."""
        try:
            await self.hold(group)
        except GateRefused as error:
            await self._failed(str(error))

    async def hold(self, group: MirrorGroup) -> None:
        """Close the gate, take it over, or extend it to what the group reads now. Raises as Gate.close."""
        run = self._run
        if run.source is None:
            await self._read_source()
        assignment, reads = self._assignment(group), self._reads(group)
        async with self._tools.closing, run.lock:
            gate = run.gate
            if gate is None:
                record = group.gate_state
                if record is None or record.kind is not group.gate or record.stage is GateStage.OPEN:
                    record = self._tools.gates.plan(group, run.source_view)
                gate = self._tools.gates.build(record, self._book.save_gate)
            closed = await gate.close(assignment)
            run.gate = gate
            run.covered = frozenset(assignment)
            run.covered_for = reads
        known = self._book.get(self._name)
        if known is not None and known.gate_state != closed:
            await self._book.save_gate(closed)

    def uncovered(self, group: MirrorGroup) -> bool:
        """Whether the group may read partitions that its gate does not hold. Asked of every group in every round."""
        run = self._run
        if run.gate is None or run.covered_for == self._reads(group):
            return False
        return not run.covered >= self._assignment(group).keys()

    def _reads(self, group: MirrorGroup) -> tuple[object, ...]:
        """Changes when `_assignment` may have got further partitions."""
        sizes = tuple(map(self._tools.partitions, group.topics))
        return group.topics, group.unmirrored, sizes, len(self._run.source or ())

    def _assignment(self, group: MirrorGroup) -> dict[TopicPartition, int]:
        """Every partition that it may read. Topics that are not mirrored are held too, where the source tells of their
        partitions: the target may have topics of that name."""
        source = self._run.source or {}
        covered = {
            TopicPartition(topic, partition): NO_OFFSET
            for topic in group.topics
            for partition in range(self._tools.partitions(topic))
        }
        reads = {*group.topics, *group.unmirrored}
        covered.update((tp, NO_OFFSET) for tp in source if tp.topic in reads)
        bounds = self._tools.bounds.known(source)
        for tp, commit in wanted_offsets(source, group.topics, bounds).items():
            covered[tp] = commit.offset
        return covered

    def _drop_gate(self) -> None:
        self._run.gate = None
        self._run.covered, self._run.covered_for = frozenset(), None

    async def lost(self, error: GateLost) -> None:
        """A gate that holds no longer: closed anew if nobody came in meanwhile, else it is too late."""
        log.error("link %s: %s", self._book.link, error)
        self._drop_gate()
        self._run.target = None  # whoever was in may have committed
        group = self._book.get(self._name)
        if group is None:
            return
        if group.phase is GroupPhase.OPENING:
            # It was to open anyway, and the final offsets are committed.
            await self._promoted(group, f"its gate opened by itself: {error}")
            return
        entered = bool(error.members) or error.reason in (LostReason.SOMEBODY_ELSE, LostReason.CONVERTED)
        if entered and group.phase in (GroupPhase.GATED, GroupPhase.DRAINING, GroupPhase.FINAL_SYNC):
            await self._failed(str(error))
        else:
            await self._book.amend(self._name, gate_state=None)

    async def _failed(self, reason: str) -> None:
        self._drop_gate()
        await self._book.step(self._name, GroupPhase.FAILED, reason=reason, gate_state=None, move=None)
        log.error("link %s: group %s failed: %s", self._book.link, self._name, reason)

    # --- promote -----------------------------------------------------------------------------------------------------

    async def _drain(self, group: MirrorGroup) -> None:
        """DRAINING -> FINAL_SYNC when nobody is in the group at the source."""
        await self._ensure_held(group)
        if group.move is None or not group.move.force:
            await self._wait_empty(group, self._tools.source, "source")
        await self._book.step(self._name, GroupPhase.FINAL_SYNC)

    async def _ensure_held(self, group: MirrorGroup) -> None:
        if self._run.gate is None:
            try:
                await self.hold(group)
            except GroupActive as error:
                # Whoever is in has the offsets; to sync over them would move a consumer.
                raise _lost_to(error, group) from error

    async def _wait_empty(self, group: MirrorGroup, reader: GroupReader, where: str) -> GroupView:
        """GaveUp when the move's time is over."""
        run = self._run
        while True:
            view = await self._look(reader)
            if reader is self._tools.source:
                run.source_view = view
            if view.empty:
                run.waiting_for, run.still_there = None, ()
                return view
            run.still_there = view.members
            run.waiting_for = f"still in the group at the {where}: {who(view.members) or view.state}"
            until = None if group.move is None else group.move.until
            if until is not None and self._book.now() >= until:
                raise GaveUp(run.waiting_for)
            await asyncio.sleep(_LOOK)

    async def _look(self, reader: GroupReader) -> GroupView:
        views, failed = await reader.describe([self._name], timeout=CALL_TIMEOUT)
        if self._name in failed:
            raise LinkerError(f"group {self._name} cannot be described: {failed[self._name]}")
        return views[self._name]

    async def _final_sync(self, group: MirrorGroup) -> None:
        """FINAL_SYNC -> OPENING: the target has what the source has, asked and compared, and the source stood still."""
        await self._ensure_held(group)
        force = group.move is not None and group.move.force
        first = await self._read_source(stable=not force)
        wanted = await self._wanted(group, first)
        await self.commit(wanted)
        on_target = await self._read_target()
        left = differences(wanted, on_target)
        if left:
            raise LinkerError(
                f"group {self._name}: the target's offsets differ after the final sync: {some(left)}"
            )
        if not force:
            await self._wait_empty(group, self._tools.source, "source")
            if await self._read_source(stable=True) != first:
                return  # somebody was in it once more: again
        await self._book.step(self._name, GroupPhase.OPENING, offsets=_group_offsets(wanted))
        self._began_here = True

    async def _wanted(self, group: MirrorGroup, source: Offsets) -> dict[TopicPartition, Committed]:
        mirrored = [tp for tp in source if tp.topic in group.topics]
        bounds = await self._tools.bounds.exact(mirrored, timeout=CALL_TIMEOUT)
        return wanted_offsets(source, group.topics, bounds)

    async def commit(self, wanted: Offsets, phases: Collection[GroupPhase] = _FINAL) -> int:
        """Through the gate, what the target does not have; how many that were. Raises GateLost, GroupActive, CommitFailed.

        Only while the group is in one of `phases`: what was read before the final sync must not be written after it.
        """
        run = self._run
        if run.target is None:
            await self._read_target()
        async with run.lock:
            group, target = self._book.get(self._name), run.target
            if group is None or group.phase not in phases or target is None:
                return 0
            if run.gate is None:
                raise LinkerError(f"group {self._name} is not held yet")
            changes = to_commit(wanted, target)
            if changes:
                await run.gate.commit({tp: _with_metadata(commit) for tp, commit in changes.items()})
            target.update(changes)
            run.wanted = dict(wanted)
            return len(changes)

    async def _read_source(self, *, stable: bool = False) -> Mapping[TopicPartition, Committed]:
        answer = await self._tools.source.offsets([self._name], timeout=CALL_TIMEOUT, stable=stable)
        reason = answer.failed.get(self._name) or answer.unstable.get(self._name)
        if reason is not None:
            raise LinkerError(f"the offsets of group {self._name} cannot be read at the source: {reason}")
        self._run.source = answer.found[self._name]
        return answer.found[self._name]

    async def _read_target(self) -> dict[TopicPartition, Committed]:
        answer = await self._tools.target.offsets([self._name], timeout=CALL_TIMEOUT)
        if self._name in answer.failed:
            raise LinkerError(
                f"the offsets of group {self._name} cannot be read on the target: {answer.failed[self._name]}"
            )
        self._run.target = dict(answer.found[self._name])
        return self._run.target

    async def _open(self, group: MirrorGroup) -> None:
        """OPENING -> PROMOTED."""
        run = self._run
        final: Mapping[TopicPartition, Committed] = {
            one.tp: Committed(one.offset, one.metadata) for one in group.offsets
        }
        if not self._began_here:
            final = not_behind(final, await self._read_target())
        with self._tools.first_fetches(final) as began_at:
            async with run.lock:
                gate = run.gate
                if gate is None and group.gate_state is not None:
                    gate = run.gate = self._tools.gates.build(group.gate_state, self._book.save_gate)
                if gate is not None:
                    await gate.open({tp: _with_metadata(commit) for tp, commit in final.items()})
                self._drop_gate()
            await self._promoted(group, None)
            await self._confirm(final, began_at)

    async def _promoted(self, group: MirrorGroup, reason: str | None) -> None:
        bare = tuple(one._replace(metadata="") for one in group.offsets)
        await self._book.step(
            self._name, GroupPhase.PROMOTED, reason=reason, gate_state=None, move=None, offsets=bare
        )
        log.info("link %s: group %s is promoted", self._book.link, self._name)

    async def _confirm(self, final: Offsets, began_at: Mapping[TopicPartition, Mapping[str, int]]) -> None:
        """That it runs on the target, if somebody is there, and that its members began at the committed offsets."""
        running_since: float | None = None
        deadline = time.monotonic() + CONFIRM_TIMEOUT
        while True:
            group = self._book.get(self._name)
            if group is None or group.phase is not GroupPhase.PROMOTED:
                return  # it is demoted already
            view = await self._look(self._tools.target)
            self._run.target_view = view
            now = time.monotonic()
            running = [member for member in view.members if member.partitions]
            if running and running_since is None:
                running_since = now
            places = positions(running, final, began_at)
            whole = len(places) == sum(tp in final for member in running for tp in member.partitions)
            seen_enough = running_since is not None and (whole or now - running_since > POSITIONS_TIMEOUT)
            if view.empty or seen_enough or now > deadline:
                break
            await asyncio.sleep(_LOOK)
        behind = {tp: step for tp, step in differences(final, await self._read_target()).items() if step > 0}
        text, wrong = confirmation(view, running, final, places, behind)
        if wrong:
            log.error("link %s: group %s: %s", self._book.link, self._name, text)
        known = self._book.get(self._name)
        if known is not None and known.phase is GroupPhase.PROMOTED:
            await self._book.amend(self._name, reason=text)

    # --- demote ------------------------------------------------------------------------------------------------------

    async def _demote(self, group: MirrorGroup) -> None:
        """DEMOTING -> DEMOTED: hold it on the target again, return its offsets."""
        run = self._run
        if run.gate is None:
            await self._wait_empty(group, self._tools.target, "target")
            try:
                await self.hold(group)
            except GroupActive as error:
                raise LinkerError(str(error)) from error  # somebody came in between: wait again
        await self._wait_empty(group, self._tools.source, "source")
        on_target = await self._read_target()
        back = {tp: commit for tp, commit in on_target.items() if tp.topic in group.topics}
        if back:
            await self._tools.source.commit_empty(self._name, back, timeout=CALL_TIMEOUT)
        left = differences(back, await self._read_source())
        if left:
            raise LinkerError(
                f"group {self._name}: the source's offsets differ after the demote: {some(left)}"
            )
        await self._book.step(
            self._name,
            GroupPhase.DEMOTED,
            reason="its offsets are at the source again",
            move=None,
            offsets=_group_offsets(back),
        )
        log.info("link %s: group %s is demoted", self._book.link, self._name)

    async def _hold_again(self, _group: MirrorGroup) -> None:
        """DEMOTED: a mirrored group like any other, whose gate stands already."""
        await self._book.step(self._name, GroupPhase.DISCOVERED, offsets=(), reason=None)

    async def _give_up(self, group: MirrorGroup, reason: str) -> None:
        """The move's time is over: as it was before."""
        log.warning(
            "link %s: group %s: %s was given up: %s", self._book.link, self._name, group.phase, reason
        )
        if group.phase is GroupPhase.DEMOTING:
            run = self._run
            async with run.lock:
                if run.gate is not None:
                    await run.gate.release()
                self._drop_gate()
            await self._book.step(
                self._name,
                GroupPhase.PROMOTED,
                reason=f"demote given up: {reason}",
                move=None,
                gate_state=None,
            )
            return
        await self._book.step(self._name, GroupPhase.GATED, reason=f"promote given up: {reason}", move=None)


def _lost_to(error: GroupActive, group: MirrorGroup) -> GateLost:
    return GateLost(group.group, group.gate, LostReason.SOMEBODY_ELSE, str(error), members=error.members)


def _with_metadata(commit: Committed) -> OffsetAndMetadata:
    return OffsetAndMetadata(commit.offset, commit.metadata)


def _group_offsets(offsets: Offsets) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(tp.topic, tp.partition, commit.offset, commit.metadata)
        for tp, commit in sorted(offsets.items())
    )
