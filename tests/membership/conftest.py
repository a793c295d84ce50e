"""A fake quorum and link brokers that join it, with everything closed at the end of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from linker.membership import AdvertisedListener, Identity, TargetCluster
from tests.fakes.controller import FakeController, FakeQuorum
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity

LISTENERS = [AdvertisedListener("PLAINTEXT", "sidecar.example", 19092, 0)]


class Member:
    """A TargetCluster with its running task and the identities it saved."""

    def __init__(self, target: TargetCluster, saved: list[Identity]) -> None:
        self.target = target
        self.saved = saved
        self.task = asyncio.ensure_future(target.run())

    async def up(self, timeout: float = 25.0) -> TargetCluster:
        await self.target.join(timeout)
        await self.target.serve(timeout)
        return self.target

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.target.close()
        await self.target.cluster.close()


@pytest_asyncio.fixture
async def quorum() -> AsyncIterator[FakeQuorum]:
    """One active controller and two brokers in racks a and b (b has one more, fenced)."""
    fake = FakeQuorum()
    fake.add_broker(1, rack="a")
    fake.add_broker(2, rack="b")
    fake.add_broker(3, rack="b", fenced=True)
    async with FakeController(fake, 0):
        yield fake


@pytest_asyncio.fixture
async def make_member(quorum: FakeQuorum) -> AsyncIterator[Callable[..., Member]]:
    members: list[Member] = []

    def make(
        identity: Identity | None = None, *, brokers: list[tuple[str, int]] | None = None, **options: Any
    ) -> Member:
        security = ClientSecurity.plaintext()
        cluster = Cluster(
            "target", brokers or [quorum.nodes[0].address], security, "linker-test", connect_timeout=10
        )
        saved: list[Identity] = []

        async def save(value: Identity) -> None:
            saved.append(value)

        target = TargetCluster(
            cluster,
            controller_security=security,
            identity=identity or Identity.create(900),
            save=save,
            listeners=LISTENERS,
            heartbeat_interval=0.1,
            **options,
        )
        members.append(Member(target, saved))
        return members[-1]

    yield make
    for member in members:
        await member.stop()


@pytest_asyncio.fixture
async def member(make_member: Callable[..., Member]) -> TargetCluster:
    """A link broker that is registered and unfenced."""
    return await make_member().up()


@pytest_asyncio.fixture
async def add_node(quorum: FakeQuorum) -> AsyncIterator[Callable[[int], Awaitable[FakeController]]]:
    async with AsyncExitStack() as stack:

        async def add(node_id: int) -> FakeController:
            return await stack.enter_async_context(FakeController(quorum, node_id))

        yield add


async def eventually(condition: Callable[[], bool], timeout: float = 25) -> None:
    """Wait for something that has no event of its own; less than half a minute, after which the product looks again."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)
