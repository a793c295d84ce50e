"""One story: faults and promotes at random for a while, then peace, in which everything has to settle."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from controller.phases import PROMOTING, Phase
from fleet.link_controller import LinkController
from tests.sim.loop import SimLoop, alive_again
from tests.sim.sidecar import LINK, Sidecar
from tests.sim.store import STORE
from tests.sim.target import KRAFT, REAL
from tests.sim.world import Broken, World
from wire.frames.types import TopicPartition

_TROUBLE = 22.0  # seconds of faults at most
_SETTLES = 40.0  # within which everything is as it should be after the last fault
_CLIENTS = ("c0", "c1", "c2")


@dataclass(frozen=True)
class Told:
    """What came of a story."""

    seed: int
    broken: Broken | None
    events: int
    seconds: float
    acks: int
    carries: int
    handed_over: int
    epochs: int
    trace: str  # its digest: two runs of a seed are the same run


class Clients:
    """Producers: they ask whoever leads, or who they think does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng_clients
        self.number = 0

    def start(self) -> None:
        for client in _CLIENTS:
            self.world.loop.kernel(self.rng.random() * 0.1, self._tick, client)

    def _tick(self, client: str) -> None:
        world, rng = self.world, self.rng
        world.loop.kernel(rng.uniform(0.04, 0.16), self._tick, client)
        tp = rng.choice(world.tps)
        self.number += 1
        record = f"{client}.{self.number}"
        leader = world.target.kraft.partitions[tp].leader
        if rng.random() < 0.15:
            leader = rng.choice(world.sidecar_ids)
        if leader in REAL:
            if world.target.append(tp, leader, record):
                world.last_ack[tp] = world.loop.time()
                world.acked[tp].add(record)
            return
        world.network.deliver(client, str(leader), lambda: self._produce(client, leader, tp, record), 0.001)

    def _produce(self, client: str, leader: int, tp: TopicPartition, record: str) -> None:
        sidecar = self.world.sidecar_of(leader)
        if sidecar is not None:
            sidecar.process.call(
                sidecar.router.produce, client, tp, record, client == "c2", lambda code: None
            )


