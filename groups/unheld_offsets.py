"""Offsets of groups that no gate holds: brought over at each look, as long as nobody is in the group on the target.

Started there too early, its members read again what was read at the source since the last look, and skip nothing; and when
the source dies these offsets are what is left of the group. Coordinators take them for a group without members only. A
request that is on its way when its process ends may be carried out after a promote: then records are read twice, too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from controller.decide.unheld_groups import carried
from controller.judge.group_offsets import Offsets, to_commit, wanted_offsets
from controller.mirror_group import GroupProtocol, MirrorGroup
from groups import share_offsets
from groups.gate_keeper import CALL_TIMEOUT, GateKeeper
from groups.group_reader import GroupReader
from groups.left_out import NOT_ON_TARGET
from groups.tools import Tools
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.together import together

_AT_ONCE = 16


async def write(target: GroupReader, group: MirrorGroup, offsets: Offsets) -> set[TopicPartition]:
    """As `GroupReader.commit_empty`, for every kind of group."""
    if group.protocol is GroupProtocol.SHARE:
        return await share_offsets.alter(target, group.group, offsets, timeout=CALL_TIMEOUT)
    return await target.commit_empty(group.group, offsets, timeout=CALL_TIMEOUT)


async def follow(tools: Tools, runs: Mapping[str, GateKeeper], seen: Collection[str]) -> None:
    """Once, for the groups whose offsets were `seen` at the source just now. Raises LinkerError."""
    image = tools.book.image
    due = [
        (group, run, run.source)
        for group in tools.book.all()
        if group.group in seen
        and carried(image, group)
        and (run := runs.get(group.group)) is not None
        and run.source
    ]
    every = {tp for _, _, source in due for tp in source}
    await tools.bounds.refresh(every, timeout=CALL_TIMEOUT)
    bounds = tools.bounds.known(every)
    left = iter(due)

    async def some() -> None:
        for group, run, source in left:
            await _follow(tools, group, run, wanted_offsets(source, group.topics, bounds))

    await together(some() for _ in range(min(_AT_ONCE, len(due))))


async def _follow(tools: Tools, group: MirrorGroup, run: GateKeeper, wanted: Offsets) -> None:
    looked_at = time.monotonic()
    try:
        async with run.lock:
            known = tools.book.get(group.group)
            if known is None or not carried(tools.book.image, known):
                return  # a promote has begun, and sets the last offsets
            target = await run.read_target() if run.target is None else run.target
            run.wanted = run.left_out.fitting(wanted)
            if changes := to_commit(run.wanted, target):
                refused = await write(tools.target, known, changes)
                run.left_out.gone(refused, NOT_ON_TARGET)
                target.update((tp, one) for tp, one in changes.items() if tp not in refused)
    except LinkerError as error:
        run.target = None  # its members there may have committed
        run.sync_trouble = f"its offsets are not brought over now: {error}"
        return
    run.synced_at, run.sync_trouble = looked_at, None
