"""Shared by all clients' forwarding: fences and their waiting, the byte budget, leader recovery, the deadline sweep.

Lives here: ``ForwardingHub``. Not here: one client's requests (``session.py``), the accounting rules
(``fence.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

from router.budget import BytesBudget
from router.clients_seen import ClientSeen, Seen, clients_seen
from router.fence import FenceState, FenceTable
from router.fetch.first_fetches import FirstFetches
from router.fetch.held_readers import HeldReaders
from router.fetch.unread import Unread
from router.ports import Mirror, RouterLimits, RouterPorts, RouterStats, SourceCluster
from router.produce.after_hand_over import AfterHandOver
from router.produce.batch import Answer, Batch
from router.produce.forwarded import ForwardedBook
from router.produce.lanes import Lane
from router.produce.lease_gate import LeaseGate, Told
from router.produce.source_route import TARGET, Recovery
from router.tasks import TaskKeeper
from router.turns import RequestTurns
from wire.client.waiting import until_set
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.server.rate_limited_log import Sparing
from wire.shown_id import listed
from wire.transport.gathering import gathered_writes

log = logging.getLogger(__name__)

TICK: Final = 0.1
REFUSAL_INTERVAL: Final = 30.0
MAX_REFUSALS: Final = 1000


class FenceTimeout(LinkerError):
    """A fence did not stand in time; the partitions stay held."""

    def __init__(self, timeout: float, left: dict[TopicPartition, str]) -> None:
        some = listed((f"{tp}: {why}" for tp, why in sorted(left.items())), apart="; ")
        super().__init__(f"fence of {len(left)} partitions did not stand within {timeout:g} s: {some}")


class Swept(Protocol):
    """Something with deadlines."""

    def sweep(self, now: float) -> bool:
        """Expire what is due; False when there is nothing left to look after."""


class Answers(Protocol):
    """The answers to one client (``answers.ProduceAnswers``)."""

    def deliver(self, answers: Iterable[Answer[Any]]) -> None: ...

    def conclude(self, lane: Lane[Any], batch: Batch[Any], answers: Sequence[Answer[Any]]) -> None: ...


class Client(Swept, Protocol):
    """One client's forwarding (``session.ProduceSession``)."""

    @property
    def answers(self) -> Answers: ...

    def pump_lanes(self, lanes: Iterable[Any]) -> None: ...


class ShutOut(Protocol):
    """Has writes that wait until something is forwarded again (``routes.Routes``)."""

    def look_again(self) -> None: ...


class WaitsForPromote(ShutOut, Protocol):
    """Has writes of transactions that wait for their promote (``transactions.WaitingTransactions``)."""

    def holds(self, tps: Collection[TopicPartition]) -> bool: ...


class WaitsForLease(Protocol):
    """Something with answers that need a lease (``fetch.session.FetchSession``)."""

    def lease_renewed(self) -> None: ...


