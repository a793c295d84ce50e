"""Fetches of consumers at the source: one request at a time to each node, and its answer.

Lives here: `SourceReads`. Not here: what else there is to answer with, and when a fetch is answered
(``session.py``).

A fetch may be answered while nodes still look for records; what they were asked stays asked, and the next fetch takes it
up where it wants the same. So a node that has nothing holds up nobody, and no requests pile up at one that does not
answer. Records that a node brings while no fetch waits are dropped, and asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from router.fetch.decision import PASSED_ON, Part, from_source
from router.fetch.job import Expected, PendingFetch, source_fetch, source_key
from router.produce.forwarding import ForwardingHub, Swept
from router.produce.lane_states import ErrorMeaning, verdict
from router.produce.source_route import Route, RoutePool, leader_of
from wire.errors import LinkerError, MalformedFrame, WireError, error_name
from wire.frames.fetch import (
    FetchedPartition,
    FetchPartitionResult,
    encode_fetch_request,
    parse_fetch_response,
)

#: Seconds that a node may look for records. A fetch that waits for longer is answered without them and comes again, with
#: whatever has changed about its partitions.
SOURCE_WAIT: Final = 0.5
#: Seconds after an error that passes by itself.
_PASSING: Final = 0.05


class _Poll:
    """One request to a source node until its answer."""

    __slots__ = ("fetch", "isolation_level", "offsets", "parts", "route", "version")

    def __init__(
        self, fetch: PendingFetch, route: Route, version: int, isolation_level: int, parts: Expected
    ) -> None:
        self.fetch: PendingFetch | None = fetch  # that it was sent for; None when that one is answered
        self.route = route
        self.version = version
        self.isolation_level = isolation_level
        self.offsets = {key: part.asked.fetch_offset for key, part in parts.items()}
        self.parts = parts  # of the fetch that waits just now

    def take_up(self, fetch: PendingFetch, parts: Iterable[Part]) -> list[Part]:
        """Use the answer for these parts of a later fetch. Returns the parts that it will not cover."""
        others = []
        for part in parts:
            key = source_key(self.version, part)
            if (
                key is not None
                and self.isolation_level == fetch.request.isolation_level
                and self.offsets.get(key) == part.asked.fetch_offset
            ):
                self.parts[key] = part
            else:
                others.append(part)
        return others


class SourceReads:
    """The source's side of the fetches of one consumer connection, of which there is one at a time."""

    def __init__(self, hub: ForwardingHub, owner: Swept, changed: Callable[[], None]) -> None:
        """changed: called when an answer came, or will not come."""
        self._hub = hub
        self._owner = owner
        self._changed = changed
        self._routes = RoutePool(hub.ports.source, hub.tasks, hub.limits, self._route_changed)
        self._fetch: PendingFetch | None = None
        self._polls: dict[Route, _Poll] = {}
        #: Parts that wait for a leader, for a connection, or for the end of what the node was asked before.
        self._unasked: list[Part] = []
        #: Nodes that had more records for this consumer than it got. An answer waits for theirs: else one that always is
        #: a little faster would keep them from it for ever.
        self._have_more: set[Route] = set()
        self._asking = False

    # For the fetch

    def ask(self, fetch: PendingFetch, parts: Iterable[Part]) -> None:
        """Look for records of these parts, until `fetch.poll_until`. Their results come with `changed`, or at once."""
        self._fetch = fetch
        self._ask(fetch, parts)

    def owes(self, *, newly_asked: bool = False) -> bool:
        """Whether an answer may still come. newly_asked: only to requests that were sent for this very fetch."""
        if self._unasked:
            return True
        return any(
            poll.parts and (poll.fetch is self._fetch or not newly_asked) for poll in self._polls.values()
        )

    def owes_more(self) -> bool:
        """Whether a node is asked that certainly has records."""
        return any(poll.parts and poll.route in self._have_more for poll in self._polls.values())

    def answered(self) -> None:
        """The fetch waits for nothing any more."""
        self._fetch = None
        self._unasked.clear()
        for poll in self._polls.values():
            poll.fetch = None
            poll.parts = {}
            self._have_more.discard(poll.route)  # it was waited for, as long as anybody is

    # Asking

    def _ask(self, fetch: PendingFetch, parts: Iterable[Part]) -> None:
        by_route: dict[Route, list[Part]] = {}
        for part in parts:
            part.from_source = True
            route = self._route(part)
            if route is None:
                self._unasked.append(part)
            else:
                by_route.setdefault(route, []).append(part)
        asking, self._asking = self._asking, True
        try:
            for route, mine in by_route.items():
                poll = self._polls.get(route)
                if poll is None:
                    self._send(fetch, route, mine)
                else:
                    self._unasked += poll.take_up(fetch, mine)
        finally:
            self._asking = asking

    def _route(self, part: Part) -> Route | None:
        if part.mirror is None or part.tp is None:
            return None
        link = part.mirror.link
        node = leader_of(self._hub.ports.source(link), part.mirror, part.tp.partition)
        if node is None:
            self._hub.recover(link, part.tp.topic, self._recovered)
            return None
        return self._routes.get(link, node)

    def _send(self, fetch: PendingFetch, route: Route, parts: list[Part]) -> None:
        now = self._hub.loop.time()
        wait = max(0.0, fetch.poll_until - now)
        try:
            request, expected = source_fetch(self._hub, fetch.request, route, parts, wait)
        except LinkerError as error:
            self._hub.refused(route.link, str(error))
            for part in parts:
                part.result = part.empty(0)
            return
        version = request.version
        correlation_id = route.next_correlation_id()
        frame = encode_fetch_request(version, correlation_id, fetch.exchange.header.client_id, request)
        poll = self._polls[route] = _Poll(fetch, route, version, request.isolation_level, expected)
        self._hub.watch(self._owner)
        route.send(
            correlation_id,
            [frame],
            partial(self._replied, poll),
            now,
            now + wait + self._hub.limits.source_silence,
        )

    def _route_changed(self, link: str, error: LinkerError | None) -> None:
        if error is None:
            self._recovered(link)
            return
        self._have_more = {route for route in self._have_more if route.open}
        for topic in {part.tp.topic for part in self._unasked if part.tp is not None and _of(part, link)}:
            self._hub.recover(link, topic, self._recovered)

    def _recovered(self, link: str) -> None:
        if self._fetch is not None and self._unasked:
            # In one pass: a request may name a partition as often as it likes, and all wait for the first connection.
            parts: list[Part] = []
            others: list[Part] = []
            for part in self._unasked:
                (parts if _of(part, link) else others).append(part)
            self._unasked = others
            self._ask(self._fetch, parts)
            self._changed()

    # Answers

    def _replied(self, poll: _Poll, reply: memoryview | WireError) -> None:
        del self._polls[poll.route]
        self._have_more.discard(poll.route)
        if not isinstance(reply, WireError):
            try:
                self._take(poll, reply)
            except MalformedFrame as error:
                poll.route.close(error)
        fetch = self._fetch
        if fetch is None:
            return
        again, self._unasked = self._unasked, []
        # Its time was that of an earlier fetch; this one may have some left.
        early = (
            poll.fetch is not fetch
            and not isinstance(reply, WireError)
            and self._hub.loop.time() < fetch.poll_until
        )
        for part in poll.parts.values():
            if part.result is None:
                part.result = part.empty(0)
            if early and part.result.error == 0 and not part.result.size:
                part.result = None
                again.append(part)
        self._ask(fetch, again)
        if not self._asking:
            self._changed()

    def _take(self, poll: _Poll, frame: memoryview) -> None:
        response = parse_fetch_response(frame, poll.version)
        for fetched in response.partitions:
            part = poll.parts.get((fetched.key, fetched.index))
            if part is not None:
                try:
                    part.result = self._result(poll, part, fetched, frame)
                except MalformedFrame as error:
                    # Of this partition alone: the consumer's others are at the same node, and it asks for all of them.
                    self._not_now(poll, f"the source's answer for {part.tp} cannot be read: {error}")
                    part.result = part.empty(0)
            elif self._fetch is None and fetched.records_end > fetched.records_start:
                self._have_more.add(poll.route)

    def _result(
        self, poll: _Poll, part: Part, fetched: FetchedPartition, frame: memoryview
    ) -> FetchPartitionResult:
        route = poll.route
        if fetched.error == 0 or fetched.error in PASSED_ON:
            result, next_offset = from_source(part, fetched, frame)
            end = fetched.last_stable_offset if poll.isolation_level else fetched.high_watermark
            if result.size and next_offset < end:
                self._have_more.add(route)
            return result
        # To the consumer an empty answer, but not before it could be another one: until then the leader is known, or an
        # operator has acted.
        if verdict(fetched.error) is ErrorMeaning.RETRY and part.tp is not None:
            self._hub.recover(route.link, part.tp.topic, self._recovered)
            self._quiet(_PASSING)
        else:
            name = error_name(fetched.error)
            self._not_now(poll, f"the source answered {name} to a fetch of {part.tp}")
        return part.empty(0)

    def _not_now(self, poll: _Poll, why: str) -> None:
        """An error that does not pass by itself: report it, and do not ask again at once."""
        self._hub.refused(poll.route.link, why)
        self._quiet(_PASSING + SOURCE_WAIT)

    def _quiet(self, seconds: float) -> None:
        if self._fetch is not None:
            self._fetch.quiet_until = max(self._fetch.quiet_until, self._hub.loop.time() + seconds)

    # Connections

    def sweep(self, now: float) -> bool:
        self._routes.sweep(now)
        return bool(len(self._routes))

    def closed(self) -> None:
        self.answered()
        self._hub.forget_waiter(self._recovered)
        self._routes.close()


def _of(part: Part, link: str) -> bool:
    return part.mirror is not None and part.mirror.link == link
