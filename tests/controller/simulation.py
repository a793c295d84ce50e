"""A small world for the promote driver: a source, two clusters' brokers, a controller with a late metadata
log, a router and producers. Time is virtual, randomness seeded, invariants are checked after every event.

The point of it is trouble: any await of the driver may be where the process dies, requests get lost before
or after they were carried out, and an AlterPartition of a dead process may still land seconds later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.alter_partition import AlterPartitionItem
from controller.judge.alignment import ReplicaPosition, SourceEnd
from controller.judge.hand_over import listed_targets, revoke_assignments
from controller.operations import Operation
from controller.phases import HELD, LED_ELSEWHERE, Phase
from controller.plan.replicas import CancelReassignment, LiveBrokers, Reassign, open_step
from controller.state import MirrorPartition, MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.promote.driver import PromoteDriver, PromoteOutcome, PromoteStuck
from linker.promote.ports import PromotePorts, PromoteSettings
from tests.controller.kraft_model import Broker, Image, Kraft, Partition, Topic
from tests.controller.memory_store import MemoryStore
from wire.errors import BrokerError, ConnectionLost, LinkerError
from wire.frames.types import TopicPartition

LINK = "l"
SIDECAR = 900
OTHER = 901  # the second link broker, in worlds that have one
TOPIC_ID = b"\x07" * 16


class InvariantBroken(Exception):
    pass


@dataclass
class Flight:
    items: Sequence[AlterPartitionItem]


@dataclass
class Chances:
    """Probabilities of what happens to one exchange."""

    alter_lost: float = 0.0  # never arrives, connection dies
    alter_late: float = 0.0  # lands later, connection dies
    alter_unanswered: float = 0.0  # carried out at once, the answer is lost
    alter_not_controller: float = 0.0  # answered NOT_CONTROLLER, carried out later or never
    call_fails: float = 0.0  # any other call raises
    bump: float = 0.0  # somebody raises a partition's epochs, every few ms
    fail_over: float = 0.0  # the second link broker is fenced or comes back, every few ms


@dataclass
class World:
    rng: random.Random
    partitions: int = 3
    chances: Chances = field(default_factory=Chances)
    outside_writer: bool = False
    crash_at: int | None = None
    crash_mode: str = "cancel"  # cancel | raise
    plain: bool = False  # two link brokers, and the copies are plain replicas: to be opened first
    two: bool = False  # two link brokers; every other partition is led by the second one

    def __post_init__(self) -> None:
        self.tps = [TopicPartition("t", index) for index in range(self.partitions)]
        self.loop = asyncio.get_running_loop()
        self.store = GatedStore(self)
        self.source = dict.fromkeys(self.tps, 1000)
        self.high_watermark = dict(self.source)
        self.last_stable: dict[TopicPartition, int] = {}  # only where a transaction is open
        self.links = (SIDECAR, OTHER) if self.two or self.plain else (SIDECAR,)
        self.kraft = Kraft(topic_ids={"t": TOPIC_ID})
        self.brokers = self.kraft.brokers
        self.brokers.update({b: Broker(b, 10 + b) for b in (1, 2, 3, *self.links)})
        self.real = self.kraft.partitions
        self.real.update({tp: self._first(tp) for tp in self.tps})
        self.positions: dict[TopicPartition, dict[int, ReplicaPosition]] = {
            tp: {1: ReplicaPosition(1000, 11), 2: ReplicaPosition(1000, 12)} for tp in self.tps
        }
        # What the replicas really hold: an unclean stop takes the end off it, and nobody is told.
        self.held = {tp: {1: 1000, 2: 1000} for tp in self.tps}
        self.visible = self.first_image = self._snapshot()
        self._published = 0
        self._written = 0
        self.flying: list[Flight] = []
        self.fenced: set[TopicPartition] = set()
        self.handed_over: set[TopicPartition] = set()
        self.answers_fail = False
        self.breathers: list[tuple[TopicPartition, ...]] = []  # what was promoted before each of them
        self.up = True
        self.generation = 0
        self.gates = 0
        self.crashed = False
        self.death: asyncio.Event = asyncio.Event()
        self.waiters: set[asyncio.Event] = set()
        self.restored: list[str] = []
        self.tail_differs: dict[TopicPartition, str] = {}
        self.broken: InvariantBroken | None = None
        self.stopped = False
        self.log: list[str] = []
        self.sent = 0
        self.fence_drain = (0.0, 0.003)
        self.source_answers_after = 0.0  # seconds
        self.busy_until = 0.3
        self.crash_label = ""  # die at the first gate of this name
        self.late: float | None = None  # seconds, instead of a random delay of a late request

    def _first(self, tp: TopicPartition) -> Partition:
        leader = self.links[tp.partition % len(self.links)]
        isr = (leader, *(b for b in self.links if b != leader))
        if self.plain:
            return Partition((*isr, 1, 2), isr, (), (), leader, 5, 8)
        return Partition((1, 2, *self.links), isr, (1, 2), self.links, leader, 5, 8)

    def led_by_link(self, tp: TopicPartition) -> bool:
        """Nobody leads counts too: it was not handed over."""
        return self.real[tp].leader in (*self.links, -1)

    # Events of the world.

    def start(self) -> None:
        self._produce()

    def _produce(self) -> None:
        if self.stopped:
            return
        for tp in self.tps:
            if self.forwarding(tp) or (self.outside_writer and self.rng.random() < 0.02):
                self.append(tp, self.rng.randint(1, 3))
            if self.unlucky(self.chances.bump) and self.led_by_link(tp):
                state = self.real[tp]
                self.real[tp] = replace(state, partition_epoch=state.partition_epoch + 1)
                self.publish()
        if self.unlucky(self.chances.fail_over):
            if self.brokers[OTHER].fenced:
                self.kraft.unfence(OTHER)
            else:
                self.kraft.fence(OTHER)
            self.publish()
        self.check()
        # Densely while a promote is young, seldom while it waits out a long outage.
        self.loop.call_later(0.004 if self.loop.time() < self.busy_until else 0.1, self._produce)

    def append(self, tp: TopicPartition, count: int) -> None:
        self.source[tp] += count
        self.loop.call_later(self.rng.uniform(0, 0.002), self._commit_source, tp, self.source[tp])

    def _commit_source(self, tp: TopicPartition, end: int) -> None:
        self.high_watermark[tp] = max(self.high_watermark[tp], end)
        for broker in (1, 2):
            self.loop.call_later(self.rng.uniform(0, 0.01), self._fetched, tp, broker, end)

    def _fetched(self, tp: TopicPartition, broker: int, end: int) -> None:
        state = self.brokers[broker]
        if state.fenced or not self.up:
            # A real follower asks again once both are there.
            if not self.stopped:
                self.loop.call_later(0.05, self._fetched, tp, broker, end)
            return
        offset = max(self.held[tp][broker], end)
        self.held[tp][broker] = offset
        self.positions[tp][broker] = ReplicaPosition(offset, state.epoch)
        self.notify()

    def broker_down(self, broker: int, seconds: float) -> None:
        self.kraft.fence(broker)
        self.publish()

        def back() -> None:
            self.kraft.unfence(broker)
            self.brokers[broker] = Broker(broker, self.brokers[broker].epoch + 100)
            self.publish()
            for tp in self.tps:
                self.held[tp][broker] -= self.rng.randint(0, 3)
                self.loop.call_later(0.02, self._fetched, tp, broker, self.high_watermark[tp])

        self.loop.call_later(seconds, back)

    def notify(self) -> None:
        for waiter in self.waiters:
            waiter.set()

    def _snapshot(self) -> Image:
        partitions = {tp.partition: state for tp, state in self.real.items()}
        return Image({"t": Topic(TOPIC_ID, "t", partitions)}, dict(self.brokers))

    def publish(self) -> None:
        """The log is read a little later, but in order."""
        self._written += 1
        number, snapshot = self._written, self._snapshot()

        def show() -> None:
            if number > self._published:
                self._published = number
                self.visible = snapshot
                self.notify()

        self.loop.call_later(self.rng.uniform(0.0, 0.02), show)
        self.check()

    def carry_out(self, items: Sequence[AlterPartitionItem]) -> dict[TopicPartition, int]:
        """One AlterPartition per leader, validated as Kafka does."""
        codes: dict[TopicPartition, int] = {}
        for item in items:
            before = self.real[item.tp]
            found = self.kraft.alter_partition(item.leader, [item])
            codes |= found if isinstance(found, dict) else {item.tp: found}
            if self.real[item.tp] != before:
                self._aligned_or_broken(item.tp)
                if set(self.real[item.tp].replicas) & set(self.links):
                    self.fail(f"{item.tp} is handed over by half: {before} -> {self.real[item.tp]}")
        self.publish()
        return codes

    def open(self, tp: TopicPartition, targets: Sequence[int]) -> None:
        """One step, on what is seen now."""
        step = open_step(
            self.visible.topics_by_name["t"].partitions[tp.partition],
            targets,
            LiveBrokers(link=self.links, alive=self.links, registered=set(self.brokers)),
        )
        if isinstance(step, Reassign | CancelReassignment):
            self.kraft.reassign(tp, step.replicas if isinstance(step, Reassign) else None)
            self.publish()

    def _aligned_or_broken(self, tp: TopicPartition) -> None:
        offsets = self.held[tp]
        ends = set(offsets.values()) | (set() if self.outside_writer else {self.source[tp]})
        if len(ends) != 1:
            self.fail(f"{tp} handed over with source end {self.source[tp]} and replicas {offsets}")

    # Invariants.

    def forwarding(self, tp: TopicPartition) -> bool:
        return self.up and tp not in self.fenced and tp not in self.handed_over

    def fail(self, what: str) -> None:
        if self.broken is None:
            self.broken = InvariantBroken(what + "\n  " + "\n  ".join(self.log[-40:]))

    def check(self) -> None:
        for tp in self.tps:
            if not self.forwarding(tp):
                continue
            state = self.real[tp]
            if not self.led_by_link(tp):
                self.fail(f"{tp} is forwarded to the source after it was handed over")
            for flight in self.flying:
                for item in flight.items:
                    if item.tp == tp and item.attempt.partition_epoch == state.partition_epoch:
                        self.fail(f"{tp} is forwarded while {item.attempt} may still land")

    # Where the process may die.

    async def gate(self, generation: int, label: str) -> None:
        if generation != self.generation:
            raise asyncio.CancelledError(f"{label}: a call of a dead process")
        self.gates += 1
        self.log.append(f"{self.loop.time():.3f} #{self.gates} {label}")
        self.check()
        if self.gates == self.crash_at or (label == self.crash_label and not self.crashed):
            if self.crash_mode == "raise":
                raise ConnectionLost(f"simulated at {label}", sent=True)
            self.die()
            await asyncio.Event().wait()
        await asyncio.sleep(self.rng.uniform(0, 0.001))

    def die(self) -> None:
        self.log.append("-- the process dies --")
        self.crashed = True
        self.up = False
        self.generation += 1
        self.fenced.clear()
        self.handed_over.clear()
        self.death.set()

    def unlucky(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance


class GatedStore(MemoryStore):
    """Dies before or after the commit became durable."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.gated = False
        self.failing = 0

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        if not self.gated:
            await super().commit(operations, controller_epoch=controller_epoch)
            return
        generation = self.world.generation
        if self.failing > 0:
            self.failing -= 1
            raise StoreError("disk full")
        await self.world.gate(generation, "store.commit before")
        await super().commit(operations, controller_epoch=controller_epoch)
        await self.world.gate(generation, "store.commit after")


