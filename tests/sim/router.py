"""One process's router: the real lanes, fences and lease gate, with simulated clients and source around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from router.fence import LED_ELSEWHERE, FenceState, FenceTable
from router.produce.batch import Answer, Batch
from router.produce.lane_states import LaneState
from router.produce.lanes import Lane
from router.produce.lease_gate import ACKNOWLEDGES, LeaseGate, Told
from wire.errors import LinkerError
from wire.frames.error_codes import NONE, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.controller.kraft_model import Partition
    from tests.sim.place import Place

DEADLINE = 6.0  # longer than a lease, as clients' timeouts are
_SETTLE_GRACE = 0.5
_AGAIN = 0.05  # after a leader has said that it is none


class Job:
    """One record of one client."""

    def __init__(self, client: str, tp: TopicPartition, record: str, reply: Callable[[int], None]) -> None:
        self.client = client
        self.tp = tp
        self.record = record
        self.reply = reply
        self.told: int | None = None
        self.term = -1
        self.arrived = 0.0


class SimRouter:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._sidecar = sidecar = place.sidecar
        self._process = sidecar.process
        self.fences: FenceTable[Job] = FenceTable(sidecar.world.loop.time, _SETTLE_GRACE)
        self.gate: LeaseGate[Job] = LeaseGate(sidecar.lease, self.fences)
        self._lanes: dict[tuple[str, TopicPartition], Lane[Job]] = {}
        self._routes: dict[str, object] = {}
        self._lost: dict[int, Callable[[], None]] = {}  # by identity of the batch in flight
        self._waiters: set[asyncio.Event] = set()

    # Clients.

    def produce(
        self, client: str, tp: TopicPartition, record: str, idempotent: bool, reply: Callable[[int], None]
    ) -> None:
        state = self.fences.state(tp)
        carried = state is FenceState.CARRIED
        if not (self._place.leads(tp) or carried or self.fenced_for_hand_over(tp)):
            reply(NOT_LEADER_OR_FOLLOWER)
            return
        if not (carried or self._sidecar.lease.valid()):
            reply(NOT_ENOUGH_REPLICAS)
            return
        lane = self._lanes.get((client, tp))
        if lane is None:
            lane = self._lanes[client, tp] = self.fences.open_lane(tp)
        job = Job(client, tp, record, reply)
        producer = hash_of(client) if idempotent else -1
        batch = Batch(job, 0, memoryview(b""), producer, 0, 0)
        lane.offer(batch)
        self._process.later(DEADLINE, self._expire, lane, batch)
        self._pump(lane)

    def _expire(self, lane: Lane[Job], batch: Batch[Job]) -> None:
        if batch.deferred is not None and not batch.closed:
            self._conclude([(lane, batch, self.gate.give_up(batch))])
        else:
            self._deliver(lane.expire(batch))

    # Sending.

    def _pump(self, lane: Lane[Job]) -> None:
        if self.fences.state(lane.tp) is FenceState.HANDED_OVER and lane.state is LaneState.HELD:
            self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))
        while lane.needs_route:
            state = self.fences.state(lane.tp)
            if state in LED_ELSEWHERE and lane.state is not LaneState.HELD:
                if not self._carry_on(lane, last=state is FenceState.HANDED_OVER):
                    return
                continue
            if not self._place.leads(lane.tp):
                self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))
                return
            if not self.gate.may_send(lane.tp):
                self._deliver(lane.refuse(NOT_ENOUGH_REPLICAS))
                return
            if lane.stale or lane.state is LaneState.WAITING:
                lane.wake()
            client = next(key[0] for key, known in self._lanes.items() if known is lane)
            route = self._routes.setdefault(client, object())
            batch = lane.take(route)
            if batch is None:
                return
            self._send(lane, batch)

    def _send(self, lane: Lane[Job], batch: Batch[Job]) -> None:
        term = self._sidecar.lease.term
        batch.job.term = self._sidecar.watched.count

        def answered(code: int | None) -> None:
            self._lost.pop(id(batch), None)
            if code is not None:
                self._replied(lane, batch, term, code)
            else:
                self._deliver(lane.lost(batch))
                self._moved(lane)

        self._lost[id(batch)] = self._place.owner.write(self._process, lane.tp, batch.job.record, answered)

    def _carry_on(self, lane: Lane[Job], *, last: bool) -> bool:
        """To the new leader; whether more can be sent."""
        if lane.stale or lane.state is LaneState.WAITING:
            if last:
                self._deliver(lane.refuse(NOT_LEADER_OR_FOLLOWER))
            else:
                self._process.later(0.02, self._again, lane)
            return False
        client = next(key[0] for key, known in self._lanes.items() if known is lane)
        batch = lane.take(self._routes.setdefault(f"{client} at the target", object()))
        if batch is None:
            return False
        world = self._sidecar.world
        leader = self._view(lane.tp).leader

        name = f"{self._place.cluster.name} {leader}"
        over = False

        def settle(code: int | None) -> None:
            nonlocal over
            if not over:
                over = True
                self._process.call(self._carried, lane, batch, code)

        def told(code: int) -> None:
            world.network.deliver(name, self._process.name, lambda: settle(code), world.network.delay())

        def arrive() -> None:
            """At the real broker."""
            self._place.cluster.replicas.produce(lane.tp, leader, batch.job.record, told)

        world.network.deliver(self._process.name, name, arrive, world.network.delay())
        world.loop.kernel(DEADLINE / 2, settle, None)
        return True

    def _again(self, lane: Lane[Job]) -> None:
        lane.wake()
        self._pump(lane)

    def _carried(self, lane: Lane[Job], batch: Batch[Job], code: int | None) -> None:
        for told, answer in lane.lost(batch) if code is None else lane.answered(batch, code):
            if told.job.told is None:
                told.job.told = answer
                if answer == NONE:
                    self._sidecar.world.carried(self._place, told.job.tp, told.job.record)
                told.job.reply(answer)
        if code == NONE:
            self._moved(lane)
        else:
            self._process.later(_AGAIN, self._moved, lane)

    def connections_lost(self) -> None:
        """Of all clients at once: the source's broker went away."""
        self._routes.clear()
        for lost in list(self._lost.values()):
            lost()

    def _replied(self, lane: Lane[Job], batch: Batch[Job], term: int, code: int) -> None:
        lease = self._sidecar.lease
        covered = lease.covers(term)
        batch.job.arrived = self._process.clock()
        result = ProduceResult(lane.tp.partition, code)
        self._deliver(self.gate.answered(lane, batch, result, covered=covered))
        if code == NONE:
            self._moved(lane)
        else:
            self._process.later(_AGAIN, self._moved, lane)
            for waiter in self._waiters:
                waiter.set()

    def _moved(self, lane: Lane[Job]) -> None:
        self._pump(lane)
        for waiter in self._waiters:
            waiter.set()

    def _deliver(self, answers: Iterable[Answer[Job]]) -> None:
        for batch, code in answers:
            job = batch.job
            if job.told is None:
                job.told = code
                if code in ACKNOWLEDGES:
                    self._sidecar.world.acknowledged(self._place, job.tp, job.record, job.term, job.arrived)
                job.reply(code)

    def _conclude(self, told: Sequence[Told[Job]]) -> None:
        for lane, _batch, answers in told:
            self._deliver(answers)
            self._moved(lane)

    # What the fleet does (router.dispatch.Router).

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        wanted = list(tps)
        self.fences.fence(wanted)
        self._conclude(self.gate.closed(wanted))
        for tp in wanted:
            for lane in self._of(tp):
                self._pump(lane)

    def _of(self, tp: TopicPartition) -> list[Lane[Job]]:
        return [lane for (_, other), lane in self._lanes.items() if other == tp]

    async def fence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        wanted = list(tps)
        self.hold(wanted)
        changed = asyncio.Event()
        self._waiters.add(changed)
        try:
            async with asyncio.timeout(timeout):
                while self.fences.pending(wanted):
                    changed.clear()
                    try:
                        async with asyncio.timeout(0.1):
                            await changed.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise LinkerError(f"not drained: {self.fences.pending(wanted)}") from None
        finally:
            self._waiters.discard(changed)

    def unfence(self, tps: Iterable[TopicPartition]) -> None:
        wanted = list(tps)
        lanes = self.fences.unfence(wanted)
        self.gate.opened(wanted)
        for lane in [lane for tp in wanted for lane in self._of(tp) if lane in lanes]:
            lane.wake()
            self._pump(lane)

    # The moment after a hand-over (linker.fleet.hand_overs.Produces).

    @property
    def tasks(self) -> SimRouter:
        return self

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._process.spawn(work)

    def _view(self, tp: TopicPartition) -> Partition:
        partition: Partition = self._place.view(tp)
        return partition

    def expect_hand_over(self, tps: Iterable[TopicPartition]) -> None:
        return None  # connections are not simulated

    def fenced_for_hand_over(self, tp: TopicPartition) -> bool:
        leader = self._view(tp).leader
        return (
            self.fences.state(tp) is FenceState.FENCED
            and leader >= 0
            and leader not in self._place.link_brokers()
        )

    def holds(self, tps: Iterable[TopicPartition]) -> bool:
        return any(self.fences.lanes(tp) for tp in tps)

    def carry(self, tps: Iterable[TopicPartition]) -> None:
        wanted = list(tps)
        carried = self.fences.carry(tp for tp in wanted if self.fenced_for_hand_over(tp))
        self.gate.opened(carried)
        for lane in [lane for tp in carried for lane in self._of(tp)]:
            lane.wake()
            self._pump(lane)
        self.handed_over(tp for tp in wanted if self.fences.state(tp) is FenceState.FENCED)

    def carried_enough(self, tps: Iterable[TopicPartition]) -> None:
        self.handed_over(tp for tp in tps if self.fences.state(tp) is FenceState.CARRIED)

    def led_elsewhere(self, tps: Iterable[TopicPartition]) -> None:
        self.handed_over(tp for tp in tps if self.fences.state(tp) is not FenceState.CARRIED)

    def handed_over(self, tps: Iterable[TopicPartition]) -> None:
        wanted = list(tps)
        answers = self.fences.hand_over(wanted)
        self._deliver(sorted(answers, key=lambda answer: answer[0].job.record))
        self._conclude(self.gate.closed(wanted))

    async def answered(self, tps: Iterable[TopicPartition], *, timeout: float) -> None:
        wanted = list(tps)
        deadline = asyncio.get_running_loop().time() + timeout
        while asyncio.get_running_loop().time() < deadline:
            if all(lane.idle for tp in wanted for lane in self.fences.lanes(tp)):
                return
            await asyncio.sleep(0.01)

    def lease_renewed(self) -> None:
        self._conclude(self.gate.renewed())


def hash_of(name: str) -> int:
    return sum(map(ord, name))
