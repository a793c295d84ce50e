"""Stores in ZooKeeper for the tests: one server per module, a path per test. Each module names the fixtures it takes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from controller.operations import Put
from fleet.stores.base import Candidate, ControllerFenced, StoreError, VersionConflict
from fleet.stores.zookeeper.store import ZooKeeperStore
from tests.real.harness_zookeeper_server import ZooKeeperServer

SESSION = 1.5  # seconds

Open = Callable[..., Awaitable[ZooKeeperStore]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ZooKeeperServer]:
    """Leave it running."""
    started = await ZooKeeperServer.prepared(tmp_path_factory.mktemp("zookeeper"))
    try:
        await started.start()
        yield started
    finally:
        await started.close()


@pytest.fixture(scope="module")
def _paths() -> Iterator[int]:
    return itertools.count()


@pytest_asyncio.fixture(loop_scope="session")
async def open_store(server: ZooKeeperServer, _paths: Iterator[int]) -> AsyncIterator[Open]:
    """`await open_store()`: one more store, all on one path that is the test's own."""
    path = f"/tests/{next(_paths)}"
    async with AsyncExitStack() as stack:

        async def open_one(more: str = "", **options: object) -> ZooKeeperStore:
            options = {"session_timeout": SESSION, **options}
            opened = await ZooKeeperStore.open(f"{server.address}{path}{more}", **options)  # type: ignore[arg-type]
            stack.push_async_callback(opened.close)
            return opened

        yield open_one


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: Open) -> ZooKeeperStore:
    return await open_store()


def candidate(broker_id: int, cluster_id: str = "target") -> Candidate:
    return Candidate(
        broker_id=broker_id,
        control=f"h:{broker_id}",
        admin=f"h:1{broker_id}",
        session=f"process-{broker_id}",
        cluster_id=cluster_id,
    )


async def expire(server: ZooKeeperServer, store: ZooKeeperStore) -> None:
    """End the store's session behind its back, as the server does when it is silent for too long."""
    outsider = await asyncio.to_thread(server.outsider, store._client._client.client_id)
    await asyncio.to_thread(outsider.stop)
    await asyncio.to_thread(outsider.close)


async def until(condition: Callable[[], Awaitable[bool]], timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not await condition():
            await asyncio.sleep(0.02)


async def eventually_commits(store: ZooKeeperStore, path: str, epoch: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                return await store.commit([Put(path, 1, None)], controller_epoch=epoch)
            except VersionConflict:
                return None
            except ControllerFenced:
                raise
            except StoreError:
                await asyncio.sleep(0.05)


async def is_alive(store: ZooKeeperStore, broker_id: int) -> bool:
    return str(broker_id) in await store.children("/sidecars/ids")


async def holds(condition: Callable[[], bool]) -> bool:
    return condition()
