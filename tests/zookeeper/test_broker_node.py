"""The sidecar's znode among a ZooKeeper cluster's brokers: when it is made, when not, and whose may be taken away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from linker.membership import AdvertisedListener, Identity
from linker.membership.errors import BrokerIdTaken, RegistrationRefused, StillHosting
from linker.zookeeper import znodes
from linker.zookeeper.broker_node import BrokerNode
from linker.zookeeper.image import ZooKeeperImage
from tests.zookeeper.fake_client import FakeZooKeeper
from wire.errors import LinkerError

PATH = "/brokers/ids/800"
LISTENERS = [AdvertisedListener("PLAINTEXT", "127.0.0.1", 19092, 0)]
MakeNode = Callable[[], BrokerNode]


@pytest.fixture
def zookeeper() -> FakeZooKeeper:
    made = FakeZooKeeper()
    for broker in (1, 2):
        made.broker(broker)
    return made


@pytest_asyncio.fixture
async def make(zookeeper: FakeZooKeeper) -> AsyncIterator[MakeNode]:
    async with AsyncExitStack() as stack:
        identity = Identity.create(800)

        async def save(_: Identity) -> None:
            return

        def node(rack: str | None = None) -> BrokerNode:
            client: Any = zookeeper
            image = ZooKeeperImage("source east", 800)
            made = BrokerNode("source east", image, identity, listeners=LISTENERS, save=save, rack=rack)
            image.use(client)
            made.use(client)
            for run in (image.run(), made.run()):
                task = asyncio.create_task(run)
                stack.callback(task.cancel)
                made.tasks = [*getattr(made, "tasks", []), task]  # type: ignore[attr-defined]
            return made

        yield node


async def failure(node: BrokerNode) -> BaseException | None:
    task: asyncio.Task[None] = node.tasks[1]  # type: ignore[attr-defined]
    await asyncio.wait([task], timeout=5)
    assert task.done()
    return task.exception()


async def test_it_is_made_when_the_listeners_serve_and_not_before(
    zookeeper: FakeZooKeeper, make: MakeNode
) -> None:
    node = make()
    await asyncio.sleep(0.05)
    assert PATH not in zookeeper.nodes
    node.ready()
    await node.wait_unfenced(5)
    stored = zookeeper.nodes[PATH]
    assert (stored.owner, node.broker_epoch, node.session_valid) == (1, stored.created, True)
    found = znodes.broker(800, stored.data, stored.created)
    assert found.endpoints["PLAINTEXT"].port == 19092 and found.log_dirs == (node.identity.log_dir_id,)


async def test_another_session_makes_it_anew(zookeeper: FakeZooKeeper, make: MakeNode) -> None:
    node = make()
    node.ready()
    await node.wait_unfenced(5)
    first = node.broker_epoch
    zookeeper.session = 2
    async with asyncio.timeout(30):
        while node.broker_epoch == first:
            await asyncio.sleep(0.05)
    assert zookeeper.nodes[PATH].owner == 2


async def test_a_connection_that_comes_back_in_time_changes_nothing(
    zookeeper: FakeZooKeeper, make: MakeNode
) -> None:
    node = make()
    node.ready()
    await node.wait_unfenced(5)
    stored = zookeeper.nodes[PATH]
    for broken in (LinkerError("away"), None):
        zookeeper.broken = broken
        async with asyncio.timeout(30):
            while node.fenced is not (broken is not None):
                await asyncio.sleep(0.05)
    assert zookeeper.nodes[PATH] == stored


async def test_a_stranger_with_our_id_is_left_alone(zookeeper: FakeZooKeeper, make: MakeNode) -> None:
    zookeeper.broker(800)
    before = zookeeper.nodes[PATH]
    node = make()
    node.ready()
    assert isinstance(await failure(node), BrokerIdTaken)
    assert zookeeper.nodes[PATH] == before
    with pytest.raises(BrokerIdTaken):
        node.check_free()


async def test_a_listener_that_others_have_and_we_have_not_is_refused(
    zookeeper: FakeZooKeeper, make: MakeNode
) -> None:
    """With such a znode the controller handles no broker's death any more."""
    zookeeper.remove("/brokers/ids/2")
    zookeeper.broker(2, None, "PLAINTEXT", "CONTROL")
    node = make()
    node.ready()
    error = await failure(node)
    assert isinstance(error, RegistrationRefused) and "lacks CONTROL" in str(error)
    assert PATH not in zookeeper.nodes


async def test_racks_are_as_the_others_have_them(zookeeper: FakeZooKeeper, make: MakeNode) -> None:
    zookeeper.remove("/brokers/ids/2")
    zookeeper.broker(2, "b")
    node = make()
    node.ready()
    assert "no topic could be created" in str(await failure(node))
    zookeeper.remove("/brokers/ids/1")
    zookeeper.broker(1, "b")
    node = make()
    node.ready()
    await node.wait_unfenced(5)
    assert node.rack == "b"


async def test_it_leaves_when_nothing_names_it(zookeeper: FakeZooKeeper, make: MakeNode) -> None:
    node = make()
    node.ready()
    await node.wait_unfenced(5)
    zookeeper.topic("placed", [(1, 800)])
    node._image.look_at(["placed"])
    with pytest.raises(StillHosting):
        await node.leave(5)
    assert PATH in zookeeper.nodes
    zookeeper.put("/brokers/topics/placed", {"partitions": {"0": [1]}})
    zookeeper.state("placed", 0, 1, 1, [1])
    await node.leave(5)
    assert PATH not in zookeeper.nodes
