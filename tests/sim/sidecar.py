"""One sidecar process: the product's own classes, put together as `linker.sidecar` does it."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from controller.errors import ControllerError
from controller.judge.alignment import SourceEnd
from controller.state import SidecarIdentity
from fleet import messages as m
from fleet.balancer import Balancer, BalancerSettings
from fleet.channel import MemberChannel
from fleet.fleet_controller import FleetController
from fleet.lease import Lease
from fleet.member import Member
from fleet.progress import CopyReport, FleetProgress, FollowerReport
from fleet.roles import FleetRunner
from fleet.settings import FleetSettings
from fleet.shared_controller import SharedController
from fleet.stores.base import Candidate, Seat
from linker.fleet.hand_overs import HandOvers, Leading
from linker.fleet.leadership import FleetLeadership
from linker.fleet.ports import SidecarPorts, StateFences
from linker.links.reassignments import Reassignments
from linker.promote.driver import PromoteDriver
from linker.promote.fleet_ports import TargetHandOver
from linker.promote.ports import PromotePorts, PromoteSettings
from tests.sim.loop import Process
from tests.sim.network import SimChannel
from tests.sim.router import SimRouter
from tests.sim.store import StoreClient
from tests.sim.target import SeenTarget
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.world import World

LINK = "l"
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
PROMOTE = PromoteSettings(
    catch_up_timeout=4.0,
    fence_drain_timeout=3.0,
    fence_deadline=4.5,
    call_timeout=1.0,
    settle_timeout=1.0,
    insist_timeout=6.0,
    poll=0.02,
    idle_poll=0.1,
    max_backoff=0.5,
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


class Ports(SidecarPorts):
    """The product's, with copies out of the simulation."""

    def __init__(self, sidecar: Sidecar) -> None:
        super().__init__(sidecar.broker_id)
        self._sidecar = sidecar

    def marks(self) -> dict[tuple[str, TopicPartition], object]:
        return {(copy.link, copy.tp): copy.substance for copy in self.copies(None, ())}

    def copies(self, link: str | None, tps: Collection[TopicPartition]) -> list[CopyReport]:
        return self._sidecar.copies(tps or self._sidecar.world.tps)


