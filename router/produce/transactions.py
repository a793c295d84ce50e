"""Writes of transactions to a mirror: they wait here for its promote, for some seconds, then their client tries again.

A transaction cannot be in two clusters, so nothing of it is forwarded: its client has to keep it until the target owns the
topic. Libraries that count their tries (kafkajs six, sarama four) would hand it back to the application within seconds, so
each try is made to last. It does not last for the request's whole time: a client that gives up before its transaction's
own timeout (60 s in most) can abort and go on, and one whose transaction the coordinator has ended meanwhile cannot.

A wait ends as soon as every broker of the target names the new leader (`FenceState.HANDED_OVER`), not before: the libraries
ask any broker who leads, and one that does not know it yet would cost them another try.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from router.authorize import Authorizer
from router.fence import FenceState
from router.produce.admission import WAITS_FOR_PROMOTE, message_for, refusal
from router.produce.answers import ProduceAnswers
from router.produce.forwarding import ForwardingHub
from router.produce.job import ProduceJob
from wire.frames.error_codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

#: Seconds between looks at what waits, beside the looks at every hand-over.
_LOOK: Final = 1.0


class WaitingTransactions:
    """Of one client connection."""

    def __init__(self, hub: ForwardingHub, answers: ProduceAnswers, authorizer: Authorizer) -> None:
        self._hub = hub
        self._answers = answers
        self._authorizer = authorizer
        self._waiting: dict[tuple[ProduceJob, int], tuple[TopicPartition, memoryview]] = {}
        self._look_at = 0.0
        #: Those that its transactions wrote to.
        self.topics: set[str] = set()

    def holds(self, tps: Collection[TopicPartition]) -> bool:
        return any(tp in tps for tp, _ in self._waiting.values())

    def admit(self, job: ProduceJob, slot: int, tp: TopicPartition, records: memoryview) -> None:
        """Have the batch wait. If there is no room for it, its client is told at once to try again."""
        job.in_lanes += 1
        self.topics.add(tp.topic)
        self._waiting[job, slot] = (tp, records)
        hub = self._hub
        hub.transactions.add(self)
        hub.transactions_waiting += 1
        hub.transactions_bytes += len(records)
        if (
            job.request.acks == 0
            or hub.transactions_waiting > hub.limits.transactions_waiting
            or hub.transactions_bytes > hub.limits.held_bytes // 4
        ):
            self._end(job, slot, NOT_ENOUGH_REPLICAS)

    def sweep(self, now: float) -> None:
        """End what has waited for long enough."""
        if not self._waiting:
            return
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self.look_again()
        patience = self._hub.limits.transaction_patience
        for (job, slot), (tp, _) in list(self._waiting.items()):
            if now >= min(job.deadline, job.started + patience):
                carried = self._hub.fences.state(tp) is FenceState.CARRIED
                self._end(job, slot, NOT_LEADER_OR_FOLLOWER if carried else NOT_ENOUGH_REPLICAS)

    def look_again(self) -> None:
        """Answers batches that wait for no promote any more."""
        mirrors = self._hub.ports.mirrors
        for (job, slot), (tp, records) in list(self._waiting.items()):
            mirror = mirrors.by_name(tp.topic)
            code = (
                NOT_LEADER_OR_FOLLOWER
                if mirror is None
                else refusal(self._hub, self._authorizer, mirror, tp, records)
            )
            if code != WAITS_FOR_PROMOTE:
                self._end(job, slot, code)

    def _end(self, job: ProduceJob, slot: int, code: int) -> None:
        found = self._forget(job, slot)
        if found is None:
            return  # an answer to one before it has closed the connection
        mirror = self._hub.ports.mirrors.by_name(found.topic)
        message = None if mirror is None else message_for(mirror, found.partition, code)
        self._answers.finish_slot(job, slot, ProduceResult(found.partition, code, error_message=message))
        self._answers.left(job)

    def _forget(self, job: ProduceJob, slot: int) -> TopicPartition | None:
        found = self._waiting.pop((job, slot), None)
        if found is None:
            return None
        hub, (tp, records) = self._hub, found
        hub.transactions_waiting -= 1
        hub.transactions_bytes -= len(records)
        if not self._waiting:
            hub.transactions.discard(self)
        return tp

    def abandon(self) -> None:
        """The client is gone."""
        for job, slot in list(self._waiting):
            self._forget(job, slot)
            self._answers.left(job)
