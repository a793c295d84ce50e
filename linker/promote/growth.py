"""The partitions that the source adds while a promote runs: taken into the batch before the fence, refused behind it."""

from __future__ import annotations

from controller.decide.growth import not_now
from controller.errors import PromoteAbandoned
from controller.judge.alignment import grown_at_source
from controller.phases import ENDED, LED_ELSEWHERE
from linker.promote.context import PromoteBatch


async def take_growth(context: PromoteBatch) -> bool:
    """Before the fence: partitions that were added at the source become part of the mirror, and of this batch where
    their topic is in no other. Whether the batch has more of them now."""
    timeout = context.settings.call_timeout
    topics = {tp.topic for tp in context.tps}
    if context.ports.growth is not None:
        await context.within(
            context.ports.growth(topics, timeout=timeout),
            timeout,
            "looking for partitions added at the source",
        )
    await check_growth(context)
    job = context.controller.image.jobs.get((context.link, context.job_id))
    mine = set(context.tps)
    others = () if job is None else [tp for tp in job.partitions if tp.topic in topics and tp not in mine]
    mirrors = context.controller.image.mirrors
    apart = {tp.topic for tp in others if not mirrors[context.link, tp.topic].added(tp.partition)}
    added = [tp for tp in others if tp.topic not in apart and context.phase_of(tp) not in ENDED]
    context.tps = (*context.tps, *added)
    return bool(added)


async def check_growth(context: PromoteBatch) -> None:
    """Partitions that were added at the source since the promote was accepted are in no mirror: what is written to
    them would be left behind, and nobody would see it."""
    port = context.ports.source_topics
    if port is None:
        return
    timeout = context.settings.call_timeout
    if context.fenced:
        timeout = min(context.fence_left(), timeout)
    topics = list(dict.fromkeys(tp.topic for tp in context.tps))
    now = await context.within(
        port.partitions(topics, timeout=timeout), timeout, "counting the source's partitions"
    )
    image = context.controller.image
    grown = []
    for topic in topics:
        mirror = image.mirrors[context.link, topic]
        there = now.get(topic, 0)
        if there <= mirror.partitions:
            continue
        if any(state.phase in LED_ELSEWHERE for state in image.topic_partitions(context.link, topic)):
            # A part of it was handed over in an earlier batch: there is only forward, with these in a later one.
            if context.ports.growth is not None:
                await context.within(
                    context.ports.growth([topic], timeout=timeout),
                    timeout,
                    "taking what was added at the source",
                )
            if there > context.controller.image.mirrors[context.link, topic].partitions:
                text = f"topic {topic}: the source has partitions that were added meanwhile: they are at the source only"
                context.warnings = tuple(dict.fromkeys([*context.warnings, text]))
        else:
            why = not_now(image, mirror) or "they could not be taken before writes were held"
            grown.append(f"topic {topic}: {grown_at_source(mirror.partitions, there, why)}")
    if grown:
        raise PromoteAbandoned("; ".join(grown))
