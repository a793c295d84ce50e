"""The sidecar as a broker of a link's source, on a fake cluster: joined, left, refused with words, known to the others."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.state import Link
from fleet.stored_controller import StoredController
from linker.config.file import parse_config
from linker.joined_sources import JoinedSources
from linker.link_broker import LinkBroker, SharedBuffers
from linker.links.running import RunningLinks
from linker.process.early_bind import EarlySockets
from linker.source_identity import identity_path
from router.ports import EndlessLease
from tests.controller.memory_store import MemoryStore
from tests.fakes.controller import FakeController, FakeQuorum
from tests.membership.conftest import eventually
from tests.membership.test_two_link_brokers import free_port
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.frames.buffers import FramePool
from wire.server.partial_frames import PartialFrames
from wire.task_group import TaskGroup


class Brokers:
    """linker.source_brokers.SourceBrokers without the links that run the other way."""

    def __init__(self, controller: Any) -> None:
        self.controller = controller
        self.shared = SharedBuffers(
            frames=FramePool(1 << 20), partial=PartialFrames(), early_sockets=EarlySockets()
        )

    def make(
        self, link: Link, settings: Any, cluster: Any, identity: Any, file: Any, link_brokers: Any
    ) -> LinkBroker:
        return LinkBroker(
            settings,
            cluster,
            identity,
            file.save,
            controller=self.controller,
            links=RunningLinks(lambda _link: pytest.fail("no link runs here"), lambda: self.controller),
            lease=EndlessLease(),
            other_link_brokers=link_brokers,
            shared=self.shared,
            at=link.name,
        )

    @contextlib.asynccontextmanager
    async def take_part(self, _link: Link, _broker: LinkBroker) -> AsyncIterator[None]:
        yield


class Place:
    """A fake source, a state with the link east, and sidecars of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.quorum = FakeQuorum("source-id")
        self.node = FakeController(self.quorum, 0)
        self.controller: Any

    async def start(self) -> None:
        await self.node.start()
        self.quorum.add_broker(1, port=self.node.port)
        self.controller = await StoredController.open(MemoryStore(), now=lambda: 7)
        await self.controller.create_link(
            "east", "source-id", {"bootstrap.servers": f"127.0.0.1:{self.node.port}"}
        )

    def sidecar(self, group: TaskGroup, broker_id: int = 800, port: int | None = None) -> JoinedSources:
        config = parse_config(
            f"""
sidecar: {{broker.id: {broker_id + 100}, listeners: "PLAINTEXT://127.0.0.1:{free_port()}"}}
target: {{bootstrap.servers: "127.0.0.1:1"}}
sources:
  east: {{broker.id: {broker_id}, listeners: "PLAINTEXT://127.0.0.1:{port or free_port()}"}}
""",
            base=self.directory / str(broker_id),
        )
        config.sidecar.state_dir.mkdir(parents=True, exist_ok=True)
        brokers: Any = Brokers(self.controller)
        found = JoinedSources(
            config, EarlySockets(), lambda: self.controller.image, lambda: "target-id", brokers
        )
        found.group = group
        self.controller.listeners.add(found.follow)
        found.follow(())
        return found

    def path(self, broker_id: int = 800) -> Path:
        return identity_path(self.directory / str(broker_id) / "state", "source-id", broker_id)

    async def wish(self, join: bool) -> None:
        await self.controller.update_link("east", None, {"join_source": join})

    async def end(self, *found: JoinedSources) -> None:
        for one in found:
            one.group = None
            self.controller.listeners.discard(one.follow)
            for task in one.tasks:
                task.cancel()


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    one = Place(tmp_path)
    await one.start()
    yield one
    await one.node.stop()


def reason(found: JoinedSources) -> str:
    return "; ".join(one.reason or "" for one in found.told())


