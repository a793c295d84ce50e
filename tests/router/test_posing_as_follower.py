"""Somebody who is no broker asks as one: on listeners without a login, on listeners where no broker comes in."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.router.rig import Rig, eventually, session_of
from wire.client.connection import Connection
from wire.errors import ConnectionLost
from wire.frames.fetch import FetchPartition, FetchRequest, encode_fetch_request
from wire.schema import codec

MARKER = {
    "producer_id": 1,
    "producer_epoch": 0,
    "transaction_result": True,
    "topics": [{"name": "orders", "partition_indexes": [0]}],
    "coordinator_epoch": 0,
}
AS_A_BROKER: dict[str, tuple[int, dict[str, Any]]] = {
    "list_offsets": (7, {"replica_id": 1, "isolation_level": 0, "topics": []}),
    "offset_for_leader_epoch": (4, {"replica_id": 1, "topics": []}),
    "write_txn_markers": (1, {"markers": [MARKER]}),
}
CLUSTER_ACTION = 1 << 9


async def ask(client: Connection, rig: Rig, api: str) -> Any:
    number = client.next_correlation_id()
    if api == "fetch":
        part = FetchPartition(0, -1, 200, -1, 0, 1 << 20)
        request = FetchRequest(version=12, replica_id=1, topics=[("orders", [part])])
        frame = bytes(encode_fetch_request(12, number, "b", request))
    else:
        version, fields = AS_A_BROKER[api]
        body = codec.encode_request(api, version, fields, correlation_id=number, client_id="b")
        frame = len(body).to_bytes(4, "big") + body
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.channel.send(number, [frame], done.set_result)
    return await asyncio.wait_for(done, 25)


@pytest.mark.parametrize("api", ["fetch", *AS_A_BROKER])
async def test_without_the_right_nobody_is_a_follower(api: str, caplog: pytest.LogCaptureFixture) -> None:
    """The real broker takes the client for User:ANONYMOUS, who may read some topics, and no more."""
    async with Rig() as rig:
        rig.target.cluster_operations = 1 << 8  # Describe
        client = await rig.client()
        with caplog.at_level(logging.WARNING):
            assert isinstance(await ask(client, rig, api), ConnectionLost)
        assert rig.followers.asked == []
        assert "needs ClusterAction and Describe on Cluster" in caplog.text


@pytest.mark.parametrize("api", ["fetch", *AS_A_BROKER])
async def test_with_it_or_without_an_authorizer_everybody_is(api: str) -> None:
    async with Rig() as rig:
        client = await rig.client()
        assert isinstance(await ask(client, rig, api), memoryview)
        assert rig.target.counts["describe_cluster"] == 1
        rig.target.cluster_operations = CLUSTER_ACTION
        assert isinstance(await ask(await rig.client(), rig, api), memoryview)


@pytest.mark.parametrize("api", ["fetch", *AS_A_BROKER])
async def test_where_no_broker_comes_in_nobody_is(api: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Rig() as rig:
        rig.inter_broker = frozenset({"REPLICATION", "OLD"})
        client = await rig.client()
        with caplog.at_level(logging.WARNING):
            assert isinstance(await ask(client, rig, api), ConnectionLost)
        assert rig.followers.asked == []
        assert "brokers talk to each other on OLD, REPLICATION" in caplog.text
        rig.inter_broker = frozenset({"REPLICATION", "CLIENTS"})
        assert isinstance(await ask(await rig.client(), rig, api), memoryview)


async def test_a_right_that_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        client = await rig.client()
        assert isinstance(await ask(client, rig, "fetch"), memoryview)
        (connection,) = rig.listener.connections
        rig.target.cluster_operations = 0
        # As after half a minute.
        authorizer = session_of(connection).authorizer
        monkeypatch.setattr(authorizer, "_ttl", -1.0)
        await ask(client, rig, "fetch")
        await eventually(lambda: rig.target.counts["describe_cluster"] >= 2)
        with pytest.raises(AssertionError):
            for _ in range(50):
                answer = await ask(client, rig, "fetch")
                assert isinstance(answer, memoryview)
                await asyncio.sleep(0.01)
