"""One story: faults and promotes at random for a while, then peace, in which everything has to settle."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.image import ControllerImage
from controller.phases import PROMOTING, Phase
from fleet.link_controller import LinkController
from fleet.roster import Roster
from tests.sim.ambush import Ambush
from tests.sim.cluster import REAL, Cluster
from tests.sim.directed import Directed
from tests.sim.faults import Clients, Faults
from tests.sim.loop import SimLoop, alive_again
from tests.sim.sidecar import BACK, LINK
from tests.sim.world import CONFIGS, Broken, World
from wire.frames.types import TopicPartition

_TROUBLE = 22.0  # seconds of faults at most
_SETTLES = 40.0  # within which everything is as it should be after the last fault
SWITCHED = 8  # one of so many stories is one of switches: they are longer


class Kind(StrEnum):
    """Of a story."""

    PROMOTE = "promote"
    SWITCH = "switch"
    AMBUSH = "ambush"  # a switch, and faults as soon as a step of it is written down
    WAVES = "waves"  # a switch of two topics, one after the other; every second one with an ambush


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
    if world.switching and (left := not_switched(world, image)) is not None:
        return left
    for tp in world.tps:
        if world.last_ack[tp] < since + 1.0:
            return f"nothing was acknowledged for {tp}"
        if world.switching:
            continue
        phase = image.partitions[LINK, tp].phase
        if phase in PROMOTING or world.owned(tp) != (phase is Phase.PROMOTED):
            return f"{tp} is {phase}"
    return None


def not_switched(world: World, image: ControllerImage) -> str | None:
    """A topic that is switched has one mirror, which is ACTIVE and lies at the side that does not own it."""
    for tp in world.tps:
        owner = world.owner[tp]
        if owner is not world.owner[tp._replace(partition=0)]:
            return f"a part of topic {tp.topic} is the other side's"
        there, link, over = (
            (world.target, LINK, BACK) if owner is world.source else (world.source, BACK, LINK)
        )
        if (over, tp.topic) in image.mirrors:
            return f"{tp} has a mirror of {over}, and {owner.name} owns it"
        phase = image.partitions[link, tp].phase if (link, tp) in image.partitions else None
        if phase is not Phase.ACTIVE:
            return f"{tp} of {link} is {phase}"
        configs = owner.configs[tp.topic]
        if configs != CONFIGS and (owner is world.source or configs):
            return f"{owner.name} has the configs {configs}"
        if there.electable(tp):
            return f"{there.electable(tp)} of {there.name} can be elected"
        if owner.kraft.partitions[tp].leader not in REAL:
            return f"{owner.kraft.partitions[tp].leader} leads {tp} at {owner.name}"
    return None


async def _live(world: World, ambush: int | None, directed: type[Directed] | None) -> None:
    faults, clients = Faults(world), Clients(world)
    await world.begin()
    clients.start()
    more: Ambush | Directed | None = Ambush(world, ambush) if ambush is not None else None
    within = _SETTLES if directed is None or directed.settles is None else directed.settles
    if directed is not None:
        more = directed(world, clients, faults)
    else:
        faults.start()
    if more is not None:
        more.start()
    loop = world.loop
    end = loop.time() + _TROUBLE
    all_over: float | None = None
    while loop.time() < end and not world.ended.is_set():
        await _pause(world, 0.5)
        if not world.switching and all(map(world.owned, world.tps)):
            all_over = all_over or loop.time()
            if loop.time() > all_over + 4.0:
                break
    if more is not None:
        more.peace()
    faults.peace()
    await _settle(world, loop.time(), within)
    # And everything can be handed over in the end.
    before = dict(world.owner)
    for _ in range(3 * len(world.topics)):
        if world.ended.is_set() or _is_over(world, before):
            break
        world.asked = frozenset(tp.topic for tp in world.tps if world.owner[tp] is before[tp])
        faults.ask_promote()
        await _pause(world, 1.5 if not world.switching else 8.0)
        await _settle(world, loop.time() - 1.0, within)
    else:
        if not _is_over(world, before):
            world.broken(f"e: {[tp for tp in world.tps if not world.owned(tp)]} cannot be promoted")
    world.judge_end()


def _is_over(world: World, before: Mapping[TopicPartition, Cluster]) -> bool:
    """The target owns all; or, of what is switched there and back, the side that did not before."""
    if world.switching:
        return all(world.owner[tp] is not before[tp] for tp in world.tps)
    return all(map(world.owned, world.tps))


async def _settle(world: World, since: float, within: float) -> None:
    begun = world.loop.time()
    while not world.ended.is_set() and (left := unsettled(world, since)) is not None:
        if world.loop.time() > begun + within:
            world.broken(f"e: {left}")
        await _pause(world, 0.25)


async def _pause(world: World, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await world.ended.wait()


async def _end(world: World) -> None:
    """Everything stops in order; what is judged was judged before."""
    world.ignore = "abcdefghix"
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
def simulated_time(loop: SimLoop) -> Iterator[None]:
    """For what reads a clock that nobody gave it."""
    monotonic, wall = time.monotonic, time.time
    time.monotonic = time.time = loop.time
    try:
        yield
    finally:
        time.monotonic, time.time = monotonic, wall


@contextlib.contextmanager
def partitions_in_order() -> Iterator[None]:
    """Sets of partitions are walked in the same order in every process."""
    TopicPartition.__hash__ = lambda self: self.partition + 1 + 16 * (self.topic != "t")  # type: ignore[method-assign]
    try:
        yield
    finally:
        del TopicPartition.__hash__


@contextlib.contextmanager
def listeners_in_order() -> Iterator[None]:
    of_controller, of_roster = LinkController.__init__, Roster.__init__

    def controller(self: LinkController, *args: Any, **kwargs: Any) -> None:
        of_controller(self, *args, **kwargs)
        self.listeners = _InOrder()  # type: ignore[assignment]

    def roster(self: Roster, *args: Any, **kwargs: Any) -> None:
        of_roster(self, *args, **kwargs)
        self.on_membership = _InOrder()  # type: ignore[assignment]

    LinkController.__init__, Roster.__init__ = controller, roster  # type: ignore[method-assign]
    try:
        yield
    finally:
        LinkController.__init__, Roster.__init__ = of_controller, of_roster  # type: ignore[method-assign]


def kind_of(seed: int) -> Kind:
    """Of the story that a seed has where no kind is asked for."""
    if seed % SWITCHED != SWITCHED - 1:
        return Kind.PROMOTE
    return Kind.SWITCH if seed % (2 * SWITCHED) < SWITCHED else Kind.AMBUSH


def direct(story: type[Directed], *, ignore: str = "") -> Told:
    """Run a directed story."""
    return tell(story.seed, ignore=ignore, kind=Kind.SWITCH, directed=story)


def tell(
    seed: int, *, ignore: str = "", kind: Kind | None = None, directed: type[Directed] | None = None
) -> Told:
    """Run the story of a seed."""
    kind = kind or kind_of(seed)
    logging.disable(logging.CRITICAL)
    random.seed(seed)
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        with listeners_in_order(), partitions_in_order(), simulated_time(loop):
            partitions = None if directed is None else directed.partitions
            switching = kind is not Kind.PROMOTE
            world = World(
                loop,
                seed,
                ignore=ignore,
                switching=switching,
                partitions=partitions,
                waves=kind is Kind.WAVES,
            )

            def unexpected(_: object, context: dict[str, Any]) -> None:
                error = context.get("exception")
                world.broken(f"x: {context.get('message')}: {error!r}")

            loop.set_exception_handler(unexpected)
            try:
                ambushed = kind is Kind.AMBUSH or (kind is Kind.WAVES and seed // (2 * SWITCHED) % 2 == 1)
                ambush = seed if ambushed else None
                loop.run_until_complete(_live(world, ambush, directed))
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
        world.hand_overs,
        max(world.epochs),
        digest,
    )
