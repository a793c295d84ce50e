"""What doctor says of limits that bind a link: connections of one address, and quotas of its principal."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import CheckResult
from linker.checks.limits import Quota, check_limits, connection_checks, quota_checks


def test_connections_of_one_address() -> None:
    unlimited = {"max.connections.per.ip": "2147483647", "max.connections": "2147483647"}
    assert connection_checks("target", {1: unlimited, 2: {}, 3: {"max.connections.per.ip": "5000"}}) == []
    few = {
        **unlimited,
        "max.connections.per.ip": "100",
        "max.connections.per.ip.overrides": "10.0.0.9:500",
    }
    [check] = connection_checks("source", {1: few, 2: unlimited})
    assert check.result is CheckResult.WARN
    assert (
        "broker 1 has max.connections.per.ip=100, max.connections.per.ip.overrides=10.0.0.9:500"
        in check.detail
    )
    assert "broker 2" not in check.detail
    [over] = connection_checks("source", {1: few}, {"one:9092": "hung up"})
    assert over.result is CheckResult.FAIL
    assert "probably over that limit: one:9092" in over.detail
    [unknown] = connection_checks("source", {1: unlimited}, {"one:9092": "hung up"})
    assert unknown.result is CheckResult.WARN
    assert unknown.detail.startswith("in the last ten minutes brokers of the source closed new connections")
    [many] = connection_checks("source", dict.fromkeys(range(9), few))
    assert "and 4 more" in many.detail


@pytest.mark.parametrize(
    ("entity", "concerned"),
    [
        ({"user": None}, True),
        ({"user": "link"}, True),
        ({"user": "other"}, False),
        ({"client-id": None}, True),
        ({"client-id": "kafka-linker-east"}, True),
        ({"client-id": "app"}, False),
        ({"user": "link", "client-id": "app"}, False),
        ({"user": "link", "client-id": None}, True),
        ({"ip": None}, True),
        ({"ip": "10.0.0.9"}, True),
    ],
)
def test_whose_quotas_bind_a_link(entity: Mapping[str, str | None], concerned: bool) -> None:
    quota = Quota(entity, {"consumer_byte_rate": 1e6, "connection_creation_rate": 5.0})
    checks = quota_checks("source", [quota], "link", "kafka-linker-east")
    assert bool(checks) is concerned
    if checks:
        assert checks[0].result is CheckResult.WARN
        assert "consumer_byte_rate=1000000 bytes/s for each broker" in checks[0].detail


def test_what_is_no_limit_of_a_link_is_not_told() -> None:
    assert (
        quota_checks("source", [Quota({"user": None}, {"controller_mutation_rate": 5.0})], "link", "c") == []
    )
    assert quota_checks("source", [Quota({"user": "ANONYMOUS"}, {"request_percentage": 5.0})], None, "c")


async def test_each_broker_is_asked_once() -> None:
    asked: list[tuple[int, tuple[str, ...]]] = []

    async def call(api: str, fields: Any, *, node_id: int, timeout: float) -> Any:
        (resource,) = fields["resources"]
        asked.append((node_id, tuple(resource["configuration_keys"])))
        entry = SimpleNamespace(name="max.connections", value="7", config_source=4)
        unset = SimpleNamespace(name="max.connections.per.ip.overrides", value=None, config_source=5)
        result = SimpleNamespace(error_code=0, resource_name=str(node_id), configs=[entry, unset])
        return SimpleNamespace(results=[result])

    cluster: Any = SimpleNamespace(name="target", call=call, hung_up={})
    [check] = await check_limits("target", cluster, [1, 2], None, None)
    assert "broker 1 has max.connections=7; broker 2 has max.connections=7" in check.detail
    keys = ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")
    assert sorted(asked) == [(1, keys), (2, keys)]
