"""The target cluster: KRaft's rules (tests.controller.kraft_model), the real brokers' logs, and what a sidecar sees
of it: a copy of the metadata that comes a little late, and requests whose fate may stay unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from controller.alter_partition import AlterPartitionItem, IsrMember, alter_partition_item
from tests.controller.kraft_model import Image, Kraft
from tests.sim.loop import Process
from tests.sim.network import NoAnswer
from wire.errors import BrokerError, ConnectionLost, LinkerError, RequestTimedOut
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")
KRAFT = "kraft"
SESSION_TIMEOUT = 1.2
TOPIC_ID = b"\x07" * 16
REAL = (1, 2, 3)
_TICK = 0.2
_FETCH = 0.05


class Target:
    """The cluster itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kraft = Kraft()
        self.version = 0
        self.image = self.kraft.image()
        self.logs: dict[TopicPartition, dict[int, list[str]]] = {
            tp: {b: [] for b in REAL} for tp in world.tps
        }
        self.heard: dict[int, float] = {}
        self.down: set[int] = set()  # real brokers
        self.lazy: dict[int, float] = {}  # followers that do not fetch before this time
        # Probabilities of what becomes of a request.
        self.alter_late = self.alter_doubled = self.not_controller = 0.0
        self._registered: set[int] = set()

    def start(self) -> None:
        world, kraft = self.world, self.kraft
        for broker in (*REAL, *world.sidecar_ids):
            kraft.register(broker)
        links = world.sidecar_ids
        kraft.create(
            "t",
            TOPIC_ID,
            {tp.partition: [*links[tp.partition :], *links[: tp.partition]] for tp in world.tps},
        )
        for tp in world.tps:
            targets = world.targets(tp)
            assert kraft.reassign(tp, targets) == 0
        self.image = kraft.image()
        kraft.changed = self._changed
        self._tick()
        for broker in REAL:
            self._fetch(broker)

    def _changed(self) -> None:
        self.version += 1
        version, image = self.version, self.kraft.image()
        before, self.image = self.image, image
        for tp, partition in self.kraft.partitions.items():
            for broker, log in self.logs[tp].items():
                if broker not in partition.replicas:
                    log.clear()  # it deletes its copy
        self.world.target_changed(before, image)
        network = self.world.network
        for view in self.world.views():
            network.deliver(
                KRAFT,
                view.process.name,
                lambda view=view: view.process.call(view.saw, version, image),  # type: ignore[misc]
                network.delay() + self.world.metadata_lag(),
            )

    def _tick(self) -> None:
        """Heartbeats and sessions of the link brokers."""
        now, network = self.world.loop.time(), self.world.network
        for broker, process in self.world.processes().items():
            if process.runs and network.both(process.name, KRAFT):
                self.heard[broker] = now
                if self.kraft.brokers[broker].fenced:
                    self.kraft.unfence(broker)
            elif now - self.heard.get(broker, 0.0) > SESSION_TIMEOUT:
                self.kraft.fence(broker)
        self.world.loop.kernel(_TICK, self._tick)

    def held(self, tp: TopicPartition) -> dict[int, list[str]]:
        """The logs of the replicas that stay."""
        partition = self.kraft.partitions[tp]
        stay = [b for b in REAL if b in partition.replicas and b not in partition.removing]
        return {broker: self.logs[tp][broker] for broker in stay}

    # The real brokers as followers.

    def _fetch(self, broker: int) -> None:
        world = self.world
        if broker not in self.down and self.lazy.get(broker, 0.0) <= world.loop.time():
            for tp in world.tps:
                partition = self.kraft.partitions[tp]
                if partition.leader not in world.sidecar_ids or broker not in partition.replicas:
                    continue
                log = self.logs[tp][broker]
                sidecar = world.sidecar_of(partition.leader)
                if sidecar is not None and sidecar.serves_followers(tp):
                    sidecar.fetched(tp, broker, len(log), self.kraft.brokers[broker].epoch)
                    log += world.source.logs[tp][len(log) : world.source.high_watermark[tp]]
        world.loop.kernel(_FETCH * world.rng_target.uniform(0.5, 1.5), self._fetch, broker)

    def broker_down(self, broker: int, seconds: float) -> None:
        """Until the hand-over only: an unclean stop takes the end off the logs."""
        if broker in self.down or any(broker in p.isr for p in self.kraft.partitions.values()):
            return
        self.down.add(broker)
        self.kraft.fence(broker)
        for tp in self.world.tps:
            log = self.logs[tp][broker]
            del log[max(0, len(log) - self.world.rng_target.randrange(4)) :]
        self.world.note(f"broker {broker} is down for {seconds:.2f} s")

        def back() -> None:
            self.down.discard(broker)
            self.kraft.register(broker)

        self.world.loop.kernel(seconds, back)

    def append(self, tp: TopicPartition, broker: int, record: str) -> bool:
        """A client's produce at a real broker."""
        partition = self.kraft.partitions[tp]
        if partition.leader != broker or broker in self.world.sidecar_ids:
            return False
        for replica in partition.isr:
            self.logs[tp][replica].append(record)
        return True


