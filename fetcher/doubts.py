"""Checks a follower's claim about its position before the mirror partition fails because of it.

The offset that a fetch asks for is a mere claim, by the follower or by somebody who uses its name. One false claim
would fail the mirror for good, and its copies would begin anew. So the brokers themselves are asked where their logs
begin and end, over the sidecar's own connections; where a broker does not answer, the fetches are believed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from fetcher.partition_copy import PartitionCopy
from fetcher.progress import Behind
from wire.errors import describe
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)


class LogEnds(NamedTuple):
    """A replica's log as its broker tells it."""

    start: int
    end: int


AskEnds = Callable[[TopicPartition, Sequence[int]], Awaitable[Mapping[int, LogEnds]]]
"""Of these brokers; who cannot be asked is not in the answer. It must not raise, and have a deadline."""

#: Seconds for which an answer is good.
_FRESH = 5.0
_TIMEOUT: Final = 30.0  # far longer than those who ask take


class _Asked(NamedTuple):
    task: asyncio.Task[Mapping[int, LogEnds]]
    at: float


class Doubts:
    def __init__(self, ask: AskEnds) -> None:
        self._ask = ask
        self._asked: dict[TopicPartition, _Asked] = {}

    def verdict(self, mirror: PartitionCopy, now: float) -> Behind:
        """The verdict on a mirror whose followers all claim to end before the source begins. WAIT while the brokers are
        asked."""
        asked = self._asked.get(mirror.tp)
        if asked is None or (asked.task.done() and now - asked.at > _FRESH):
            for tp in [tp for tp, one in self._asked.items() if one.task.done() and now - one.at > _FRESH]:
                del self._asked[tp]
            task = asyncio.get_running_loop().create_task(
                self._find_out(mirror), name=f"where {mirror.tp} ends"
            )
            self._asked[mirror.tp] = _Asked(task, now)
            return Behind.WAIT
        if not asked.task.done():
            return Behind.WAIT
        return judge(mirror, {} if asked.task.cancelled() else asked.task.result())

    async def _find_out(self, mirror: PartitionCopy) -> Mapping[int, LogEnds]:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._ask(mirror.tp, mirror.spec.target_replicas)
        except Exception as error:
            log.warning("where the replicas of %s end is not told: %s", mirror.tp, describe(error))
            return {}
        finally:
            # Fetches that wait hear of it, and of all changes meanwhile.
            asyncio.get_running_loop().call_soon(mirror.notify)

    def close(self) -> None:
        for asked in self._asked.values():
            asked.task.cancel()
        self._asked.clear()


def judge(mirror: PartitionCopy, ends: Mapping[int, LogEnds]) -> Behind:
    """Judge by the brokers' own answers. Records below the mirror's start are of an earlier session."""
    data = False
    for replica in mirror.spec.target_replicas:
        known = ends.get(replica)
        if known is None:
            progress = mirror.followers.get(replica)
            if progress is None:
                continue
            known = LogEnds(progress.log_start_offset, progress.fetch_offset)
        if known.end >= mirror.log_start_offset:
            return Behind.MOVE
        data = data or max(known.start, mirror.spec.start_offset) < known.end
    return Behind.FAIL if data else Behind.MOVE


def judge_by_fetches(mirror: PartitionCopy, now: float) -> tuple[Behind, str]:
    """A follower is below the source's log start. Has retention outrun the mirror, or only this follower?

    A follower without data just starts later, and one of several copies may be behind: it begins again
    at the log start like any stock follower. Data up to the mirror's start offset are of an earlier session, and
    go when the follower begins again.

    When every copy is behind, copies lose records that nobody else has. In a first copy that is nothing to stop for: no
    copy was whole yet, and a topic whose records are deleted as they are used (Kafka Streams purges what it has
    repartitioned) could never be copied otherwise. Later it is: they were whole, and may be all that is left of the
    source's log; an operator decides.
    """
    behind = None
    for progress in mirror.followers.values():
        if progress.fetch_offset >= mirror.log_start_offset:
            return Behind.MOVE, ""
        offset = progress.fetch_offset
        if progress.has_data and offset > (mirror.spec.start_offset if behind is None else behind):
            behind = offset
    if mirror.replicas_may_come(now):
        return Behind.WAIT, ""
    if behind is None or mirror.follower_logs.copying_anew >= {
        *mirror.spec.target_replicas,
        *mirror.followers,
    }:
        return Behind.MOVE, ""
    return Behind.FAIL, (
        "retention at the source has outrun the mirror: "
        f"its log starts at offset {mirror.log_start_offset}, the mirror has copied up to {behind}"
    )
