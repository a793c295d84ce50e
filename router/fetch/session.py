"""Fetch of one consumer connection: from memory at the tail, from the source elsewhere, merged into one
answer.

Lives here: waiting for data and putting the answer together. Not here: what is clear without data
(``decision.py``), what is asked of the source (``source.py``), replica fetchers and the window of recent
batches (``fetcher``, the latter through the LocalLog port).

Reads need the lease at the moment of answering (``decision.without_lease``). Until it is back a fetch is held and then
looked for anew; at the end of the consumer's wait its answer is empty. Followers are not gated: they follow the
leadership that KRaft proves by the leader epoch of each fetch, and what their copies are worth the link controller
verifies before a hand-over.

No fetch sessions: every answer says session 0, so clients send full requests. Memory: an answer has at most what
``read_bytes`` divided among the consumers allows, be it from memory or from the source; a connection's fetches are
looked at one after the other, as a broker does it, the next one when the network has taken the answer to the one before;
and what is not taken counts in the budget of all of them (``unread.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from router.authorize import Authorizer
from router.clients_seen import FETCH
from router.fetch.decision import (
    Part,
    awaits_switch,
    decide,
    is_led_elsewhere,
    led_elsewhere,
    without_lease,
)
from router.fetch.job import PendingFetch, enough_bytes, most_bytes
from router.fetch.overdue import AnswerDeadline
from router.fetch.source import SOURCE_WAIT, SourceReads
from router.leadership import current_leader, endpoints_of
from router.ports import Mirror
from router.produce.forwarding import ForwardingHub
from router.turns import SLICE
from wire.frames.error_codes import FENCED_LEADER_EPOCH, FETCH_SESSION_ID_NOT_FOUND, NOT_LEADER_OR_FOLLOWER
from wire.frames.fetch import FetchPartitionResult, FetchRequest, TopicKey, encode_fetch_response
from wire.frames.types import AclRight
from wire.server.listener import Exchange, ServerConnection

READ_UNCOMMITTED: Final = 0
#: A fetch that waits at the end of a log is told of what moves there, and looks for itself after so many seconds.
_LOOK_AGAIN: Final = 0.5
#: Seconds for more to come, for a consumer that does not want single records (fetch.min.bytes).
_BATCHING: Final = 0.01
#: Seconds for each partition of a fetch between two looks at all of them, where that is longer: one with thousands of them
#: takes a small part of a processor while it waits.
_FOR_EACH: Final = 0.0005
#: As followers (fetcher/followers.py). A longer one is answered without records, and its client asks again.
_LONGEST_WAIT: Final = 30.0
#: Bytes of answers that may wait for a consumer to read while its next fetch is looked at.
_UNSENT: Final = 64 << 10


class FetchSession:
    """The fetches of one consumer connection."""

    def __init__(self, hub: ForwardingHub, connection: ServerConnection, authorizer: Authorizer) -> None:
        self.hub = hub
        self._connection = connection
        self._authorizer = authorizer
        self._source = SourceReads(hub, self, self._look)
        self._fetch: PendingFetch | None = None
        self._held = False  # until the lease is back, or the fetch's wait is over
        self._later: deque[tuple[Exchange, FetchRequest]] = deque()  # until the one before them is answered
        self._busy = False
        self._beginning = False
        self._later_entries = 0  # that it names, at most
        self._paused = False  # so many partitions are named in what waits that no further requests are read
        self._closed = False
        #: The next fetch waits until the answer before it is taken, or until there is room for another one.
        self._waits = False
        self.last_request = 0.0
        self.client_id: str | None = None
        self._topics: list[str] = []  # of its last fetch
        self._overdue = AnswerDeadline(hub.loop, self)
        hub.readers[self] = None
        connection.limit_unsent(_UNSENT)

    @property
    def host(self) -> str:
        return self._connection.peer.rpartition(":")[0]

    def touches(self) -> Iterable[tuple[str, str]]:
        """`router.clients_seen`."""
        return ((topic, FETCH) for topic in self._topics)

    def handle(self, exchange: Exchange, request: FetchRequest) -> None:
        self._later.append((exchange, request))
        self._go_on()
        if self._later:
            self._later_entries += request.entries
            if self._later_entries > SLICE and not self._paused:
                # The memory of a request grows with the partitions that it names; the next one may wait in the network.
                self._paused = True
                self._connection.pause_reading()

    def _go_on(self) -> None:
        """Begin the waiting fetches in turn, until one of them has to wait for data. A loop, because thousands may
        stand behind it that need not wait."""
        if self._beginning:
            return
        self._beginning = True
        try:
            while self._later and not self._busy and not self._waits and not self._closed:
                if self._may_answer():
                    self._begin(*self._later.popleft())
        finally:
            self._beginning = False
        if not self._later and not self._closed:
            self._later_entries = 0
            if self._paused:
                self._paused = False
                self._connection.resume_reading()

    def _may_answer(self) -> bool:
        """Whether another answer may be made. An answer that the client does not take stays in memory: one per client
        at most, and for all clients together no more than their budget."""
        if not self._connection.offer_answers():
            self._waits = True
            self._connection.when_taken(self._taken)
        elif self.hub.unread.full:
            self._waits = True
            self.hub.unread.wait(self._room)
        return not self._waits

    def _taken(self) -> None:
        self.hub.unread.taken(self._connection)
        self._room()

    def _room(self) -> None:
        self._waits = False
        self._go_on()

    def _begin(self, exchange: Exchange, request: FetchRequest) -> None:
        self._busy = True
        if request.session_id != 0 or request.session_epoch > 0:
            self._reply(exchange, request, (), error=FETCH_SESSION_ID_NOT_FOUND)
            return
        self._when_authorized(exchange, request)

    def _when_authorized(
        self, exchange: Exchange, request: FetchRequest, deadline: float | None = None
    ) -> None:
        if self._closed:
            return
        self._overdue.expect(exchange, self.hub.limits.upstream_timeout)
        mirrors = (self._mirror(key) for key, _ in request.topics)
        topics = [mirror.topic for mirror in mirrors if mirror is not None]
        self.last_request, self.client_id = self.hub.loop.time(), exchange.header.client_id
        self._topics = topics
        again = partial(self._when_authorized, exchange, request, deadline)
        if not self._authorizer.all_known(topics, AclRight.READ, again):
            return
        strange = (key for key, _ in request.topics if isinstance(key, str) and self._mirror(key) is None)
        if len(topics) == len(request.topics) or self._authorizer.strange_known(strange, again):
            self._start(exchange, request, deadline)

    def _mirror(self, key: TopicKey) -> Mirror | None:
        mirrors = self.hub.ports.mirrors
        return mirrors.by_name(key) if isinstance(key, str) else mirrors.by_id(key)

    def _start(self, exchange: Exchange, request: FetchRequest, deadline: float | None) -> None:
        now = self.hub.loop.time()
        if deadline is None:
            deadline = now + min(max(0, request.max_wait_ms) / 1000, _LONGEST_WAIT)
        fetch = PendingFetch(exchange, request, deadline)
        self._fetch = fetch
        self._overdue.expect(exchange, max(0.0, deadline - now))
        refused = False
        client_id = exchange.header.client_id
        for part in fetch.parts:
            part.result = decide(self.hub, self._authorizer, part, request, client_id)
            refused = refused or (part.result is not None and not part.held)
            if part.held:
                if part.mirror is not None:
                    self.hub.reader_held(part.mirror, client_id, self.host, now)
            elif self.hub.first_fetches and part.tp is not None:
                self.hub.first_fetches.note(part.tp, client_id, part.asked.fetch_offset)
        if refused:
            fetch.deadline = now  # errors and redirections do not wait for data of other partitions
        if not self._hold(fetch):
            self._look()

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
        self._source.answered()
        self._held = True
        self.hub.without_lease.add(self)
        fetch.timer = self.hub.loop.call_at(fetch.deadline, self._held_too_long, fetch)
        return True

    def _held_too_long(self, fetch: PendingFetch) -> None:
        fetch.timer = None
        self._held = False
        self.hub.without_lease.discard(self)
        self._answer(fetch)

    def lease_renewed(self) -> None:
        """From the beginning, within what is left of the wait: leadership, fences and ends may have moved."""
        fetch = self._fetch
        if fetch is not None and self._held:
            self._held = False
            self._stop_waiting(fetch)
            self._fetch = None
            self._when_authorized(fetch.exchange, fetch.request, fetch.deadline)

    # Looking for data

    def _look(self) -> None:
        """Take what is in memory, ask the source for the rest, and answer if it is time to. Else this is called again
        as soon as something has moved or a time is over."""
        fetch = self._fetch
        if fetch is None or self._held:
            return
        self._stop_waiting(fetch)
        now = self.hub.loop.time()
        elsewhere = self._read_memory(fetch)
        first = fetch.look_at == 0
        if not first and (elsewhere or now >= fetch.look_at) and self._handed_over(fetch):
            self._answer(fetch)  # told so at once
            return
        if first or now >= fetch.look_at:
            fetch.look_at = now + max(_LOOK_AGAIN, len(fetch.parts) * _FOR_EACH)
        if elsewhere:
            fetch.poll_until = now + max(0.0, min(SOURCE_WAIT, fetch.deadline - now))
            fetch.late_at = fetch.poll_until + SOURCE_WAIT
            self._source.ask(fetch, elsewhere)
        if self._due(fetch, now):
            self._answer(fetch)
            return
        for part in fetch.parts:
            if part.result is not None and part.result.size and not part.from_source:
                # Not enough yet: it is read again then. Nothing keeps these bytes in memory.
                part.result = None
                if part.log is not None:
                    fetch.listening.append(part.log)
        for log in fetch.listening:
            log.listeners.add(self._moved)
        until = fetch.late_at if self._source.owes(newly_asked=True) else fetch.deadline
        if now < fetch.quiet_until:
            until = min(until, fetch.quiet_until)
        fetch.timer = self.hub.loop.call_at(min(until, fetch.look_at), self._look)

    def _handed_over(self, fetch: PendingFetch) -> bool:
        return any(part.result is None and is_led_elsewhere(self.hub, part) for part in fetch.parts)

    def _read_memory(self, fetch: PendingFetch) -> list[Part]:
        """Returns the parts of which memory has nothing to say."""
        request = fetch.request
        left = most_bytes(self.hub, request) - fetch.found
        elsewhere: list[Part] = []
        for part in fetch.parts:
            if part.result is not None or part.awaits_replica or part.from_source:
                continue
            log = part.log
            if awaits_switch(part):
                if log is not None:
                    fetch.listening.append(log)
                continue
            read = None
            if log is not None and log.loaded and request.isolation_level == READ_UNCOMMITTED:
                read = (
                    log.read(part.asked.fetch_offset, min(part.asked.max_bytes, max(left, 1)))
                    if left > 0
                    else ([], 0)
                )
            if log is None or read is None:
                elsewhere.append(part)
                continue
            records, size = read
            if size:
                part.result = part.empty(0)
                part.result.records, part.result.size = records, size
                left -= size
            else:
                fetch.listening.append(log)
        return elsewhere

    def _due(self, fetch: PendingFetch, now: float) -> bool:
        found = fetch.found
        enough = found >= enough_bytes(self.hub, fetch.request)
        over = now >= fetch.deadline
        if not found and now < fetch.quiet_until and not over and not fetch.tells_an_error:
            return False
        if not self._source.owes():
            # The source is asked in turns that are shorter than some waits.
            return enough or over or any(part.from_source for part in fetch.parts)
        if now >= fetch.late_at or (enough and not self._source.owes_more()):
            return True
        # Whether there is still time for what earlier fetches asked is for the consumer to say.
        return over and not self._source.owes(newly_asked=True)

    def _moved(self, log: Any) -> None:
        """Note the change and look later: the caller has more listeners to notify."""
        fetch = self._fetch
        if fetch is None or fetch.moved:
            return
        fetch.moved = True
        if fetch.timer is not None:
            fetch.timer.cancel()
        # A fetch that wants many bytes is not woken for each record.
        delay = max(_BATCHING, len(fetch.parts) * _FOR_EACH / 10) if fetch.request.min_bytes > 1 else 0.0
        fetch.timer = self.hub.loop.call_later(delay, self._look)

    def _stop_waiting(self, fetch: PendingFetch) -> None:
        fetch.moved = False
        if fetch.timer is not None:
            fetch.timer.cancel()
            fetch.timer = None
        for log in fetch.listening:
            log.listeners.discard(self._moved)
        fetch.listening.clear()

    def _answer(self, fetch: PendingFetch) -> None:
        if self._hold(fetch):
            return
        self._stop_waiting(fetch)
        self._source.answered()
        self._fetch = None
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
        buffers, size = encode_fetch_response(
            request.version,
            exchange.header.correlation_id,
            topics,
            error=error,
            node_endpoints=endpoints_of(image, leaders, self._connection.listener.name),
        )
        exchange.reply(buffers)  # which may bring the next request in: it comes behind those that wait
        self._busy = False
        self._overdue.answered()
        if size > _UNSENT and not self._closed and not self._connection.offer_answers():
            self.hub.unread.add(self._connection, size)
            if not self._waits:
                self._waits = True
                self._connection.when_taken(self._taken)
        self._go_on()

    def waits_for_client(self) -> bool:
        """`overdue.Answering`."""
        return self._fetch is None and self._authorizer.behind_the_client

    def state(self) -> str:
        """`overdue.Answering`."""
        fetch = self._fetch or "its rights are not known"
        return f"{fetch}; source asked: {self._source.owes()}, held without the lease: {self._held}"

    def sweep(self, now: float) -> bool:
        return self._source.sweep(now)

    def closed(self) -> None:
        self._closed = True
        self._overdue.close()
        self.hub.readers.pop(self, None)
        self.hub.unread.forget(self._room)
        self.hub.unread.taken(self._connection)
        if self._fetch is not None:
            self._stop_waiting(self._fetch)
            self._fetch = None
        self._later.clear()
        self._held = False
        self.hub.without_lease.discard(self)
        self._source.closed()