class Faults:
    """What goes wrong."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng_faults
        self.over = False
        self.kinds: list[tuple[float, Callable[[], None]]] = [
            (1.0, self.crash),
            (1.2, self.pause),
            (1.5, self.cut_some),
            (2.0, self.lonely),
            (2.0, self.slow_and_lonely),
            (0.7, self.reset),
            (1.0, self.store_trouble),
            (0.8, self.lose_seat),
            (0.6, self.store_away),
            (1.0, self.slow_source),
            (0.5, self.source_connections),
            (1.5, self.controller_trouble),
            (0.8, self.elections),
            (0.4, self.real_broker),
            (0.4, self.lazy_follower),
            (0.8, self.outside_writer),
            (0.6, self.leave),
            (3.0, self.elsewhere),
        ]

    def start(self) -> None:
        self.world.loop.kernel(self.rng.uniform(0.3, 2.0), self._next)
        self.world.loop.kernel(self.rng.uniform(0.5, 5.0), self._promote)

    def _next(self) -> None:
        if self.over:
            return
        weights = [weight for weight, _ in self.kinds]
        (chosen,) = self.rng.choices([kind for _, kind in self.kinds], weights)
        chosen()
        self.world.loop.kernel(self.rng.uniform(0.1, 2.0), self._next)

    def _promote(self) -> None:
        if self.over:
            return
        self.ask_promote()
        self.world.loop.kernel(self.rng.uniform(0.7, 4.0), self._promote)

    def ask_promote(self) -> None:
        for sidecar in self.world.sidecars.values():
            sidecar.process.call(sidecar.promote)

    # One by one.

    def _anybody(self) -> Sidecar | None:
        return self.rng.choice(list(self.world.sidecars.values())) if self.world.sidecars else None

    def _leader(self) -> Sidecar | None:
        leader = self.world.target.kraft.partitions[self.rng.choice(self.world.tps)].leader
        return self.world.sidecar_of(leader) or self._anybody()

    def _head(self) -> Sidecar | None:
        seat = self.world.store.seat
        return None if seat is None else self.world.sidecar_of(seat.holder.broker_id)

    def crash(self) -> None:
        broker = self.rng.choice(self.world.sidecar_ids)
        self.world.kill(broker)
        self.world.loop.kernel(self.rng.choice([0.02, 0.3, 1.0, 4.0]), self._start, broker)

    def _start(self, broker: int) -> None:
        if broker not in self.world.sidecars:
            self.world.start(broker)

    def leave(self) -> None:
        sidecar, head = self._anybody(), self._head()
        if sidecar is not None:
            if head is not None and self.rng.random() < 0.7:
                # What it is told is on its way while it goes.
                self.world.network.cut(
                    str(head.broker_id), str(sidecar.broker_id), self.rng.uniform(0.4, 0.9)
                )
            self.world.loop.kernel(0.35, self._leaves, sidecar)

    def _leaves(self, sidecar: Sidecar) -> None:
        if self.world.sidecar_of(sidecar.broker_id) is sidecar:
            self.world.note(f"{sidecar.broker_id}: leaves")
            sidecar.process.call(sidecar.leave)
            self.world.loop.kernel(self.rng.uniform(0.05, 2.0), self._left, sidecar)

    def _left(self, sidecar: Sidecar) -> None:
        if self.world.sidecar_of(sidecar.broker_id) is sidecar:
            self.world.kill(sidecar.broker_id)
            self.world.loop.kernel(self.rng.uniform(0.05, 1.0), self._start, sidecar.broker_id)

    def pause(self) -> None:
        sidecar = self.rng.choice([self._anybody(), self._leader(), self._head()])
        if sidecar is not None and not sidecar.process.paused:
            seconds = self.rng.choice([0.2, 1.0, 2.5, 5.0]) * self.rng.uniform(0.7, 1.3)
            self.world.note(f"{sidecar.broker_id}: stopped for {seconds:.2f} s")
            sidecar.process.pause()
            self.world.loop.kernel(seconds, self._go_on, sidecar)

    def _go_on(self, sidecar: Sidecar) -> None:
        if sidecar.process.paused and not sidecar.process.dead:
            self.world.note(f"{sidecar.broker_id}: goes on")
            sidecar.process.go_on()

    def _cut(self, one: str, other: str, seconds: float) -> None:
        way = self.rng.random()
        self.world.note(
            f"cut {one} {'-' if way < 0.7 else '>' if way < 0.85 else '<'} {other} for {seconds:.2f} s"
        )
        if way < 0.85:
            self.world.network.cut(one, other, seconds)
        if way < 0.7 or way >= 0.85:
            self.world.network.cut(other, one, seconds)

    def _seconds(self) -> float:
        return self.rng.choice([0.3, 1.5, 3.0, 6.0]) * self.rng.uniform(0.7, 1.3)

    def _others(self, sidecar: Sidecar) -> list[str]:
        peers = [str(b) for b in self.world.sidecar_ids if b != sidecar.broker_id]
        return [STORE, KRAFT, *peers]

    def cut_some(self) -> None:
        sidecar = self._anybody()
        if sidecar is not None:
            for other in self._others(sidecar):
                if self.rng.random() < 0.4:
                    self._cut(str(sidecar.broker_id), other, self._seconds())

    def lonely(self, sidecar: Sidecar | None = None) -> None:
        """Source and clients are all that it has."""
        sidecar = sidecar or self.rng.choice([self._leader(), self._head(), self._anybody()])
        if sidecar is not None and not sidecar.process.dead:
            seconds = self.rng.uniform(1.5, 7.0)
            self.world.note(f"{sidecar.broker_id}: alone for {seconds:.2f} s")
            for other in self._others(sidecar):
                self.world.network.cut(str(sidecar.broker_id), other, seconds)
                self.world.network.cut(other, str(sidecar.broker_id), seconds)

    def slow_and_lonely(self) -> None:
        """What it has sent lands when others have given it up."""
        sidecar = self._leader()
        if sidecar is not None:
            self._slow(sidecar.process.name, self.rng.uniform(0.5, 4.0))
            self.world.loop.kernel(
                self.rng.uniform(0.1, 1.0), self.rng.choice([self.lonely, self.lonely, self._stop]), sidecar
            )
            if self.rng.random() < 0.3:
                head = self._head()
                if head is not None and head is not sidecar:
                    self.world.loop.kernel(self.rng.uniform(0.1, 1.0), self.world.kill, head.broker_id)
                    self.world.loop.kernel(3.0, self._start, head.broker_id)
            self.world.loop.kernel(self.rng.uniform(0.1, 3.0), self.ask_promote)

    def _stop(self, sidecar: Sidecar) -> None:
        if sidecar.process.runs:
            sidecar.process.pause()
            self.world.note(f"{sidecar.broker_id}: stopped")
            self.world.loop.kernel(self.rng.uniform(2.0, 6.0), self._go_on, sidecar)

    def reset(self) -> None:
        sidecar = self._anybody()
        if sidecar is not None:
            self.world.note(f"{sidecar.broker_id}: its connections are reset")
            self.world.network.reset(lambda end: sidecar.process in (end.process, end.there))

    def store_trouble(self) -> None:
        store = self.world.store
        store.fail_before, store.fail_after, store.late = (self.rng.choice([0.0, 0.1, 0.4]) for _ in range(3))
        self.world.loop.kernel(self.rng.uniform(0.5, 4.0), self._store_well)

    def _store_well(self) -> None:
        store = self.world.store
        store.fail_before = store.fail_after = store.late = 0.0

    def lose_seat(self) -> None:
        seated = self.world.store.seated
        if seated is not None:
            self.world.store.expire(seated)

    def store_away(self) -> None:
        seconds = self._seconds()
        for broker in self.world.sidecar_ids:
            self._cut(str(broker), STORE, seconds)

    def _slow(self, name: str, seconds: float) -> None:
        self.world.note(f"source: slow for {name}, {seconds:.2f} s")
        self.world.source.slow_until[name] = self.world.loop.time() + seconds

    def slow_source(self) -> None:
        seconds = self.rng.uniform(0.3, 4.0)
        for broker in self.world.sidecar_ids:
            if self.rng.random() < 0.6:
                self._slow(str(broker), seconds)

    def source_connections(self) -> None:
        sidecar = self._leader()
        if sidecar is not None:
            self.world.note(f"{sidecar.broker_id}: loses its connections to the source")
            sidecar.process.call(sidecar.router.connections_lost)

    def controller_trouble(self) -> None:
        target = self.world.target
        target.alter_late, target.alter_doubled, target.not_controller = (
            self.rng.choice([0.0, 0.3, 0.8]) for _ in range(3)
        )
        self.world.loop.kernel(self.rng.uniform(1.0, 6.0), self._controller_well)

    def _controller_well(self) -> None:
        target = self.world.target
        target.alter_late = target.alter_doubled = target.not_controller = 0.0

    def elections(self) -> None:
        kraft = self.world.target.kraft
        if self.rng.random() < 0.5:
            kraft.rebalance()
        else:
            kraft.fence(self.rng.choice(self.world.sidecar_ids))

    def real_broker(self) -> None:
        self.world.target.broker_down(self.rng.choice(REAL), self._seconds())

    def lazy_follower(self) -> None:
        self.world.target.lazy[self.rng.choice(REAL)] = self.world.loop.time() + self._seconds()

    def elsewhere(self) -> None:
        """Somebody moves replicas: the link controller as an operator asks it, or another tool, which may cancel too."""
        tp = self.rng.choice(self.world.tps)
        replicas = tuple(self.rng.sample(REAL, self.rng.choice([1, 2, 2, 2])))
        head = self._head()
        if self.world.owned[tp]:
            return
        if head is not None and self.rng.random() < 0.5:
            self.world.note(f"{tp} is to be moved to {replicas}")
            head.process.call(head.move, tp, replicas)
        else:
            cancel = self.rng.random() < 0.2
            self.world.note(f"a tool {'cancels' if cancel else f'reassigns to {replicas}'}: {tp}")
            self.world.target.kraft.reassign(tp, None if cancel else replicas)

    def outside_writer(self) -> None:
        """A producer that was not moved, for a moment; what it is told is no business of a sidecar's."""
        tp = self.rng.choice(self.world.tps)
        for number in range(self.rng.choice([1, 1, 5])):
            self.world.loop.kernel(
                number * self.rng.uniform(0, 0.2),
                self.world.source.append,
                tp,
                f"outside.{self.world.loop.time()}.{number}",
            )

    def peace(self) -> None:
        self.over = True
        world = self.world
        world.note("peace")
        self._store_well()
        self._controller_well()
        world.source.slow_until.clear()
        world.network.heal()
        for broker in world.sidecar_ids:
            sidecar = world.sidecars.get(broker)
            if sidecar is None:
                world.start(broker)
            else:
                self._go_on(sidecar)


