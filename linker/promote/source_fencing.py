"""The step of a promote that makes the source refuse writes: by an ACL (`source_fence` has the rules and the debts), or,
in a switch, because link brokers lead it and hold what comes (`linker.switch`)."""

from __future__ import annotations

from controller.decide.source_fence import whole_topics
from controller.errors import PromoteAbandoned
from linker.promote.context import PromoteBatch
from linker.promote.ports import SourceFence


def not_yet(context: PromoteBatch) -> str | None:
    """Why a switch waits before anything is begun."""
    return context.source_fence.not_yet() if context.switch and context.source_fence is not None else None


async def prepare_source(context: PromoteBatch) -> None:
    """Before the fence of a switch. Before an ACL nothing can be prepared."""
    if not context.switch:
        return
    port, topics = _port(context), _topics(context)
    timeout = context.settings.call_timeout
    with context.timed("prepare_source"):
        await context.controller.note_source_fence(context.link, context.job_id, closed=topics)
        await context.within(
            port.prepare(topics, timeout=timeout), timeout, "preparing that the source is taken over"
        )


async def close_source(context: PromoteBatch) -> None:
    """Behind the fence; returns when the source refuses writes to the batch's topics."""
    if not context.settings.fence_source and not context.switch:
        return
    port, topics = _port(context), _topics(context)
    if not topics:
        return
    with context.timed("fence_source"):
        timeout = min(context.fence_left(), context.settings.call_timeout)
        if not context.switch:
            await _note(context, port, topics, timeout)
            timeout = min(context.fence_left(), context.settings.call_timeout)
        await context.within(port.close(topics, timeout=timeout), timeout, "making the source refuse writes")
        context.close_is_over = True


async def _note(context: PromoteBatch, port: SourceFence, topics: list[str], timeout: float) -> None:
    """Durable before it is closed: topics that are closed by us, and so are to be opened again."""
    theirs = await context.within(
        port.closed(topics, timeout=timeout), timeout, "asking whether the source refuses writes"
    )
    mine = [topic for topic in topics if topic not in theirs]
    if mine:
        await context.written(context.controller.note_source_fence(context.link, context.job_id, closed=mine))


def _port(context: PromoteBatch) -> SourceFence:
    if context.source_fence is None:
        raise PromoteAbandoned("the source is to refuse writes, and nothing can make it")
    return context.source_fence


def _topics(context: PromoteBatch) -> list[str]:
    """Those that are promoted as a whole."""
    topics, parts = whole_topics(context.controller.image, context.link, context.tps)
    if parts and context.switch:
        raise PromoteAbandoned(
            f"only a part of topic {parts[0]} is promoted: it cannot be taken over at its source"
        )
    warnings = (f"topic {topic} is promoted in parts: its source is not fenced" for topic in parts)
    context.warnings = tuple(dict.fromkeys([*context.warnings, *warnings]))
    return topics
