"""One sidecar process: the product's own classes, put together as `linker.sidecar` does it."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from controller.errors import ControllerError
from controller.state import SidecarIdentity
from fleet import messages as m
from fleet.channel import MemberChannel
from fleet.fleet_controller import FleetController
from fleet.lease import Lease
from fleet.member import Member
from fleet.roles import FleetRunner
from fleet.settings import FleetSettings
from fleet.shared_controller import SharedController
from fleet.stores.base import Candidate, Seat
from linker.fleet.ports import SidecarPorts
from tests.sim.cluster import Cluster
from tests.sim.duties import BACK, LINK, Duties
from tests.sim.loop import Process
from tests.sim.network import SimChannel
from tests.sim.place import Place
from tests.sim.replicas import Served
from tests.sim.store import StoreClient
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE = 2.0
SETTINGS = FleetSettings(
    lease=LEASE,
    renew_interval=0.3,
    failure_timeout=0.7,
    reset_grace=0.2,
    report_interval=0.5,
    hello_timeout=1.0,
    connect_timeout=0.6,
    retry_first=0.05,
    retry_max=0.3,
    store_timeout=1.0,
    ask_timeout=2.0,
)


class WatchedLease(Lease):
    """The member's lease, with its arithmetic done a second time by the world, which trusts nobody."""

    __slots__ = ("back", "count", "proof", "sure")

    def __init__(self) -> None:
        super().__init__()
        self.sure = self.proof = float("-inf")
        self.count = 0
        self.back = False

    def renewed(self, sent_at: float, now: float, duration: float) -> None:
        if not self.back:
            if now >= self.sure:
                self.count += 1
            self.sure = max(self.sure, sent_at + duration)
            self.proof = max(self.proof, sent_at)
        super().renewed(sent_at, now, duration)

    def given_up(self) -> None:
        self.back = True
        self.sure = float("-inf")
        super().given_up()

    def allows(self, term: int, arrived: float, now: float) -> bool:
        """May a write be acknowledged that was sent in that term and whose answer came then?"""
        return (term == self.count and now < self.sure) or self.proof > arrived


class ProcessLease:
    """router.ports.LeasePort on the process's own clock."""

    def __init__(self, member: Callable[[], Member], clock: Callable[[], float]) -> None:
        self._member = member
        self._clock = clock

    @property
    def term(self) -> int:
        return self._member().lease.term

    def valid(self) -> bool:
        return self._member().lease.valid(self._clock())

    def covers(self, term: int) -> bool:
        return self._member().lease.covers(term, self._clock())

    def proven_since(self, moment: float) -> bool:
        return self._member().lease.proven_since(moment)

    def now(self) -> float:
        return self._clock()


class Sidecar:
    """One life of it."""

    def __init__(self, world: World, broker_id: int, life: int, replaces: Sequence[str]) -> None:
        self.world = world
        self.broker_id = broker_id
        self.session = f"{broker_id}.{life}"
        rng = world.rng_faults
        self.process = Process(
            world.loop,
            str(broker_id),
            offset=rng.choice([0.0, 3600.0, 1e6]) + rng.random(),
            rate=rng.uniform(0.9901, 1.0099),
        )
        self.store = StoreClient(world.store, self.process)
        self.shared = SharedController(lambda: int(world.loop.time() * 1000))
        self.ports = SidecarPorts(lambda: self.shared.image, cast(Any, None))
        self.replaces = list(replaces)
        self.lease = ProcessLease(lambda: self.member, self.process.clock)
        self.member = Member(self._hello, self.shared, self.ports, SETTINGS, self.process.clock)
        self.member.lease = self.watched = WatchedLease()
        #: By link: where its mirrors lie.
        self.places = {LINK: Place(self, world.target, world.source, LINK)}
        if world.switching:
            back = self.places[BACK] = Place(self, world.source, world.target, BACK)
            self.places[LINK].join(back)
            back.join(self.places[LINK])
        self.ports.clusters = {place.cluster.at: place.ports for place in self.places.values()}
        self.runner = FleetRunner(
            self.store,
            Candidate(broker_id=broker_id, session=self.session),
            self.shared,
            self.member,
            SETTINGS,
            self.process.clock,
            connect=self._connect,
            duties=self._duties,
            cluster_id=lambda: "cluster",
        )
        self.duties: Duties | None = None
        self.moves: dict[TopicPartition, tuple[int, ...]] = {}

    def start(self) -> None:
        self.process.spawn(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self.runner.run()
            except LinkerError as refused:
                self.world.note(f"{self.process.name}: {refused}")
                await asyncio.sleep(0.3)

    def _hello(self) -> m.Hello:
        return m.Hello(
            broker_id=self.broker_id,
            session=self.session,
            replaces=self.replaces,
            cluster_id="cluster",
            sources=list(sources(self.world, self.broker_id)),
        )

    # Connections.

    async def _connect(self, seat: Seat) -> MemberChannel:
        world = self.world
        there = await world.network.request(
            self.process.name,
            str(seat.holder.broker_id),
            lambda: world.listening(seat.holder.broker_id),
            SETTINGS.connect_timeout,
        )
        ours, theirs = world.network.channel(self.process, there.process)
        there.process.call(there.accept, theirs)
        return cast(MemberChannel, ours)

    def accept(self, channel: SimChannel) -> None:
        self.process.spawn(self.runner.accept(cast(MemberChannel, channel)))

    # Whom it serves.

    def place(self, cluster: Cluster) -> Place:
        return next(place for place in self.places.values() if place.cluster is cluster)

    def serve(self, cluster: Cluster, tp: TopicPartition) -> Served | None:
        return self.place(cluster).serve(tp)

    def leads(self, cluster: Cluster, tp: TopicPartition) -> bool:
        return self.process.runs and self.place(cluster).leads(tp)

    def fetched(self, cluster: Cluster, tp: TopicPartition, broker: int, offset: int, epoch: int) -> None:
        self.place(cluster).fetched(tp, broker, offset, epoch)

    # While it is the head.

    @contextlib.asynccontextmanager
    async def _duties(self, head: FleetController) -> AsyncIterator[None]:
        self.world.note(f"{self.process.name}: head with epoch {head.controller.controller_epoch}")
        duties = Duties(self, head)
        tasks = [self.process.spawn(self._noticed(work)) for work in duties.works()]
        try:
            yield
        finally:
            self.duties = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.world.note(f"{self.process.name}: head no more")

    async def _noticed(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.world.broken(f"x: {error!r} in {where.name}, {where.filename}:{where.lineno}")
            raise

    def move(self, tp: TopicPartition, replicas: tuple[int, ...]) -> None:
        """An operator asks for other replicas."""
        self.moves[tp] = replicas

    def promote(self) -> None:
        """An operator asks; the head's, or nothing."""
        if self.duties is not None:
            self.duties.wanted.set()

    def leave(self) -> None:
        """A clean stop; the process ends a moment later."""
        self.member.leave()


def first_identity(world: World, broker_id: int) -> SidecarIdentity:
    return SidecarIdentity(
        broker_id=broker_id,
        incarnation_id=bytes(16),
        log_dir_id=bytes(16),
        session=f"{broker_id}.0",
        sources=sources(world, broker_id),
    )


def sources(world: World, sidecar: int) -> tuple[tuple[str, int], ...]:
    """Its broker id in the source, where it has joined that."""
    return ((LINK, world.source.links[sidecar]),) if world.switching else ()


__all__ = ["BACK", "LINK", "ControllerError", "Sidecar", "first_identity"]
