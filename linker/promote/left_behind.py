"""Finds records that were written to the source after a topic's promote.

They are not at the target, and their producer has not moved. A promote keeps the offsets of the hand-over, so this can
be told long afterwards, as long as the link and the source's topic exist.
"""

from __future__ import annotations

from collections.abc import Mapping

from admin.models import Check, CheckResult
from controller.image import ControllerImage
from controller.judge.alignment import gone_on
from controller.phases import Phase
from controller.state import same_source_topic
from linker.checks.preflight import TIMEOUT, seen_source_topics
from linker.links.runtime import LinkRuntime
from wire.errors import LinkerError, error_name
from wire.frames.list_offsets import LATEST
from wire.frames.types import TopicPartition, per_topic

_NAME = "after promotes"


def handed_over_at(image: ControllerImage, link: str) -> dict[TopicPartition, int]:
    """Where promoted partitions left the source. Partitions that a failover took over have no such place: their
    source was dead."""
    return {
        state.tp: state.aligned_end
        for state in image.link_partitions(link)
        if state.phase is Phase.PROMOTED and state.aligned_end is not None
    }


async def look(runtime: LinkRuntime) -> list[Check]:
    """Doctor's line, one more for each topic that somebody wrote to; nothing if nothing was promoted."""
    image = runtime.controller.image
    ends = handed_over_at(image, runtime.name)
    if not ends:
        return []
    try:
        found, silent = await _ends_of_the_same_topics(runtime, ends)
    except LinkerError as error:
        return [_unknown(str(error))]
    told = [_unknown(f"{tp}: {error_name(code)}") for tp, code in sorted(silent.items())[:1]]
    known = {tp: end for tp, end in ends.items() if tp not in silent}
    now = {tp: end for tp, end in found.items() if tp in ends}
    added = {tp: end for tp, end in found.items() if tp not in ends and end > 0}
    return (checks(known, now) if known else []) + _never_mirrored(added) + told


def _never_mirrored(added: Mapping[TopicPartition, int]) -> list[Check]:
    """The lines about partitions that the mirror did not have: `added`, with their ends."""
    return [
        Check(
            name=_NAME,
            result=CheckResult.WARN,
            detail=f"topic {topic}: {len(tps)} partitions with records were added at the source and never mirrored, "
            f"{tps[0]} the first: {sum(added[tp] for tp in tps)} offsets in them are not at the target",
            remedy="move whoever writes there, deny writes to the topic at the source, and bring the records over by hand: "
            "kafka-console-consumer.sh --partition P --from-beginning reads them",
        )
        for topic, tps in per_topic(sorted(added)).items()
    ]


def _unknown(why: str) -> Check:
    return Check(
        name=_NAME,
        result=CheckResult.WARN,
        detail=f"whether somebody still wrote to the source is not known: {why}",
    )


async def _ends_of_the_same_topics(
    runtime: LinkRuntime, ends: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """(where they end, error codes of those that cannot be asked), those with them that were added at the source since the
    mirrors were made. A topic that was deleted, or made anew, at the source has nothing of ours and is in neither."""
    mirrors = runtime.controller.image.mirrors
    seen = await seen_source_topics(runtime.source, sorted({tp.topic for tp in ends}))
    ours = {
        topic: one
        for topic, one in seen.items()
        if same_source_topic(mirrors[runtime.name, topic].source_topic_id, one.topic_id)
    }
    there = {tp: LATEST for tp in ends if tp.topic in ours}
    for topic, one in ours.items():
        for index in range(mirrors[runtime.name, topic].partitions, one.partitions):
            there[TopicPartition(topic, index)] = LATEST
    if not there:
        return {}, {}
    found = await runtime.source.list_offsets(there, timeout=TIMEOUT)
    return (
        {tp: result.offset for tp, result in found.items() if not result.error},
        {tp: result.error for tp, result in found.items() if result.error},
    )


def checks(ends: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]) -> list[Check]:
    """`ends`: where each was handed over; `now`: where the source ends, as far as that is known and concerns us."""
    grown = gone_on(ends, now)
    if not grown:
        rests = f"of {len(ends)} promoted partitions {len(now)} are still at the source, and nobody wrote there since"
        return [Check(name=_NAME, result=CheckResult.OK, detail=rests)]
    return [
        Check(
            name=_NAME,
            result=CheckResult.WARN,
            detail=f"topic {topic}: {sum(now[tp] - ends[tp] for tp in tps)} offsets were written to the source after the "
            f"hand-over; {tps[0]}: {grown[tps[0]]}"
            + (f"; and {len(tps) - 1} more partitions" if tps[1:] else ""),
            remedy="move whoever writes there, deny writes to the topic at the source, and bring the records over by hand: "
            "kafka-console-consumer.sh --partition P --offset N reads them",
        )
        for topic, tps in per_topic(grown).items()
    ]
