"""The usual write in one piece: one batch, nothing waits before it, the source takes it.

Lives here: the decisions of ``produce.py``, ``admission.py``, ``ways.py`` and ``lanes.py`` for that case, each of them made
anew for each batch, but once and without what they need for everything else. Whatever is not usual is left to them, and
nothing has changed then. What is kept from one batch to the next is bytes, and where to look: never a decision.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from router.authorize import Authorizer, Operation
from router.batch import Batch
from router.forwarder import TARGET, SourceRoute, leader_of
from router.hub import ForwardingHub
from router.lanes import Lane
from router.ports import LinkStats, Mirror
from router.produce_job import ProduceJob, SourceRequest, note_answered
from wire.batch import BATCH_OVERHEAD
from wire.batch_fields import MAGIC, MAGIC_AT, TRANSACTIONAL, read_producing
from wire.errors import WireError
from wire.produce import TopicKey
from wire.produce_single import FIRST_VERSION, SingleAnswer, SingleRequest

if TYPE_CHECKING:
    from router.produce import ProduceSession

#: Characters of a client id: clients choose theirs, up to 32 KiB each, and are not to fill our memory.
_KNOWN_MAX: Final = 256


class _Usual:
    """One partition of one client: where its writes went last, and the bytes around them."""

    __slots__ = ("answer", "asked", "client_id", "lane", "mirror", "request", "route", "stats", "told")

    def __init__(
        self,
        lane: Lane[ProduceJob],
        route: SourceRoute,
        mirror: Mirror,
        asked: SourceRequest,
        job: ProduceJob,
        stats: LinkStats,
    ) -> None:
        ((key, index),) = asked.keys
        header = job.exchange.header
        self.lane = lane
        self.route = route
        self.mirror = mirror
        self.stats = stats
        self.asked = asked
        self.client_id = header.client_id
        self.request = SingleRequest(asked.version, header.client_id, key, index)
        self.answer = SingleAnswer(asked.version, key, index)
        self.told = SingleAnswer(header.api_version, job.request.topics[0][0], index)


class Express:
    """Of one client connection."""

    def __init__(self, session: ProduceSession, authorizer: Authorizer) -> None:
        self._session = session
        self._answers = session.answers
        self._hub: ForwardingHub = session.hub
        self._authorizer = authorizer
        self._usual: dict[tuple[TopicKey, int], _Usual] = {}

    def learn(
        self, lane: Lane[ProduceJob], route: SourceRoute, asked: SourceRequest, job: ProduceJob
    ) -> None:
        """A batch was sent there in its own request. If the next one may go the same way, this is what it needs."""
        header, topics = job.exchange.header, job.request.topics
        client_id = header.client_id
        if (
            route.link == TARGET
            or len(asked.keys) != 1
            or len(topics) != 1
            or len(job.results) != 1
            or header.api_version < FIRST_VERSION
            or (client_id is not None and len(client_id) > _KNOWN_MAX)
        ):
            return
        mirror = self._hub.ports.mirrors.by_name(lane.tp.topic)
        if mirror is not None:
            nothing = SourceRequest(asked.version, [], asked.keys)  # without the records
            self._usual[topics[0][0], lane.tp.partition] = _Usual(
                lane, route, mirror, nothing, job, self._hub.stats.links[mirror.link]
            )

    def send(self, job: ProduceJob, now: float) -> bool:
        """Whether the request of one batch was sent. If not, nothing has changed."""
        request = job.request
        key, partitions = request.topics[0]
        index, records = partitions[0]
        usual = self._usual.get((key, index))
        if (
            usual is None
            or request.acks == 0
            or request.version < FIRST_VERSION
            or job.exchange.header.client_id != usual.client_id
        ):
            return False
        hub, lane, route, mirror = self._hub, usual.lane, usual.route, usual.mirror
        ports, tp = hub.ports, lane.tp
        mirrors = ports.mirrors
        if (mirrors.by_name(key) if isinstance(key, str) else mirrors.by_id(key)) is not mirror:
            return False
        found = mirror.partition(index)
        if (
            found is None
            or not found.leading
            or not found.forwarding
            or hub.fences.state(tp) is not None
            or not self._authorizer.allowed(tp.topic, Operation.WRITE)
            or (connection := route.connection) is None
            or connection.closed
            or leader_of(ports.source(mirror.link), mirror, index) != route.node
            or len(records) < BATCH_OVERHEAD
            or records[MAGIC_AT] != MAGIC
        ):
            return False
        attributes, producer_id, producer_epoch, base_sequence = read_producing(records)
        if attributes & TRANSACTIONAL or (
            producer_id >= 0
            and self._answers.given_back.code(tp, (producer_id, producer_epoch), base_sequence, now)
            is not None
        ):
            return False
        lease = ports.lease
        if not lease.valid():
            return False
        batch: Batch[ProduceJob] = Batch(job, 0, records, producer_id, producer_epoch, base_sequence)
        if not lane.pass_on(batch, route):
            return False
        job.batches.append((lane, batch))  # held by it from now on, no more by the request itself
        usual.stats.produces += 1
        usual.stats.bytes += batch.size
        timeout_ms = max(1, min(request.timeout_ms, int((job.deadline - now) * 1000)))
        correlation_id = connection.next_correlation_id()
        route.send(
            correlation_id,
            usual.request.encode(correlation_id, request.acks, timeout_ms, records),
            # The term before the bytes leave: what `covers` tells later is that the lease has not lapsed since here.
            partial(self._replied, usual, batch, lease.term),
            now,
            now + timeout_ms / 1000 + hub.limits.source_silence,
        )
        return True

    def _replied(
        self, usual: _Usual, batch: Batch[ProduceJob], term: int, reply: memoryview | WireError
    ) -> None:
        hub, lane, answers = self._hub, usual.lane, self._answers
        what = None if isinstance(reply, WireError) else usual.answer.acknowledged(reply)
        if (
            what is None
            or hub.fences.state(lane.tp) is not None
            or not hub.ports.lease.covers(term)  # now: after the answer's bytes were read
            or not lane.acknowledged(batch)
        ):
            answers.replied(usual.route, usual.asked, [(lane, batch)], term, reply)
            return
        hub.forwarded.note(lane.tp, what[0], batch.records)
        job = batch.job
        exchange = job.exchange
        answers.jobs.pop(job, None)
        note_answered(job, hub)
        exchange.reply(usual.told.encode(exchange.header.correlation_id, what))
        answers.left(job)
        if lane.queue:
            self._session.pump_lanes((lane,))
        hub.lanes_changed()
