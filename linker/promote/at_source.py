"""Open transactions and direct producers at the source, before the hand-over and right after it.

A transaction that holds the last stable offset back is waited for as long as `transaction_timeout` allows. When it ends
and another one follows, that time begins anew. A port names producers and aborts transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection, Mapping

from controller.errors import PromoteAbandoned
from controller.judge.alignment import SourceEnd, gone_on
from controller.phases import Phase
from linker.promote.context import PromoteBatch, full_reason
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

logger = logging.getLogger(__name__)

_ABORTING = 30.0  # a coordinator answers when its markers are written; nobody is held meanwhile
_NAMING = 2.0  # seconds: a name is worth no more inside a fence
_NAMING_UNHELD = 10.0  # nobody waits for it then but who asked, and the name is what he needs
_LOOKING_BACK = 2.0  # seconds: a source that is being shut down must not hold up the end of its promote


class SourceTransactions:
    """The open transactions of one batch."""

    def __init__(self, context: PromoteBatch) -> None:
        self._context = context
        self._since: dict[TopicPartition, tuple[int, float]] = {}  # last stable offset, and since when

    async def waited_for(self, ends: Mapping[TopicPartition, SourceEnd]) -> dict[TopicPartition, str]:
        """The partitions with an open transaction that is waited for; raises when one has been open for too long."""
        now, settings = self._context.now(), self._context.settings
        before, self._since = self._since, {}
        for tp, end in ends.items():
            if end.in_transaction:
                known = before.get(tp)
                same = known is not None and known[0] == end.last_stable_offset
                self._since[tp] = known if known is not None and same else (end.last_stable_offset, now)
        late = [tp for tp, (_, since) in self._since.items() if now - since >= settings.transaction_timeout]
        if late:
            await self._too_long(late)
        return dict.fromkeys(self._since, "a transaction is open at the source")

    async def _too_long(self, tps: Collection[TopicPartition]) -> None:
        context = self._context
        producers, limit = context.ports.producers, context.settings.transaction_timeout
        if producers is None or not context.settings.abort_open_transactions:
            names: Mapping[TopicPartition, str] = {}
            if producers is not None:
                held = any(context.phase_of(tp) is not Phase.CATCHING_UP for tp in tps)
                timeout = _NAMING if held else _NAMING_UNHELD
                names = await _named(context, producers.open_transactions(tps, timeout=timeout), timeout)
            raise PromoteAbandoned(
                f"a transaction has been open at the source for {limit:g} s",
                {tp: names.get(tp, "its producer is not known") for tp in tps},
            )
        aborted = await context.within(
            producers.abort_open(tps, timeout=_ABORTING),
            _ABORTING,
            "aborting transactions at the source",
        )
        for tp, what in sorted(aborted.items()):
            logger.warning("promote %d of link %s: %s: aborted %s", context.job_id, context.link, tp, what)
        context.warnings = (
            *context.warnings,
            *(f"{tp}: aborted {what}" for tp, what in sorted(aborted.items())),
        )
        for tp in tps:
            self._since.pop(tp, None)


async def name_writers(
    context: PromoteBatch, moved: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Name the partitions whose ends moved, with the producers that may have written there."""
    producers = context.ports.producers
    if producers is None:
        return dict(moved)
    names = await _named(context, producers.writers(list(moved), timeout=_NAMING))
    return {tp: f"{what}; {names[tp]}" if tp in names else what for tp, what in moved.items()}


async def look_back(context: PromoteBatch, tps: Collection[TopicPartition]) -> list[str]:
    """Warnings about what was written to the source since `tps` were handed over, the producers by name.

    Between the last reading of an end before the hand-over and the hand-over itself nobody can keep a producer that was
    not moved from writing, unless the source refuses it (`source_fence`). Nothing can be undone any more: it is told. With a
    prefix no producer was to move.
    """
    if context.controller.image.links[context.link].prefix:
        return []
    states = context.controller.image.partitions
    ends = {tp: end for tp in tps if (end := states[context.link, tp].aligned_end) is not None}
    if not ends:
        return []
    try:
        seen = await context.within(
            context.ports.source_ends.ends(list(ends), timeout=_LOOKING_BACK),
            _LOOKING_BACK,
            "reading the source's ends",
        )
    except LinkerError as error:
        found = [
            f"whether somebody wrote to the source after the hand-over is not known: {full_reason(error)}"
        ]
    else:
        grown = gone_on(ends, {tp: end.log_end_offset for tp, end in seen.items()})
        named = await name_writers(context, grown) if grown else {}
        found = [f"{tp}: {what}" for tp, what in sorted(named.items())]
    for line in found:
        logger.warning("promote %d of link %s: %s", context.job_id, context.link, line)
    return found


async def _named(
    context: PromoteBatch, asking: Awaitable[Mapping[TopicPartition, str]], timeout: float = _NAMING
) -> Mapping[TopicPartition, str]:
    try:
        found = await context.within(asking, timeout, "asking the source")
    except LinkerError as error:
        logger.info("link %s: the source's producers cannot be named: %s", context.link, error)
        return {}
    return found
