"""One cluster as one sidecar sees it: a copy of the metadata that comes a little late, and requests whose fate may stay
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from controller.alter_partition import AlterPartitionItem, IsrMember, alter_partition_item
from tests.controller.kraft_model import Image
from tests.sim.cluster import MIN_INSYNC, Cluster
from tests.sim.loop import Process
from tests.sim.network import NoAnswer
from wire.errors import BrokerError, ConnectionLost, LinkerError, RequestTimedOut
from wire.frames.types import TopicPartition

T = TypeVar("T")


class Metadata:
    """One process's copy of the metadata log."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self.process = process
        self.image: Image = cluster.image
        self.version = cluster.version
        self._subscribers: list[Callable[[Image, frozenset[bytes]], None]] = []
        self._changed = asyncio.Event()

    def saw(self, version: int, image: Image) -> None:
        if version <= self.version:
            return
        self.version, self.image = version, image
        self._changed.set()
        self._changed = asyncio.Event()
        for subscriber in list(self._subscribers):
            subscriber(image, frozenset(self._cluster.topic_ids.values()))

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
        cluster = self._cluster
        network = cluster.world.network
        if cluster.world.held is not None:
            await asyncio.sleep(min(timeout, cluster.world.held(cluster)))
        wanted = await network.request(self.process.name, cluster.name, lambda: cluster.version, timeout)
        await self.wait_for(lambda _: True if self.version >= wanted else None, timeout)


class Operations:
    """Requests of one process to the cluster's controller."""

    def __init__(self, cluster: Cluster, metadata: Metadata) -> None:
        self._cluster = cluster
        self._metadata = metadata

    async def _request(self, what: Callable[[], T], timeout: float, *, slow: float = 0.0) -> T:
        name, network = self._metadata.process.name, self._cluster.world.network
        try:
            return await network.request(name, self._cluster.name, what, timeout, slow=slow)
        except NoAnswer as error:
            raise ConnectionLost(str(error), sent=True) from None

    async def _troubled(self, carry_out: Callable[[], T], timeout: float) -> T:
        """It may come late, twice, or be refused and carried out all the same."""
        cluster, rng, loop = self._cluster, self._cluster.rng, self._cluster.world.loop
        if rng.random() < cluster.alter_doubled:
            loop.kernel(rng.uniform(0, 5), _quietly, carry_out)
        if rng.random() < cluster.not_controller:
            if rng.random() < 0.5:
                loop.kernel(rng.uniform(0, 5), _quietly, carry_out)
            raise BrokerError(41)
        slow = rng.uniform(0, 4) if rng.random() < cluster.alter_late else 0.0
        return await self._request(carry_out, timeout, slow=slow)

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        def carry_out() -> None:
            for tp, replicas in wanted.items():
                code = self._cluster.kraft.reassign(tp, None if replicas is None else list(replicas))
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
        cluster = self._cluster

        def carry_out() -> dict[TopicPartition, int]:
            answer = cluster.kraft.alter_partition(leader, items)
            cluster.world.note(f"{cluster.name}: AlterPartition of {leader.broker_id}: {answer}")
            if isinstance(answer, int):
                raise BrokerError(answer)
            return answer

        fate = None if cluster.world.fate is None else cluster.world.fate(cluster, items)
        if fate is None:
            return await self._troubled(carry_out, timeout)
        if fate.after is not None:
            cluster.world.loop.kernel(fate.after, _quietly, carry_out)
        if fate.code is not None:
            return {item.tp: fate.code for item in items}
        await asyncio.sleep(timeout)
        raise ConnectionLost("no answer", sent=True)

    async def alter_isr(
        self, wished: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> dict[TopicPartition, int]:
        items = [alter_partition_item(self._metadata.image, tp, isr) for tp, isr in wished.items()]
        return await self.alter_partition(items, timeout=timeout)

    async def elect_preferred(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self._request(lambda: self._cluster.kraft.elect_preferred(sorted(tps)), timeout)

    async def fence_broker(self, broker_id: int, broker_epoch: int, *, timeout: float) -> bool:
        cluster = self._cluster
        cluster.world.note(f"{cluster.name}: broker {broker_id} is to be fenced")
        return (await self._request(lambda: cluster.kraft.fence(broker_id, broker_epoch), timeout)) == 0

    async def set_configs_of_topics(
        self, configs: Mapping[str, Mapping[str, str | None]], *, timeout: float
    ) -> None:
        """Returns when this process's image has them."""
        wished = {topic: dict(changes) for topic, changes in configs.items() if changes}
        if not wished:
            return

        def carry_out() -> int:
            for topic, changes in wished.items():
                self._cluster.world.note(f"{self._cluster.name}: configs of {topic} {changes}")
                self._cluster.set_configs(topic, changes)
            return self._cluster.version

        wanted = await self._request(carry_out, timeout)
        await self._metadata.wait_for(lambda _: True if self._metadata.version >= wanted else None, timeout)


def _quietly(carry_out: Callable[[], object]) -> None:
    """Nobody waits for the answer."""
    try:
        carry_out()
    except LinkerError:
        return


class Client:
    """wire.client.cluster.Cluster, as far as the code under test asks it for anything."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self.name = cluster.name
        self.client_id = "sidecar"
        self.topics: dict[str, object] = {}  # writes find their leader by themselves (Cluster.write)
        self.nodes = {broker: broker for broker in (*cluster.real, *cluster.links.values())}

    async def call(self, api: str, body: Any, *, node_id: int | None = None, timeout: float) -> Any:
        assert api == "describe_configs"

        def of(topic: str) -> Any:
            overrides = self._cluster.configs[topic]
            values = {MIN_INSYNC: "1", **overrides}
            entries = [
                SimpleNamespace(name=name, value=value, config_source=1 if name in overrides else 5)
                for name, value in values.items()
            ]
            return SimpleNamespace(error_code=0, resource_name=topic, configs=entries)

        def told() -> Any:
            return SimpleNamespace(results=[of(one["resource_name"]) for one in body["resources"]])

        network = self._cluster.world.network
        return await network.request(self._process.name, self._cluster.name, told, timeout)


class SeenCluster:
    """linker.membership.TargetCluster, as far as the adapters under test use it."""

    def __init__(self, cluster: Cluster, process: Process, broker_id: int) -> None:
        self.metadata = Metadata(cluster, process)
        self.operations = Operations(cluster, self.metadata)
        self.cluster = Client(cluster, process)
        self.broker_id = broker_id

    @property
    def image(self) -> Image:
        return self.metadata.image

    @property
    def registration(self) -> Any:
        return SimpleNamespace(broker_epoch=self.image.brokers[self.broker_id].epoch)
