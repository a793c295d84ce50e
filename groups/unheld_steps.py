"""The promote of a group that no gate holds: its offsets are brought over between its last member at the source and its
first one on the target."""

from __future__ import annotations

from collections.abc import Mapping

from controller.group_phases import GroupPhase
from controller.judge.group_gates import unheld
from controller.judge.group_offsets import Offsets, differences, to_commit
from controller.mirror_group import GroupProtocol, MirrorGroup
from groups import share_offsets
from groups.gate_keeper import CALL_TIMEOUT
from groups.group_book import joined
from groups.group_run import some, who
from groups.group_steps import GroupSteps
from groups.left_out import NOT_ON_TARGET
from groups.other_kinds import configs_that_differ
from groups.source_patience import GaveUp
from groups.unheld_offsets import write
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id


class UnheldSteps(GroupSteps):
    """DRAINING, FINAL_SYNC and OPENING as of any group, without a gate. The offsets are durable before the target is
    touched, so another process sets the same ones again."""

    @property
    def _share(self) -> bool:
        group = self._book.get(self._name)
        return group is not None and group.protocol is GroupProtocol.SHARE

    async def _ensure_held(self, group: MirrorGroup) -> bool:
        return True

    async def _commit_last(self, wanted: Offsets, *, force: bool) -> Offsets | None:
        """Nothing is committed yet: the opening does it. Raises GaveUp while somebody is in the group on the target.
        With force such a group is taken as it stands on the target."""
        view = await self._keeper.look(self._tools.target)
        if view.empty:
            return self._keeper.left_out.fitting(wanted)
        if force:
            return {}
        raise GaveUp(
            f"it runs on the target already: {who(view.members) or view.state}. Stop its members there and promote it "
            "again; with --force its own offsets on the target count"
        )

    async def _opened(self, final: Offsets) -> bool:
        keeper = self._keeper
        view = await keeper.look(self._tools.target)
        changes = to_commit(final, await keeper.read_target())
        if view.empty and self._share:
            # A run on the target may have acknowledged records beyond the same start: they would never be delivered.
            changes = dict(final)
        if not changes:
            return True
        if not view.empty:
            self._began_here = False  # where its members are past the final offsets, their own count
            raise LinkerError(
                f"group {shown_id(self._name)}: its offsets cannot be set on the target while "
                f"{who(view.members) or view.state} is in it there: stop these members and start them again when this "
                "has ended; if they stay, this ends when their own offsets are past the source's"
            )
        async with keeper.lock:  # what an earlier look brings over is not written after these
            group = self._book.get(self._name)
            refused = set() if group is None else await write(self._tools.target, group, changes)
        keeper.left_out.gone(refused, NOT_ON_TARGET)
        if left := differences(keeper.left_out.fitting(final), await keeper.read_target()):
            raise LinkerError(f"group {shown_id(self._name)}: the target's offsets differ: {some(left)}")
        return True

    async def _confirm(
        self, final: Offsets, began_at: Mapping[TopicPartition, Mapping[str, int]], reason: str | None
    ) -> None:
        view = await self._keeper.look(self._tools.target)
        said = [f"its offsets of {len(final)} partitions are on the target"]
        said.append("its members can be started there" if view.empty else f"in it there: {who(view.members)}")
        if self._share:
            said.append(await self._delivered_again(final))
        said += await configs_that_differ(
            self._tools.source, self._tools.target, self._name, timeout=CALL_TIMEOUT
        )
        await self._opening_check.say(reason, "; ".join(said))

    async def _delivered_again(self, final: Offsets) -> str:
        """A share group has acknowledged records beyond its start offsets, of which the admin API tells the number only."""
        lag = self._keeper.share_lag
        if not final.keys() <= lag.keys():
            return "records that were acknowledged beyond its start offsets, if any, are delivered again"
        found = await self._tools.bounds.exact(list(final), timeout=CALL_TIMEOUT)
        ends = {tp: bounds.end for tp, bounds in found.bounds.items()}
        again = share_offsets.acknowledged_beyond(final, lag, ends)
        return f"{again or 'no'} records beyond its start offsets were acknowledged" + (
            " at the most, and are delivered again" if again else ""
        )

    async def _rest_again(self, group: MirrorGroup, reason: str) -> None:
        why = joined(reason, unheld(group.protocol) or "")
        await self._book.step(self._name, GroupPhase.REFUSED, reason=why, move=None)
