"""Fetch of one consumer connection: from memory at the tail, from the source elsewhere, merged into one
answer.

Lives here: what each partition of a consumer's fetch gets, waiting for data, redirecting to a replica in
the consumer's rack or to the one that it named. Not here: replica fetchers (``fetcher``), the window of recent
batches (``fetcher``, through the LocalLog port).

Reads need the lease at the moment of answering (``fetch_decision.without_lease``). Until it is back a fetch is
held and then looked for anew; at the end of the consumer's wait its answer is empty. Followers are not gated: they
follow the leadership that KRaft proves by the leader epoch of each fetch, and what their copies are worth the link
controller verifies before a hand-over.

No fetch sessions: every answer says session 0, so clients send full requests. Memory: an answer has at most what
``read_bytes`` divided among the consumers allows, be it from memory or from the source; a connection's fetches are
looked at one after the other, as a broker does it; and the listener stops reading requests of a consumer that does not
take its answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from router.authorize import Authorizer, Operation
from router.fetch_decision import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    PASSED_ON,
    Part,
    decide,
    from_source,
    led_elsewhere,
    without_lease,
)
from router.fetch_job import Expected, PendingFetch, most_bytes, source_fetch
from router.forwarder import RouteTable, SourceRoute, leader_of
from router.hub import ForwardingHub
from router.lane_states import Verdict, verdict
from router.leadership import current_leader, endpoints_of
from router.ports import LocalLog, Mirror
from wire.errors import LinkerError, MalformedFrame, WireError, error_name
from wire.fetch import (
    FetchedPartition,
    FetchPartitionResult,
    FetchRequest,
    TopicKey,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_response,
)
from wire.server import Exchange, ServerConnection

FETCH_SESSION_ID_NOT_FOUND: Final = 70
READ_UNCOMMITTED: Final = 0
_SOURCE_WAIT: Final = 0.5


class FetchSession:
    """The fetches of one consumer connection."""

    def __init__(self, hub: ForwardingHub, connection: ServerConnection, authorizer: Authorizer) -> None:
        self.hub = hub
        self._connection = connection
        self._authorizer = authorizer
        self._routes = RouteTable(hub.ports.source, hub.tasks, hub.limits, hub.stats, self._route_changed)
        self._pending: dict[PendingFetch, Any] = {}
        self._held: dict[PendingFetch, None] = {}  # until the lease is back, or their wait is over
        self._later: deque[tuple[Exchange, FetchRequest]] = deque()  # until the one before them is answered
        self._busy = False
        self._beginning = False
        self._closed = False
        hub.consumers += 1

    def handle(self, exchange: Exchange, request: FetchRequest) -> None:
        self._later.append((exchange, request))
        self._go_on()

    def _go_on(self) -> None:
        """Begin what waits, until one of them has to. A loop: behind one that waits there may be thousands that need not."""
        if self._beginning:
            return
        self._beginning = True
        try:
            while self._later and not self._busy and not self._closed:
                self._begin(*self._later.popleft())
        finally:
            self._beginning = False

    def _begin(self, exchange: Exchange, request: FetchRequest) -> None:
        self._busy = True
        self.hub.stats.fetch_requests += 1
        if request.session_id != 0 or request.session_epoch > 0:
            self._reply(exchange, request, (), error=FETCH_SESSION_ID_NOT_FOUND)
            return
        self._when_authorized(exchange, request)

    def _when_authorized(
        self, exchange: Exchange, request: FetchRequest, deadline: float | None = None
    ) -> None:
        if self._closed:
            return
        for key, _ in request.topics:
            mirror = self._mirror(key)
            if mirror is not None and self._authorizer.allowed(mirror.topic, Operation.READ) is None:
                self._authorizer.ask(
                    mirror.topic, partial(self._when_authorized, exchange, request, deadline)
                )
                return
        self._start(exchange, request, deadline)

    def _mirror(self, key: TopicKey) -> Mirror | None:
        mirrors = self.hub.ports.mirrors
        return mirrors.by_name(key) if isinstance(key, str) else mirrors.by_id(key)

    def _start(self, exchange: Exchange, request: FetchRequest, deadline: float | None) -> None:
        now = self.hub.loop.time()
        if deadline is None:
            deadline = now + max(0, request.max_wait_ms) / 1000
        fetch = PendingFetch(exchange, request, deadline)
        self._pending[fetch] = None
        refused = False
        client_id = exchange.header.client_id
        for part in fetch.parts:
            part.result = decide(self.hub, self._authorizer, part, request, client_id)
            refused = refused or (part.result is not None and not part.held)
            if part.held:
                if part.mirror is not None:
                    self.hub.stats.links[part.mirror.link].held += 1
            elif self.hub.first_fetches and part.tp is not None:
                self.hub.first_fetches.note(part.tp, client_id, part.asked.fetch_offset)
        if refused:
            fetch.deadline = now  # errors and redirections do not wait for data of other partitions
        if not self._hold(fetch):
            self._collect(fetch)

    # The lease

    def _hold(self, fetch: PendingFetch) -> bool:
        """Without the lease: keep the fetch until it is back. False if it may be answered now; then nothing
        in it tells of the log.
        """
        if self.hub.ports.lease.valid():
            return False
        if not without_lease(fetch.parts) or self.hub.loop.time() >= fetch.deadline:
            return False
        self._stop_waiting(fetch)
        self._held[fetch] = None
        self.hub.without_lease.add(self)
        fetch.timer = self.hub.loop.call_at(fetch.deadline, self._held_too_long, fetch)
        return True

    def _held_too_long(self, fetch: PendingFetch) -> None:
        fetch.timer = None
        if fetch in self._held:
            del self._held[fetch]
            if not self._held:
                self.hub.without_lease.discard(self)
            self._answer(fetch)

    def lease_renewed(self) -> None:
        """From the beginning, within what is left of the wait: leadership, fences and ends may have moved."""
        held, self._held = self._held, {}
        for fetch in held:
            if fetch in self._pending:
                self._stop_waiting(fetch)
                del self._pending[fetch]
                self._when_authorized(fetch.exchange, fetch.request, fetch.deadline)

    # Looking for data

    def _collect(self, fetch: PendingFetch) -> None:
        """Take what memory has; ask the source for what it has not; wait if there is nothing anywhere."""
        request = fetch.request
        self._stop_waiting(fetch)
        left = most_bytes(self.hub, request)
        found = 0
        at_tail: list[LocalLog] = []
        elsewhere: list[Part] = []
        for part in fetch.parts:
            if part.result is not None or part.awaits_replica:
                continue
            log = part.log
            read = None
            if log is not None and log.loaded and request.isolation_level == READ_UNCOMMITTED:
                read = (
                    log.read(part.asked.fetch_offset, min(part.asked.max_bytes, max(left, 1)))
                    if left > 0
                    else ([], 0)
                )
            # At the end of what is in memory, but not of the log: the window is full, or its source is slow.
            behind = (
                read == ([], 0)
                and log is not None
                and left > 0
                and part.asked.fetch_offset < log.high_watermark
            )
            if log is None or read is None or behind:
                elsewhere.append(part)
                continue
            records, size = read
            if size:
                part.result = part.empty(0)
                part.result.records, part.result.size = records, size
                found += size
                left -= size
            else:
                at_tail.append(log)
        self.hub.stats.fetch_local_bytes += found
        now = self.hub.loop.time()
        if elsewhere:
            self._ask_source(
                fetch, elsewhere, max(0.0, min(_SOURCE_WAIT, fetch.deadline - now)) if not found else 0.0
            )
            return
        if found >= max(1, request.min_bytes) or now >= fetch.deadline:
            self._answer(fetch)
            return
        if found:
            # Less than min_bytes: what was found is read again when more came.
            for part in fetch.parts:
                if part.result is not None and part.result.size:
                    part.result = None
        fetch.listening = at_tail or [
            part.log
            for part in fetch.parts
            if part.log is not None and part.result is None and not part.awaits_replica
        ]
        for log in fetch.listening:
            log.listeners.add(self._moved)
        fetch.timer = self.hub.loop.call_at(fetch.deadline, self._time_over, fetch)

    def _moved(self, log: Any) -> None:
        for fetch in list(self._pending):
            if any(log is listening for listening in fetch.listening):
                self._collect(fetch)

    def _time_over(self, fetch: PendingFetch) -> None:
        fetch.timer = None
        if fetch in self._pending:
            self._collect_last(fetch)

    def _collect_last(self, fetch: PendingFetch) -> None:
        fetch.waiting_route.clear()
        if fetch.owed == 0:
            if all(part.result is not None or part.from_source for part in fetch.parts):
                self._answer(fetch)
            else:
                self._collect(fetch)

    def _stop_waiting(self, fetch: PendingFetch) -> None:
        if fetch.timer is not None:
            fetch.timer.cancel()
            fetch.timer = None
        listening, fetch.listening = fetch.listening, []
        for log in listening:
            # Several fetches of this client share the callback.
            if not any(log is other for f in self._pending for other in f.listening):
                log.listeners.discard(self._moved)

    # The source

    def _ask_source(self, fetch: PendingFetch, parts: list[Part], wait: float) -> None:
        by_route: dict[SourceRoute, list[Part]] = {}
        for part in parts:
            part.from_source = True
            route = self._route(part)
            if route is None:
                fetch.waiting_route.append(part)
            else:
                by_route.setdefault(route, []).append(part)
        for route, mine in by_route.items():
            self._send(fetch, route, mine, wait)
        if fetch.waiting_route:
            # Opening a connection or finding a leader may take longer than the consumer's wait: an empty
            # answer then.
            least = self.hub.loop.time() + _SOURCE_WAIT
            fetch.timer = self.hub.loop.call_at(max(least, fetch.deadline), self._time_over, fetch)

    def _route(self, part: Part) -> SourceRoute | None:
        if part.mirror is None or part.tp is None:
            return None
        link = part.mirror.link
        node = leader_of(self.hub.ports.source(link), part.mirror, part.tp.partition)
        if node is None:
            self.hub.recover(link, part.tp.topic, self._recovered)
            return None
        return self._routes.get(link, node)

    def _route_changed(self, link: str, error: LinkerError | None) -> None:
        if error is None:
            self._recovered(link)
            return
        topics = {
            p.tp.topic
            for f in self._pending
            for p in f.waiting_route
            if p.mirror is not None and p.tp is not None
        }
        for topic in topics:
            self.hub.recover(link, topic, self._recovered)

    def _recovered(self, link: str) -> None:
        for fetch in list(self._pending):
            # In one pass: a request may name a partition as often as it likes, and all wait for the first connection.
            parts: list[Part] = []
            others: list[Part] = []
            for part in fetch.waiting_route:
                ours = part.mirror is not None and part.mirror.link == link
                (parts if ours else others).append(part)
            if parts:
                fetch.waiting_route = others
                if not fetch.waiting_route and fetch.timer is not None:
                    fetch.timer.cancel()
                    fetch.timer = None
                self._ask_source(fetch, parts, 0.0)

    def _send(self, fetch: PendingFetch, route: SourceRoute, parts: list[Part], wait: float) -> None:
        try:
            request, expected = source_fetch(self.hub, fetch.request, route, parts, wait)
        except LinkerError as error:
            self.hub.refused(route.link, str(error))
            self._source_done(fetch, parts)
            return
        version = request.version
        correlation_id = route.next_correlation_id()
        frame = encode_fetch_request(version, correlation_id, fetch.exchange.header.client_id, request)
        now = self.hub.loop.time()
        fetch.owed += 1
        self.hub.watch(self)
        route.send(
            correlation_id,
            [frame],
            partial(self._source_answered, fetch, route, version, expected),
            now,
            now + wait + self.hub.limits.source_silence,
        )

    def _source_answered(
        self,
        fetch: PendingFetch,
        route: SourceRoute,
        version: int,
        expected: Expected,
        reply: memoryview | WireError,
    ) -> None:
        fetch.owed -= 1
        if fetch not in self._pending:
            return
        if not isinstance(reply, WireError):
            try:
                self._take(route, expected, reply, version)
            except MalformedFrame as error:
                route.close(error)
        self._source_done(fetch, expected.values())

    def _take(self, route: SourceRoute, expected: Expected, frame: memoryview, version: int) -> None:
        response = parse_fetch_response(frame, version)
        for fetched in response.partitions:
            part = expected.get((fetched.key, fetched.index))
            if part is not None and part.mirror is not None and part.tp is not None:
                part.result = self._result(route, part, fetched, frame)

    def _result(
        self, route: SourceRoute, part: Part, fetched: FetchedPartition, frame: memoryview
    ) -> FetchPartitionResult:
        if fetched.error == 0 or fetched.error in PASSED_ON:
            result = from_source(part, fetched, frame)
            self.hub.stats.fetch_source_bytes += result.size
            return result
        # To the consumer an empty answer: it asks again, and until then the leader is known, or an operator
        # has acted.
        if verdict(fetched.error) is Verdict.RETRY and part.tp is not None:
            self.hub.recover(route.link, part.tp.topic, self._recovered)
        else:
            name = error_name(fetched.error)
            self.hub.refused(route.link, f"the source answered {name} to a fetch of {part.tp}")
        return part.empty(0)

    def _source_done(self, fetch: PendingFetch, parts: Iterable[Part]) -> None:
        for part in parts:
            if part.result is None:
                part.result = part.empty(0)
        if fetch.owed == 0 and not fetch.waiting_route:
            self._answer(fetch)

    # Answering

    def _answer(self, fetch: PendingFetch) -> None:
        if self._hold(fetch):
            return
        self._stop_waiting(fetch)
        del self._pending[fetch]
        for part in fetch.parts:
            if part.result is None:
                part.result = part.empty(0)
        led_elsewhere(self.hub, fetch.parts)
        self._reply(fetch.exchange, fetch.request, fetch.parts)

    def _reply(
        self, exchange: Exchange, request: FetchRequest, parts: Iterable[Part], *, error: int = 0
    ) -> None:
        topics: list[tuple[TopicKey, list[FetchPartitionResult]]] = []
        leaders: set[int] = set()
        image = self.hub.ports.image()
        for part in parts:
            if part.result is None:
                continue
            if part.result.error in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH) and part.tp is not None:
                leader = current_leader(image, part.tp)
                if leader is not None and leader[0] >= 0 and leader[0] != self.hub.ports.broker_id:
                    part.result.current_leader = leader
                    leaders.add(leader[0])
            if not topics or topics[-1][0] != part.key:
                topics.append((part.key, []))
            topics[-1][1].append(part.result)
        buffers, _ = encode_fetch_response(
            request.version,
            exchange.header.correlation_id,
            topics,
            error=error,
            node_endpoints=endpoints_of(image, leaders, self._connection.listener.name),
        )
        exchange.reply(buffers)  # which may bring the next request in: it comes behind those that wait
        self._busy = False
        self._go_on()

    def sweep(self, now: float) -> bool:
        self._routes.sweep(now)
        return bool(len(self._routes))

    def closed(self) -> None:
        self._closed = True
        self.hub.consumers -= 1
        self.hub.forget_waiter(self._recovered)
        for fetch in list(self._pending):
            self._stop_waiting(fetch)
        self._pending.clear()
        self._later.clear()
        self._held.clear()
        self.hub.without_lease.discard(self)
        self._routes.close()
