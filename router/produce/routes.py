"""The ways of one client's lanes: which connection a lane sends on now, and the waiting for it.

Lives here: `Routes`, and the lanes that wait because nothing is forwarded at the moment. Not here: what is sent on them
(`session.py`), opening connections and finding leaders again (`source_route.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic

from router.fence import LED_ELSEWHERE, FenceState
from router.produce.after_hand_over import CarriedClient
from router.produce.batch import Answer, JobT
from router.produce.forwarding import ForwardingHub
from router.produce.lane_states import LaneState
from router.produce.lanes import Lane
from router.produce.source_route import TARGET, Route, RoutePool, leader_of
from wire.errors import LinkerError
from wire.frames.error_codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER
from wire.frames.types import Node

_LAST_WAIT: Final = 1.0  # seconds for a connection to a new leader once clients are sent away


class Routes(Generic[JobT]):
    """To the leaders at the source; after a hand-over, for a moment, to those at the target."""

    def __init__(
        self,
        hub: ForwardingHub,
        session: CarriedClient,
        deliver: Callable[[Iterable[Answer[JobT]]], None],
        pump: Callable[[Iterable[Lane[JobT]]], None],
    ) -> None:
        self._hub = hub
        self._session = session
        self._deliver = deliver
        self._pump = pump
        self._routes = RoutePool(hub.cluster, hub.tasks, hub.limits, self._route_changed)
        self._stuck: dict[Lane[JobT], str] = {}  # waits for a leader or a connection: its link
        self._late_at: float | None = None
        self._shut: dict[Lane[JobT], float] = {}  # forwarding is off, or the lease lapsed: since when

    @property
    def any(self) -> bool:
        """Whether there is a connection."""
        return bool(len(self._routes))

    def expect(self, nodes: Collection[Node]) -> None:
        """These real brokers are likely to lead soon."""
        if nodes and self._hub.carrying.chosen(self._session):
            for node in nodes:
                self._routes.get(TARGET, node)

    def sweep(self, now: float) -> None:
        self._routes.sweep(now)
        if self._shut:
            self.look_again()
        late = [lane for lane, of in self._stuck.items() if of == TARGET and self._is_last(lane)]
        if not late:
            self._late_at = None
        elif self._late_at is None:
            self._late_at = now + _LAST_WAIT
        elif now >= self._late_at:
            self._give_back(late)

    def _is_last(self, lane: Lane[JobT]) -> bool:
        """Whether clients are sent away already, so that the lane gets no more batches."""
        return self._hub.fences.state(lane.tp) is FenceState.HANDED_OVER

    def _give_back(self, lanes: Iterable[Lane[JobT]]) -> None:
        for lane in lanes:
            # An answer may close the connection, which abandons all that waits.
            if self._stuck.pop(lane, None) is not None:
                self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))

    def close_idle(self) -> None:
        self._routes.close_idle()

    def abandon(self) -> None:
        """The client is gone: nothing waits any more."""
        self._stuck.clear()
        self._shut.clear()
        self._hub.shut.discard(self)
        self._hub.forget_waiter(self._recovered)

    def look_again(self) -> None:
        """Forwarding may be on again."""
        waiting = list(self._shut)
        self._hub.shut.discard(self)
        self._pump(waiting)
        for lane in waiting:
            if not lane.queue:
                self._shut.pop(lane, None)  # answered in another way

    def find(self, lane: Lane[JobT], leased: bool) -> Route | None:
        """The open connection to the partition's leader; without one the lane is stuck until that changes."""
        since = self._shut.pop(lane, None) if self._shut else None
        state = self._hub.fences.state(lane.tp)
        if state is FenceState.HANDED_OVER and lane.state is LaneState.HELD:
            self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))  # it came back, and nobody will open this lane
            return None
        if not lane.needs_route:
            return None
        if state in LED_ELSEWHERE:
            return self._carrying(lane, last=state is FenceState.HANDED_OVER)
        mirror = self._hub.ports.mirrors.by_name(lane.tp.topic)
        partition = mirror.partition(lane.tp.partition) if mirror is not None else None
        if mirror is None or partition is None or not partition.leading:
            self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))
            return None
        if lane.state is LaneState.HELD:
            leased = self._hub.gate.may_send(lane.tp)
        if not partition.forwarding or not leased:
            # Under a fence there is no waiting: it stands only when nothing of unknown outcome is left.
            if lane.state is LaneState.HELD or partition.refusing is not None:
                self._deliver(lane.refuse(NOT_ENOUGH_REPLICAS))
            else:
                self._shut_out(lane, since, leased)
            return None
        if lane.stale or lane.state is LaneState.WAITING:
            self._wait(lane, mirror.link)
            return None
        node = leader_of(self._hub.ports.source(mirror.link), mirror, lane.tp.partition)
        if node is None:
            self._wait(lane, mirror.link)
            return None
        route = self._routes.get(mirror.link, node)
        if route is None:
            self._stuck[lane] = mirror.link  # on_change comes when it is open, or failed
        return route

    def _shut_out(self, lane: Lane[JobT], since: float | None, leased: bool) -> None:
        """Forwarding is off now, and may be on in a moment: the lane's batches wait until the time of their requests is
        over."""
        now = self._hub.loop.time()
        if since is None:
            since = now
        if not leased and now - since > self._hub.limits.lease_patience:
            self._deliver(lane.give_back())
            return
        self._shut[lane] = since
        self._hub.shut.add(self)

    def _carrying(self, lane: Lane[JobT], *, last: bool) -> Route | None:
        """The open connection to the partition's new leader, a real broker of the target. A client that is not carried
        waits until it is told who leads. last: batches that cannot be sent now go back to the client, which sends them
        to the new leader."""
        chosen = self._hub.carrying.chosen(self._session)
        node = self._hub.carrying.leader(lane.tp) if chosen else None
        if node is None or lane.stale or lane.state is LaneState.WAITING:
            if last:
                self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))
            elif chosen:
                self._wait(lane, TARGET)
            return None
        route = self._routes.get(TARGET, node)
        if route is None:
            self._stuck[lane] = TARGET
        return route

    def _wait(self, lane: Lane[JobT], link: str) -> None:
        self._stuck[lane] = link
        self._hub.recover(link, lane.tp.topic, self._recovered)

    def _route_changed(self, link: str, error: LinkerError | None) -> None:
        if error is None:
            self._move_on(link)
            return
        stuck = [lane for lane, of in self._stuck.items() if of == link]
        if link == TARGET:
            self._give_back([lane for lane in stuck if self._is_last(lane)])
        for lane in stuck:
            if lane in self._stuck:
                self._hub.recover(link, lane.tp.topic, self._recovered)

    def _recovered(self, link: str) -> None:
        self._move_on(link)

    def _move_on(self, link: str) -> None:
        lanes = [lane for lane, of in self._stuck.items() if of == link]
        for lane in lanes:
            del self._stuck[lane]
            lane.wake()
        self._pump(lanes)
