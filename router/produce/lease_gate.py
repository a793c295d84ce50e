"""Holds back an acknowledgement until the sidecar's lease is proved, while several sidecars can forward. Pure:
no I/O; the lease reads its own clock.

Invariant (no fork): a partition is handed over only after every sidecar that could acknowledge a write for it
has acknowledged the fence, or certainly cannot acknowledge anything any more. The first half is
``fence.py``'s; the second is held here, by what is done with a success of the source:

- **Covered**: one unbroken lease spans from before the write was sent until after the answer's bytes were read
  (``LeasePort.covers`` of the term read at sending). Nobody can have taken us as harmless in between, so
  whoever reads the source's end for a hand-over reads it later than our write: told at once. How long the
  answer takes from there to the client does not matter, the write is in the log that is handed over.
- **Deferred**: the lease is over, or was in between. A lapse that was healed is no better, because the
  partition may have been aligned without us meanwhile. The batch stays in flight, so a fence goes on waiting
  for it, until a renewal sent *after* the answer arrived is answered while the partition is open: then the
  write was in the log before that proof, and an alignment older than the proof would have shown itself as a
  fence, which is applied before the lease begins again.
- **Unknown**: its partition is fenced or handed over while it is deferred, or was before it arrived. The
  write may be behind the end that was aligned. The source's real answer settles the lane (a fence drains,
  order is kept), but the client hears REQUEST_TIMED_OUT, retriable, and never a success. Likewise at the
  request's deadline, or when the client is gone.

A batch that is sent *under* a fence (``lanes.py`` settles lost writes by sending them again) needs more than a lease at
sending: if the lease lapsed and was healed since the fence was set, the partition may have been aligned without us,
and what is sent from then on lies behind that end, covered or not. So it is sent only in the term in which the
fence was set; else it is given up, and ``settle_grace`` settles it.

Where the partition is handed over already, even a covered success is unknown: somebody else's log is the
truth, and whether the write is in it nobody here can say (a failover does not wait for the source's answers).

Refusals of the source acknowledge nothing and are told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic

from router.fence import LED_ELSEWHERE, FenceTable
from router.ports import LeasePort
from router.produce.batch import Answer, Batch, Deferred, JobT
from router.produce.lanes import Lane
from wire.errors import LocalProtocolError
from wire.frames.error_codes import DUPLICATE_SEQUENCE_NUMBER, NONE
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

ACKNOWLEDGES: Final = frozenset({NONE, DUPLICATE_SEQUENCE_NUMBER})

Told = tuple[Lane[JobT], Batch[JobT], Sequence[Answer[JobT]]]
"""A batch that waited for the lease and what clients get now; its answer is the first one."""


class LeaseGate(Generic[JobT]):
    """Between the source's answers and the lanes."""

    def __init__(self, lease: LeasePort, fences: FenceTable[JobT]) -> None:
        self.lease = lease
        self._fences = fences
        #: Successes of the source that clients were told to be unknown.
        self.unknown = 0
        self._deferred: dict[Batch[JobT], Lane[JobT]] = {}  # in the order of arrival
        self._closed_in: dict[TopicPartition, int] = {}  # the lease's term when the partition was closed

    def __len__(self) -> int:
        """How many successes wait for the lease."""
        return len(self._deferred)

    def answered(
        self, lane: Lane[JobT], batch: Batch[JobT], result: ProduceResult, *, covered: bool
    ) -> Sequence[Answer[JobT]]:
        """The source answered a batch in flight; the lane moves on unless the answer is deferred
        (``batch.deferred``). The clients' answers are returned, as by ``Lane.answered``.

        covered: ``lease.covers(term)`` of the term at sending, asked after the answer's bytes were read.
        """
        if result.error not in ACKNOWLEDGES or batch.closed:
            return lane.answered(batch, result.error)
        state = self._fences.state(lane.tp)
        if covered and state not in LED_ELSEWHERE:
            return lane.answered(batch, result.error)
        if state is not None:
            return self._unknown(lane, batch, result)
        # The clock after the bytes: a renewal sent later than this was sent later than they came.
        batch.deferred = Deferred(result, self.lease.now())
        self._deferred[batch] = lane
        return ()

    def renewed(self) -> list[Told[JobT]]:
        """A renewal was answered: what it proves is told."""
        told: list[Told[JobT]] = []
        for batch, lane in list(self._deferred.items()):
            if self._fences.state(lane.tp) is not None:
                told.append((lane, batch, self.give_up(batch)))
            elif self.lease.proven_since((waiting := _waiting(batch)).arrived):
                del self._deferred[batch]
                told.append((lane, batch, lane.answered(batch, waiting.result.error)))
        return told

    def closed(self, tps: Iterable[TopicPartition]) -> list[Told[JobT]]:
        """These partitions were fenced or handed over just now, perhaps again: what is deferred for them ends as
        unknown.
        """
        wanted = frozenset(tps)
        term = self.lease.term
        for tp in wanted:
            self._closed_in.setdefault(tp, term)
        if not self._deferred:
            return []
        return [
            (lane, batch, self.give_up(batch))
            for batch, lane in list(self._deferred.items())
            if lane.tp in wanted
        ]

    def opened(self, tps: Iterable[TopicPartition]) -> None:
        """These partitions are fenced no more."""
        for tp in tps:
            self._closed_in.pop(tp, None)

    def may_send(self, tp: TopicPartition) -> bool:
        """Whether a batch may be forwarded now."""
        term = self._closed_in.get(tp)
        return self.lease.valid() if term is None else self.lease.covers(term)

    def give_up(self, batch: Batch[JobT]) -> Sequence[Answer[JobT]]:
        """A deferred batch ends as unknown. Nothing is left to tell if its client is gone."""
        waiting = _waiting(batch)
        return self._unknown(self._deferred.pop(batch), batch, waiting.result)

    def _unknown(self, lane: Lane[JobT], batch: Batch[JobT], result: ProduceResult) -> Sequence[Answer[JobT]]:
        self.unknown += 1
        answers = lane.expire(batch)  # REQUEST_TIMED_OUT, and nothing behind it overtakes the client's retry
        lane.answered(batch, result.error)
        return answers


def _waiting(batch: Batch[JobT]) -> Deferred:
    if batch.deferred is None:
        raise LocalProtocolError(f"{batch!r} does not wait for the lease")
    return batch.deferred
