"""A link broker in a fake target, and a source cluster on fake brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from linker.membership import AdvertisedListener, Identity, TargetCluster
from tests.fakes import FakeCluster
from tests.fakes.controller import FakeController
from tests.fakes.quorum import FakeQuorum
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity

OWN = 900


def client(fake: FakeCluster, name: str) -> Cluster:
    return Cluster(name, parse_bootstrap_servers(fake.bootstrap_servers), ClientSecurity.plaintext(), "test")


async def replayed(quorum: FakeQuorum, target: TargetCluster) -> None:
    """Until the target's image holds all that is in the log by now."""
    wanted = quorum.next_offset - 1
    async with asyncio.timeout(30):
        while target.metadata.offset < wanted:
            await asyncio.sleep(0.001)


@pytest_asyncio.fixture
async def source() -> AsyncIterator[FakeCluster]:
    """Two brokers and the topic orders with two empty partitions."""
    async with FakeCluster(nodes=2) as fake:
        fake.add_topic("orders", partitions=2)
        yield fake


@pytest_asyncio.fixture
async def quorum() -> AsyncIterator[FakeQuorum]:
    """One controller, three brokers."""
    fake = FakeQuorum()
    for broker in (1, 2, 3):
        fake.add_broker(broker)
    async with FakeController(fake, 0):
        yield fake


@pytest_asyncio.fixture
async def target(quorum: FakeQuorum) -> AsyncIterator[TargetCluster]:
    """Link broker 900, registered and unfenced."""

    async def save(identity: Identity) -> None:
        pass

    security = ClientSecurity.plaintext()
    member = TargetCluster(
        Cluster("target", [quorum.nodes[0].address], security, "test", connect_timeout=2),
        controller_security=security,
        identity=Identity.create(OWN),
        save=save,
        listeners=[AdvertisedListener("PLAINTEXT", "sidecar.example", 19092, 0)],
        heartbeat_interval=0.1,
    )
    task = asyncio.ensure_future(member.run())
    try:
        await member.join(5)
        await member.serve(5)
        yield member
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await member.close()
        await member.cluster.close()