class ForwardingHub:
    """Shared state of produce forwarding."""

    def __init__(
        self, ports: RouterPorts, limits: RouterLimits, stats: RouterStats, tasks: TaskKeeper
    ) -> None:
        self.ports = ports
        self.limits = limits
        self.stats = stats
        self.tasks = tasks
        self.loop = asyncio.get_running_loop()
        self.fences: FenceTable[Any] = FenceTable(self.loop.time, limits.settle_grace)
        self.gate: LeaseGate[Any] = LeaseGate(ports.lease, self.fences)
        self.without_lease: set[WaitsForLease] = set()
        self.shut: set[ShutOut] = set()
        self.transactions: set[WaitsForPromote] = set()
        self.transactions_waiting = 0  # batches of theirs, and their bytes
        self.transactions_bytes = 0
        self.budget = BytesBudget(limits.held_bytes)
        self.forwarded = ForwardedBook()
        self.first_fetches = FirstFetches()
        self.held_readers = HeldReaders()
        self.turns = RequestTurns()
        self.unread = Unread(limits.read_bytes, self.loop)
        #: (kind of request, topic) that was logged already (on_mirrors.py).
        self.told_of_mirrors: set[tuple[str, str]] = set()
        #: Connections that fetch (`fetch.session.FetchSession`): they share the memory for reads.
        self.readers: dict[Seen, None] = {}
        self._sparing = Sparing()
        self._refusals: dict[tuple[str, str], float] = {}
        self._recoveries: dict[str, Recovery] = {}
        #: Those with deadlines to keep.
        self.watched: set[Swept] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._fence_waiters: set[asyncio.Event] = set()
        self.carrying = AfterHandOver(ports, limits.carried_clients)

    # Clients

    @property
    def consumers(self) -> int:
        return len(self.readers)

    def clients_seen(self, topics: Collection[str]) -> list[ClientSeen]:
        """Those that come in here and write or read these topics."""
        return clients_seen([*self.carrying.clients, *self.readers], frozenset(topics))

    def reader_held(self, mirror: Mirror, client_id: str | None, host: str, now: float) -> None:
        """A consumer got nothing of a mirror that it may not read yet. The first time it is told of."""
        self.stats.links[mirror.link].held += 1
        reader = self.held_readers.note(mirror.link, mirror.topic, client_id, host, now)
        if reader is not None:
            self.ports.events.reader_held(reader.link, reader.topic, reader.client_id, host)

    def cluster(self, name: str) -> SourceCluster:
        """Where forwarded produces go: the source of the link, or the target's own brokers (TARGET)."""
        return self.ports.target() if name == TARGET else self.ports.source(name)

    def recover(self, link: str, topic: str, waiter: Callable[[str], None]) -> None:
        recovery = self._recoveries.get(link)
        if recovery is None:
            recovery = self._recoveries[link] = Recovery(link, self.cluster, self.tasks, self.limits)
        recovery.need(topic, waiter)

    def refused(self, link: str, reason: str) -> None:
        """Report once in a while, not once per request."""
        now = self.loop.time()
        if now - self._refusals.get((link, reason), float("-inf")) < REFUSAL_INTERVAL:
            return
        if len(self._refusals) >= MAX_REFUSALS:
            self._refusals.clear()
        self._refusals[link, reason] = now
        self.ports.events.forwarding_refused(link, reason)

    def tell(self, text: str) -> None:
        """In the log, as long as it is not too much."""
        more = self._sparing.spare()
        if more is not None:
            log.warning("%s%s", text, more)

    def forget_waiter(self, waiter: Callable[[str], None]) -> None:
        for recovery in self._recoveries.values():
            recovery.forget(waiter)

    def watch(self, session: Swept) -> None:
        """Sweep the session until it says that there is nothing left."""
        self.watched.add(session)
        if self._ticker is None:
            self._ticker = self.loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for session in list(self.watched):
            try:
                again = session.sweep(now)
            except Exception as error:
                # One client's trouble: the deadlines of all others are kept here as well.
                again = False
                self.loop.call_exception_handler(
                    {"message": "a client's deadlines could not be kept", "exception": error}
                )
            if not again:
                self.watched.discard(session)
        if self.watched:
            self._ticker = self.loop.call_later(TICK, self._tick)

    # Fences

    def lanes_changed(self) -> None:
        """Something in flight was settled: whoever waits for a fence looks again."""
        for event in self._fence_waiters:
            event.set()

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Hold new produces from now on; what is in flight goes on."""
        wanted = list(tps)
        self.fences.fence(wanted)
        self._conclude(self.gate.closed(wanted))
        self._pump(lane for tp in wanted for lane in self.fences.lanes(tp) if lane.needs_route)

    def cut(self, tps: Iterable[TopicPartition]) -> None:
        """Fence without waiting for the source, which is given up: what was sent there ends as unknown."""
        wanted = list(tps)
        self.fences.fence(wanted)
        self._conclude(self.gate.closed(wanted))
        self._deliver(self.fences.cut(wanted))
        self.lanes_changed()

    def _deliver(self, answers: Iterable[Answer[Any]]) -> None:
        by_session: dict[Client, list[Answer[Any]]] = {}
        for batch, code in answers:
            by_session.setdefault(batch.job.session, []).append((batch, code))
        with gathered_writes():
            for session, mine in by_session.items():
                session.answers.deliver(mine)

    async def fence(self, tps: Iterable[TopicPartition], *, timeout: float) -> None:
        """Hold new produces and wait until nothing we sent can change the source's log any more (see
        fence.py).

        FenceTimeout, and likewise a cancellation, leaves the partitions held: the caller decides to
        unfence.
        """
        wanted = list(tps)
        self.hold(wanted)
        changed = asyncio.Event()
        self._fence_waiters.add(changed)
        deadline = self.loop.time() + timeout
        try:
            while left := self.fences.pending(wanted):
                now = self.loop.time()
                if now >= deadline:
                    raise FenceTimeout(timeout, left)
                settles_at = self.fences.next_settling(wanted)
                until = min(deadline, settles_at) if settles_at is not None and settles_at > now else deadline
                await until_set(changed, until - now)
        finally:
            self._fence_waiters.discard(changed)

    def unfence(self, tps: Iterable[TopicPartition]) -> None:
        """The promote was abandoned: forward what was held, in order."""
        wanted = list(tps)
        lanes = self.fences.unfence(wanted)
        self.gate.opened(wanted)
        for lane in lanes:
            lane.wake()
        self._pump(lanes)

    # Hand-overs

    def expect_hand_over(self, tps: Iterable[TopicPartition]) -> None:
        """These are fenced to be handed over."""
        self.carrying.expect(tps, anew=FenceState.CARRIED not in self.fences.closed.values())

    def carry(self, tps: Iterable[TopicPartition]) -> None:
        """Real brokers of the target lead now: send on to them what was held, and what clients still send here, until
        handed_over(). An acknowledgement is the new leader's own. A partition with a write that may still be
        on its way to the source is handed over instead, and all of them are where the target refused us.
        """
        wanted = list(tps)
        ready = [] if self.carrying.refused else [tp for tp in wanted if self.carrying.handed_over(tp)]
        carried = self.fences.carry(ready)
        self.gate.opened(carried)
        lanes = [lane for tp in carried for lane in self.fences.lanes(tp)]
        for lane in lanes:
            lane.wake()
        self._pump(lanes)
        left = [tp for tp in wanted if self.fences.state(tp) is FenceState.FENCED]
        if left:
            self.handed_over(left)

    def carry_refused(self, tps: Iterable[TopicPartition], reason: str) -> None:
        """The target does not let us write: clients find the new leaders themselves."""
        self.carrying.refuse(reason)
        self.handed_over(tps)

    def holds(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether some client has produced to one of them on the connection that it has, or waits to do so."""
        wanted = frozenset(tps)
        return any(self.fences.lanes(tp) for tp in wanted) or any(
            one.holds(wanted) for one in self.transactions
        )

    def carried_enough(self, tps: Iterable[TopicPartition]) -> None:
        """handed_over() for what is still being carried; the state of others is somebody else's by now."""
        self.handed_over(tp for tp in tps if self.fences.state(tp) is FenceState.CARRIED)

    def led_elsewhere(self, tps: Iterable[TopicPartition]) -> None:
        """handed_over(), but for what is carried: that ends when every broker names the new leader."""
        self.handed_over(tp for tp in tps if self.fences.state(tp) is not FenceState.CARRIED)

    def handed_over(self, tps: Iterable[TopicPartition]) -> None:
        """The target leads now: what was held, and what comes from now on, is answered NOT_LEADER_OR_FOLLOWER with the
        new leader. The new leader answers first for writes that are being carried.
        """
        wanted = list(tps)
        carried = [tp for tp in wanted if self.fences.state(tp) is FenceState.CARRIED]
        self._deliver(self.fences.hand_over(wanted))
        self._pump(lane for tp in carried for lane in self.fences.lanes(tp))
        self._conclude(self.gate.closed(wanted))
        with gathered_writes():
            for one in list(self.transactions):
                one.look_again()
        self.lanes_changed()

    async def answered(self, tps: Iterable[TopicPartition], *, timeout: float) -> None:
        """Return when no client waits for the answer to a write of these, or the time is over. Changes nothing."""
        wanted = list(tps)
        changed = asyncio.Event()
        self._fence_waiters.add(changed)
        deadline = self.loop.time() + timeout
        try:
            while not all(lane.idle for tp in wanted for lane in self.fences.lanes(tp)):
                left = deadline - self.loop.time()
                if left <= 0:
                    return
                await until_set(changed, left)
        finally:
            self._fence_waiters.discard(changed)

    def lease_renewed(self) -> None:
        """After each renewal that was answered: what waited for the proof is answered."""
        self._conclude(self.gate.renewed())
        waiting, self.without_lease = self.without_lease, set()
        for session in waiting:
            session.lease_renewed()
        self.forwarding_changed()

    def forwarding_changed(self) -> None:
        """Forwarding of some link may be on again: whoever waits for it looks now, not at the next tick."""
        with gathered_writes():
            for ways in list(self.shut):
                ways.look_again()

    def _conclude(self, told: Iterable[Told[Any]]) -> None:
        with gathered_writes():
            for lane, batch, answers in told:
                batch.job.session.answers.conclude(lane, batch, answers)

    def _pump(self, lanes: Iterable[Any]) -> None:
        by_session: dict[Client, list[Any]] = {}
        for lane in lanes:
            if lane.queue:
                by_session.setdefault(lane.queue[0].job.session, []).append(lane)
        with gathered_writes():
            for session, mine in by_session.items():
                session.pump_lanes(mine)

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        self.unread.close()