class Ports:
    """All ports of one incarnation of the process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.generation = world.generation

    async def _call(self, label: str) -> None:
        await self.world.gate(self.generation, label)
        if self.world.unlucky(self.world.chances.call_fails):
            raise LinkerError(f"simulated failure of {label}")

    # Fencer.

    async def prepare(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        if self.world.fenced.intersection(tps):
            self.world.fail("a fence is prepared that stands already: producers wait for it")

    async def fence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._call("fence before")
        self.world.fenced.update(tps)
        drain = self.world.rng.uniform(*self.world.fence_drain)
        if drain > timeout:
            await asyncio.sleep(timeout)
            raise LinkerError("FenceTimeout: t-0 has 3 produces in flight")
        await asyncio.sleep(drain)
        await self.world.gate(self.generation, "fence after")

    async def unfence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._call("unfence before")
        self.world.fenced.difference_update(tps)
        self.world.check()
        await self.world.gate(self.generation, "unfence after")

    async def handed_over_(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._call("handed_over before")
        for tp in tps:
            if self.world.led_by_link(tp):
                self.world.fail(f"{tp}: the router is told of a hand-over that did not happen")
        self.world.handed_over.update(tps)
        await self.world.gate(self.generation, "handed_over after")

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._call("answered before")
        if self.world.answers_fail:
            raise LinkerError("no sidecar tells whether its clients have their answers")
        if not self.world.handed_over.issuperset(tps):
            self.world.fail("answers are waited for to what was not handed over")
        self.world.breathers.append(tuple(sorted(tps)))
        await self.world.gate(self.generation, "answered after")

    # Progress.

    def lag(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        world = self.world
        return {
            tp: max((world.high_watermark[tp] - p.offset for p in world.positions[tp].values()), default=None)
            for tp in tps
        }

    def positions(
        self, tps: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        return {tp: dict(self.world.positions[tp]) for tp in tps}

    async def wait_until(
        self, tps: Collection[TopicPartition], predicate: Callable[[], bool], *, timeout: float
    ) -> bool:
        await self._call("progress.wait before")
        return await self._wait(predicate, timeout)

    async def _wait(self, predicate: Callable[[], bool], timeout: float) -> bool:
        changed = asyncio.Event()
        self.world.waiters.add(changed)
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    changed.clear()
                    await changed.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self.world.waiters.discard(changed)

    # Source ends, tail check, configs.

    async def ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        await self._call("ends before")
        world = self.world
        if world.source_answers_after:
            await asyncio.sleep(min(world.source_answers_after, timeout))
        if world.source_answers_after > timeout:
            raise LinkerError(f"ListOffsets was not answered within {timeout:.2g} s")
        read = {
            tp: SourceEnd(
                world.source[tp],
                world.high_watermark[tp],
                world.last_stable.get(tp, world.high_watermark[tp]),
            )
            for tp in tps
        }
        await world.gate(self.generation, "ends after")
        return read

    async def check(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        await self._call("tail check")
        return {tp: why for tp, why in self.world.tail_differs.items() if tp in ends}

    async def restore(self, topic: str, configs: Mapping[str, str | None], *, timeout: float) -> None:
        await self._call("restore before")
        for tp in self.world.tps:
            if self.world.led_by_link(tp):
                self.world.fail(f"configs of {topic} restored before {tp} was handed over")
        self.world.restored.append(topic)
        await self.world.gate(self.generation, "restore after")


class HandOverPort:
    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.world = ports.world

    def link_brokers(self) -> Collection[int]:
        return set(self.world.links)

    def image(self) -> Image:
        return self.world.visible

    async def caught_up(self, *, timeout: float) -> None:
        await self.ports._call("caught_up")
        wanted = self.world._written
        async with asyncio.timeout(timeout):
            while self.world._published < wanted:
                await asyncio.sleep(0.001)

    async def wait_until(self, predicate: Callable[[Image], bool], *, timeout: float) -> bool:
        await self.ports._call("image.wait before")
        return await self.ports._wait(lambda: predicate(self.world.visible), timeout)

    async def alter_partition(
        self, items: Sequence[AlterPartitionItem], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        world = self.world
        await self.ports._call("alter_partition before")
        world.sent += 1
        flight = Flight(items)
        world.flying.append(flight)

        def land() -> None:
            if flight in world.flying:
                world.carry_out(flight.items)
                world.flying.remove(flight)
                world.check()

        def vanish() -> None:
            if flight in world.flying:
                world.flying.remove(flight)

        # From here on the request is on the wire: a crash does not take it back.
        if world.unlucky(world.chances.alter_lost):
            vanish()
            await world.gate(self.ports.generation, "alter_partition lost")
            raise ConnectionLost("simulated", sent=True)
        if world.unlucky(world.chances.alter_late):
            delay = world.rng.choice([0.01, 1.0, 20.0]) * world.rng.random()
            world.loop.call_later(delay if world.late is None else world.late, land)
            await world.gate(self.ports.generation, "alter_partition late")
            raise ConnectionLost("simulated", sent=True)
        if world.unlucky(world.chances.alter_not_controller):
            world.loop.call_later(
                world.rng.choice([0.01, 1.0, 20.0]) * world.rng.random(),
                land if world.rng.random() < 0.5 else vanish,
            )
            await world.gate(self.ports.generation, "alter_partition not controller")
            raise BrokerError(41)
        world.loop.call_later(world.rng.uniform(0, 0.004), land)
        await world.gate(self.ports.generation, "alter_partition on the wire")
        if flight in world.flying:
            world.flying.remove(flight)
            codes = world.carry_out(items)
        else:
            codes = {item.tp: 108 for item in items}  # landed while we slept: the answer comes now
            codes |= {tp: 107 for tp in codes if world.led_by_link(tp)}
        await world.gate(self.ports.generation, "alter_partition carried out")
        if world.unlucky(world.chances.alter_unanswered):
            raise ConnectionLost("simulated", sent=True)
        return codes

    async def open(self, targets: Mapping[TopicPartition, Sequence[int]], *, timeout: float) -> None:
        await self.ports._call("open before")
        for tp, replicas in targets.items():
            self.world.open(tp, replicas)
        await self.world.gate(self.ports.generation, "open after")

    async def revoke(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        world = self.world
        await self.ports._call("revoke before")
        steps = {}
        for tp in tps:
            seen = world.visible.topics_by_name["t"].partitions[tp.partition]
            listed = [b for b in seen.replicas if b in world.links]
            steps[tp] = revoke_assignments(listed, listed_targets(seen, world.links))
        for tp, (first, _) in steps.items():
            world.kraft.reassign(tp, first)
        await world.gate(self.ports.generation, "revoke half way")
        for tp, (_, second) in steps.items():
            world.kraft.reassign(tp, second)
        world.publish()
        await world.gate(self.ports.generation, "revoke after")


class FencerPort:
    def __init__(self, ports: Ports) -> None:
        self.prepare = ports.prepare
        self.fence = ports.fence
        self.unfence = ports.unfence
        self.handed_over = ports.handed_over_
        self.answered = ports.answered

    def absent(self) -> str | None:
        return None


def ports_of(world: World) -> PromotePorts:
    ports = Ports(world)
    return PromotePorts(
        fencer=FencerPort(ports),
        progress=ports,
        source_ends=ports,
        tail_check=ports,
        hand_over=HandOverPort(ports),
        configs=ports,
    )


async def mirrored(world: World) -> LinkController:
    """A link with one ACTIVE topic."""
    controller = await StoredController.open(world.store, now=lambda: int(world.loop.time() * 1000))
    await controller.create_link(LINK, "source-cluster", {"bootstrap.servers": "s:9092"})
    mirror = MirrorTopic(
        link=LINK,
        topic="t",
        topic_id=TOPIC_ID,
        source_topic_id=None,
        partitions=world.partitions,
        target_replicas=((1, 2),) * world.partitions,
        restore_configs={"unclean.leader.election.enable": None},
    )
    states = [
        MirrorPartition(
            link=LINK,
            topic="t",
            partition=tp.partition,
            phase=Phase.ACTIVE,
            leader=world.real[tp].leader,
            leader_epoch=5,
            isr=world.real[tp].isr,
            session_epoch=5,
            start_offset=0,
        )
        for tp in world.tps
    ]
    await controller.create_mirror(mirror, states)
    world.store.gated = True
    return controller


async def restarted(world: World, settings: PromoteSettings) -> tuple[LinkController, list[PromoteOutcome]]:
    """The process starts again and takes up what the last one left, as often as it takes."""
    world.crash_at = None
    world.store.gated = False
    controller = await StoredController.open(world.store, now=lambda: int(world.loop.time() * 1000))
    world.store.gated = True
    world.fenced = {s.tp for s in controller.image.link_partitions(LINK) if s.phase in HELD | LED_ELSEWHERE}
    world.handed_over = set()
    world.up = True
    world.visible = world.first_image  # replay starts at an old snapshot
    world.publish()
    world.busy_until = world.loop.time() + 0.2
    world.check()
    return controller, await resumed(world, controller, settings)


async def resumed(
    world: World, controller: LinkController, settings: PromoteSettings
) -> list[PromoteOutcome]:
    driver = PromoteDriver(controller, LINK, ports_of(world), settings)
    for _ in range(20):
        try:
            return await driver.resume()
        except (PromoteStuck, StoreError):
            await asyncio.sleep(0.1)
    raise InvariantBroken("resume never came to an end\n  " + "\n  ".join(world.log[-60:]))


async def promote_through_trouble(
    world: World, settings: PromoteSettings | None = None
) -> tuple[LinkController, list[PromoteOutcome]]:
    """One whole life: promote, die where the world says, start again, end. Raises if an invariant broke."""
    settings = settings or PromoteSettings(insist_timeout=20.0)
    controller = await mirrored(world)
    world.start()
    world.gates = 0
    job = await _begin(world, controller)
    driver = PromoteDriver(controller, LINK, ports_of(world), settings)
    outcomes: list[PromoteOutcome] = []
    if job is not None:
        run = asyncio.create_task(driver.run(job))
        died = asyncio.create_task(world.death.wait())
        await asyncio.wait({run, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if world.crashed:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        else:
            try:
                outcomes = [run.result()]
            except (PromoteStuck, StoreError, ConnectionLost):
                outcomes = await resumed(world, controller, settings)
    if world.crashed:
        await asyncio.sleep(world.rng.choice([0.0, 0.01, 0.5, 4.0, 12.0]))
        controller, outcomes = await restarted(world, settings)
    world.stopped = True
    await asyncio.sleep(25)  # whatever is under way lands
    world.check()
    if world.broken is not None:
        raise world.broken
    for tp in world.tps:
        phase = controller.image.partitions[LINK, tp].phase
        handed_over = not world.led_by_link(tp)
        if phase is Phase.PROMOTED and handed_over:
            continue
        if phase is Phase.ACTIVE and not handed_over and world.forwarding(tp):
            continue
        raise InvariantBroken(
            f"{tp} ended {phase}, handed over {handed_over}, forwarding {world.forwarding(tp)}\n  "
            + "\n  ".join(world.log[-60:])
        )
    return controller, outcomes


async def _begin(world: World, controller: LinkController):  # type: ignore[no-untyped-def]
    world.store.gated = False
    try:
        return await controller.begin_promote(LINK)
    finally:
        world.store.gated = True
