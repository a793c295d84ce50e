"""The topology of a streams group's application, and the state that it keeps in topics."""

from __future__ import annotations

import logging

from controller.group_phases import HELD_GROUPS
from controller.judge.group_gates import unheld
from controller.mirror_group import GroupProtocol, MirrorGroup
from groups import topology_reader
from groups.gates.base import GateRefused
from groups.group_run import GroupRun, some
from groups.tools import Tools
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

log = logging.getLogger(__name__)

_READ_TIMEOUT = 120.0  # __consumer_offsets may have gigabytes before its log cleaner has run
_CALL_TIMEOUT = 10.0


async def topology(tools: Tools, run: GroupRun, group: MirrorGroup) -> str:
    """The topology for a new gate, as its record has it; GateRefused if it is not known. A group that was held before has it
    on the target, too: the source need not be there any more."""
    known, view = run.topology, run.source_view
    if known is not None and view is not None and known.described == view.topology:
        return known.text
    try:
        found = await topology_reader.read(tools.source, group.group, timeout=_READ_TIMEOUT)
    except LinkerError as error:
        if group.phase not in HELD_GROUPS:
            raise GateRefused(group.group, f"its topology is not known: {error}") from error
        log.warning("link %s: %s; the target's own topology counts", tools.book.link, error)
        found = await topology_reader.read(tools.target, group.group, timeout=_READ_TIMEOUT)
    run.topology = found
    return found.text


async def why_not_held(tools: Tools, run: GroupRun, group: MirrorGroup) -> str | None:
    """Why a refused group still cannot be held, as far as the source tells; None if it may be tried."""
    if group.protocol is not GroupProtocol.STREAMS:
        return None
    try:
        await topology(tools, run, group)
    except GateRefused as error:
        return refused(error, group)
    return None


def refused(error: GateRefused, group: MirrorGroup) -> str:
    """The reason of a group that is not held."""
    return f"{error}; {how}" if (how := unheld(group.protocol)) else str(error)


async def see_copied(tools: Tools, group: MirrorGroup) -> None:
    """LinkerError until the topics of the group are here to the source's end: no offset tells how far its state is."""
    tps = [TopicPartition(topic, index) for topic in group.topics for index in range(tools.partitions(topic))]
    here = tools.bounds.known(tps)
    ends = (await tools.bounds.exact(tps, timeout=_CALL_TIMEOUT)).bounds
    left = {tp: ends[tp].end - one.end for tp, one in here.items() if tp in ends and one.end < ends[tp].end}
    if left:
        raise LinkerError(f"group {shown_id(group.group)} waits for the copy of its state: {some(left)}")