class Metadata:
    """One process's copy of the metadata log."""

    def __init__(self, target: Target, process: Process) -> None:
        self._target = target
        self.process = process
        self.image: Image = target.image
        self.version = target.version
        self._subscribers: list[Callable[[Image, frozenset[bytes]], None]] = []
        self._changed = asyncio.Event()

    def saw(self, version: int, image: Image) -> None:
        if version <= self.version:
            return
        self.version, self.image = version, image
        self._changed.set()
        self._changed = asyncio.Event()
        for subscriber in list(self._subscribers):
            subscriber(image, frozenset({TOPIC_ID}))

    def subscribe(self, callback: Callable[[Image, frozenset[bytes]], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def wait_for(self, predicate: Callable[[Image], T | None], timeout: float) -> T:
        try:
            async with asyncio.timeout(timeout):
                while (result := predicate(self.image)) is None:
                    await self._changed.wait()
                return result
        except TimeoutError:
            raise RequestTimedOut("not seen in the metadata log", sent=False) from None

    async def becomes(self, predicate: Callable[[Image], bool], timeout: float) -> bool:
        try:
            await self.wait_for(lambda image: True if predicate(image) else None, timeout)
        except RequestTimedOut:
            return False
        return True

    async def caught_up(self, timeout: float) -> None:
        target = self._target
        wanted = await target.world.network.request(self.process.name, KRAFT, lambda: target.version, timeout)
        await self.wait_for(lambda _: True if self.version >= wanted else None, timeout)


class Operations:
    """Requests of one process to the target's controller."""

    def __init__(self, target: Target, metadata: Metadata) -> None:
        self._target = target
        self._metadata = metadata

    async def _request(self, what: Callable[[], T], timeout: float, *, slow: float = 0.0) -> T:
        name, network = self._metadata.process.name, self._target.world.network
        try:
            return await network.request(name, KRAFT, what, timeout, slow=slow)
        except NoAnswer as error:
            raise ConnectionLost(str(error), sent=True) from None

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        def carry_out() -> None:
            for tp, replicas in wanted.items():
                code = self._target.kraft.reassign(tp, None if replicas is None else list(replicas))
                if code not in (0, 85):
                    raise BrokerError(code)

        await self._request(carry_out, timeout)

    async def alter_partition(
        self, items: Sequence[AlterPartitionItem], *, timeout: float
    ) -> dict[TopicPartition, int]:
        by_leader: dict[IsrMember, list[AlterPartitionItem]] = {}
        for item in items:
            by_leader.setdefault(item.leader, []).append(item)
        codes: dict[TopicPartition, int] = {}
        errors: list[LinkerError] = []
        for leader, chosen in by_leader.items():
            try:
                codes |= await self._alter(leader, chosen, timeout)
            except BrokerError as error:
                codes |= {item.tp: int(error.code) for item in chosen}
            except LinkerError as error:
                errors.append(error)
        if errors and not codes:
            raise errors[0]
        return codes

    async def _alter(
        self, leader: IsrMember, items: Sequence[AlterPartitionItem], timeout: float
    ) -> dict[TopicPartition, int]:
        target, rng = self._target, self._target.world.rng_target
        world = target.world

        def carry_out() -> dict[TopicPartition, int]:
            answer = target.kraft.alter_partition(leader, items)
            world.note(f"kraft: AlterPartition of {leader.broker_id}: {answer}")
            if isinstance(answer, int):
                raise BrokerError(answer)
            return answer

        if rng.random() < target.alter_doubled:
            world.loop.kernel(rng.uniform(0, 5), _quietly, carry_out)
        if rng.random() < target.not_controller:
            if rng.random() < 0.5:
                world.loop.kernel(rng.uniform(0, 5), _quietly, carry_out)
            raise BrokerError(41)
        slow = rng.uniform(0, 4) if rng.random() < target.alter_late else 0.0
        return await self._request(carry_out, timeout, slow=slow)

    async def alter_isr(
        self, wished: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> dict[TopicPartition, int]:
        items = [alter_partition_item(self._metadata.image, tp, isr) for tp, isr in wished.items()]
        return await self.alter_partition(items, timeout=timeout)

    async def elect_preferred(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self._request(lambda: self._target.kraft.elect_preferred(sorted(tps)), timeout)

    async def fence_broker(self, broker_id: int, broker_epoch: int, *, timeout: float) -> bool:
        self._target.world.note(f"kraft: broker {broker_id} is to be fenced")
        return (await self._request(lambda: self._target.kraft.fence(broker_id, broker_epoch), timeout)) == 0


def _quietly(carry_out: Callable[[], object]) -> None:
    """Nobody waits for the answer."""
    try:
        carry_out()
    except LinkerError:
        return


class SeenTarget:
    """linker.membership.TargetCluster, as far as the adapters under test use it."""

    def __init__(self, target: Target, process: Process) -> None:
        self.metadata = Metadata(target, process)
        self.operations = Operations(target, self.metadata)

    @property
    def image(self) -> Image:
        return self.metadata.image