class Fence:
    """linker.promote.ports.Fencer (linker.promote.fleet_ports.FleetFence without its connections)."""

    def __init__(self, head: FleetController) -> None:
        self._head = head

    def absent(self) -> str | None:
        return self._head.absent()

    async def prepare(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        return None

    async def fence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.fence(LINK, tps, timeout=timeout)

    async def unfence(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.tell("unfence", LINK, tps, timeout=timeout)

    async def handed_over(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.tell("handed_over", LINK, tps, timeout=timeout / 2)

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._head.commands.tell("answered", LINK, tps, timeout=timeout)


class Outside:
    """Source ends, tails and configs for the promote driver."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._world = sidecar.world

    async def ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        return await self._world.source.ends(self._sidecar.process, tps, timeout=timeout)

    async def check(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        await asyncio.sleep(self._world.rng_source.uniform(0.001, 0.02))
        found = {}
        for tp, end in ends.items():
            tail = self._world.source.logs[tp][max(0, end - 1) : end]
            for broker, log in self._world.target.held(tp).items():
                if log[max(0, end - 1) : end] != tail:
                    found[tp] = f"broker {broker} differs"
        return found

    async def restore(self, topic: str, configs: Mapping[str, str | None], *, timeout: float) -> None:
        await asyncio.sleep(0.005)


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
        self.ports = Ports(self)
        self.target = SeenTarget(world.target, self.process)
        self.replaces = list(replaces)
        self.lease = ProcessLease(lambda: self.member, self.process.clock)
        self.member = Member(self._hello, self.shared, self.ports, SETTINGS, self.process.clock)
        self.member.lease = self.watched = WatchedLease()
        self.router = SimRouter(self)
        self.ports.router = cast(Any, self.router)
        self.hand_overs = HandOvers(cast(Any, self.router), self._known)
        self.ports.hand_overs = self.hand_overs
        self.target.metadata.subscribe(lambda _image, _topics: self.hand_overs.look(world.tps))
        self.ports.state = lambda: self.shared.image
        self.ports.target = cast(Any, self.target)
        self.ports.link_brokers = lambda: frozenset(world.sidecar_ids)
        self.fences = StateFences(cast(Any, self.router), lambda: self.shared.image, self.hand_overs.look)
        self.shared.listeners.add(self.fences.on_records)
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
        #: What followers of ours asked for last, by partition and leader epoch.
        self._positions: dict[tuple[TopicPartition, int], dict[int, tuple[int, int]]] = {}
        self.driver: PromoteDriver | None = None
        self._wanted = asyncio.Event()
        self._moves: dict[TopicPartition, tuple[int, ...]] = {}

    async def _known(self, tps: Collection[TopicPartition], leading: Leading, timeout: float) -> bool:
        """Real brokers take their time to know who leads."""
        rng = self.world.rng_carried
        takes = rng.choice([0.01, 0.1, 0.4, 5.0])
        if takes > timeout:
            await asyncio.sleep(timeout)
            return False
        await asyncio.sleep(takes / 2)
        leading(tps)
        await asyncio.sleep(takes / 2)
        return True

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
            broker_id=self.broker_id, session=self.session, replaces=self.replaces, cluster_id="cluster"
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

    def leads(self, tp: TopicPartition) -> bool:
        """KRaft says so and the link state agrees, as far as this process knows."""
        view = self.target.image.topics_by_name["t"].partitions[tp.partition]
        state = self.shared.image.partitions.get((LINK, tp))
        return view.leader == self.broker_id and state is not None and state.leader == self.broker_id

    def serves_followers(self, tp: TopicPartition) -> bool:
        return self.process.runs and self.leads(tp)

    def fetched(self, tp: TopicPartition, broker: int, offset: int, epoch: int) -> None:
        view = self.target.image.topics_by_name["t"].partitions[tp.partition]
        self._positions.setdefault((tp, view.leader_epoch), {})[broker] = (offset, epoch)

    def copies(self, tps: Collection[TopicPartition]) -> list[CopyReport]:
        found = []
        for tp in tps:
            view = self.target.image.topics_by_name["t"].partitions[tp.partition]
            if view.leader != self.broker_id:
                continue
            positions = self._positions.get((tp, view.leader_epoch), {})
            found.append(
                CopyReport(
                    link=LINK,
                    topic=tp.topic,
                    partition=tp.partition,
                    leader_epoch=view.leader_epoch,
                    loaded=True,
                    high_watermark=self.world.source.high_watermark[tp],
                    log_start_offset=0,
                    followers={
                        broker: FollowerReport(fetch_offset=offset, broker_epoch=epoch)
                        for broker, (offset, epoch) in positions.items()
                    },
                )
            )
        return found

    # While it is the head.

    @contextlib.asynccontextmanager
    async def _duties(self, head: FleetController) -> AsyncIterator[None]:
        self.world.note(f"{self.process.name}: head with epoch {head.controller.controller_epoch}")
        works = [self._balance(head), self._promotes(head), self._replicas(head)]
        tasks = [self.process.spawn(self._noticed(work)) for work in works]
        try:
            yield
        finally:
            self.driver = None
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

    async def _balance(self, head: FleetController) -> None:
        async def known(tps: object) -> None:
            return None

        ports = FleetLeadership(
            head, cast(Any, self.target), {}, lambda: frozenset(self.world.sidecar_ids), known=known
        )
        settings = BalancerSettings(call_timeout=1.0, hold_timeout=0.5, retry_first=0.1, retry_max=0.5)
        self.balancer = Balancer(ports, settings)
        try:
            await self.balancer.run()
        finally:
            ports.close()

    async def _replicas(self, head: FleetController) -> None:
        """As the bring-up of mirrors does it."""
        copies = SimpleNamespace(partitions={})
        reassignments = Reassignments(
            LINK,
            cast(Any, self.target),
            head.controller,
            cast(Any, copies),
            lambda: frozenset(self.world.sidecar_ids),
        )
        while True:
            await asyncio.sleep(0.2)
            try:
                wanted, self._moves = self._moves, {}
                if wanted:
                    await reassignments.move(wanted)
                topics = {"t": cast(Any, self.target.image.topics_by_name["t"])}
                await reassignments.follow([head.controller.image.mirrors[LINK, "t"]], topics)
                await reassignments.open([head.controller.image.mirrors[LINK, "t"]], topics)
            except LinkerError as error:
                self.world.note(f"{self.process.name}: replicas: {error}")

    def move(self, tp: TopicPartition, replicas: tuple[int, ...]) -> None:
        """An operator asks for other replicas."""
        self._moves[tp] = replicas

    def _ports(self, head: FleetController) -> PromotePorts:
        outside = Outside(self)
        return PromotePorts(
            fencer=Fence(head),
            progress=FleetProgress(
                LINK,
                head.book,
                head.commands.ask_progress,
                lambda: self.target.image,
                lambda tp: head.controller.image.mirrors[LINK, tp.topic].replicas_of(tp.partition),
                poll=0.03,
            ),
            source_ends=outside,
            tail_check=outside,
            hand_over=TargetHandOver(cast(Any, self.target), lambda: frozenset(self.world.sidecar_ids)),
            configs=outside,
        )

    async def _promotes(self, head: FleetController) -> None:
        driver = PromoteDriver(head.controller, LINK, self._ports(head), PROMOTE)
        await self._settle(head, driver)
        self.driver = driver
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                job = await head.controller.begin_promote(LINK)
                self.world.note(f"{self.process.name}: promote {job.id} begins")
                await self.balancer.settled()
                outcome = await driver.run(job)
                self.world.note(f"{self.process.name}: promote {job.id}: {outcome.reason or 'done'}")
            except LinkerError as error:
                self.world.note(f"{self.process.name}: promote: {error}")
                await self._settle(head, driver)

    async def _settle(self, head: FleetController, driver: PromoteDriver) -> None:
        while True:
            try:
                await head.controller.refresh()
                if not head.controller.image.running_jobs(LINK):
                    return
                await driver.retreat()
                for outcome in await driver.resume():
                    self.world.note(
                        f"{self.process.name}: settled {outcome.job_id}: {outcome.reason or 'done'}"
                    )
                return
            except LinkerError as error:
                self.world.note(f"{self.process.name}: settling: {error}")
                await asyncio.sleep(0.2)

    def promote(self) -> None:
        """An operator asks; the head's, or nothing."""
        if self.driver is not None:
            self._wanted.set()

    def leave(self) -> None:
        """A clean stop; the process ends a moment later."""
        self.member.leave()


def first_identity(broker_id: int) -> SidecarIdentity:
    return SidecarIdentity(
        broker_id=broker_id, incarnation_id=bytes(16), log_dir_id=bytes(16), session=f"{broker_id}.0"
    )


__all__ = ["LINK", "ControllerError", "Sidecar", "first_identity"]
