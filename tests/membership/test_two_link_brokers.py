"""One process is a broker of two clusters at once: what belongs to one of them never shows in the other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from admin.metrics import Metrics
from admin.samples import Snapshot
from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.state import MirrorTopic
from fleet.stored_controller import StoredController
from linker.config.listeners import ClientListener
from linker.config.model import TargetConfig
from linker.fleet.identity import IdentityFile
from linker.link_broker import LinkBroker, SharedBuffers
from linker.link_broker_settings import LinkBrokerSettings, connect_cluster
from linker.links.running import RunningLinks
from linker.membership import ClusterIdChanged, Identity
from linker.process.early_bind import EarlySockets
from linker.snapshot import broker_sample
from router.fence import FenceState
from router.ports import EndlessLease
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.fakes.batches import values_of
from tests.fakes.controller import FakeController, FakeQuorum
from tests.fakes.follower import FakeFollower, FollowerLog
from tests.membership.conftest import eventually
from tests.router.rig import E0, Log
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost
from wire.frames.buffers import FramePool
from wire.frames.types import TopicPartition
from wire.server.partial_frames import PartialFrames
from wire.task_group import TaskGroup

ORDERS = TopicPartition("orders", 0)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Place:
    """A fake cluster with one real broker, and our link broker of it with a mirror of `orders`."""

    def __init__(self, name: str, broker_id: int, directory: Path, shared: SharedBuffers) -> None:
        self.name = name
        self.broker_id = broker_id
        self.quorum = FakeQuorum(f"{name}-cluster-id")
        self.node = FakeController(self.quorum, 0)
        self.file = IdentityFile(directory / f"{name}.json")
        self.shared = shared
        self.port = free_port()
        self.stack = contextlib.AsyncExitStack()
        self.broker: LinkBroker
        self.log: Log
        self.replica: FollowerLog
        self.running: asyncio.Task[None]
        self.serves = False

    async def start_cluster(self) -> None:
        await self.stack.enter_async_context(self.node)
        self.quorum.add_broker(1, port=self.node.port)
        topic_id = self.name.encode().ljust(16, b".")
        self.quorum.append("TopicRecord", {"name": "orders", "topic_id": topic_id})
        self.quorum.append(
            "PartitionRecord",
            {
                "partition_id": 0,
                "topic_id": topic_id,
                "replicas": [1, self.broker_id],
                "isr": [1, self.broker_id],
                "leader": self.broker_id,
                "leader_epoch": E0,
            },
        )
        self.controller: Any = await StoredController.open(MemoryStore(), now=lambda: 7)
        await self.controller.create_link("east", "east", {})
        await self.controller.create_mirror(
            MirrorTopic(link="east", topic="orders", topic_id=topic_id, source_topic_id=None, partitions=1)
        )
        leads = Leadership(self.broker_id, E0, (self.broker_id,))
        await establish(self.controller, "east", ORDERS, leadership=leads, session_epoch=E0, start_offset=0)
        self.log = Log(topic_id=topic_id)
        self.replica = FollowerLog("orders", topic_id, 0, E0)

    async def start(self, group: TaskGroup) -> None:
        settings = LinkBrokerSettings(
            cluster=self.name,
            client=TargetConfig(properties={"bootstrap.servers": f"127.0.0.1:{self.node.port}"}),
            broker_id=self.broker_id,
            listeners=[
                ClientListener(
                    "PLAINTEXT",
                    "127.0.0.1",
                    self.port,
                    "sidecar.example",
                    19000 + self.broker_id,
                    "PLAINTEXT",
                )
            ],
            listener_properties=lambda _name: {},
        )
        self.broker = LinkBroker(
            settings,
            await connect_cluster(settings, self.stack),
            self.file.load() or Identity.create(self.broker_id),
            self.file.save,
            controller=self.controller,
            links=RunningLinks(lambda _link: pytest.fail("no link runs here"), lambda: self.controller),
            lease=EndlessLease(),
            other_link_brokers=frozenset,
            shared=self.shared,
        )
        self.broker.copies.add(self.log)
        self.running = group.create_task(self.broker.run(), name=self.name)
        await self.broker.join(5)
        await self.broker.serve(5)
        self.serves = True

    async def stop(self) -> None:
        self.serves = False
        self.running.cancel()
        await self.broker.close()
        await asyncio.wait([self.running])

    async def client(self) -> Connection:
        return await Connection.open(
            "127.0.0.1", self.port, ClientSecurity.plaintext(), client_id="client", timeout=5
        )

    async def followed(self, values: list[bytes]) -> None:
        """A broker of this cluster fetches until it has these records of the mirror."""
        follower = FakeFollower(self.port, 1, self.quorum.brokers[1].epoch, [self.replica])
        task = asyncio.create_task(follower.run())
        try:
            await eventually(lambda: [value for _, value in values_of(self.replica.data())] == values)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not (follower.protocol_errors or self.replica.errors or self.replica.failed)

    async def answers_for_itself(self) -> None:
        """ApiVersions and Metadata, through our listener."""
        connection = await self.client()
        try:
            assert connection.api_range("metadata") is not None
            answer = await connection.call("metadata", {"topics": None}, timeout=5)
            assert answer.cluster_id == self.quorum.cluster_id
        finally:
            connection.close()


@pytest_asyncio.fixture
async def places(tmp_path: Path) -> AsyncIterator[tuple[Place, Place]]:
    """Broker 900 of the target and broker 800 of the source, started, in one process."""
    shared = SharedBuffers(frames=FramePool(1 << 20), partial=PartialFrames(), early_sockets=EarlySockets())
    target, source = Place("target", 900, tmp_path, shared), Place("source", 800, tmp_path, shared)
    async with target.stack, source.stack, TaskGroup() as group:
        for place in (target, source):
            await place.start_cluster()
            await place.start(group)
        yield target, source
        for place in (target, source):
            if place.serves:
                await place.stop()


async def test_each_is_a_broker_of_its_own_cluster(places: tuple[Place, Place]) -> None:
    for place, other in (places, places[::-1]):
        assert not place.quorum.brokers[place.broker_id].fenced
        assert other.broker_id not in place.quorum.brokers
        assert place.broker.membership.image.brokers.keys() == {1, place.broker_id}
        assert place.broker.link_brokers() == {place.broker_id}
        endpoint = place.broker.membership.image.brokers[place.broker_id].endpoints["PLAINTEXT"]
        assert (endpoint.host, endpoint.port) == ("sidecar.example", 19000 + place.broker_id)
        await place.answers_for_itself()


async def test_each_has_an_identity_of_its_own(places: tuple[Place, Place]) -> None:
    target, source = (place.file.load() for place in places)
    assert target is not None
    assert source is not None
    assert (target.broker_id, target.cluster_id) == (900, "target-cluster-id")
    assert (source.broker_id, source.cluster_id) == (800, "source-cluster-id")
    assert target.incarnation_id != source.incarnation_id
    assert target.log_dir_id != source.log_dir_id
    # The identity of one cluster is refused in the other one.
    for place in places:
        place.broker.membership.registration.check_cluster_id(place.quorum.cluster_id)
    with pytest.raises(ClusterIdChanged):
        places[0].broker.membership.registration.check_cluster_id("source-cluster-id")


async def test_followers_copy_the_mirror_of_their_own_cluster(places: tuple[Place, Place]) -> None:
    """Both mirror a topic `orders`: its records are those of the one whose listener is asked."""
    for place in places:
        place.log.append([f"{place.name} {i}".encode() for i in range(3)])
    for place in places:
        await place.followed([f"{place.name} {i}".encode() for i in range(3)])
        assert set(place.log.followers) == {1}
        mirror = place.broker.mirrors.by_name("orders")
        assert mirror is not None
        assert mirror.topic_id == place.replica.topic_id
        assert place.broker.mirrors.by_id(mirror.topic_id) is mirror


async def test_a_fence_and_a_hand_over_are_of_one_cluster(places: tuple[Place, Place]) -> None:
    target, source = places
    await target.controller.begin_promote("east")
    for phase in (Phase.CATCHING_UP, Phase.FENCED):
        await target.controller.advance("east", [ORDERS], phase)
    assert target.broker.router.hub.fences.state(ORDERS) is FenceState.FENCED
    assert source.broker.router.hub.fences.state(ORDERS) is None


async def test_each_is_counted_by_itself(places: tuple[Place, Place]) -> None:
    target, source = places
    connections = [await target.client(), await target.client(), await source.client()]
    samples = [broker_sample(target.broker), broker_sample(source.broker, "source")]
    assert [one.client_connections for one in samples] == [2, 1]
    assert [one.leading_partitions for one in samples] == [1, 1]
    lines = Metrics(lambda: Snapshot(version="1", brokers=samples)).render().decode().splitlines()
    assert "linker_client_connections 2.0" in lines
    assert 'linker_client_connections{cluster="source"} 1.0' in lines
    names = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(names) == len(set(names))
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("first", [0, 1], ids=["the target's ends", "the source's ends"])
async def test_one_ends_and_the_other_one_goes_on(places: tuple[Place, Place], first: int) -> None:
    gone, left = places[first], places[1 - first]
    await gone.stop()
    with pytest.raises(ConnectionLost):
        await gone.client()
    heartbeats = left.node.seen["broker_heartbeat"]
    silent = gone.node.seen["broker_heartbeat"]
    left.broker.membership.registration._hurry.set()
    await eventually(lambda: left.node.seen["broker_heartbeat"] > heartbeats)
    assert gone.node.seen["broker_heartbeat"] == silent
    await left.answers_for_itself()
    left.log.append([b"still here"])
    await left.followed([b"still here"])
    # Nothing of it follows the state any more.
    assert len(gone.controller.listeners) == 0
    assert left.broker.mirrors.on_records in left.controller.listeners


async def test_one_comes_back_as_the_same_broker(places: tuple[Place, Place]) -> None:
    target, source = places
    before = source.file.load()
    await source.stop()
    async with TaskGroup() as group:
        await source.start(group)
        assert source.broker.membership.identity == before
        await source.answers_for_itself()
        await target.answers_for_itself()
        await source.stop()