def unsettled(world: World, since: float) -> str | None:
    """What is not as it should be once nothing goes wrong any more."""
    heads = [s for s in world.sidecars.values() if s.runner.fleet_controller is not None]
    if len(heads) != 1:
        return f"heads: {[s.broker_id for s in heads]}"
    image = heads[0].shared.image
    if image.running_jobs(LINK):
        return "a promote is running"
    for sidecar in world.sidecars.values():
        if not sidecar.lease.valid():
            return f"{sidecar.broker_id} has no lease: {sidecar.runner.trouble}"
    for tp in world.tps:
        phase = image.partitions[LINK, tp].phase
        if phase in PROMOTING or world.owned[tp] != (phase is Phase.PROMOTED):
            return f"{tp} is {phase}"
        if world.last_ack[tp] < since + 1.0:
            return f"nothing was acknowledged for {tp}"
    return None


async def _live(world: World) -> None:
    faults, clients = Faults(world), Clients(world)
    await world.begin()
    clients.start()
    faults.start()
    loop = world.loop
    end = loop.time() + _TROUBLE
    all_over: float | None = None
    while loop.time() < end and not world.ended.is_set():
        await _pause(world, 0.5)
        if all(world.owned.values()):
            all_over = all_over or loop.time()
            if loop.time() > all_over + 4.0:
                break
    faults.peace()
    await _settle(world, loop.time())
    # And everything can be handed over in the end.
    for _ in range(3):
        if world.ended.is_set() or all(world.owned.values()):
            break
        faults.ask_promote()
        await _pause(world, 1.5)
        await _settle(world, loop.time() - 1.0)
    else:
        if not all(world.owned.values()):
            world.broken(f"e: {[tp for tp, owned in world.owned.items() if not owned]} cannot be promoted")
    world.judge_end()


