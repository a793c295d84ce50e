"""Produce of one client: take the request apart, forward each partition through its lane, merge the answers.

Lives here: requests, their order until they are admitted, grouping by source leader, deadlines. Not here: what
the client is told (``answers.py``), admission (``admission.py``: is the partition ours, may the client
write, may it be forwarded at all), order and retries (``lanes.py``), source connections (``source_route.py``), the
formats of requests and answers (``job.py``).

Each part of a request is answered by the source's own words, with these exceptions: leadership errors are
solved here; a refusal of the link's own principal becomes NOT_ENOUGH_REPLICAS; what could not be finished
within the request's timeout gets NOT_LEADER_OR_FOLLOWER if it never was sent and REQUEST_TIMED_OUT if it
was; without this sidecar's lease nothing is forwarded (it waits, ``routes.py``), and a success of the source
waits for the lease or ends as REQUEST_TIMED_OUT (``lease_gate.py``). All of those are retriable. Requests
with acks=0 are forwarded with acks=1: order, retries and fences need the source's answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial

from router.authorize import Authorizer
from router.clients_seen import PRODUCE, TRANSACTION
from router.ports import Mirror
from router.produce.admission import WAITS_FOR_PROMOTE, message_for, named_twice, not_mirrored, refusal
from router.produce.answers import ProduceAnswers
from router.produce.batch import Batch
from router.produce.fast_path import FastPath
from router.produce.forwarding import ForwardingHub
from router.produce.job import Pair, ProduceJob, source_request
from router.produce.lanes import Lane
from router.produce.routes import Routes
from router.produce.source_route import TARGET, Route
from router.produce.transactions import WaitingTransactions
from wire.errors import LinkerError
from wire.frames.batch import BATCH_OVERHEAD
from wire.frames.batch_fields import read_producing
from wire.frames.error_codes import INVALID_REQUEST, NONE, NOT_LEADER_OR_FOLLOWER
from wire.frames.produce import ProduceResult, TopicKey, encode_produce_request, parse_produce_request
from wire.frames.types import AclRight, Node, TopicPartition
from wire.server.listener import Exchange, ServerConnection


class ProduceSession:
    """The produces of one client connection."""

    def __init__(self, hub: ForwardingHub, connection: ServerConnection, authorizer: Authorizer) -> None:
        self.hub = hub
        self._connection = connection
        self._authorizer = authorizer
        self._lanes: dict[TopicPartition, Lane[ProduceJob]] = {}
        self.answers = ProduceAnswers(hub, connection, self._moved_on)
        self._routes: Routes[ProduceJob] = Routes(hub, self, self.answers.deliver, self.pump_lanes)
        self._transactions = WaitingTransactions(hub, self.answers, authorizer)
        self._fast_path = FastPath(hub, self.answers, authorizer, self.pump_lanes)
        # In request order behind one whose authorization is being asked.
        self._backlog: deque[ProduceJob] = deque()
        self.last_request = 0.0
        self.client_id: str | None = None
        hub.carrying.joined(self)

    # Requests

    def handle(self, exchange: Exchange) -> None:
        header = exchange.header
        request = parse_produce_request(exchange.frame, exchange.body_offset, header.api_version)
        hub = self.hub
        now = hub.loop.time()
        self.last_request = now
        self.client_id = header.client_id
        job = ProduceJob(self, exchange, request, hub.limits, now)
        hub.stats.produce_requests += 1
        hub.budget.add(self._connection, job.size)
        job.in_lanes = 1  # held by the request itself until it is admitted
        self.answers.jobs[job] = None
        if self not in hub.watched:
            hub.watch(self)
        if len(job.results) > 1 and named_twice(request):
            self._turn_away(job, INVALID_REQUEST)
        elif self._backlog:
            self._backlog.append(job)
        elif self._fast_path.send(job, now):
            job.admitted = True
        elif self._authorized(job):
            self._admit(job)
        else:
            self._backlog.append(job)

    @property
    def host(self) -> str:
        return self._connection.peer.rpartition(":")[0]

    def touches(self) -> Iterable[tuple[str, str]]:
        """`router.clients_seen`."""
        return {(tp.topic, PRODUCE) for tp in self._lanes} | {
            (topic, TRANSACTION) for topic in self._transactions.topics
        }

    def _turn_away(self, job: ProduceJob, code: int) -> None:
        """Answer the whole request with that, and do nothing of it."""
        slot = 0
        for _, partitions in job.request.topics:
            for index, _ in partitions:
                self.answers.finish_slot(job, slot, ProduceResult(index, code))
                slot += 1
        job.admitted = True
        self.answers.left(job)

    def _authorized(self, job: ProduceJob) -> bool:
        """Whether all topics' authorization is known; if not, the backlog goes on when it is."""
        known = True
        strange: list[str] = []
        for key, _ in job.request.topics:
            mirror = self._mirror(key)
            if mirror is not None and self._authorizer.allowed(mirror.topic, AclRight.WRITE) is None:
                self._authorizer.ask(mirror.topic, self._authorization_known)
                known = False
            elif mirror is None and isinstance(key, str):
                strange.append(key)
        if strange and not self._authorizer.strange_known(strange, self._authorization_known):
            known = False
        return known

    def _authorization_known(self) -> None:
        while self._backlog and not self.answers.vanished:
            if not self._authorized(self._backlog[0]):
                return
            self._admit(self._backlog.popleft())

    def _mirror(self, key: TopicKey) -> Mirror | None:
        mirrors = self.hub.ports.mirrors
        return mirrors.by_name(key) if isinstance(key, str) else mirrors.by_id(key)

    def _not_mirrored(self, key: TopicKey) -> int:
        return not_mirrored(self.hub, self._authorizer, key, AclRight.WRITE)

    def _admit(self, job: ProduceJob) -> None:
        lanes: dict[Lane[ProduceJob], None] = {}
        now = self.hub.loop.time()
        slot = 0
        for key, partitions in job.request.topics:
            mirror = self._mirror(key)
            for index, records in partitions:
                if job.results[slot] is not None:
                    pass  # its time was over in the backlog
                elif mirror is None:
                    self.answers.finish_slot(
                        job,
                        slot,
                        ProduceResult(index, self._not_mirrored(key)),
                    )
                elif (lane := self._admit_batch(job, slot, mirror, index, records, now)) is not None:
                    lanes[lane] = None
                slot += 1
        if job.remaining == 0 and not job.results:
            self.answers.answer(job)  # a request without partitions is answered too
        job.admitted = True
        self.answers.left(job)
        if lanes:
            self.pump_lanes(lanes)

    def _admit_batch(
        self,
        job: ProduceJob,
        slot: int,
        mirror: Mirror,
        index: int,
        records: memoryview,
        now: float,
    ) -> Lane[ProduceJob] | None:
        """The lane that the batch waits in; None if it is refused, which is answered, or waits for the promote."""
        tp = TopicPartition(mirror.topic, index)
        code = refusal(self.hub, self._authorizer, mirror, tp, records)
        if code == WAITS_FOR_PROMOTE:
            self._transactions.admit(job, slot, tp, records)
            return None
        message = message_for(mirror, index, code)
        producer_id, producer_epoch, base_sequence = -1, -1, -1
        if len(records) >= BATCH_OVERHEAD:
            _, producer_id, producer_epoch, base_sequence = read_producing(records)
            if producer_id >= 0:
                code = self._in_turn(job, tp, (producer_id, producer_epoch), base_sequence, code, now)
        if code != NONE:
            self.answers.finish_slot(job, slot, ProduceResult(index, code, error_message=message))
            return None
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = self.hub.fences.open_lane(tp)
        batch = Batch(job, slot, records, producer_id, producer_epoch, base_sequence)
        job.batches.append((lane, batch))
        job.in_lanes += 1
        lane.offer(batch)
        return lane

    def _in_turn(
        self,
        job: ProduceJob,
        tp: TopicPartition,
        producer: tuple[int, int],
        base_sequence: int,
        code: int,
        now: float,
    ) -> int:
        """The code of a batch, once it is known whether one before it went back."""
        if code == NONE:
            # When it came, not when its client's rights became known: on the way with the one before it, it waited here.
            return self.answers.given_back.code(tp, producer, base_sequence, job.started) or NONE
        self.answers.given_back.note(tp, producer, base_sequence, code, now)
        return code

    # Sending

    def expect_leaders(self, leaders: Mapping[TopicPartition, Node]) -> None:
        """Where this client writes to one of these partitions: open the connection ahead."""
        if not self.answers.vanished:
            self._routes.expect({leaders[tp] for tp in self._lanes if tp in leaders})
            self.hub.watch(self)

    def pump_lanes(self, lanes: Iterable[Lane[ProduceJob]]) -> None:
        """Send whatever may be sent now: batches of one request to one source node leave together."""
        todo = list(lanes)
        if len(todo) == 1:
            self._pump_lane(todo[0])
            return
        leased = self.hub.ports.lease.valid()
        # All ways first, and nothing between taking a batch and sending it: looking for a way may answer a client, whose
        # next request then comes in, and would overtake what is in flight by the lane's book and not on its way yet.
        routes = {lane: self._routes.find(lane, leased) for lane in todo}
        while todo:
            groups: dict[tuple[Route, ProduceJob], list[Lane[ProduceJob]]] = {}
            for lane in todo:
                if (route := routes[lane]) is not None and lane.queue:
                    groups.setdefault((route, lane.queue[0].job), []).append(lane)
            todo = []
            for (route, job), together in groups.items():
                pairs: list[Pair] = []
                for lane in together:
                    if lane.queue and lane.queue[0].job is not job:  # what was sent before it failed at once
                        todo.append(lane)
                    elif (batch := lane.take(route)) is not None:
                        todo.append(lane)
                        pairs.append((lane, batch))
                if pairs:
                    self._send(route, job, pairs)

    def _pump_lane(self, lane: Lane[ProduceJob]) -> None:
        """The usual case: nothing to be put together."""
        if not lane.queue:
            return
        route = self._routes.find(lane, self.hub.ports.lease.valid())
        if route is not None:
            while lane.queue and (batch := lane.take(route)) is not None:
                self._send(route, batch.job, [(lane, batch)])

    def _send(self, route: Route, job: ProduceJob, pairs: list[Pair]) -> None:
        try:
            request = source_request(
                route, [(lane.tp, batch.records) for lane, batch in pairs], self.hub.ports.mirrors
            )
        except LinkerError as error:
            # The node cannot take forwarded produces at all; retriable for the client, an operator must act.
            if route.link != TARGET:
                self.hub.refused(route.link, str(error))
            self.answers.settle([told for lane, batch in pairs for told in lane.answered(batch, 35)], pairs)
            if route.link == TARGET:
                self.hub.carry_refused([lane.tp for lane, _ in pairs], str(error))
            return
        now = self.hub.loop.time()
        timeout_ms = max(1, min(job.request.timeout_ms, int((job.deadline - now) * 1000)))
        correlation_id = route.next_correlation_id()
        buffers = encode_produce_request(
            request.version,
            correlation_id,
            job.exchange.header.client_id,
            None,
            job.request.acks or 1,
            timeout_ms,
            request.topics,
        )
        due = now + timeout_ms / 1000 + self.hub.limits.source_silence
        if route.link != TARGET:
            of_link = self.hub.stats.links[route.link]
            of_link.produces += 1
            of_link.bytes += sum(batch.size for _, batch in pairs)
        # Before the bytes leave: what `covers` tells later is that the lease has not lapsed since here. A term that
        # is over already covers nothing.
        replied = partial(self.answers.replied, route, request, pairs, self.hub.ports.lease.term)
        self._fast_path.learn(pairs, route, request, job)
        route.send(correlation_id, buffers, replied, now, due)

    def _moved_on(self, lanes: list[Lane[ProduceJob]]) -> None:
        for lane in lanes:
            if lane.vanished and self.hub.fences.discard_lane(lane):
                self._lanes.pop(lane.tp, None)
        if self.answers.vanished:
            if not self._lanes:
                self._routes.close_idle()
        elif waiting := [lane for lane in lanes if lane.queue]:
            self.pump_lanes(waiting)
        self.hub.lanes_changed()

    # Time and the end

    def sweep(self, now: float) -> bool:
        self._transactions.sweep(now)
        for job in list(self.answers.jobs):
            if job.deadline <= now:
                if job.admitted:
                    self.answers.expire(job)
                else:
                    self._expire_waiting(job)
        self._routes.sweep(now)
        return bool(self.answers.jobs) or self._routes.any

    def _expire_waiting(self, job: ProduceJob) -> None:
        """The client's rights are still being asked for. When they are known, the batches that wait behind this one go
        back as well."""
        now = self.hub.loop.time()
        slot = 0
        for key, partitions in job.request.topics:
            mirror = self._mirror(key)
            for index, records in partitions:
                if job.results[slot] is None:
                    if mirror is not None and len(records) >= BATCH_OVERHEAD:
                        _, producer_id, producer_epoch, base_sequence = read_producing(records)
                        self.answers.given_back.note(
                            TopicPartition(mirror.topic, index),
                            (producer_id, producer_epoch),
                            base_sequence,
                            NOT_LEADER_OR_FOLLOWER,
                            now,
                        )
                    self.answers.finish_slot(job, slot, ProduceResult(index, NOT_LEADER_OR_FOLLOWER))
                slot += 1

    def closed(self) -> None:
        """The client is gone: forget what was not sent; what was sent is accounted until the source has
        answered.
        """
        self.answers.vanished = True
        self._routes.abandon()
        self._transactions.abandon()
        self.hub.carrying.left(self)
        self.hub.budget.forget(self._connection)
        # Also those that an error, not the client, kept from being admitted: their bytes are in the budget.
        for job in {**dict.fromkeys(self._backlog), **self.answers.jobs}:
            if not job.admitted:
                job.admitted = True
                self.answers.left(job)
        self._backlog.clear()
        for tp, lane in list(self._lanes.items()):
            for batch in lane.vanish():
                self.answers.left(batch.job)
            for batch in [batch for batch in lane.in_flight if batch.deferred is not None]:
                self.hub.gate.give_up(batch)  # the source has answered, and nobody is left to be told
                self.answers.left(batch.job)
            if self.hub.fences.discard_lane(lane):
                del self._lanes[tp]
        self.answers.jobs.clear()
        self._routes.close_idle()
        self.hub.lanes_changed()
