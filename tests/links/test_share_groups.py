"""Share groups that subscribe to a mirror are named: they get nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linker.checks.share_groups import check_share_groups
from tests.fakes.cluster import FakeCluster
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity


async def listed(broker: Any, request: Any) -> Mapping[str, object]:
    assert request.entity.types_filter == ("share",)
    groups = [("workers", "share")] if broker.id == 1 else []
    return {
        "groups": [{"group_id": name, "protocol_type": kind, "group_type": kind} for name, kind in groups]
    }


async def described(broker: Any, request: Any) -> Mapping[str, object]:
    assert broker.id == 1
    member = {"member_id": "m", "subscribed_topic_names": ["orders", "plain"]}
    return {"groups": [{"group_id": name, "members": [member]} for name in request.entity.group_ids]}


async def test_they_are_named_and_nothing_else_is_said() -> None:
    async with FakeCluster([1, 2]) as target:
        cluster = Cluster("target", target.bootstrap, ClientSecurity.plaintext(), "linker")
        await cluster.connect(timeout=5)
        try:
            # A broker that is too old for them is no trouble.
            assert await check_share_groups(cluster, [1, 2], {"orders"}) == []
            target.handlers |= {"list_groups": listed, "share_group_describe": described}
            for broker in target.brokers.values():
                await broker.disconnect_all()
            [check] = await check_share_groups(cluster, [1, 2], {"orders", "payments"})
            assert check.detail.startswith(
                "share groups of the target subscribe to mirrors: workers (orders);"
            )
            assert await check_share_groups(cluster, [1, 2], {"payments"}) == []
            assert await check_share_groups(cluster, [1, 2], ()) == []
        finally:
            await cluster.close()
