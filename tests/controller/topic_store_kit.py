"""A topic store on a fake cluster: fixtures of its tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fleet.stores.base import Candidate, Store
from fleet.stores.topic.store import TopicStore
from tests.fakes.cluster import FakeCluster
from tests.fakes.transactions import FakeCoordinator
from wire.client.security import ClientSecurity

TOPIC = "state"
OpenStore = Callable[..., Awaitable[TopicStore]]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as cluster:
        cluster.add_topic(TOPIC, configs={"cleanup.policy": "compact"})
        FakeCoordinator(cluster)
        yield cluster
        assert not [error for broker in cluster.brokers.values() for error in broker.errors]


@pytest.fixture
async def open_store(cluster: FakeCluster) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> TopicStore:
            options = {
                "topic": TOPIC,
                "seat_timeout": 0.5,
                "commit_timeout": 20.0,
                "timeout": 30.0,
                **options,
            }
            store = await TopicStore.open(cluster.bootstrap, ClientSecurity.plaintext(), **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()


def me(number: int = 900, **fields: str) -> Candidate:
    return Candidate(broker_id=number, session=f"s{number}", control=f"h{number}:1", **fields)


async def eventually(condition: Callable[[], Any], timeout: float = 30) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return found
