"""Counts the records that a promote would lose now: the source has them, a replica starts behind them.

`linker.links.replica_starts` finds out where replicas start, as for the promote itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from admin.models import Check, CheckResult
from controller.judge.late_starts import Late, lost
from controller.phases import Phase
from controller.state import MirrorPartition
from linker.checks.preflight import TIMEOUT
from linker.checks.replica_logs import Extent, source_extents
from linker.links.runtime import LinkRuntime
from wire.errors import LinkerError
from wire.frames.types import TopicPartition, per_topic
from wire.shown_id import listed

NAME = "missing records"
_COPIED = frozenset({Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP})


class NotMirrored(NamedTuple):
    """The mirror was begun later than the source's log, as whoever made it asked."""

    tp: TopicPartition
    start: int
    older: int


def begun_later(
    states: Iterable[MirrorPartition], source: Mapping[TopicPartition, Extent]
) -> list[NotMirrored]:
    """Of partitions that the source tells of."""
    return [
        NotMirrored(state.tp, first, first - theirs.start)
        for state in states
        if (theirs := source.get(state.tp)) is not None and (first := state.start_offset or 0) > theirs.start
    ]


def late_checks(late: Late) -> list[Check]:
    """One line for each topic whose promote is refused."""
    records = lost(late)
    topics = per_topic(sorted(tp for tp, many in records.items() if many))
    return [
        Check(
            name=NAME,
            result=CheckResult.FAIL,
            detail=f"topic {topic}: up to {sum(records[tp] for tp in tps)} records of the source are missing at the start "
            f"of replicas: {listed([f'{tp}: {one}' for tp in tps for one in late[tp]], 3)}; a promote is refused, "
            "unless --accept-missing says how many it may lose",
            remedy="something at the target deleted them (retention, or DeleteRecords): remove that, then delete the "
            f"mirror and create it again: linker mirror delete {topic}",
        )
        for topic, tps in topics.items()
    ]


def begun_later_lines(found: list[NotMirrored]) -> list[str]:
    """The records that stay at the source on purpose: no fault, but to be known before the source is given up."""
    topics: dict[str, list[NotMirrored]] = {}
    for one in found:
        topics.setdefault(one.tp.topic, []).append(one)
    return [
        f"topic {topic}: {sum(one.older for one in those)} older offsets of the source are not mirrored, as asked for with "
        f"--start (from {', '.join(f'{one.tp} {one.start}' for one in those[:3])}{', ...' if len(those) > 3 else ''})"
        for topic, those in sorted(topics.items())
    ]


def _copied(runtime: LinkRuntime, topics: Iterable[str]) -> list[MirrorPartition]:
    return [
        state
        for topic in topics
        for state in runtime.controller.image.topic_partitions(runtime.name, topic)
        if state.phase in _COPIED and state.session_epoch >= 0
    ]


async def not_mirrored(runtime: LinkRuntime, topics: Iterable[str]) -> list[str]:
    """`begun_later_lines` as of now. LinkerError if the source cannot be asked."""
    states = _copied(runtime, topics)
    source = await source_extents(runtime.source, [state.tp for state in states], timeout=TIMEOUT)
    return begun_later_lines(begun_later(states, source))


async def check_missing(runtime: LinkRuntime, topics: Iterable[str]) -> list[Check]:
    """Doctor's lines; one that says that all is there."""
    asked = list(topics)
    if not asked:
        return []
    await runtime.starts.look()
    checks = late_checks({state.tp: runtime.starts.of(state.tp) for state in _copied(runtime, asked)})
    try:
        checks += [
            Check(name=NAME, result=CheckResult.OK, detail=line)
            for line in await not_mirrored(runtime, asked)
        ]
    except LinkerError as error:
        checks.append(
            Check(name=NAME, result=CheckResult.WARN, detail=f"where the logs begin is not told: {error}")
        )
    return checks or [
        Check(name=NAME, result=CheckResult.OK, detail="no replica that answers begins later than the source")
    ]
