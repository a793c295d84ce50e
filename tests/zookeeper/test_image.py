"""The image of a ZooKeeper cluster: what znodes say, read where a control request points."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from linker.zookeeper.image import ZooKeeperImage
from tests.zookeeper.fake_client import FakeZooKeeper
from wire.errors import LinkerError, RequestTimedOut
from wire.frames.control_requests import UPDATE_METADATA, ControlRequest
from wire.frames.types import TOPIC_RESOURCE

ID = bytes(range(16))


@pytest.fixture
def zookeeper() -> FakeZooKeeper:
    made = FakeZooKeeper()
    for broker in (1, 2):
        made.broker(broker, "a")
    made.topic("orders", [(1, 2), (2, 1)], topic_id=base64.urlsafe_b64encode(ID).decode().rstrip("="))
    made.topic("other", [(2, 1)])
    return made


@pytest_asyncio.fixture
async def image(zookeeper: FakeZooKeeper) -> AsyncIterator[ZooKeeperImage]:
    made = ZooKeeperImage("source east", 800)
    client: Any = zookeeper
    made.use(client)
    task = asyncio.create_task(made.run())
    await made.caught_up(5)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def told(*topics: str) -> ControlRequest:
    return ControlRequest(UPDATE_METADATA, 8, 1, 1, {topic: (bytes(16), [0]) for topic in topics})


async def until_told(image: ZooKeeperImage, *topics: str) -> None:
    image.told(told(*topics))
    await image.caught_up(5)


async def test_brokers_topics_and_epochs_are_as_in_their_znodes(
    zookeeper: FakeZooKeeper, image: ZooKeeperImage
) -> None:
    found = image.image
    assert found.brokers[1].epoch == zookeeper.nodes["/brokers/ids/1"].created
    assert (found.brokers[2].rack, found.brokers[2].endpoints["PLAINTEXT"].port) == ("a", 9002)
    assert found.topics_by_id[ID].name == "orders"
    assert found.topics_by_name["orders"].partitions[1].replicas == (2, 1)
    zookeeper.state("orders", 1, 1, 4, [1])
    await until_told(image, "orders")
    one = found.topics_by_name["orders"].partitions[1]
    assert (one.leader, one.leader_epoch, one.isr, one.partition_epoch) == (1, 4, (1,), 1)


async def test_only_what_a_request_names_is_read(zookeeper: FakeZooKeeper, image: ZooKeeperImage) -> None:
    zookeeper.reads.clear()
    await until_told(image, "other")
    assert not [path for path in zookeeper.reads if "orders" in path]
    assert "/brokers/topics/other/partitions/0/state" in zookeeper.reads


async def test_replicas_on_their_way_and_configs_are_there(
    zookeeper: FakeZooKeeper, image: ZooKeeperImage
) -> None:
    zookeeper.put(
        "/brokers/topics/other",
        {"partitions": {"0": [1, 2]}, "adding_replicas": {"0": [1]}, "removing_replicas": {"0": [2]}},
    )
    zookeeper.put("/config/topics/other", {"version": 1, "config": {"min.insync.replicas": "1"}})
    await until_told(image, "other")
    one = image.image.topics_by_name["other"].partitions[0]
    assert (one.replicas, one.adding, one.removing) == ((1, 2), (1,), (2,))
    assert image.image.configs[(TOPIC_RESOURCE, "other")] == {"min.insync.replicas": "1"}
    zookeeper.remove("/config/topics/other")
    await until_told(image, "other")
    assert (TOPIC_RESOURCE, "other") not in image.image.configs


async def test_a_topic_made_anew_is_another_one_also_without_ids(
    zookeeper: FakeZooKeeper, image: ZooKeeperImage
) -> None:
    before = image.image.topics_by_name["other"].id
    changed: list[frozenset[bytes]] = []
    image.subscribe(lambda _image, touched: changed.append(touched))
    zookeeper.remove("/brokers/topics/other")
    zookeeper.topic("other", [(1,)])
    await until_told(image, "other")
    after = image.image.topics_by_name["other"].id
    assert after != before and before not in image.image.topics_by_id
    assert {before, after} <= frozenset().union(*changed)
    zookeeper.remove("/brokers/topics/other")
    await until_told(image, "other")
    assert "other" not in image.image.topics_by_name


async def test_all_is_read_again_after_another_session(
    zookeeper: FakeZooKeeper, image: ZooKeeperImage
) -> None:
    zookeeper.state("orders", 0, 2, 7, [2])  # nobody told us
    zookeeper.session = 2
    await until_told(image)
    assert image.image.topics_by_name["orders"].partitions[0].leader_epoch == 7


async def test_trouble_is_waited_out(zookeeper: FakeZooKeeper, image: ZooKeeperImage) -> None:
    zookeeper.broken = LinkerError("away")
    image.told(told("orders"))
    with pytest.raises(RequestTimedOut):
        await image.caught_up(0.3)
    zookeeper.broken = None
    zookeeper.state("orders", 0, 2, 8, [2])
    found = await image.wait_for(
        lambda one: one.topics_by_name["orders"].partitions[0].leader_epoch == 8 or None, 5
    )
    assert found


async def test_a_garbled_znode_keeps_nobody_else_from_being_seen(
    zookeeper: FakeZooKeeper, image: ZooKeeperImage
) -> None:
    zookeeper.put("/brokers/topics/bad", b"{")
    zookeeper.state("orders", 0, 2, 9, [2])
    await until_told(image, "bad", "orders")
    assert "bad" not in image.image.topics_by_name
    assert image.image.topics_by_name["orders"].partitions[0].leader_epoch == 9


async def test_a_name_that_no_topic_has_is_not_looked_for(
    zookeeper: FakeZooKeeper, image: ZooKeeperImage
) -> None:
    """ZooKeeper refuses such a path, and nothing else would be read any more."""
    zookeeper.reads.clear()
    await until_told(image, "../../admin", "", "..", "a/b", "x" * 250, "orders")
    assert {path for path in zookeeper.reads if path.startswith("/brokers/topics/")} == {
        "/brokers/topics/orders",
        "/brokers/topics/orders/partitions/0/state",
        "/brokers/topics/orders/partitions/1/state",
    }
