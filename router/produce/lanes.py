"""The ordering core of produce forwarding: one lane per (client connection, partition). Pure: no I/O, no
clock.

Lives here: what happens to each batch of a partition between the client's request and its answer - sent,
sent again in order after a leadership change at the source, held at a fence, answered. Not here: what a batch
knows (``batch.py``), the tables (``lane_states.py``), sockets, timers, metadata, merging the answers of one request
(``session.py``), and fences over many lanes (``fence.py``).

Theory. The source checks sequence numbers, so for an idempotent producer sending again is always safe *in
order*. A lane therefore keeps its batches in the client's order and follows one rule: a batch is sent
only while every earlier one is in flight **on the same source connection** or finished. A connection of
Kafka is processed strictly in order, so what is sent on it arrives in order. As soon as one batch has to
be sent again, the lane stops sending, waits for the answers of everything in flight (later batches will
come back with NOT_LEADER_OR_FOLLOWER or, when the leader came back in between,
OUT_OF_ORDER_SEQUENCE_NUMBER) and starts again from the first one.

Unknown is a result. A batch whose connection died after it was sent may or may not be in the source's
log: idempotent ones go on being sent in order (the source drops the copy), for others the client is told
REQUEST_TIMED_OUT, which it may retry. A batch that was answered to the client or whose client vanished
stays in flight (TOLD) until the source answers: a fence must wait for it, for it may still land.

When a batch goes back, the batches that follow it go back too. When a batch goes back to the client, its time being
over or for any other reason that makes it come again, later ones of its producer in the queue go back at once, and
later ones in flight are BEHIND: if the source takes them the client is told so, but none of them is sent again here,
and OUT_OF_ORDER_SEQUENCE_NUMBER for them is our doing, not the client's. A batch that comes new is held by
``retry_order.py``.

Producers without an id get what Kafka gives them: a leadership error with several batches in flight, or
after the leader had already written, may reorder or double their batches, as their own retry would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from router.produce.batch import Answer, Batch, JobT, follows
from router.produce.lane_states import (
    ENDINGS,
    BatchState,
    Ending,
    ErrorMeaning,
    LaneEvent,
    LaneState,
    step,
    verdict,
)
from router.produce.retry_order import brings_back
from wire.errors import LocalProtocolError
from wire.frames.error_codes import (
    DUPLICATE_SEQUENCE_NUMBER,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
)
from wire.frames.types import TopicPartition

# By their names alone: a member of an Enum costs a look-up, and this is for each batch.
_FLOWING = LaneState.FLOWING
_QUEUED, _IN_FLIGHT = BatchState.QUEUED, BatchState.IN_FLIGHT
_TOLD, _DONE = BatchState.TOLD, BatchState.DONE


class Lane(Generic[JobT]):
    """State machine of one partition on one client connection.

    Invariants: ``queue`` and ``in_flight`` are in the client's order (ascending ``order``); everything in
    flight is on ``route``; a producer's batch is never sent while an earlier one of the lane waits in the
    queue.
    """

    __slots__ = (
        "_next_order",
        "_warm",
        "in_flight",
        "on_settling",
        "queue",
        "route",
        "stale",
        "state",
        "tp",
        "vanished",
    )

    def __init__(self, tp: TopicPartition, *, held: bool = False) -> None:
        self.tp = tp
        self.state = LaneState.HELD if held else LaneState.FLOWING
        self.queue: deque[Batch[JobT]] = deque()
        self.in_flight: deque[Batch[JobT]] = deque()
        self.route: object | None = None
        self.stale = False  # the leader has to be asked for before anything is sent again; wake() ends it
        self.vanished = False
        # Called when a write of unknown outcome is given up on: only time settles it now (fence.py keeps the clock).
        self.on_settling: Callable[[TopicPartition], None] | None = None
        self._next_order = 0
        self._warm: tuple[int, int] | None = None

    # Questions to the lane

    @property
    def idle(self) -> bool:
        return not self.queue and not self.in_flight

    @property
    def settled(self) -> bool:
        """Nothing that this lane sent can still change the source's log (writes given up on are counted in
        fence.py).
        """
        return not self.in_flight and not any(batch.unsettled for batch in self.queue)

    @property
    def needs_route(self) -> bool:
        """The queue would move if a source connection were there."""
        if not self.queue or self.state is LaneState.DRAINING:
            return False
        return self.state is not LaneState.HELD or any(batch.unsettled for batch in self.queue)

    # Events

    def offer(self, batch: Batch[JobT]) -> None:
        """A new batch of the client, behind all others."""
        if self.vanished:
            raise LocalProtocolError(f"lane {self.tp}: batch offered after the client vanished")
        batch.tp = self.tp
        batch.order = self._next_order
        self._next_order += 1
        self.queue.append(batch)

    def take(self, route: object) -> Batch[JobT] | None:
        """The next batch that may be sent on ``route``, the open connection to the current source leader, now."""
        queue, in_flight = self.queue, self.in_flight
        if not queue or self.state is LaneState.DRAINING or self.state is LaneState.WAITING:
            return None
        batch = queue[0]
        if self.state is LaneState.HELD and (self.stale or not any(b.unsettled for b in queue)):
            return None
        if in_flight:
            if self.route is not route:
                return None  # the leader moved: the old connection's answers come first
            if in_flight[-1].order > batch.order:
                return None  # sent again, under a fence too, only when those behind it are back
            if batch.producer[0] >= 0 and batch.producer != self._warm:
                # A partition without state for this producer accepts any first sequence, so if the first
                # batch fails and the second does not, the source would take them in the wrong order: prove
                # the first one alone.
                return None
        queue.popleft()
        in_flight.append(batch)
        self.route = route
        batch.state = _IN_FLIGHT
        batch.sent = True
        return batch

    def passes(self, batch: Batch[JobT], route: object) -> bool:
        """Whether nothing waits here, and the batch may be sent on ``route`` as soon as it came: pass_on()."""
        if self.queue or self.stale or self.vanished or self.state is not _FLOWING:
            return False
        return not self.in_flight or (
            self.route is route and (batch.producer[0] < 0 or batch.producer == self._warm)
        )

    def pass_on(self, batch: Batch[JobT], route: object) -> None:
        """offer() and take() in one, of a batch that passes()."""
        batch.tp = self.tp
        batch.order = self._next_order
        self._next_order += 1
        self.in_flight.append(batch)
        self.route = route
        batch.state = _IN_FLIGHT
        batch.sent = True

    def lands(self, batch: Batch[JobT]) -> bool:
        """Whether a success of the source would have one answer only, that the client gets it: acknowledged()."""
        in_flight = self.in_flight
        return (
            self.state is _FLOWING and batch.state is not _TOLD and bool(in_flight) and in_flight[0] is batch
        )

    def acknowledged(self, batch: Batch[JobT]) -> None:
        """answered() with NONE, of a batch that lands()."""
        in_flight = self.in_flight
        in_flight.popleft()
        batch.state = _DONE
        batch.unsettled = False
        if batch.producer[0] >= 0:
            self._warm = batch.producer
        if not in_flight:
            self.route = None

    def answered(self, batch: Batch[JobT], code: int) -> Sequence[Answer[JobT]]:
        """The source answered. Returns what the client gets: nothing if the batch will be sent again or is
        closed.
        """
        self._landed(batch)
        what = verdict(code)
        if what is ErrorMeaning.GAP and self._earlier_waits(batch):
            what = ErrorMeaning.RETRY
        ending = ENDINGS[batch.state, what]
        if ending is Ending.AGAIN:
            self._requeue(batch)
            return ()
        batch.state = _DONE
        unsettled = batch.unsettled
        self._finish(batch, code)
        if ending is Ending.NOTHING:
            self._drained()
            return ()
        if ending is Ending.BACK:
            # The source says that it did not take this copy; of an earlier one nobody knows.
            told = REQUEST_TIMED_OUT if unsettled else NOT_LEADER_OR_FOLLOWER
        else:
            told = NOT_ENOUGH_REPLICAS if what is ErrorMeaning.OURS else code
        answers = [(batch, told)]
        if batch.producer[0] >= 0:
            if code in (NONE, DUPLICATE_SEQUENCE_NUMBER):
                self._warm = batch.producer
            elif brings_back(told) or batch.producer != self._warm:
                # Of a producer that is not warm in any case: the source may know nothing of it yet and would accept the
                # next sequence as the first.
                answers += self._take_along(batch)
        self._drained()
        return answers

    def lost(self, batch: Batch[JobT]) -> list[Answer[JobT]]:
        """The connection ended with the batch in flight: its outcome is unknown."""
        self._landed(batch)
        told = batch.state is _TOLD
        if batch.idempotent and ENDINGS[batch.state, ErrorMeaning.LOST] is Ending.AGAIN:
            batch.unsettled = True
            self._requeue(batch)
            return []
        batch.state = _DONE
        self._settling()
        answers: list[Answer[JobT]] = []
        if not told:
            answers.append((batch, REQUEST_TIMED_OUT))
            # Those behind it would overtake the client's own retry: they go back to the client too.
            if batch.idempotent:
                answers += self._take_along(batch)
            else:
                answers += self._give_up(lambda waiting: waiting.order > batch.order)
        self._drained()
        return answers

    def wake(self) -> None:
        """The source's leader may be known now, or the back-off is over."""
        self.state = step(self.state, LaneEvent.WAKE)
        self.stale = False

    def expire(self, batch: Batch[JobT]) -> list[Answer[JobT]]:
        """The client's time for the batch is over."""
        if batch.closed:
            return []
        if batch.state is _QUEUED:
            return self._give_up(lambda waiting: waiting.order >= batch.order)
        batch.state = _TOLD  # stays in flight: the source's answer settles it
        self._leave_behind([batch])
        # The client will send it again, so nothing that waits behind it may go before that.
        return [(batch, REQUEST_TIMED_OUT), *self._give_up(lambda waiting: waiting.order > batch.order)]

    def fence(self) -> None:
        self.state = step(self.state, LaneEvent.FENCE)

    def unfence(self) -> None:
        """The promote was abandoned: what was held is forwarded in order, after wake()."""
        event = LaneEvent.UNFENCE_BUSY if self.in_flight else LaneEvent.UNFENCE_IDLE
        self.state = step(self.state, event)
        self._nothing_to_wait_for()

    def cut(self) -> list[Answer[JobT]]:
        """The source is given up: what is in flight ends as unknown, whatever the source may still say, and nothing of
        unknown outcome is sent there again. Held batches stay held."""
        answers: list[Answer[JobT]] = []
        for batch in tuple(self.in_flight):
            answers += self.expire(batch)
        for batch in self.queue:
            if batch.unsettled:
                self._settling()  # a copy of it may land there yet: a later fence has to wait
            batch.unsettled = False
        return answers

    def hand_over(self) -> list[Answer[JobT]]:
        """Return everything held to the client: the partition has another leader."""
        if self.state is not LaneState.HELD:
            raise LocalProtocolError(f"lane {self.tp}: handed over while {self.state.value}")
        answers = self._give_up(lambda _: True)
        # NOT_LEADER is what makes a client look for the new leader at once; that the batch may have been
        # sent is no contradiction: the producer's state went along with the data, so the new leader drops a
        # copy.
        return [(batch, NOT_LEADER_OR_FOLLOWER) for batch, _ in answers]

    def refuse(self, code: int) -> list[Answer[JobT]]:
        """Forwarding is not possible at all (mirror gone or disabled, no lease): everything queued gets this
        retriable code. But NOT_ENOUGH_REPLICAS says that nothing was written, and a batch of unknown outcome
        may have been.
        """
        unknown = (
            {id(batch) for batch in self.queue if batch.unsettled} if code == NOT_ENOUGH_REPLICAS else ()
        )
        return [
            (batch, REQUEST_TIMED_OUT if id(batch) in unknown else code)
            for batch, _ in self._give_up(lambda _: True)
        ]

    def give_back(self) -> list[Answer[JobT]]:
        """The leader is not waited for here any longer: everything queued goes back to the client."""
        return self._give_up(lambda _: True)

    def vanish(self) -> list[Batch[JobT]]:
        """The client is gone. Returns what was dropped; what is in flight stays until the source's answer."""
        self.vanished = True
        dropped = list(self.queue)
        self._give_up(lambda _: True)
        for batch in self.in_flight:
            batch.state = _TOLD
        return dropped

    # Inside

    def _landed(self, batch: Batch[JobT]) -> None:
        if self.in_flight and self.in_flight[0] is batch:
            self.in_flight.popleft()
            return
        try:
            self.in_flight.remove(batch)
        except ValueError:
            raise LocalProtocolError(
                f"lane {self.tp}: answer for {batch!r}, which is not in flight"
            ) from None

    def _earlier_waits(self, batch: Batch[JobT]) -> bool:
        return any(b.order < batch.order and b.producer == batch.producer for b in self.queue)

    def _requeue(self, batch: Batch[JobT]) -> None:
        queue = self.queue
        at = 0
        while at < len(queue) and queue[at].order < batch.order:
            at += 1
        queue.insert(at, batch)
        batch.state = _QUEUED
        self.stale = True
        self.state = step(self.state, LaneEvent.REQUEUED)
        self._drained()

    def _drained(self) -> None:
        if not self.in_flight:
            self.route = None
            self.state = step(self.state, LaneEvent.DRAINED)
            self._nothing_to_wait_for()

    def _nothing_to_wait_for(self) -> None:
        if self.state is LaneState.WAITING and not self.queue:
            self.state = step(self.state, LaneEvent.WAKE)

    def _finish(self, batch: Batch[JobT], code: int) -> None:
        """Only a success proves that an earlier, lost copy is a duplicate; after an error it may still land."""
        if batch.unsettled and code not in (NONE, DUPLICATE_SEQUENCE_NUMBER):
            self._settling()
        batch.unsettled = False

    def _settling(self) -> None:
        if self.on_settling is not None:
            self.on_settling(self.tp)

    def _take_along(self, batch: Batch[JobT]) -> list[Answer[JobT]]:
        """The batch of an idempotent producer goes back to the client, and is in no line any more."""
        self._leave_behind([batch])
        return self._give_up(lambda waiting: follows(waiting, batch))

    def _leave_behind(self, gone: Iterable[Batch[JobT]]) -> None:
        """These go back to the client: what follows one of them in flight is not sent again."""
        if not self.in_flight:
            return
        first: dict[tuple[int, int], Batch[JobT]] = {}
        for batch in gone:
            if batch.idempotent and ((known := first.get(batch.producer)) is None or follows(known, batch)):
                first[batch.producer] = batch
        for batch in self.in_flight if first else ():
            before = first.get(batch.producer)
            if batch.state is _IN_FLIGHT and before is not None and follows(batch, before):
                batch.state = BatchState.BEHIND

    def _give_up(self, which: Callable[[Batch[JobT]], bool]) -> list[Answer[JobT]]:
        """Take the batches out of the queue; their honest codes."""
        given_up: list[Answer[JobT]] = []
        kept: deque[Batch[JobT]] = deque()
        for batch in self.queue:
            if which(batch):
                batch.state = _DONE
                if batch.unsettled:
                    self._settling()
                given_up.append((batch, batch.give_up_code()))
            else:
                kept.append(batch)
        self.queue = kept
        self._leave_behind(batch for batch, _ in given_up)
        self._nothing_to_wait_for()
        return given_up
