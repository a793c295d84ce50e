"""One mirrored group: its running state, every call of its gate, and its offsets at both clusters.

All calls of a gate are made here, under the run's lock, after another look at the group's state in the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from controller.group_phases import HELD_GROUPS, GroupPhase
from controller.groups import GateKind, GateStage
from controller.judge.group_offsets import Committed, Offsets, behind_by, to_commit, wanted_offsets
from controller.mirror_group import GroupProtocol, MirrorGroup
from controller.state import UNBOUND
from groups import application_state, share_offsets
from groups.gates.base import (
    NO_OFFSET,
    CommitFailed,
    Gate,
    GateLost,
    GroupActive,
    LostReason,
    OffsetAndMetadata,
)
from groups.group_book import GroupBook
from groups.group_reader import GroupReader
from groups.group_run import GroupRun, some, who
from groups.left_out import NOT_ON_TARGET
from groups.tools import Tools
from groups.views import GroupView
from groups.views import Offsets as GroupOffsets
from wire.errors import LinkerError
from wire.frames.types import TopicId, TopicPartition
from wire.shown_id import shown_id

log = logging.getLogger(__name__)

CALL_TIMEOUT = 10.0
_FINAL = frozenset({GroupPhase.FINAL_SYNC})


class HeldUp(LinkerError):
    """Clients are in the group and the gate's member is not: the coordinator takes commits of members only. The
    offsets are published when the gate opens."""


class Unstable(LinkerError):
    """Offsets of the group are in an open transaction. The cluster has answered, so it is reachable."""


class GateKeeper(GroupRun):
    """One mirrored group in this process: its state, its lock and its gate. Made once, by the manager."""

    def __init__(self, tools: Tools, name: str) -> None:
        super().__init__(name)
        self._tools = tools

    @property
    def _book(self) -> GroupBook:
        return self._tools.book

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One call of the gate at a time; a lost gate is dropped before the next call."""
        async with self.lock:
            try:
                yield
            except GateLost:
                self.drop()
                self.target = None  # its members may have committed
                raise

    def drop(self) -> None:
        """Forget the gate."""
        self.gate, self.covered, self.covered_for = None, frozenset(), None

    # --- held --------------------------------------------------------------------------------------------------------

    async def hold(self, group: MirrorGroup) -> bool:
        """Close the gate, take it over, or extend it to the partitions that the group reads now. Raises as Gate.close.

        Returns False, with nothing done, if the group has changed since the decision: no longer mirrored, let go, in
        another phase.
        """
        if self.source is None and not _stands(group):
            await self._learn(group)
        topology = None
        if group.gate is GateKind.STREAMS and self.gate is None and self._unplanned(group):
            topology = await application_state.topology(self._tools, self, group)
        async with self._tools.closing, self._alone():
            known = self._book.get(self.name)
            if known is None or (known.phase, known.gate) != (group.phase, group.gate):
                return False
            if self._made_anew(known):
                self.target = None
                self.drop()  # to be taken over, like another process's: it is seen what of it still holds
            assignment, reads = self._assignment(known), self._reads(known)
            gate = self.gate
            if gate is None:
                record = known.gate_state
                if record is None or self._unplanned(known):
                    record = self._tools.gates.plan(known, self.source_view, topology)
                gate = self._tools.gates.build(record, self._book.save_gate)
            closed = await gate.close(assignment)
            self.gate = gate
            self.covered = frozenset(assignment)
            self.covered_for = reads
            self.topic_ids.update(self._ids(known))
            known = self._book.get(self.name)
            if known is not None and known.gate_state != closed:
                await self._book.save_gate(closed)
        return True

    @staticmethod
    def _unplanned(group: MirrorGroup) -> bool:
        record = group.gate_state
        return record is None or record.kind is not group.gate or record.stage is GateStage.OPEN

    async def _learn(self, group: MirrorGroup) -> None:
        """Read the group's committed offsets at the source, before its gate is closed.

        A group that was held before is held again without them if the source is silent: the state names every
        partition of the mirrored topics, and an open gate would let consumers in while others may still read at the
        source. Other partitions are held from the next sync on. A new group has to wait: nothing is known of it.
        """
        try:
            await self.read_source()
        except LinkerError as error:
            if group.phase not in HELD_GROUPS:
                raise
            self.sync_trouble = str(error)
            log.warning("link %s: %s; it is held all the same", self._book.link, error)

    def uncovered(self, group: MirrorGroup) -> bool:
        """Whether the group may read partitions that its gate does not hold. Evaluated for every group in every round."""
        if self.gate is None or self.covered_for == (reads := self._reads(group)):
            return False
        if self._made_anew(group) or not self.covered >= self._assignment(group).keys():
            return True
        self.covered_for = reads  # so that the next round need not compare
        self.topic_ids.update(self._ids(group))
        return False

    def _reads(self, group: MirrorGroup) -> tuple[object, ...]:
        """A key that changes when `_assignment` may have grown."""
        sizes = tuple(map(self._tools.partitions, group.topics))
        return group.topics, group.unmirrored, sizes, len(self.source or ()), self._ids(group)

    def _ids(self, group: MirrorGroup) -> tuple[tuple[str, TopicId], ...]:
        mirrors, link = self._book.image.mirrors, self._book.link
        found = ((topic, mirrors.get((link, topic))) for topic in group.topics)
        return tuple((topic, one.topic_id) for topic, one in found if one and one.topic_id != UNBOUND)

    def _made_anew(self, group: MirrorGroup) -> bool:
        """A topic was deleted at the target and made again since. Its commits went with it, pending ones too, and so did its
        assignments (`OffsetMetadataManager.onPartitionsDeleted`)."""
        return any(self.topic_ids.get(topic, topic_id) != topic_id for topic, topic_id in self._ids(group))

    def _assignment(self, group: MirrorGroup) -> dict[TopicPartition, int]:
        """Every partition that the group may read. Partitions of topics that are not mirrored are held too, if the
        source names them: the target may have topics of that name."""
        source = self.source or {}
        covered = {
            TopicPartition(topic, partition): NO_OFFSET
            for topic in group.topics
            for partition in range(self._tools.partitions(topic))
        }
        reads = {*group.topics, *group.unmirrored}
        covered.update((tp, NO_OFFSET) for tp in source if tp.topic in reads and not self._stale(tp))
        bounds = self._tools.bounds.known(source)
        for tp, commit in wanted_offsets(source, group.topics, bounds).items():
            if tp in covered:
                covered[tp] = commit.offset
        return covered

    def _stale(self, tp: TopicPartition) -> bool:
        """Whether this commit is for a partition that the mirror does not have, so there is nothing to hold."""
        return 0 < self._tools.partitions(tp.topic) <= tp.partition

    async def renew(self) -> None:
        """Raises as Gate.renew."""
        async with self._alone():
            gate = self.gate
            if gate is not None and gate.record.stage is GateStage.HELD:
                await gate.renew()

    async def release(
        self, then: Callable[[], Awaitable[None]], *, still: Callable[[MirrorGroup], bool]
    ) -> bool:
        """Let the group go, then record its new state with `then`. Returns False, with nothing done, unless `still`
        confirms that it is to be let go.

        Both happen under the lock: in between, the group looks like one whose gate was not taken over yet, and others
        act on the records of the release. If the release fails, the gate stays and is renewed until a later attempt
        succeeds.
        """
        async with self._alone():
            group = self._book.get(self.name)
            if group is None or not still(group):
                return False
            gate = self.gate or self._left_behind(group)
            if gate is not None:
                await gate.release()
            self.drop()
            await then()
        return True

    def _left_behind(self, group: MirrorGroup) -> Gate | None:
        """The gate that another process closed and this one did not take over."""
        record = group.gate_state
        if record is None or record.stage is GateStage.OPEN:
            return None
        return self._tools.gates.build(record, self._book.save_gate)

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, wanted: Offsets, phases: Collection[GroupPhase] = _FINAL) -> int:
        """Commit through the gate the offsets that the target lacks; returns their number. Raises GateLost,
        GroupActive, HeldUp, and CommitFailed once all acceptable ones are committed.

        Only while the group is in one of `phases`: offsets read before the final sync must not be written after it.
        """
        if self.target is None:
            await self.read_target()
        async with self._alone():
            group, target = self._book.get(self.name), self.target
            if group is None or group.phase not in phases or target is None:
                return 0
            if self.gate is None:
                raise LinkerError(f"group {shown_id(self.name)} is not held yet")
            if (committed := await self._commit_through(self.gate, wanted, target)) is not None:
                return committed
        members = [
            one for one in (await self.look(self._tools.target)).members if not is_gate(one.member_id, group)
        ]
        raise HeldUp(
            f"group {shown_id(self.name)}: its offsets are committed on the target when it is opened, not before: "
            f"{who(tuple(members)) or 'somebody'} is in it there, and its gate's member is not"
        )

    async def _commit_through(
        self, gate: Gate, wanted: Offsets, target: dict[TopicPartition, Committed]
    ) -> int | None:
        """As `commit`; None if nothing was taken. A text that the target refuses is dropped, its offset is kept."""
        committed = 0
        while True:
            self.wanted = self.left_out.fitting(wanted)
            changes = to_commit(self.wanted, target)
            try:
                taken = not changes or await gate.commit(
                    {tp: with_metadata(commit) for tp, commit in changes.items()}
                )
            except CommitFailed as error:
                done = {tp: one for tp, one in changes.items() if tp not in error.failed}
                target.update(done)
                committed += len(done)
                if not self.left_out.learn_texts(changes, error.codes):
                    raise
                continue
            if not taken:
                return None
            target.update(changes)
            return committed + len(changes)

    async def open(self, final: Offsets) -> bool:
        """Publish and let the clients in, from whatever stage the gate is at. Raises as Gate.open. False if the gate
        was lost."""
        async with self._alone():
            group = self._book.get(self.name)
            gate = self.gate
            if gate is None and group is not None and group.gate_state is not None:
                gate = self.gate = self._tools.gates.build(group.gate_state, self._book.save_gate)
            opened = gate is not None and gate.record.stage is not GateStage.PLANNED
            if gate is not None and opened:
                await self._open(gate, group, final)
            elif gate is not None:
                await gate.release()
            self.drop()
        return opened

    async def _open(self, gate: Gate, group: MirrorGroup | None, final: Offsets) -> None:
        try:
            if group is not None and gate.record.stage is GateStage.HELD and not self.covered:
                await self._take_over(gate, group, final)
            await gate.open({tp: with_metadata(commit) for tp, commit in final.items()})
        except GateLost as error:
            if error.reason is not LostReason.FENCED:  # or it would be another sidecar's gate by now
                await gate.release()  # its remains must not keep clients waiting
            raise

    async def _take_over(self, gate: Gate, group: MirrorGroup, final: Offsets) -> None:
        """Tell a gate that another process closed its partitions before it is opened: if the opening fails it is
        renewed until the next attempt, and a gate without partitions would let go of all of them.

        The partitions follow from the state alone, as in `hold`: the source need not be there any more.
        """
        assignment = self._assignment(group) | {tp: commit.offset for tp, commit in final.items()}
        try:
            await gate.close(assignment)
        except GroupActive as error:
            raise GateLost(
                group.group, group.gate, LostReason.SOMEBODY_ELSE, str(error), members=error.members
            ) from error
        self.covered = frozenset(assignment)

    async def see_final(self, final: Offsets) -> None:
        """Without a gate: check that the target has the final offsets, or that its members are past them. Otherwise
        LinkerError, with the members in the way."""
        left = behind_by(final, await self.read_target())
        if not left:
            return
        view = await self.look(self._tools.target)
        if not view.empty:
            raise LinkerError(
                f"group {shown_id(self.name)}: its gate was lost before its last offsets were published, and they cannot "
                f"be committed on the target while {who(view.members) or view.state} is in it there: behind by "
                f"{some(left)}. Stop these members and start them again when this has ended; if they stay they read "
                "these records again, and this ends when their commits are past them"
            )
        refused = await self._tools.target.commit_empty(
            self.name, {tp: final[tp] for tp in left}, timeout=CALL_TIMEOUT
        )
        self.left_out.gone(refused, NOT_ON_TARGET)
        if left := behind_by(self.left_out.fitting(final), await self.read_target()):
            raise LinkerError(
                f"group {shown_id(self.name)}: the target does not have its last offsets: behind by {some(left)}"
            )

    async def read_source(self, *, stable: bool = False) -> Mapping[TopicPartition, Committed]:
        """Raises Unstable, and LinkerError if the source does not answer."""
        what = f"the offsets of group {shown_id(self.name)} cannot be read at the source"
        async with _in_time(what):
            answer = await self._read(self._tools.source, stable=stable)
        if self.name in answer.failed:
            raise LinkerError(f"{what}: {answer.failed[self.name]}")
        if self.name in answer.unstable:
            raise Unstable(f"{what}: {answer.unstable[self.name]}")
        self.source = answer.found[self.name]
        return answer.found[self.name]

    async def read_target(self) -> dict[TopicPartition, Committed]:
        answer = await self._read(self._tools.target)
        if self.name in answer.failed:
            raise LinkerError(
                f"the offsets of group {shown_id(self.name)} cannot be read on the target: {answer.failed[self.name]}"
            )
        self.target = dict(answer.found[self.name])
        return self.target

    async def _read(self, reader: GroupReader, *, stable: bool = False) -> GroupOffsets:
        """Committed offsets; of a share group its start offsets, which are in no transaction."""
        group = self._book.get(self.name)
        if group is None or group.protocol is not GroupProtocol.SHARE:
            return await reader.offsets([self.name], timeout=CALL_TIMEOUT, stable=stable)
        answer = await share_offsets.read(reader, [self.name], timeout=CALL_TIMEOUT)
        if reader is self._tools.source:
            self.share_lag = answer.lag.get(self.name, {})
        return answer

    async def look(self, reader: GroupReader) -> GroupView:
        """Describe the group at one of the clusters."""
        what = f"group {shown_id(self.name)} cannot be described"
        if reader is self._tools.source:
            async with _in_time(what):
                views, failed = await reader.describe([self.name], timeout=CALL_TIMEOUT)
        else:
            views, failed = await reader.describe([self.name], timeout=CALL_TIMEOUT)
        if self.name in failed:
            raise LinkerError(f"{what}: {failed[self.name]}")
        return views[self.name]


def _stands(group: MirrorGroup) -> bool:
    """Whether some process has closed the gate. It is taken over as soon as possible, because it opens by itself
    without renewals; its partitions follow from the state, so an absent source does not matter."""
    return group.gate_state is not None and group.gate_state.stage is GateStage.HELD


@asynccontextmanager
async def _in_time(what: str) -> AsyncIterator[None]:
    """Bound the call: a source whose brokers do not even refuse connections would take that long per address."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            yield
    except TimeoutError as error:
        raise LinkerError(f"{what}: no answer within {CALL_TIMEOUT:g} s") from error


def is_gate(member_id: str, group: MirrorGroup) -> bool:
    """Whether this is the recorded member of the group's own gate."""
    record = group.gate_state
    parts = () if record is None else (record.consumer, record.classic)
    return any(part is not None and part.member_id == member_id for part in parts)


def with_metadata(commit: Committed) -> OffsetAndMetadata:
    return OffsetAndMetadata(commit.offset, commit.metadata)
