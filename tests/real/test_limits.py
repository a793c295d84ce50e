"""Limits of real brokers that bind a link, as doctor tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from admin.models import CheckResult
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK
from tests.real.test_source_addresses import link_reason
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity


@pytest.mark.timeout(240)
async def test_doctor_tells_of_connections_and_quotas(
    target_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
) -> None:
    source = await start_cluster(name="limited", properties={"max.connections.per.ip": "500"})
    cluster = Cluster("source", parse_bootstrap_servers(source.bootstrap), ClientSecurity.plaintext(), "test")
    await cluster.connect(timeout=30)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        entry = {
            "entity": [{"entity_type": "client-id", "entity_name": None}],
            "ops": [{"key": "consumer_byte_rate", "value": 1_000_000.0, "remove": False}],
        }
        answer = await cluster.call(
            "alter_client_quotas", {"entries": [entry], "validate_only": False}, timeout=30
        )
        assert [int(one.error_code) for one in answer.entries] == [0]
        sidecar = await start_sidecar(target_cluster.bootstrap)
        await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
        with sidecar.client() as client:
            report = client.doctor(LINK)
        told = {check.name: check for check in report.checks if check.name in ("connections", "quotas")}
        assert "broker 1 has max.connections.per.ip=500" in told["connections"].detail
        assert "the source limits connections" in told["connections"].detail
        assert "client-id (default): consumer_byte_rate=1000000 bytes/s" in told["quotas"].detail
        # Its own connection stays, and is one more than allowed.
        await limit_connections(cluster, 1)
        await sidecar.stop()
        await sidecar.start()
        reason = await link_reason(sidecar, "max.connections.per.ip")
        assert f"{source.bootstrap}: cannot connect" in reason
        assert "max.connections.per.ip" in sidecar.log.read_text()
        await limit_connections(cluster, 50)
        with sidecar.client() as client:
            async with asyncio.timeout(30):
                while (reason := client.describe_link(LINK).reason) is not None:
                    await asyncio.sleep(0.2)
            report = client.doctor(LINK)
        [told_of] = [check for check in report.checks if check.name == "connections"]
        assert told_of.result is CheckResult.FAIL
        assert "broker 1 has max.connections.per.ip=50" in told_of.detail
        assert f"probably over that limit: {source.bootstrap}" in told_of.detail


async def limit_connections(cluster: Cluster, most: int) -> None:
    """Of one address, at the only broker, from now on."""
    change = {"name": "max.connections.per.ip", "config_operation": 0, "value": str(most)}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [change]}
    answer = await cluster.call(
        "incremental_alter_configs", {"resources": [resource], "validate_only": False}, timeout=30
    )
    assert [int(one.error_code) for one in answer.responses] == [0], answer
