"""The answers to one client's writes: the source's, and those of requests whose time has ended.

Lives here: `ProduceAnswers`, from an answer of the source to that of the client's request, and what a request holds in
memory until then. Not here: requests and what is sent (``session.py``), order and retries (``lanes.py``), the answer's
format (``job.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from router.produce.batch import Answer, Batch
from router.produce.forwarding import ForwardingHub
from router.produce.job import Pair, ProduceJob, SourceRequest
from router.produce.job import answer as send_answer
from router.produce.lane_states import BatchState, ErrorMeaning, verdict
from router.produce.lanes import Lane
from router.produce.retry_order import RetryOrder
from router.produce.source_route import TARGET, Route
from wire.errors import LocalProtocolError, MalformedFrame, WireError, error_name
from wire.frames.error_codes import NONE, NOT_LEADER_OR_FOLLOWER
from wire.frames.produce import ProduceResponse, ProduceResult, parse_produce_response
from wire.frames.types import TopicPartition
from wire.server.listener import ServerConnection


class ProduceAnswers:
    """Of one client connection."""

    def __init__(
        self,
        hub: ForwardingHub,
        connection: ServerConnection,
        moved_on: Callable[[list[Lane[ProduceJob]]], None],
    ) -> None:
        """moved_on: something of these lanes was settled; more may go now."""
        self.hub = hub
        self._connection = connection
        self._moved_on = moved_on
        self.given_back = RetryOrder()
        self.jobs: dict[ProduceJob, None] = {}  # not answered yet, in request order
        self.vanished = False  # the client

    # Answers of the source

    def replied(
        self,
        route: Route,
        request: SourceRequest,
        pairs: list[Pair],
        term: int,
        reply: memoryview | WireError,
    ) -> None:
        if isinstance(reply, WireError):
            self._lost(pairs)
            return
        covered = self.hub.ports.lease.covers(term)  # now: after the answer's bytes were read
        try:
            response = parse_produce_response(reply, request.version)
            results = request.match(response)
        except MalformedFrame as error:
            self._lost(pairs)
            route.close(error)
            return
        if route.link == TARGET:
            self._carried(pairs, response, results)
            return
        answers: list[Answer[ProduceJob]] = []
        for (lane, batch), result in zip(pairs, results, strict=True):
            if response.throttle_ms > batch.job.throttle_ms:
                batch.job.throttle_ms = response.throttle_ms
            if result.error == NONE and result.base_offset >= 0:
                self.hub.forwarded.note(lane.tp, result.base_offset, batch.records)
            if batch.job.request.acks == 0:  # nothing is acknowledged to anybody
                what = lane.answered(batch, result.error)
            else:
                what = self.hub.gate.answered(lane, batch, result, covered=covered)
            if verdict(result.error) is ErrorMeaning.OURS:
                self.hub.refused(
                    route.link, f"the source answered {error_name(result.error)} to a produce of {lane.tp}"
                )
            elif batch.deferred is not None:
                self.hub.stats.links[route.link].deferred += 1
            answers.extend(self._own_words(batch, result, what))
        self.settle(answers, pairs)

    def _carried(self, pairs: list[Pair], response: ProduceResponse, results: list[ProduceResult]) -> None:
        """A new leader answered. No lease is needed, because that leader's log is the partition's log."""
        answers: list[Answer[ProduceJob]] = []
        refused: dict[TopicPartition, int] = {}
        for (lane, batch), result in zip(pairs, results, strict=True):
            batch.job.throttle_ms = max(batch.job.throttle_ms, response.throttle_ms)
            if result.error == NONE:
                if (mirror := self.hub.ports.mirrors.by_name(lane.tp.topic)) is not None:
                    self.hub.stats.links[mirror.link].carried += 1
            elif verdict(result.error) is ErrorMeaning.OURS:
                # Not this client's fault: it is told where to go instead.
                refused[lane.tp] = result.error
                result.error = NOT_LEADER_OR_FOLLOWER
            answers.extend(self._own_words(batch, result, lane.answered(batch, result.error)))
        self.settle(answers, pairs)
        for tp, code in refused.items():
            self.hub.carry_refused([tp], f"the target answered {error_name(code)} to a produce of {tp}")

    def _own_words(
        self, batch: Batch[ProduceJob], result: ProduceResult, what: Sequence[Answer[ProduceJob]]
    ) -> Sequence[Answer[ProduceJob]]:
        """Answer the batch in the source's own words if the lane decided so. Returns the other answers."""
        if not what or what[0] != (batch, result.error):
            return what
        result.current_leader = None  # the source's broker ids mean nothing here
        if result.error != NONE and batch.tp is not None:
            self.given_back.note(
                batch.tp, batch.producer, batch.base_sequence, result.error, self.hub.loop.time()
            )
        self.finish_slot(batch.job, batch.slot, result)
        return what[1:]

    def conclude(
        self, lane: Lane[ProduceJob], batch: Batch[ProduceJob], answers: Sequence[Answer[ProduceJob]]
    ) -> None:
        """The wait of a deferred success is over, one way or the other."""
        if batch.deferred is None:
            raise LocalProtocolError(f"{batch!r} did not wait for the lease")
        self.settle(self._own_words(batch, batch.deferred.result, answers), [(lane, batch)])

    def _lost(self, pairs: list[Pair]) -> None:
        self.settle([told for lane, batch in pairs for told in lane.lost(batch)], pairs)

    def settle(self, answers: Sequence[Answer[ProduceJob]], pairs: list[Pair]) -> None:
        """After answers arrived for these batches: tell the client, let go of the bytes, send what may go
        now.
        """
        # Taken now: delivering an answer may end others of these batches, and those are released there.
        landed = [batch.job for _, batch in pairs if batch.closed]
        if answers:
            self.deliver(answers, {id(batch) for _, batch in pairs})
        for job in landed:
            self.left(job)
        self._moved_on([pairs[0][0]] if len(pairs) == 1 else list({lane: None for lane, _ in pairs}))

    def deliver(self, answers: Iterable[Answer[ProduceJob]], still_counted: set[int] | None = None) -> None:
        """Tell the client; batches that are still in flight, or named in still_counted, keep their bytes."""
        for batch, code in answers:
            job, tp = batch.job, batch.tp
            if tp is None:
                raise LocalProtocolError(f"{batch!r} was answered but never offered")
            if batch.state is BatchState.DONE and not (still_counted and id(batch) in still_counted):
                self.left(job)
            self.given_back.note(tp, batch.producer, batch.base_sequence, code, self.hub.loop.time())
            if job.results[batch.slot] is None and not self.vanished:
                self.finish_slot(job, batch.slot, ProduceResult(tp.partition, code))

    def left(self, job: ProduceJob) -> None:
        job.in_lanes -= 1
        if job.in_lanes == 0:
            # They point back at the job: its bytes must go now, not when cycles are collected.
            job.batches.clear()
            self.hub.budget.release(job.size)

    # Answers to the client

    def finish_slot(self, job: ProduceJob, slot: int, result: ProduceResult) -> None:
        job.results[slot] = result
        job.remaining -= 1
        if job.remaining == 0:
            self.answer(job)

    def answer(self, job: ProduceJob) -> None:
        self.jobs.pop(job, None)
        send_answer(job, self.hub, self._connection.listener.name)

    # Time

    def expire(self, job: ProduceJob) -> None:
        """The time of an admitted request is over."""
        for lane, batch in tuple(job.batches):
            if batch.deferred is not None and not batch.closed:
                self.conclude(lane, batch, self.hub.gate.give_up(batch))
            else:
                self.deliver(lane.expire(batch))