async def test_joined_and_left_as_the_option_says(place: Place) -> None:
    async with TaskGroup() as group:
        found = place.sidecar(group)
        assert not found and not found.told()
        await place.wish(True)
        await eventually(lambda: "east" in found)
        assert [(one.state, one.reason) for one in found.told()] == [("JOINED", None)]
        first = place.quorum.brokers[800]
        await place.end(found)
        # Another process is the same broker.
        found = place.sidecar(group)
        await eventually(lambda: "east" in found)
        assert place.quorum.brokers[800].incarnation == first.incarnation
        await place.wish(False)
        await eventually(lambda: 800 not in place.quorum.brokers and not found.told())
        assert not place.path().exists()
        await place.wish(True)
        await eventually(lambda: "east" in found)
        await place.controller.delete_link("east")
        await eventually(lambda: 800 not in place.quorum.brokers)
        await place.end(found)


async def test_what_an_earlier_process_joined_is_left(place: Place) -> None:
    async with TaskGroup() as group:
        found = place.sidecar(group)
        await place.wish(True)
        await eventually(lambda: "east" in found)
        await place.end(found)
        await place.wish(False)
        assert 800 in place.quorum.brokers
        found = place.sidecar(group)
        await eventually(lambda: 800 not in place.quorum.brokers and not found.tasks)


async def test_sidecars_of_a_fleet_know_each_other_there(place: Place) -> None:
    async with TaskGroup() as group:
        await place.wish(True)
        one, two = place.sidecar(group, 800), place.sidecar(group, 801)
        await eventually(lambda: "east" in one and "east" in two)
        await eventually(lambda: one["east"].link_brokers() == {800, 801} == two["east"].link_brokers())
        await place.end(one, two)


async def test_a_taken_port_is_told_before_anything_is_registered(place: Place) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        async with TaskGroup() as group:
            await place.wish(True)
            found = place.sidecar(group, port=squatter.getsockname()[1])
            await eventually(lambda: "sources.east: listener PLAINTEXT: cannot bind" in reason(found))
            assert place.node.seen["broker_registration"] == 0
            await place.end(found)


def old_version(node: FakeController) -> None:
    low, high, _ = node.features["metadata.version"]
    node.features["metadata.version"] = (low, high, 11)


def no_alter(node: FakeController) -> None:
    node.hooks["describe_cluster"] = lambda _request: {
        "cluster_id": "source-id",
        "cluster_authorized_operations": 1 << 9,
    }


def elsewhere(node: FakeController) -> None:
    node.hooks["describe_cluster"] = lambda _request: {"cluster_id": "other"}


def no_right(node: FakeController) -> None:
    node.hooks["describe_cluster"] = lambda _request: {"error_code": 31}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (old_version, "metadata.version 11, and 17 (3.7-IV2) is the least"),
        (no_alter, "lacks ALTER on Cluster at the source"),
        (no_right, "lacks the right ALTER on Cluster"),
        (elsewhere, "is of cluster other, the source is source-id"),
    ],
)
async def test_refused_before_anything_is_registered(
    place: Place, wrong: Callable[[FakeController], None], message: str
) -> None:
    wrong(place.node)
    async with TaskGroup() as group:
        await place.wish(True)
        found = place.sidecar(group)
        await eventually(lambda: message in reason(found))
        link = place.controller.image.links["east"]
        source = Cluster("source east", [("127.0.0.1", place.node.port)], ClientSecurity.plaintext(), "test")
        await source.connect()
        place.node.hooks.pop("metadata", None)
        assert any(message in one.detail for one in await found.findings(link, source, ()))
        await source.close()
        assert place.node.seen["broker_registration"] == 0
        await place.end(found)


async def test_two_links_are_not_one_broker(place: Place) -> None:
    async with TaskGroup() as group:
        found = place.sidecar(group)
        found._config.sources["west"] = found._config.sources["east"]
        await place.wish(True)
        await eventually(lambda: "east" in found)
        await place.controller.create_link(
            "west", "source-id", {"bootstrap.servers": "127.0.0.1:1"}, {"join_source": True}
        )
        assert "west" not in found.sources
        link = place.controller.image.links["west"]
        assert "link east has joined the same cluster with broker id 800" in str(found._other(link))
        await place.end(found)