async def _settle(world: World, since: float) -> None:
    begun = world.loop.time()
    while not world.ended.is_set() and (left := unsettled(world, since)) is not None:
        if world.loop.time() > begun + _SETTLES:
            world.broken(f"e: {left}")
        await _pause(world, 0.25)


async def _pause(world: World, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await world.ended.wait()


async def _end(world: World) -> None:
    """Everything stops in order; what is judged was judged before."""
    world.ignore = "abcdefgx"
    alive_again(world.everybody)
    for _ in range(50):
        # What is still begun meanwhile ends too.
        tasks = [task for process in world.everybody for task in sorted(process.tasks, key=hash)]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)
    raise AssertionError(f"tasks that do not end: {tasks}")


class _InOrder(dict[Any, None]):
    """A set that is walked in the order of adding, whatever the addresses of its members."""

    def add(self, member: Any) -> None:
        self[member] = None

    def discard(self, member: Any) -> None:
        self.pop(member, None)


@contextlib.contextmanager
def listeners_in_order() -> Iterator[None]:
    original = LinkController.__init__

    def init(self: LinkController, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.listeners = _InOrder()  # type: ignore[assignment]

    LinkController.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        LinkController.__init__ = original  # type: ignore[method-assign]


def tell(seed: int, *, ignore: str = "") -> Told:
    """Run the story of a seed."""
    logging.disable(logging.CRITICAL)
    random.seed(seed)
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        with listeners_in_order():
            world = World(loop, seed, ignore=ignore)

            def unexpected(_: object, context: dict[str, Any]) -> None:
                error = context.get("exception")
                world.broken(f"x: {context.get('message')}: {error!r}")

            loop.set_exception_handler(unexpected)
            try:
                loop.run_until_complete(_live(world))
            except Exception as error:
                world.broken(f"x: {error!r}")
            seconds, events = loop.time(), loop.events
            digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()[:16]
            loop.run_until_complete(_end(world))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        logging.disable(logging.NOTSET)
    return Told(
        seed,
        world.failure,
        events,
        seconds,
        world.acks,
        world.carries,
        sum(world.owned.values()),
        max(world.epochs),
        digest,
    )
