"""The topic store on real brokers: the contract of all stores, fencing, unknown outcomes, take-over, compaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import tests.controller.test_store_contract as contract
from controller.store import ControllerFenced, Put, Store, StoreError
from controller.store.topic import TopicStore
from linker.demo.kafka_cluster import KafkaCluster, KafkaClusterSpec
from tests.real.conftest import QUICK_FENCING
from wire.security import ClientSecurity
from wire.types import parse_bootstrap

# Every case of the contract, with the `store` below.
globals().update({name: case for name, case in vars(contract).items() if name.startswith("test_")})

OpenStore = Callable[..., Awaitable[TopicStore]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KafkaCluster]:
    spec = KafkaClusterSpec(
        name="state",
        brokers=3,
        controllers=1,
        properties={**QUICK_FENCING, "log.cleaner.backoff.ms": "300"},
    )
    async with KafkaCluster(spec, tmp_path_factory.mktemp("state")) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def open_store(cluster: KafkaCluster, unique_topic: Callable[[str], str]) -> AsyncIterator[OpenStore]:
    """`await open_store()`: another process' view of the test's own topic."""
    topic = unique_topic("state").translate({ord("["): "-", ord("]"): "-"})
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> TopicStore:
            bootstrap = parse_bootstrap(options.pop("bootstrap", cluster.bootstrap))
            store = await TopicStore.open(
                bootstrap, ClientSecurity.plaintext(), **{"topic": topic, "seat_timeout": 2.0, **options}
            )
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: OpenStore) -> Store:
    return await open_store()


async def test_a_zombie_is_fenced(open_store: OpenStore) -> None:
    old, new = await open_store(), await open_store()
    first = await old.claim()
    await old.commit([Put("/a", 1, None)], controller_epoch=first)
    second = await new.claim()
    assert second > first
    assert (await new.get("/a")).value == 1
    with pytest.raises(ControllerFenced) as caught:
        await old.commit([Put("/b", "zombie", None)], controller_epoch=first)
    assert (caught.value.epoch, caught.value.current) == (first, second)
    with pytest.raises(ControllerFenced):
        await old.commit([], controller_epoch=first)
    await new.commit([Put("/c", 1, None)], controller_epoch=second)
    third = await open_store()
    assert set(await third.tree("/")) == {"/a", "/c", "/controller_epoch"}
    assert set(await new.tree("/")) == {"/a", "/c", "/controller_epoch"}
