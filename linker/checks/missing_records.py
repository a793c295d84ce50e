"""What a promote would lose now: records that the source has, and that a replica of the target has not from its start on.

The replicas are asked before the source, whose log start only goes up: what is found missing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.decisions import listed
from controller.phases import Phase
from controller.state import MirrorPartition
from linker.admin.models import Check, CheckResult
from linker.checks.replica_logs import Extent, replica_extents, source_extents
from linker.links.runtime import LinkRuntime
from linker.preflight import TIMEOUT
from wire.errors import LinkerError
from wire.types import TopicPartition

NAME = "missing records"
_COPIED = frozenset({Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP})


class Gap(NamedTuple):
    """A replica that begins later than the source, and later than where its mirror was begun."""

    tp: TopicPartition
    broker: int
    wanted: int
    start: int

    def __str__(self) -> str:
        return f"{self.tp} on broker {self.broker} begins at {self.start}, the source at {self.wanted}"


class NotMirrored(NamedTuple):
    """The mirror was begun later than the source's log, as whoever made it asked."""

    tp: TopicPartition
    start: int
    older: int


def find_gaps(
    states: Iterable[MirrorPartition],
    replicas: Mapping[TopicPartition, Mapping[int, Extent]],
    source: Mapping[TopicPartition, Extent],
) -> tuple[list[Gap], list[NotMirrored]]:
    gaps: list[Gap] = []
    begun_later: list[NotMirrored] = []
    for state in states:
        theirs = source.get(state.tp)
        if theirs is None:
            continue
        first = state.start_offset or 0
        if first > theirs.start:
            begun_later.append(NotMirrored(state.tp, first, first - theirs.start))
        wanted = max(first, theirs.start)
        gaps += [
            Gap(state.tp, broker, wanted, one.start)
            for broker, one in sorted(replicas.get(state.tp, {}).items())
            if one.start > wanted
        ]
    return gaps, begun_later


def gap_checks(gaps: list[Gap]) -> list[Check]:
    """One line for each topic."""
    topics: dict[str, list[Gap]] = {}
    for gap in gaps:
        topics.setdefault(gap.tp.topic, []).append(gap)
    return [
        Check(
            name=NAME,
            result=CheckResult.FAIL,
            detail=f"topic {topic}: up to {sum(_worst(found).values())} records of the source are missing at the start of "
            f"replicas: {listed([str(gap) for gap in found], 3)}; a promote is refused, "
            "unless --accept-missing says how many it may lose",
            remedy="something at the target deleted them (retention, or DeleteRecords): remove that, then delete the "
            f"mirror and create it again: linker mirror delete {topic}",
        )
        for topic, found in sorted(topics.items())
    ]


def _worst(gaps: list[Gap]) -> dict[TopicPartition, int]:
    worst: dict[TopicPartition, int] = {}
    for gap in gaps:
        worst[gap.tp] = max(worst.get(gap.tp, 0), gap.start - gap.wanted)
    return worst


def begun_later_lines(found: list[NotMirrored]) -> list[str]:
    """What stays at the source on purpose: no fault, but it is to be known before the source is given up."""
    topics: dict[str, list[NotMirrored]] = {}
    for one in found:
        topics.setdefault(one.tp.topic, []).append(one)
    return [
        f"topic {topic}: {sum(one.older for one in those)} older offsets of the source are not mirrored, as asked for with "
        f"--start (from {', '.join(f'{one.tp} {one.start}' for one in those[:3])}{', ...' if len(those) > 3 else ''})"
        for topic, those in sorted(topics.items())
    ]


async def look(runtime: LinkRuntime, topics: Iterable[str]) -> tuple[list[Gap], list[NotMirrored]]:
    """LinkerError if the source cannot be asked."""
    states = [
        state
        for topic in topics
        for state in runtime.controller.image.topic_partitions(runtime.name, topic)
        if state.phase in _COPIED and state.session_epoch >= 0
    ]
    targets = {state.tp: runtime.targets(state.tp) for state in states}
    replicas = await replica_extents(runtime.target.cluster, targets, timeout=TIMEOUT / 3)
    source = await source_extents(runtime.source, targets, timeout=TIMEOUT)
    return find_gaps(states, replicas, source)


async def check_missing(runtime: LinkRuntime, topics: Iterable[str]) -> list[Check]:
    """Doctor's lines; one that says that all is there."""
    asked = list(topics)
    if not asked:
        return []
    try:
        gaps, begun_later = await look(runtime, asked)
    except LinkerError as error:
        return [
            Check(name=NAME, result=CheckResult.WARN, detail=f"where the logs begin is not told: {error}")
        ]
    checks = gap_checks(gaps)
    checks += [
        Check(name=NAME, result=CheckResult.OK, detail=line) for line in begun_later_lines(begun_later)
    ]
    return checks or [
        Check(name=NAME, result=CheckResult.OK, detail="no replica that answers begins later than the source")
    ]
