"""Connections to the source, and finding the leader again after it moved.

Lives here: `Route` (one connection of one client to one source node), `RoutePool` (those of one
client), `Recovery` (one metadata refresh loop per link, shared by all clients). Not here: which batch
goes when (`lanes.py`, `session.py`).

A client has connections of its own, because a source broker works on one request per connection at a
time: a shared connection would let one slow producer, or one long poll, delay everybody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.ports import Mirror, RouterLimits, SourceCluster, SourceConnectionLike
from router.tasks import TaskKeeper
from wire.backoff import Backoff
from wire.client.cluster_metadata import PartitionMetadata
from wire.errors import ConnectionLost, LinkerError, LocalProtocolError, RequestTimedOut, WireError, describe
from wire.frames.types import Buffer, Node

log = logging.getLogger(__name__)

TARGET: Final = ""
"""In the place of a link's name: the target's own brokers, for the moment after a hand-over."""

_TARGET_IDLE: Final = 2.0
_MARGIN: Final = 0.2  # seconds for a request to get there before its connection expires
_IN_USE: Final = 2.0  # seconds since its last request, for a connection that is worth another one
_QUIET: Final = 2.0  # seconds without trouble after which the back-off starts at its beginning again

_NOTHING: Final[Mapping[int, PartitionMetadata]] = {}

OnReply = Callable[[memoryview | WireError], None]


def partitions_of(cluster: SourceCluster, mirror: Mirror) -> Mapping[int, PartitionMetadata]:
    """The mirror's partitions as the source knows them.

    A topic that was deleted and created again has another id: it is not the one that is mirrored, whatever
    its name, so nothing is known of it here.
    """
    topic = cluster.topics.get(mirror.topic)
    if topic is None:
        return _NOTHING
    known, mirrored = topic.topic_id, mirror.source_topic_id
    if known is not None and mirrored is not None and known != mirrored:
        return _NOTHING
    return topic.partitions


def leader_of(cluster: SourceCluster, mirror: Mirror, partition: int) -> Node | None:
    """The node to ask about a partition of the mirror; None while it is not known."""
    found = partitions_of(cluster, mirror).get(partition)
    return None if found is None else cluster.nodes.get(found.leader)


class Route:
    """One connection to a source node, opened once; a new one replaces it when it is closed, or about to be."""

    __slots__ = ("_due", "connection", "last_used", "link", "node", "renew_from", "replaced")

    def __init__(self, link: str, node: Node, now: float) -> None:
        self.link = link
        self.node = node
        self.connection: SourceConnectionLike | None = None
        self.last_used = now
        #: Of time.monotonic(): another one that was to take its place has failed, and the next is not tried before.
        self.renew_from = 0.0
        self.replaced = False  # another one has taken its place; it is here for the answers that it owes
        self._due: deque[float] = deque()  # when each owed answer is overdue, in send order

    @property
    def open(self) -> bool:
        return self.connection is not None and not self.connection.closed

    @property
    def owes(self) -> int:
        return len(self._due)

    def ageing(self, now: float) -> bool:
        """Whether the peer ends the login soon (connections.max.reauth.ms). now: of time.monotonic()."""
        at = None if self.connection is None else self.connection.renew_at
        return at is not None and now >= at

    def expired(self, now: float) -> bool:
        """Whether the peer would end the connection at the next request."""
        at = None if self.connection is None else self.connection.expires_at
        return at is not None and now >= at - _MARGIN

    def version(self, api: str, low: int, high: int) -> int:
        """The highest version of an api that the node, and low..high, have in common."""
        if self.connection is None:
            raise LocalProtocolError("the source connection is not open", api=api)
        offered = self.connection.api_range(api)
        if offered is None or offered[0] > high or offered[1] < low:
            raise LinkerError(
                f"source node {self.node.id} at {self.node.host}:{self.node.port} offers {api} {offered}, "
                f"but versions {low} to {high} are needed"
            )
        return min(offered[1], high)

    def send(
        self, correlation_id: int, buffers: Sequence[Buffer], on_reply: OnReply, now: float, due: float
    ) -> None:
        """Send one request; on_reply is called exactly once, at once if the connection just closed."""
        if self.connection is None:
            raise LocalProtocolError("the source connection is not open")
        self.last_used = now
        self._due.append(due)

        def replied(result: memoryview | WireError) -> None:
            self._due.popleft()
            on_reply(result)
            if self.replaced and not self._due:
                self.close()

        try:
            self.connection.channel.send(correlation_id, buffers, replied)
        except ConnectionLost as error:
            self._due.pop()
            on_reply(error)

    def next_correlation_id(self) -> int:
        if self.connection is None:
            raise LocalProtocolError("the source connection is not open")
        return self.connection.next_correlation_id()

    def overdue(self, now: float) -> bool:
        return bool(self._due) and self._due[0] <= now

    def close(self, reason: WireError | None = None) -> None:
        if self.connection is None:
            return
        if reason is None:
            self.connection.close()
        else:
            self.connection.channel.close(reason)


class RoutePool:
    """The source connections of one client for one purpose."""

    def __init__(
        self,
        source: Callable[[str], SourceCluster],
        tasks: TaskKeeper,
        limits: RouterLimits,
        on_change: Callable[[str, LinkerError | None], None],
    ) -> None:
        self._source = source
        self._tasks = tasks
        self._limits = limits
        self._on_change = on_change  # (link, None): a route opened; (link, error): it failed or closed
        self._routes: dict[tuple[str, int], Route] = {}
        self._next: dict[tuple[str, int], Route] = {}  # being opened, to take the place of one that expires
        self._replaced: set[Route] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._routes) + len(self._replaced)

    def get(self, link: str, node: Node) -> Route | None:
        """The open route to the node. None while it is being opened: on_change tells how that went."""
        key = (link, node.id)
        route = self._routes.get(key)
        if route is not None and route.node[:3] != node[:3] and not route.owes:
            self._drop(key, route)  # the node moved to another address
            route = None
        if route is not None:
            if not route.open:
                return None
            now = time.monotonic()
            if route.ageing(now):
                expired = route.expired(now)
                if expired or now >= route.renew_from:
                    self._renew(key, route)
                if expired:
                    return None
            return route
        if self._closed:
            return None
        route = self._routes[key] = Route(link, node, asyncio.get_running_loop().time())
        self._tasks.spawn(self._open(key, route), f"open source {link} node {node.id}")
        return None

    def _renew(self, key: tuple[str, int], route: Route) -> None:
        """Open another one beside it, which takes its place. Writes sent on the old one are answered, and none overtakes
        them: a lane changes its way when it has nothing in flight."""
        if key in self._next or self._closed:
            return
        follower = self._next[key] = Route(route.link, route.node, route.last_used)
        self._tasks.spawn(
            self._open(key, follower), f"renew the login at source {route.link} node {route.node.id}"
        )

    def _placed(self, key: tuple[str, int], route: Route) -> bool:
        """Whether an opened route is still wanted. If it was opened to replace another one, it takes that one's place."""
        if self._next.get(key) is route:
            del self._next[key]
            old = self._routes.get(key)
            if self._closed or (old is not None and old.node[:3] != route.node[:3]):
                return False
            self._routes[key] = route
            if old is not None:
                old.replaced = True
                if old.owes:
                    self._replaced.add(old)
                else:
                    old.close()
            return True
        return self._routes.get(key) is route

    async def _open(self, key: tuple[str, int], route: Route) -> None:
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                connection = await self._source(route.link).open_connection(route.node)
        except TimeoutError:
            self._failed(
                key,
                route,
                RequestTimedOut(
                    f"source node {route.node.id} not connected within {self._limits.connect_timeout:g} s",
                    sent=False,
                    peer=f"{route.node.host}:{route.node.port}",
                ),
            )
            return
        except LinkerError as error:
            self._failed(key, route, error)
            return
        except Exception as error:
            # A bug, and told as one; but a route that stays "being opened" would hold up its node's writes for good.
            self._failed(
                key,
                route,
                ConnectionLost(
                    f"source node {route.node.id} could not be connected to: {describe(error)}",
                    sent=False,
                    peer=f"{route.node.host}:{route.node.port}",
                ),
            )
            raise
        route.connection = connection
        if not self._placed(key, route):  # closed meanwhile
            connection.close()
            return
        connection.channel.add_close_callback(lambda: self._ended(key, route))
        self._on_change(route.link, None)

    def _failed(self, key: tuple[str, int], route: Route, error: LinkerError) -> None:
        if self._next.get(key) is route:
            del self._next[key]
            if (old := self._routes.get(key)) is not None:
                now = time.monotonic()
                old.renew_from = now + self._limits.backoff_max
                if not old.expired(now):
                    return  # it is tried again, as long as the old one serves
        elif self._routes.get(key) is route:
            del self._routes[key]
        else:
            return
        self._on_change(route.link, error)

    def _ended(self, key: tuple[str, int], route: Route) -> None:
        self._replaced.discard(route)
        if self._routes.get(key) is route:
            del self._routes[key]
            self._on_change(
                route.link, ConnectionLost("the source connection closed", sent=False, peer=route.node.host)
            )

    def _drop(self, key: tuple[str, int], route: Route) -> None:
        del self._routes[key]
        route.close()

    def sweep(self, now: float) -> None:
        """Close what is silent for too long, or idle; renew what expires."""
        clock = time.monotonic()
        for route in [*self._routes.values(), *self._replaced]:
            if route.overdue(now):
                route.close(
                    RequestTimedOut(
                        f"source node {route.node.id} owes an answer for too long",
                        sent=True,
                        peer=f"{route.node.host}:{route.node.port}",
                    )
                )
        for key, route in list(self._routes.items()):
            if route.open and route.ageing(clock):
                if route.owes or now - route.last_used < _IN_USE:
                    if clock >= route.renew_from:
                        self._renew(key, route)
                else:
                    self._drop(key, route)
            elif route.open and not route.owes:
                idle = _TARGET_IDLE if route.link == TARGET else self._limits.source_idle
                if now - route.last_used > idle:
                    self._drop(key, route)

    def close_idle(self) -> None:
        """Close whatever owes no answer (the client is gone); the others close when they have answered."""
        self._closed = True
        self._next.clear()
        for key, route in list(self._routes.items()):
            if not route.owes:
                self._drop(key, route)

    def close(self) -> None:
        self._closed = True
        self._next.clear()
        for key, route in list(self._routes.items()):
            self._drop(key, route)
        for route in list(self._replaced):
            route.close()


