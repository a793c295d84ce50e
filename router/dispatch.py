"""The handler of the client listeners: which request is answered by whom.

Lives here: the table api key -> handler, the gate before authentication. Not here: what any of the handlers does, and
what is kept of a client (``client_session.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from router import apis, way_in
from router.addressed import Addressed
from router.api_versions import API_VERSIONS
from router.client_session import ClientSession
from router.fence import FenceState
from router.login import LoginState
from router.on_mirrors import MirrorRequests
from router.ports import RouterLimits, RouterPorts, RouterStats
from router.produce.forwarded import ForwardedBook
from router.produce.forwarding import ForwardingHub
from router.tasks import TaskKeeper
from router.txn_markers import answer_txn_markers
from wire.errors import MalformedFrame, WireError
from wire.frames.control_requests import answer_control_request, parse_control_request
from wire.frames.fetch import FetchRequest, parse_fetch_request
from wire.frames.offset_requests import MAX_ENTRIES, parse_list_offsets, parse_offset_for_leader_epoch
from wire.frames.types import TopicPartition
from wire.schema import codec
from wire.server.listener import Exchange, ServerConnection

log = logging.getLogger(__name__)

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
SASL_HANDSHAKE: Final = 17
OFFSET_FOR_LEADER_EPOCH: Final = 23
WRITE_TXN_MARKERS: Final = 27

_BEFORE_SASL: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS, way_in.SASL_AUTHENTICATE})
_LOCAL_KEY: Final = "router"
_MOST_TOLD: Final = 100
#: Seconds before a transaction coordinator is told to send a marker again.
_MARKER_PAUSE: Final = 0.2
#: Bytes of a request of those apis that are taken apart here, partition by partition, beyond which it waits for its turn.
_LARGE: Final = 100 << 10
#: Bytes of a request that is read by the schema, a fifth of a microsecond each: twenty thousand partitions.
_MOST_BY_SCHEMA: Final = 256 << 10

Handler = Callable[[ClientSession, Exchange], None]


class Router:
    """``handler`` of every client listener; also what linker calls to fence and to hand over."""

    def __init__(self, ports: RouterPorts, limits: RouterLimits | None = None) -> None:
        self.ports = ports
        self.limits = limits or RouterLimits()
        self.stats = RouterStats()
        self.tasks = TaskKeeper()
        self._refused_followers: set[str] = set()
        self.hub = ForwardingHub(ports, self.limits, self.stats, self.tasks)
        self._handlers: dict[int, Handler] = {
            PRODUCE: lambda session, exchange: (session.producing or session.produce).handle(exchange),
            FETCH: _fetch,
            LIST_OFFSETS: _list_offsets,
            OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
            API_VERSIONS: way_in.ask_api_versions,
            SASL_HANDSHAKE: way_in.sasl_handshake,
            way_in.SASL_AUTHENTICATE: way_in.sasl_authenticate,
            WRITE_TXN_MARKERS: _write_txn_markers,
            **dict.fromkeys(apis.ABOUT_THE_BROKER, _about_the_broker),
            **dict.fromkeys(apis.TO_A_LEADER, _to_a_leader),
            **dict.fromkeys(apis.REFUSED, _refuse),
            **({} if ports.control is None else dict.fromkeys(apis.OF_A_CONTROLLER, _control)),
        }

    def __call__(self, exchange: Exchange) -> None:
        connection = exchange.connection
        session = connection.local.get(_LOCAL_KEY)
        if session is None:
            session = connection.local[_LOCAL_KEY] = ClientSession(
                self.hub, connection, self.refused_follower
            )
        key = exchange.header.api_key
        if not session.authenticated and key not in _BEFORE_SASL:
            if session.login.state is LoginState.UNPROVEN:
                way_in.prove(session, exchange, self)
                return
            exchange.fail(
                WireError("request before authentication", api=codec.api_name(key), peer=connection.peer)
            )
            return
        handler = self._handlers.get(key)
        if handler is None:
            session.upstream.forward(exchange)
        else:
            handler(session, exchange)

    def refused_follower(self, connection: ServerConnection, why: str) -> None:
        """A broker may not fetch from us, and only sees its connections end: said once for each address."""
        host = connection.peer.rpartition(":")[0]
        if host in self._refused_followers or len(self._refused_followers) >= _MOST_TOLD:
            return
        self._refused_followers.add(host)
        log.warning(
            "%s may not fetch as a follower on listener %s, so mirrors get no copies there: %s",
            host,
            connection.listener.name,
            why,
        )

    def serves(self, api_key: int) -> bool:
        """False: requests of it are passed through."""
        return api_key in self._handlers

    # Promote

    async def fence(self, tps: Iterable[TopicPartition], *, timeout: float) -> None:
        """See ForwardingHub.fence and fence.py for what it promises."""
        await self.hub.fence(tps, timeout=timeout)

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        """The part of a fence that needs no waiting."""
        self.hub.hold(tps)

    def cut(self, tps: Iterable[TopicPartition]) -> None:
        """Fence without the source, which is given up: what was sent there ends as unknown."""
        self.hub.cut(tps)

    @property
    def forwarded(self) -> ForwardedBook:
        return self.hub.forwarded

    def unfence(self, tps: Iterable[TopicPartition]) -> None:
        self.hub.unfence(tps)

    def expect_hand_over(self, tps: Iterable[TopicPartition]) -> None:
        self.hub.expect_hand_over(tps)

    def carry(self, tps: Iterable[TopicPartition]) -> None:
        """See ForwardingHub.carry: between the hand-over and handed_over()."""
        self.hub.carry(tps)

    def carried_enough(self, tps: Iterable[TopicPartition]) -> None:
        self.hub.carried_enough(tps)

    def fenced_for_hand_over(self, tp: TopicPartition) -> bool:
        """Whether produces are held for it, and a real broker leads it by the metadata log."""
        return self.hub.fences.state(tp) is FenceState.FENCED and self.hub.carrying.handed_over(tp)

    def holds(self, tps: Iterable[TopicPartition]) -> bool:
        return self.hub.holds(tps)

    def led_elsewhere(self, tps: Iterable[TopicPartition]) -> None:
        self.hub.led_elsewhere(tps)

    def handed_over(self, tps: Iterable[TopicPartition]) -> None:
        self.hub.handed_over(tps)

    async def answered(self, tps: Iterable[TopicPartition], *, timeout: float) -> None:
        await self.hub.answered(tps, timeout=timeout)

    @property
    def unknown_answers(self) -> int:
        """Successes of the source that clients were told to be unknown, for want of a lease or under a fence."""
        return self.hub.gate.unknown

    def lease_renewed(self) -> None:
        """Call after each answered renewal of the sidecar's lease, when everything that the link controller sent
        before it is applied (its fences above all): answers that waited for the proof leave.
        """
        self.hub.lease_renewed()

    def forwarding_changed(self) -> None:
        """Writes that waited because nothing was forwarded may go on."""
        self.hub.forwarding_changed()

    async def close(self) -> None:
        """Stop background work. Client connections are closed by their listener."""
        self.hub.close()
        await self.tasks.close()


def _taken_apart(handler: Handler) -> Handler:
    """Of a request that names thousands of partitions: it is looked at in a turn of the event loop in which no other such
    request is, and nothing further is read from its client until then.
    """

    async def later(session: ClientSession, exchange: Exchange) -> None:
        await session.hub.turns.next()
        if exchange.done:
            return  # its connection has ended
        try:
            handler(session, exchange)
        except MalformedFrame as error:
            exchange.connection.garbled(error)
        except Exception as error:
            exchange.connection.abort(error)
            raise
        else:
            exchange.connection.resume_reading()

    def handle(session: ClientSession, exchange: Exchange) -> None:
        if len(exchange.frame) <= _LARGE:
            handler(session, exchange)
            return
        connection = exchange.connection
        connection.pause_reading()
        session.hub.tasks.spawn(later(session, exchange), f"a large request of {connection.peer}")

    return handle


@_taken_apart
def _fetch(session: ClientSession, exchange: Exchange) -> None:
    request: FetchRequest = parse_fetch_request(
        exchange.frame, exchange.body_offset, exchange.header.api_version
    )
    if request.replica_id >= 0:
        followers = session.hub.ports.followers
        session.with_cluster_action(exchange, lambda: followers.handle_fetch(exchange, request))
        return
    if request.entries > MAX_ENTRIES:
        raise MalformedFrame(f"more than {MAX_ENTRIES} topics and partitions in one request", api="fetch")
    session.fetch.handle(exchange, request)


@_taken_apart
def _list_offsets(session: ClientSession, exchange: Exchange) -> None:
    request = parse_list_offsets(exchange.frame, exchange.body_offset, exchange.header.api_version)
    if request.replica_id >= 0:
        followers = session.hub.ports.followers
        session.with_cluster_action(exchange, lambda: followers.handle_list_offsets(exchange, request))
    else:
        session.offsets.list_offsets(exchange, request)


@_taken_apart
def _offset_for_leader_epoch(session: ClientSession, exchange: Exchange) -> None:
    request = parse_offset_for_leader_epoch(exchange.frame, exchange.body_offset, exchange.header.api_version)
    if request.replica_id >= 0:
        followers = session.hub.ports.followers
        session.with_cluster_action(
            exchange, lambda: followers.handle_offset_for_leader_epoch(exchange, request)
        )
    else:
        session.offsets.offset_for_leader_epoch(exchange, request)


def _readable(exchange: Exchange) -> bool:
    """Clients that do not ask for versions may send one that was not named: the oldest, which a target of 3.9 still has. And
    a request of a hundred MiB would hold up everybody for twenty seconds: a real broker answers it as it would its own.
    """
    if len(exchange.frame) > _MOST_BY_SCHEMA:
        return False
    name = codec.api_name(exchange.header.api_key)
    return codec.min_version(name) <= exchange.header.api_version <= codec.max_version(name)


@_taken_apart
def _about_the_broker(session: ClientSession, exchange: Exchange) -> None:
    if not _readable(exchange):
        session.upstream.forward(exchange)
        return
    Addressed(session.hub.ports, session.upstream, session.authorizer).handle(exchange)


@_taken_apart
def _to_a_leader(session: ClientSession, exchange: Exchange) -> None:
    if not _readable(exchange):
        session.upstream.forward(exchange)
        return
    MirrorRequests(
        session.hub,
        session.connection,
        session.upstream,
        session.authorizer,
        session.hub.told_of_mirrors,
    ).handle(exchange)


def _refuse(session: ClientSession, exchange: Exchange) -> None:
    key = exchange.header.api_key
    exchange.fail(WireError(f"api key {key} is not for a broker's listener", peer=session.connection.peer))


@_taken_apart
def _write_txn_markers(session: ClientSession, exchange: Exchange) -> None:
    answer, again = answer_txn_markers(exchange, session.hub)  # first: what is garbled is refused as such

    def reply() -> None:
        if again:
            # The coordinator sends it anew as soon as it is answered.
            session.hub.loop.call_later(_MARKER_PAUSE, exchange.reply, [answer])
        else:
            exchange.reply([answer])

    session.with_cluster_action(exchange, reply)


@_taken_apart
def _control(session: ClientSession, exchange: Exchange) -> None:
    header = exchange.header
    request = parse_control_request(exchange.frame, exchange.body_offset, header.api_key, header.api_version)

    def done() -> None:
        told = session.hub.ports.control
        if told is not None:
            told(request)
        exchange.reply([answer_control_request(request, header.correlation_id)])

    session.with_cluster_action(exchange, done, controller=True)
