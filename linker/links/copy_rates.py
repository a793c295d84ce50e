"""How fast the lags of a link's mirrors go down, and so how long their copies will still take.

Partitions that are behind are looked at every few seconds, and half a minute is remembered. A rate is net of what the source
grows by meanwhile. Where the lag does not go down nobody can say when the copy ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from controller.phases import ENDED
from fetcher.partition_copy import PartitionCopy
from fleet.progress import copy_lag
from linker.links.link_part import LinkContext, LinkPart
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

_INTERVAL = 3.0
_WINDOW = 30.0

Lags = deque[tuple[float, int]]  # (when, offsets)


class CopyRates(LinkPart):
    """Those of one link, on the link controller."""

    def __init__(
        self,
        context: LinkContext,
        local: Callable[[], Mapping[TopicPartition, PartitionCopy]],
        targets: Callable[[TopicPartition], tuple[int, ...]],
        lag: Callable[[TopicPartition], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`local`: the copies of this sidecar; `lag`: of any partition."""
        super().__init__(context)
        self._local = local
        self._targets = targets
        self._lag = lag
        self._clock = clock
        self._lags: dict[TopicPartition, Lags] = {}
        self.task = PeriodicTask("copy rates", self._once, _INTERVAL, clock=clock)

    async def _once(self) -> None:
        self.look()

    def look(self) -> None:
        """Note the lags of this moment."""
        now = self._clock()
        noted: dict[TopicPartition, Lags] = {}
        for tp, lag in self._behind():
            lags = noted[tp] = self._lags.get(tp) or deque()
            lags.append((now, lag))
            while now - lags[0][0] > _WINDOW:
                lags.popleft()
        self._lags = noted

    def _behind(self) -> Iterable[tuple[TopicPartition, int]]:
        local = self._local()
        for tp, copy in local.items():
            end = copy.high_watermark
            # Thousands are at their end: nothing more is asked of these.
            for follower in copy.followers.values():
                if follower.fetch_offset < end:
                    if lag := copy_lag(copy, self._targets(tp)):
                        yield tp, lag
                    break
        fleet_controller = self._fleet_controller()
        if fleet_controller is None or len(fleet_controller.members) < 2:
            return
        for state in self._controller.image.link_partitions(self._link):
            if state.tp not in local and state.phase not in ENDED and (lag := self._lag(state.tp)):
                yield state.tp, lag

    def rate(self, tps: Iterable[TopicPartition]) -> float | None:
        """By how many offsets a second the lag of these goes down, all together; None if it does not."""
        total = 0.0
        for tp in tps:
            lags = self._lags.get(tp)
            if lags is not None and len(lags) > 1:
                (began, before), (at, now) = lags[0], lags[-1]
                total += (before - now) / (at - began)
        return total if total > 0 else None
