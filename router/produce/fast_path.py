"""The usual write in one piece: nothing waits before any of its batches, and the source takes them all.

For that case this module decides again what ``admission.py``, ``routes.py``, ``lanes.py`` and ``session.py`` decide, because
one pass is cheaper than their steps. Each decision is made anew for each batch; only bytes, and where to look, are kept
between batches. Everything else is left to the other modules, with nothing changed. A new rule has to be written here as
well: ``tests/router/test_two_paths.py`` compares both paths, byte for byte, over random stories.

Most requests are one batch of one partition. Kafka's own client sends what is ready of all partitions that a broker leads
in one request. We lead all partitions of a mirror, so such a request may go on to several nodes of the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from router.authorize import Authorizer
from router.ports import LinkStats, Mirror
from router.produce.answers import ProduceAnswers
from router.produce.batch import Batch
from router.produce.forwarding import ForwardingHub
from router.produce.job import Pair, ProduceJob, SourceRequest, note_answered
from router.produce.lanes import Lane
from router.produce.source_route import TARGET, Route, partitions_of
from wire.client.cluster_metadata import PartitionMetadata
from wire.errors import MalformedFrame, WireError
from wire.frames.batch import BATCH_OVERHEAD
from wire.frames.batch_fields import MAGIC, MAGIC_AT, TRANSACTIONAL, read_producing
from wire.frames.error_codes import NONE
from wire.frames.produce import ProduceResult, TopicKey, encode_produce_request, parse_produce_response
from wire.frames.produce_single import FIRST_VERSION, SingleAnswer, SingleRequest
from wire.frames.request_header import RequestHeader
from wire.frames.types import AclRight

#: Characters of a client id: clients choose theirs, up to 32 KiB each, and are not to fill our memory.
_KNOWN_MAX: Final = 256


class _Usual:
    """One partition of one client: where its writes went last, and the bytes around them."""

    __slots__ = (
        "answer",
        "client_id",
        "key",
        "lane",
        "mirror",
        "request",
        "route",
        "stats",
        "told",
        "version",
    )

    def __init__(
        self,
        lane: Lane[ProduceJob],
        route: Route,
        mirror: Mirror,
        version: int,
        key: TopicKey,
        header: RequestHeader,
        named: TopicKey,
        stats: LinkStats,
    ) -> None:
        """version, key: of the requests to the source, and its topic there. named: what the client calls the topic."""
        index = lane.tp.partition
        self.lane = lane
        self.route = route
        self.mirror = mirror
        self.stats = stats
        self.version = version
        self.key = key
        self.client_id = header.client_id
        self.request = SingleRequest(version, header.client_id, key, index)
        self.answer = SingleAnswer(version, key, index)
        self.told = SingleAnswer(header.api_version, named, index)


_Passed = tuple[_Usual, Batch[ProduceJob]]


class FastPath:
    """Of one client connection."""

    def __init__(
        self,
        hub: ForwardingHub,
        answers: ProduceAnswers,
        authorizer: Authorizer,
        pump_lanes: Callable[[Iterable[Lane[ProduceJob]]], None],
    ) -> None:
        self._hub = hub
        self._answers = answers
        self._pump_lanes = pump_lanes
        self._authorizer = authorizer
        self._usual: dict[tuple[TopicKey, int], _Usual] = {}

    def learn(self, pairs: Sequence[Pair], route: Route, asked: SourceRequest, job: ProduceJob) -> None:
        """These batches were sent there in one request: keep what the next ones need to go the same way, if they may."""
        header, topics = job.exchange.header, job.request.topics
        client_id = header.client_id
        if (
            route.link == TARGET
            or job.request.acks == 0
            or header.api_version < FIRST_VERSION
            or (client_id is not None and len(client_id) > _KNOWN_MAX)
        ):
            return
        mirrors = [self._hub.ports.mirrors.by_name(lane.tp.topic) for lane, _ in pairs]
        if len({mirror is None or mirror.source_topic_id is None for mirror in mirrors}) > 1:
            return  # all were asked for by name, for the sake of those whose id is not known
        names = [key for key, partitions in topics for _ in partitions]  # by slot
        for (lane, batch), (key, index), mirror in zip(pairs, asked.keys, mirrors, strict=True):
            named = names[batch.slot]
            known = self._usual.get((named, index))
            if mirror is not None and not (
                known is not None
                and (known.lane, known.route, known.mirror) == (lane, route, mirror)
                and (known.version, known.key, known.client_id) == (asked.version, key, client_id)
            ):
                self._usual[named, index] = _Usual(
                    lane, route, mirror, asked.version, key, header, named, self._hub.stats.links[mirror.link]
                )

    def send(self, job: ProduceJob, now: float) -> bool:
        """Whether all of the request was sent. If not, the step by step path finds everything as it would have been."""
        request = job.request
        ports = self._hub.ports
        if request.acks == 0 or request.version < FIRST_VERSION or not ports.lease.valid():
            return False
        mirrors = ports.mirrors
        together: list[_Passed] = []
        for key, partitions in request.topics:
            mirror = mirrors.by_name(key) if isinstance(key, str) else mirrors.by_id(key)
            if (
                mirror is None
                or not self._authorizer.allowed(mirror.topic, AclRight.WRITE)
                or not self._passing(job, key, mirror, partitions, together, now)
            ):
                return False
        if not together:
            return False
        by_route = {together[0][0].route: together} if len(together) == 1 else _by_node(together)
        if by_route is None or self._answers.vanished:
            return False
        job.in_lanes = len(together)  # the batches hold the bytes from now on, the request itself no more
        for route, passed in by_route.items():
            for usual, batch in passed:
                usual.lane.pass_on(batch, route)
                job.batches.append((usual.lane, batch))
            self._send(job, route, passed, now)
        return True

    def _passing(
        self,
        job: ProduceJob,
        key: TopicKey,
        mirror: Mirror,
        partitions: Sequence[tuple[int, memoryview]],
        passed: list[_Passed],
        now: float,
    ) -> bool:
        """Whether all batches of a topic may be sent now, where the ones before them went: `passed` has them then."""
        hub, known, given_back = self._hub, self._usual, self._answers.given_back
        client_id = job.exchange.header.client_id
        at_source: Mapping[int, PartitionMetadata] | None = None
        slot = len(passed)
        for index, records in partitions:
            usual = known.get((key, index))
            if usual is None or usual.mirror is not mirror or usual.client_id != client_id:
                return False
            lane, route = usual.lane, usual.route
            found = mirror.partition(index)
            if (
                found is None
                or not found.leading
                or not found.forwarding
                or hub.fences.state(lane.tp) is not None
                or (connection := route.connection) is None
                or connection.closed
                or route.replaced
                or (connection.expires_at is not None and route.expired(time.monotonic()))
            ):
                return False
            if at_source is None:  # not before: a link that does not forward may have no source here
                source = hub.ports.source(mirror.link)
                at_source, nodes = partitions_of(source, mirror), source.nodes
            if (
                (there := at_source.get(index)) is None
                or nodes.get(there.leader) != route.node
                or len(records) < BATCH_OVERHEAD
                or records[MAGIC_AT] != MAGIC
            ):
                return False
            attributes, producer_id, producer_epoch, base_sequence = read_producing(records)
            if attributes & TRANSACTIONAL or (
                producer_id >= 0
                and given_back.code(lane.tp, (producer_id, producer_epoch), base_sequence, now) is not None
            ):
                return False
            batch: Batch[ProduceJob] = Batch(job, slot, records, producer_id, producer_epoch, base_sequence)
            if not lane.passes(batch, route):
                return False
            passed.append((usual, batch))
            slot += 1
        return True

    def _send(self, job: ProduceJob, route: Route, together: list[_Passed], now: float) -> None:
        request = job.request
        timeout_ms = max(1, min(request.timeout_ms, int((job.deadline - now) * 1000)))
        correlation_id = route.next_correlation_id()
        # The term before the bytes leave: what `covers` tells later is that the lease has not lapsed since here.
        term = self._hub.ports.lease.term
        usual, batch = together[0]
        stats = usual.stats
        stats.produces += 1
        if len(together) == 1:
            stats.bytes += batch.size
            buffers = usual.request.encode(correlation_id, request.acks, timeout_ms, batch.records)
        else:
            topics: dict[TopicKey, list[tuple[int, memoryview]]] = {}
            for usual, batch in together:
                topics.setdefault(usual.key, []).append((usual.lane.tp.partition, batch.records))
                stats.bytes += batch.size
            buffers = encode_produce_request(
                usual.version,
                correlation_id,
                usual.client_id,
                None,
                request.acks,
                timeout_ms,
                list(topics.items()),
            )
        replied = (
            partial(self._replied, usual, batch, term)
            if len(job.results) == len(request.topics) == 1
            else partial(self._all_replied, together, term)
        )
        route.send(
            correlation_id, buffers, replied, now, now + timeout_ms / 1000 + self._hub.limits.source_silence
        )

    def _replied(
        self, usual: _Usual, batch: Batch[ProduceJob], term: int, reply: memoryview | WireError
    ) -> None:
        hub, lane, answers, job = self._hub, usual.lane, self._answers, batch.job
        what = None if isinstance(reply, WireError) else usual.answer.acknowledged(reply)
        if (
            what is None
            or hub.fences.state(lane.tp) is not None
            or not hub.ports.lease.covers(term)  # now: after the answer's bytes were read
            or not lane.lands(batch)
        ):
            self._step_by_step([(usual, batch)], term, reply)
            return
        lane.acknowledged(batch)
        hub.forwarded.note(lane.tp, what[0], batch.records)
        exchange = job.exchange
        answers.jobs.pop(job, None)
        note_answered(job, hub)
        exchange.reply(usual.told.encode(exchange.header.correlation_id, what))
        answers.left(job)
        if lane.queue:
            self._pump_lanes((lane,))
        hub.lanes_changed()

    def _all_replied(self, together: list[_Passed], term: int, reply: memoryview | WireError) -> None:
        hub, answers = self._hub, self._answers
        answer = None if isinstance(reply, WireError) else _successes(together, reply)
        if (
            answer is None
            or not hub.ports.lease.covers(term)  # now: after the answer's bytes were read
            or not self._all_land(together)
        ):
            self._step_by_step(together, term, reply)
            return
        results, throttle_ms = answer
        job = together[0][1].job
        if throttle_ms > job.throttle_ms:
            job.throttle_ms = throttle_ms
        for (usual, batch), result in zip(together, results, strict=True):
            usual.lane.acknowledged(batch)
            hub.forwarded.note(usual.lane.tp, result.base_offset, batch.records)
            job.results[batch.slot] = result
        job.remaining -= len(results)
        if job.remaining == 0:
            answers.answer(job)
        for _ in results:
            answers.left(job)
        if waiting := [usual.lane for usual, _ in together if usual.lane.queue]:
            self._pump_lanes(waiting)
        hub.lanes_changed()

    def _all_land(self, together: list[_Passed]) -> bool:
        fences = self._hub.fences
        return all(
            usual.lane.lands(batch) and fences.state(usual.lane.tp) is None for usual, batch in together
        )

    def _step_by_step(self, together: list[_Passed], term: int, reply: memoryview | WireError) -> None:
        """Something about the answer, or about what became of the batches meanwhile, is not usual."""
        usual = together[0][0]
        asked = SourceRequest(usual.version, [], _keys(together))  # without the records
        self._answers.replied(
            usual.route, asked, [(usual.lane, batch) for usual, batch in together], term, reply
        )


def _by_node(together: list[_Passed]) -> dict[Route, list[_Passed]] | None:
    """The batches for each node, one request each; None if a node knows their topics in different ways."""
    by_route: dict[Route, list[_Passed]] = {}
    for one in together:
        usual = one[0]
        passed = by_route.setdefault(usual.route, [])
        if passed and passed[0][0].version != usual.version:
            return None
        passed.append(one)
    return by_route


def _keys(together: list[_Passed]) -> list[tuple[TopicKey, int]]:
    return [(usual.key, usual.lane.tp.partition) for usual, _ in together]


def _successes(together: list[_Passed], reply: memoryview) -> tuple[list[ProduceResult], int] | None:
    """The results in the order of the batches, and the throttle time in ms; None unless all of them are successes."""
    version = together[0][0].version
    try:
        response = parse_produce_response(reply, version)
        results = SourceRequest(version, [], _keys(together)).match(response)
    except MalformedFrame:
        return None
    for result in results:
        if result.error != NONE or result.base_offset < 0 or result.current_leader is not None:
            return None
    return results, response.throttle_ms
