"""An address that another cluster has taken over is used for nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import FakeCluster
from wire.client.cluster import Cluster
from wire.client.cluster_identity import survey
from wire.client.security import ClientSecurity
from wire.errors import ClusterUnreachable, ConnectionLost, WireError, WrongCluster
from wire.frames.types import Node

SECURITY = ClientSecurity.plaintext()


def a_cluster(*fakes: FakeCluster) -> Cluster:
    bootstrap = [address for fake in fakes for address in fake.bootstrap]
    return Cluster("source", bootstrap, SECURITY, "me", connect_timeout=2)


async def test_a_node_whose_address_is_another_clusters_is_not_connected_to() -> None:
    async with FakeCluster(2, cluster_id="ours") as ours, FakeCluster(1, cluster_id="theirs") as theirs:
        theirs.add_topic("t")
        cluster = a_cluster(ours)
        await cluster.connect(timeout=5)
        cluster.metadata.nodes[2] = Node(2, *theirs.bootstrap[0])
        address = cluster.nodes[2].address
        for attempt in (cluster.connection(2), cluster.open_connection(2)):
            with pytest.raises(WrongCluster, match=f"{address} answers for cluster theirs, expected ours"):
                await attempt
        with pytest.raises(ConnectionLost):
            await cluster.call("produce", {}, node_id=2, timeout=1)
        assert list(cluster.foreign) == [address]
        assert set(theirs.counts) <= {"api_versions", "metadata"}
        assert all(not one.entity.topics for one in theirs.requests if one.api == "metadata")
        await cluster.close()


async def test_metadata_come_from_whoever_is_of_the_cluster() -> None:
    """In whatever order the addresses are tried."""
    async with FakeCluster(1, cluster_id="ours") as ours, FakeCluster(4, cluster_id="theirs") as theirs:
        topic = ours.add_topic("t")
        theirs.add_topic("t")
        for _ in range(5):
            cluster = a_cluster(theirs, ours)
            cluster.expect("ours")
            await cluster.connect(timeout=5)
            await cluster.refresh(["t"], timeout=5)
            assert cluster.cluster_id == "ours"
            assert cluster.topics["t"].topic_id == topic.topic_id
            await cluster.close()
        cluster = a_cluster(theirs)
        cluster.expect("ours")
        with pytest.raises(ClusterUnreachable, match="answers for cluster theirs, expected ours"):
            await cluster.connect(timeout=5)
        await cluster.close()


async def test_an_open_connection_that_answers_for_another_cluster_is_dropped_with_its_answer() -> None:
    """A proxy may be led elsewhere with its clients' connections open."""
    async with FakeCluster(1, cluster_id="ours") as fake:
        topic = fake.add_topic("t")
        cluster = a_cluster(fake)
        await cluster.connect(timeout=5)
        await cluster.refresh(["t"], timeout=5)
        connection = await cluster.connection(None, purpose="metadata")
        fake.cluster_id = "theirs"
        fake.recreate_topic("t")
        with pytest.raises(ClusterUnreachable, match="expected ours"):
            await cluster.refresh(["t"], timeout=5)
        assert connection.closed
        assert cluster.cluster_id == "ours"
        assert cluster.topics["t"].topic_id == topic.topic_id
        fake.cluster_id = "ours"
        await cluster.refresh(["t"], timeout=5)
        assert cluster.foreign == {}
        await cluster.close()


async def test_another_clusters_login_does_not_hide_the_addresses_that_are_left() -> None:
    async with (
        FakeCluster(1, cluster_id="ours") as ours,
        FakeCluster(3, cluster_id="theirs", sasl_users={"a": "b"}) as theirs,
    ):
        for _ in range(5):
            cluster = a_cluster(theirs, ours)
            cluster.expect("ours")
            await cluster.connect(timeout=10)
            assert cluster.cluster_id == "ours"
            await cluster.close()


async def test_a_survey_of_addresses() -> None:
    async with FakeCluster(1, cluster_id="ours") as ours, FakeCluster(1, cluster_id="theirs") as theirs:
        closed = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = closed.sockets[0].getsockname()[1]
        closed.close()
        await closed.wait_closed()
        found = await survey(
            [*ours.bootstrap, *theirs.bootstrap, ("127.0.0.1", port)], SECURITY, "me", timeout=2
        )
        assert list(found.values())[:2] == ["ours", "theirs"]
        assert isinstance(found[f"127.0.0.1:{port}"], WireError)
