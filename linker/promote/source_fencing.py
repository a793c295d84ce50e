"""The step of a promote that makes the source refuse writes. `source_fence` has the rules and the debts."""

from __future__ import annotations

from controller.decide.source_fence import whole_topics
from controller.errors import PromoteAbandoned
from linker.promote.context import PromoteBatch


async def close_source(context: PromoteBatch) -> None:
    """Behind the fence; returns when the source refuses writes to the batch's topics."""
    port = context.ports.source_fence
    if not context.settings.fence_source:
        return
    if port is None:
        raise PromoteAbandoned("the source is to refuse writes, and nothing can make it")
    image = context.controller.image
    topics, parts = whole_topics(image, context.link, context.tps)
    context.warnings = (
        *context.warnings,
        *(f"topic {topic} is promoted in parts: its source is not fenced" for topic in parts),
    )
    if not topics:
        return
    with context.timed("fence_source"):
        timeout = min(context.fence_left(), context.settings.call_timeout)
        theirs = await context.within(
            port.closed(topics, timeout=timeout), timeout, "asking whether the source refuses writes"
        )
        mine = [topic for topic in topics if topic not in theirs]
        if mine:
            await context.written(
                context.controller.note_source_fence(context.link, context.job_id, closed=mine)
            )
        timeout = min(context.fence_left(), context.settings.call_timeout)
        await context.within(port.close(topics, timeout=timeout), timeout, "making the source refuse writes")
        context.close_is_over = True
