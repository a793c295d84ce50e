"""The order in which partitions are resolved: batches, one turn at a time, nobody held up by somebody else.

The two handlers resolve and act; this is only the queue, its pauses and its tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fetcher.partition_copy import PartitionCopy
from fetcher.resolve import Resolver, SourceVerdict
from wire.backoff import Backoff
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

Offsets = tuple[int, int] | str


class ResolveQueue:
    def __init__(
        self,
        resolver: Resolver,
        *,
        is_ours: Callable[[PartitionCopy], bool],
        judged: Callable[[PartitionCopy, SourceVerdict], None],
        located: Callable[[PartitionCopy, Offsets], None],
    ) -> None:
        self._resolver = resolver
        self._is_ours = is_ours
        self._judged = judged
        self._located = located
        self._waiting: dict[TopicPartition, PartitionCopy] = {}
        self._filled = asyncio.Event()
        #: Turns through the queue in a row and the time of the last one.
        self._attempts: dict[TopicPartition, tuple[int, float]] = {}
        #: Partitions whose offsets are being asked for.
        self._asking: set[PartitionCopy] = set()

    def __contains__(self, mirror: PartitionCopy) -> bool:
        return self._waiting.get(mirror.tp) is mirror or mirror in self._asking

    def put(self, mirror: PartitionCopy) -> None:
        """In the next batch."""
        if self._is_ours(mirror):
            self._waiting[mirror.tp] = mirror
            self._filled.set()

    def put_again(self, mirror: PartitionCopy) -> None:
        """At once the first time, with a growing pause when it keeps coming back."""
        now = time.monotonic()
        attempts, last = self._attempts.get(mirror.tp, (0, 0.0))
        if now - last > 5 * LONGEST_PAUSE:
            attempts = 0
        self._attempts[mirror.tp] = (attempts + 1, now)
        if attempts == 0:
            self.put(mirror)
        else:
            asyncio.get_running_loop().call_later(pause_after(attempts), self.put, mirror)

    def forget(self, tp: TopicPartition) -> None:
        self._waiting.pop(tp, None)
        self._attempts.pop(tp, None)

    async def run(self) -> None:
        async with TaskGroup() as group:
            while True:
                await self._filled.wait()
                self._filled.clear()
                batch = [mirror for mirror in self._waiting.values() if self._is_ours(mirror)]
                self._waiting.clear()
                if batch:
                    await self._turn(batch, group)

    async def _turn(self, batch: list[PartitionCopy], group: TaskGroup) -> None:
        try:
            verdicts = await self._resolver.resolve(batch)
        except LinkerError as error:
            verdicts = {mirror.tp: SourceVerdict(trouble=str(error)) for mirror in batch}
        by_leader: dict[int, dict[TopicPartition, PartitionCopy]] = {}
        for mirror in batch:
            if not self._is_ours(mirror):
                continue
            verdict = verdicts[mirror.tp]
            self._judged(mirror, verdict)
            if (
                self._is_ours(mirror)
                and verdict.trouble is None
                and mirror not in self._asking
                and self._resolver.needs_offsets(mirror)
            ):
                by_leader.setdefault(self._resolver.leader_of(mirror), {})[mirror.tp] = mirror
        for asked in by_leader.values():
            # On the side: a leader that does not answer must not hold up everybody else's turn.
            self._asking.update(asked.values())
            group.create_task(self._ask_offsets(asked))

    async def _ask_offsets(self, mirrors: dict[TopicPartition, PartitionCopy]) -> None:
        found: dict[TopicPartition, Offsets]
        try:
            followed = {tp for tp, one in mirrors.items() if one.feed is not None and not one.loaded}
            found = await self._resolver.offsets(mirrors.keys(), followed)
        except LinkerError as error:
            found = dict.fromkeys(mirrors, str(error))
        finally:
            self._asking.difference_update(mirrors.values())
        for tp, mirror in mirrors.items():
            if self._is_ours(mirror):
                self._located(mirror, found[tp])


def pause_after(attempts: int) -> float:
    """Seconds to wait after that many failures in a row."""
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE).at(attempts - 1)
