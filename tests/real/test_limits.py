"""Limits of real brokers that bind a link, as doctor tells them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from linker.demo.kafka_cluster import KafkaCluster
from linker.demo.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK
from wire.cluster import Cluster
from wire.security import ClientSecurity
from wire.types import parse_bootstrap


@pytest.mark.timeout(240)
async def test_doctor_tells_of_connections_and_quotas(
    target_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
) -> None:
    source = await start_cluster(name="limited", properties={"max.connections.per.ip": "500"})
    cluster = Cluster("source", parse_bootstrap(source.bootstrap), ClientSecurity.plaintext(), "test")
    await cluster.connect(timeout=30)
    try:
        entry = {
            "entity": [{"entity_type": "client-id", "entity_name": None}],
            "ops": [{"key": "consumer_byte_rate", "value": 1_000_000.0, "remove": False}],
        }
        answer = await cluster.call(
            "alter_client_quotas", {"entries": [entry], "validate_only": False}, timeout=30
        )
        assert [int(one.error_code) for one in answer.entries] == [0]
    finally:
        await cluster.close()
    sidecar = await start_sidecar(target_cluster.bootstrap)
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
    with sidecar.client() as client:
        report = client.doctor(LINK)
    told = {check.name: check for check in report.checks if check.name in ("connections", "quotas")}
    assert "broker 1 has max.connections.per.ip=500" in told["connections"].detail
    assert "the source limits connections" in told["connections"].detail
    assert "client-id (default): consumer_byte_rate=1000000 bytes/s" in told["quotas"].detail
