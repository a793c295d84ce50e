"""Finds replicas whose log starts later than the source's (linker.promote.ports.ReplicaStartsPort).

Retention that was set on the mirror, DeleteRecords or a lost disk deletes records of one copy alone, and raises its log
start above the source's. No fetch shows it: the copy goes on at its end. A promote asks the brokers itself, leader or
not; a look at intervals tells people before they promote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from controller.judge import late_starts
from controller.judge.late_starts import LateStart
from controller.phases import ENDED
from linker.links.link_part import LinkContext, LinkPart
from linker.links.replica_ends import of_replicas
from wire.errors import BrokerError, LinkerError
from wire.frames.list_offsets import EARLIEST, list_at
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

INTERVAL = 15.0
_TELL_AGAIN = 600.0  # of a late start that moves on, and is else as it was told
_TIMEOUT = 10.0
_PATIENCE = 0.5  # with a broker of the target that sleeps, where it is asked again behind the fence


class ReplicaStarts(LinkPart):
    """Of one link."""

    def __init__(self, context: LinkContext, targets: Callable[[TopicPartition], Collection[int]]) -> None:
        """`targets`: the real brokers that are to hold a partition."""
        super().__init__(context)
        self._targets = targets
        #: Replicas that start late, as seen at the last look.
        self.seen: Mapping[TopicPartition, list[LateStart]] = {}
        #: Partitions of which every replica told it then.
        self._told_of: frozenset[TopicPartition] = frozenset()
        # By partition: how what is late looked in the log, and when that was.
        self._logged: dict[TopicPartition, tuple[object, float]] = {}
        self.task = PeriodicTask("where replicas start", self.look, INTERVAL)

    async def late(
        self, tps: Collection[TopicPartition], *, timeout: float, every: bool = True
    ) -> dict[TopicPartition, list[LateStart]]:
        """Asked now. The source is asked last: starts only go up, so one that moves meanwhile makes no replica late.
        Without `every`, a broker that does not tell at once is left out."""
        patience = timeout / 2 if every else min(timeout / 2, _PATIENCE)
        told = await self._log_starts({tp: self._targets(tp) for tp in tps}, patience, every)
        found, refused = await self._beside_source(told, timeout - patience)
        for tp, code in refused.items():
            raise BrokerError(code, api="list_offsets", topic_partition=tp)
        return found

    async def _beside_source(
        self, told: Mapping[TopicPartition, Mapping[int, int]], timeout: float
    ) -> tuple[dict[TopicPartition, list[LateStart]], dict[TopicPartition, int]]:
        """Those of the replicas with the given log starts that are late; and error codes where the source does not
        tell."""
        # Without one above its mirror's start there is nothing that the source could have before it.
        above = [
            tp
            for tp, log_starts in told.items()
            if any(log_start > self._mirror_start(tp) for log_start in log_starts.values())
        ]
        if not above:
            return {}, {}
        starts = await self._source.list_offsets(dict.fromkeys(above, EARLIEST), timeout=timeout)
        found = {
            tp: late
            for tp in above
            if not starts[tp].error and (late := self._judge(tp, starts[tp].offset, told[tp]))
        }
        return found, {tp: starts[tp].error for tp in above if starts[tp].error}

    async def _log_starts(
        self, targets: Mapping[TopicPartition, Collection[int]], timeout: float, every: bool
    ) -> dict[TopicPartition, dict[int, int]]:
        """By partition and broker."""
        return await of_replicas(targets, lambda broker, tps: self._told(broker, tps, timeout, every))

    async def _told(
        self, broker: int, tps: Collection[TopicPartition], timeout: float, every: bool
    ) -> dict[TopicPartition, int]:
        try:
            return await self._ask(broker, tps, timeout, every)
        except LinkerError as error:
            if every:
                raise
            log.debug("link %s: broker %d does not tell where its logs start: %s", self._link, broker, error)
            return {}

    async def _ask(
        self, broker: int, tps: Collection[TopicPartition], timeout: float, every: bool
    ) -> dict[TopicPartition, int]:
        answers = await list_at(self._target.cluster, broker, dict.fromkeys(tps, EARLIEST), timeout=timeout)
        offsets = {}
        for tp in tps:
            answer = answers.get(tp)
            if answer is not None and not answer.error and answer.offset >= 0:
                offsets[tp] = answer.offset
            elif every:
                raise BrokerError(
                    3 if answer is None or not answer.error else answer.error,
                    message=f"broker {broker} does not tell where its log of {tp} starts",
                    api="list_offsets",
                    topic_partition=tp,
                )
        return offsets

    def _mirror_start(self, tp: TopicPartition) -> int:
        state = self._controller.image.partitions.get((self._link, tp))
        return 0 if state is None else state.start_offset or 0

    def _judge(self, tp: TopicPartition, source_start: int, log_starts: Mapping[int, int]) -> list[LateStart]:
        known = self._controller.image.validations.get((self._link, tp))
        counted = (
            {}
            if known is None
            else {one.broker_id: one.missing for one in known.replicas if one.missing is not None}
        )
        return late_starts.judge(self._mirror_start(tp), source_start, log_starts, counted)

    # --- for people ------------------------------------------------------------------------------------------

    def of(self, tp: TopicPartition) -> list[LateStart]:
        """As seen at the last look, with what was counted since."""
        seen = self.seen.get(tp)
        if not seen:
            return []
        return self._judge(tp, seen[0].start, {one.broker_id: one.log_start for one in seen})

    def log_starts(self) -> dict[TopicPartition, dict[int, int]]:
        """Of the late replicas alone; a partition without any is there if that is known."""
        none: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in self._told_of}
        return none | {
            tp: {one.broker_id: one.log_start for one in late} for tp, late in dict(self.seen).items() if late
        }

    async def look(self) -> str | None:
        """Once; why the source could not be asked. A broker that is down hides its own late starts only, and one of its own
        that was seen before stays; so does that of a partition which the source does not tell of now."""
        targets = {
            state.tp: self._targets(state.tp)
            for state in self._controller.image.link_partitions(self._link)
            if state.phase not in ENDED and state.session_epoch >= 0
        }
        told = await self._log_starts(targets, _TIMEOUT / 2, every=False)
        told_of = [tp for tp, brokers in targets.items() if all(broker in told[tp] for broker in brokers)]
        for tp, brokers in targets.items():
            for one in self.seen.get(tp, ()):
                if one.broker_id in brokers:
                    told[tp].setdefault(one.broker_id, one.log_start)
        try:
            found, refused = await self._beside_source(told, _TIMEOUT / 2)
        except LinkerError as error:
            log.debug("link %s: the source does not tell where its logs start: %s", self._link, error)
            return str(error)
        kept = {tp: self.seen[tp] for tp in refused if tp in self.seen}
        self._note(found | kept, [tp for tp in told_of if tp not in refused])
        return None

    def _note(
        self, seen: Mapping[TopicPartition, list[LateStart]], told_of: Collection[TopicPartition]
    ) -> None:
        now = asyncio.get_running_loop().time()
        losing = {tp: late for tp, late in seen.items() if late and late_starts.worst(late).records}
        self._logged = {tp: told for tp, told in self._logged.items() if tp in losing}
        for tp, late in losing.items():
            kind = [(one.broker_id, None if one.counted is None else one.counted.exact) for one in late]
            before, at = self._logged.get(tp, (None, now))
            if before != kind or (self.seen.get(tp) != late and now - at >= _TELL_AGAIN):
                self._logged[tp] = kind, now
                log.error(
                    "link %s: %s: a promote would lose records: %s", self._link, tp, late_starts.worst(late)
                )
        self.seen, self._told_of = seen, frozenset(told_of)
