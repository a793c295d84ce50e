"""Metadata are asked of one node after the other: one that is cut off from its controller goes on answering."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import tests.fakes.metadata as told
from tests.fakes import FakeCluster
from tests.fetcher.rig import Rig, eventually, fill
from wire.client import cluster_connections
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.frames.types import Node


def connections(cluster: Cluster) -> list[str]:
    kept = cluster._connections._kept._connections
    return [one.peer for (_, purpose), one in kept.items() if purpose == "metadata" and not one.closed]


async def asked(fake: FakeCluster, cluster: Cluster, times: int) -> set[int]:
    fake.requests.clear()
    for _ in range(times):
        await cluster.refresh(["t"], timeout=10)
    return {request.node for request in fake.received("metadata")}


async def test_no_node_is_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster(3) as fake:
        fake.add_topic("t", 1)
        cluster = Cluster("source", fake.bootstrap, ClientSecurity.plaintext(), "me")
        try:
            assert len(await asked(fake, cluster, 10)) == 1
            monkeypatch.setattr(cluster_connections, "_SAME_NODE", 0.1)
            assert await asked(fake, cluster, 40) == {1, 2, 3}
            cluster.not_asked = lambda: [2]  # this very process, say
            await asked(fake, cluster, 10)  # one that is asked still goes on until another one is there
            assert await asked(fake, cluster, 40) == {1, 3}
            await eventually(lambda: len(connections(cluster)) == 1)
        finally:
            await cluster.close()


async def test_a_node_that_cannot_be_reached_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one goes on telling."""
    monkeypatch.setattr(cluster_connections, "_SAME_NODE", 0.1)
    async with FakeCluster(1) as fake:
        fake.add_topic("t", 1)
        cluster = Cluster("source", fake.bootstrap, ClientSecurity.plaintext(), "me", connect_timeout=60)
        silent = socket.create_server(("127.0.0.1", 0))  # takes connections, and says nothing
        host, port = silent.getsockname()
        try:
            await cluster.connect(timeout=5)
            cluster._connections._moves["metadata"] = 0.0, None
            there = Node(9, host, port, None)
            moved: list[Any] = []

            def move_on(nodes: Any, purpose: str) -> None:
                moved.append(purpose)
                type(cluster._connections).move_on(cluster._connections, [*nodes, there], purpose)

            monkeypatch.setattr(cluster._connections, "move_on", move_on)
            async with asyncio.timeout(25):
                assert await asked(fake, cluster, 20) == {1}
            assert len(moved) == 20
        finally:
            await cluster.close()
            silent.close()


async def test_a_broker_that_tells_of_before_keeps_no_partition_from_its_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_connections, "_SAME_NODE", 1.0)
    async with FakeCluster(3) as source:
        source.add_topic("t", 1)
        source.move_leader("t", 0, 2)
        fill(source, 5)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            [mirror] = rig.mirror("t")
            rig.follow(1)
            await eventually(lambda: mirror.high_watermark > 0)
            before = mirror.high_watermark
            old = 2, source.partition("t").leader_epoch
            stale = 1

            async def handle(broker: Any, request: Any) -> Any:
                source.partition("t").published = old if broker.id == stale else None
                try:
                    return await told.handle(broker, request)
                finally:
                    source.partition("t").published = None

            source.handlers["metadata"] = handle
            # The connection leads to the one that is cut off, as it may.
            node = rig.cluster.nodes[stale]
            await rig.cluster._connections.to(node.id, node.host, node.port, "metadata")
            rig.cluster._connections._kept.retire_others(node.id, "metadata")
            source.move_leader("t", 0, 3)
            fill(source, 5)
            await eventually(lambda: mirror.high_watermark > before)
