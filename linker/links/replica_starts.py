"""Where the replicas' logs start, as their brokers tell, leader or not: for a promote (controller.ports.ReplicaStarts), and
looked at now and then for people, who should not hear of it first when they promote.

Whatever deletes records of a copy alone (retention that somebody has set on the mirror, DeleteRecords, a disk) raises its
log start above the source's. No fetch shows it: the copy goes on at its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from controller import late_starts
from controller.late_starts import LateStart
from controller.manager import LinkController
from controller.phases import ENDED
from linker.tasks import together_by_key
from wire.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.list_offsets import EARLIEST, list_at
from wire.types import TopicPartition

log = logging.getLogger(__name__)

INTERVAL = 15.0
_TIMEOUT = 10.0


class ReplicaStarts:
    """Of one link."""

    def __init__(
        self,
        link: str,
        source: Cluster,
        target: Cluster,
        controller: LinkController,
        targets: Callable[[TopicPartition], Collection[int]],
    ) -> None:
        """`targets`: the real brokers that are to hold a partition."""
        self._link = link
        self._source = source
        self._target = target
        self._controller = controller
        self._targets = targets
        #: Replicas that start late, as seen at the last look.
        self.seen: Mapping[TopicPartition, list[LateStart]] = {}

    async def late(
        self, tps: Collection[TopicPartition], *, timeout: float, every: bool = True
    ) -> dict[TopicPartition, list[LateStart]]:
        """Asked now. The source is asked last: starts only go up, so one that moves meanwhile makes no replica late.
        Without `every`, a broker that does not answer in time is left out."""
        by_broker: dict[int, list[TopicPartition]] = {}
        for tp in tps:
            for broker in self._targets(tp):
                by_broker.setdefault(broker, []).append(tp)
        answers = await together_by_key(
            {broker: self._told(broker, of, timeout / 2, every) for broker, of in by_broker.items()}
        )
        # Without one above its mirror's start there is nothing that the source could have before it.
        above = [
            tp
            for tp in tps
            if any(answers[broker].get(tp, 0) > self._mirror_start(tp) for broker in self._targets(tp))
        ]
        if not above:
            return {}
        starts = await self._source.list_offsets(dict.fromkeys(above, EARLIEST), timeout=timeout / 2)
        found: dict[TopicPartition, list[LateStart]] = {}
        for tp in above:
            if starts[tp].error:
                raise BrokerError(starts[tp].error, api="list_offsets", topic_partition=tp)
            log_starts = {
                broker: answers[broker][tp] for broker in self._targets(tp) if tp in answers[broker]
            }
            late = self._judge(tp, starts[tp].offset, log_starts)
            if late:
                found[tp] = late
        return found

    async def _told(
        self, broker: int, tps: Collection[TopicPartition], timeout: float, every: bool
    ) -> dict[TopicPartition, int]:
        try:
            return await self._ask(broker, tps, timeout)
        except LinkerError as error:
            if every:
                raise
            log.debug("link %s: broker %d does not tell where its logs start: %s", self._link, broker, error)
            return {}

    async def _ask(
        self, broker: int, tps: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, int]:
        answers = await list_at(self._target, broker, dict.fromkeys(tps, EARLIEST), timeout=timeout)
        offsets = {}
        for tp in tps:
            answer = answers.get(tp)
            if answer is None or answer.error or answer.offset < 0:
                code = 3 if answer is None or not answer.error else answer.error
                raise BrokerError(
                    code,
                    message=f"broker {broker} does not tell where its log of {tp} starts",
                    api="list_offsets",
                    topic_partition=tp,
                )
            offsets[tp] = answer.offset
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
        """Of the late replicas alone."""
        return {
            tp: {one.broker_id: one.log_start for one in late} for tp, late in dict(self.seen).items() if late
        }

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Once, partition by partition of what answers: a broker that is down must not hide the others' late starts."""
        tps = [
            state.tp
            for state in self._controller.image.link_partitions(self._link)
            if state.phase not in ENDED and state.session_epoch >= 0
        ]
        try:
            self._note(await self.late(tps, timeout=_TIMEOUT))
            return
        except LinkerError as error:
            log.debug("link %s: not every replica tells where it starts: %s", self._link, error)
        seen: dict[TopicPartition, list[LateStart]] = {}
        for topic in sorted({tp.topic for tp in tps}):
            of_topic = [tp for tp in tps if tp.topic == topic]
            try:
                seen |= await self.late(of_topic, timeout=_TIMEOUT)
            except LinkerError:
                # What was seen of it stays until it can be asked again.
                seen |= {tp: self.seen[tp] for tp in of_topic if tp in self.seen}
        self._note(seen)

    def _note(self, seen: Mapping[TopicPartition, list[LateStart]]) -> None:
        for tp, late in seen.items():
            if self.seen.get(tp) != late:
                log.error(
                    "link %s: %s: a promote would lose records: %s", self._link, tp, late_starts.worst(late)
                )
        self.seen = seen