class Recovery:
    """Finds the leaders of a link's source partitions again, for everybody who waits, with one loop and one
    back-off.
    """

    def __init__(
        self, link: str, source: Callable[[str], SourceCluster], tasks: TaskKeeper, limits: RouterLimits
    ) -> None:
        self._link = link
        self._source = source
        self._tasks = tasks
        self._limits = limits
        self._topics: set[str] = set()
        self._waiters: dict[Callable[[str], None], None] = {}
        self._running = False
        self._attempts = 0
        self._last_end = float("-inf")
        self._failing = False  # the last look failed

    def need(self, topic: str, waiter: Callable[[str], None]) -> None:
        """Call ``waiter(link)`` once the topic's leaders were asked for again."""
        self._topics.add(topic)
        self._waiters[waiter] = None
        if not self._running:
            self._running = True
            if self._tasks.spawn(self._run(), f"recover leaders of link {self._link}") is None:
                self._running = False

    def forget(self, waiter: Callable[[str], None]) -> None:
        self._waiters.pop(waiter, None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiters:
                if loop.time() - self._last_end > _QUIET:
                    self._attempts = 0
                else:
                    await asyncio.sleep(self._delay())
                self._attempts += 1
                topics, waiters = self._topics, self._waiters
                self._topics, self._waiters = set(), {}
                try:
                    await self._source(self._link).refresh(
                        sorted(topics), timeout=self._limits.connect_timeout
                    )
                except LinkerError as error:
                    if not self._failing:  # once: it is tried again and again
                        self._failing = True
                        log.warning(
                            "%s cannot be asked who leads: %s",
                            f"the source of link {self._link}" if self._link != TARGET else "the target",
                            error,
                        )
                    self._topics |= topics
                    self._waiters = {**waiters, **self._waiters}
                else:
                    self._failing = False
                    for waiter in waiters:
                        try:
                            waiter(self._link)
                        except Exception:  # a bug with one client, and no matter of all others
                            log.exception(
                                "link %s: waking a client that waited for a leader hit a bug; other clients go on",
                                self._link,
                            )
                self._last_end = loop.time()
        finally:
            self._running = False

    def _delay(self) -> float:
        return Backoff(self._limits.backoff_min, self._limits.backoff_max).at(self._attempts)
