"""The ACL that makes a source refuse writes, on brokers whose authorizers hear of it each at its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from linker.promote.source_fence import AclSourceFence, TopicAcl, check_source_fence, fence_of
from tests.fakes import FakeCluster
from tests.links.conftest import client
from wire.errors import BrokerError, LinkerError

TOPIC, LITERAL, PREFIXED, ALLOW, DENY, READ, WRITE, ANY = 2, 3, 4, 3, 2, 3, 4, 1
APP = TopicAcl(PREFIXED, "ord", "User:app", "*", READ, ALLOW)


@dataclass
class Authorizer:
    """Of a fake cluster: what is written, and which brokers have not heard of it."""

    cluster: FakeCluster
    acls: set[TopicAcl] = field(default_factory=set)
    seen: dict[int, set[TopicAcl]] = field(default_factory=dict)
    error: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for api in ("describe_acls", "create_acls", "delete_acls"):
            self.cluster.handlers[api] = getattr(self, api)

    def late(self, node: int, seconds: float) -> None:
        """This broker goes on with what it knows now for so long."""
        self.seen[node] = set(self.acls)
        asyncio.get_running_loop().call_later(seconds, self.seen.pop, node, None)

    async def describe_acls(self, broker: Any, request: Any) -> Mapping[str, object]:
        self.asked.append(f"describe {broker.node.id}" if hasattr(broker, "node") else "describe")
        wanted = request.entity
        node = broker.id if hasattr(broker, "id") else broker.node.id
        found = [
            acl
            for acl in sorted(self.seen.get(node, self.acls))
            if wanted.pattern_type_filter in (ANY, acl.pattern)
            and wanted.principal_filter in (None, acl.principal)
            and wanted.operation in (ANY, acl.operation)
            and wanted.permission_type in (ANY, acl.permission)
        ]
        return {
            "error_code": self.error,
            "error_message": None,
            "resources": [
                {
                    "resource_type": TOPIC,
                    "resource_name": acl.name,
                    "pattern_type": acl.pattern,
                    "acls": [
                        {
                            "principal": acl.principal,
                            "host": acl.host,
                            "operation": acl.operation,
                            "permission_type": acl.permission,
                        }
                    ],
                }
                for acl in ([] if self.error else found)
            ],
        }

    async def create_acls(self, broker: Any, request: Any) -> Mapping[str, object]:
        for one in request.entity.creations:
            if not self.error:
                self.acls.add(
                    TopicAcl(
                        one.resource_pattern_type,
                        one.resource_name,
                        one.principal,
                        one.host,
                        one.operation,
                        one.permission_type,
                    )
                )
        results = [{"error_code": self.error, "error_message": None} for _ in request.entity.creations]
        return {"results": results}

    async def delete_acls(self, broker: Any, request: Any) -> Mapping[str, object]:
        results = []
        for one in request.entity.filters:
            assert (one.pattern_type_filter, one.resource_type_filter) == (LITERAL, TOPIC)
            mine = TopicAcl(
                one.pattern_type_filter,
                one.resource_name_filter,
                one.principal_filter,
                one.host_filter,
                one.operation,
                one.permission_type,
            )
            if not self.error:
                self.acls.discard(mine)
            results.append({"error_code": self.error, "error_message": None, "matching_acls": []})
        return {"filter_results": results}


async def test_closed_when_every_leader_refuses_and_opened_when_none_does(source: FakeCluster) -> None:
    authorizer = Authorizer(source, {APP})
    cluster = client(source, "source")
    loop = asyncio.get_running_loop()
    try:
        await cluster.connect()
        fence = AclSourceFence(cluster)
        assert set(await fence.closed(["orders"], timeout=5)) == set()
        authorizer.late(2, 0.3)
        began = loop.time()
        await fence.close(["orders"], timeout=5)
        assert loop.time() - began >= 0.29, "a leader that has not heard of it still appends"
        assert authorizer.acls == {APP, fence_of("orders")}
        assert set(await fence.closed(["orders", "payments"], timeout=5)) == {"orders"}
        authorizer.late(2, 0.5)
        authorizer.acls.discard(fence_of("orders"))
        assert set(await fence.closed(["orders"], timeout=5)) == set(), "one has not heard that it is over"
        assert authorizer.seen
        await asyncio.sleep(0.5)
        authorizer.acls.add(fence_of("orders"))
        authorizer.late(1, 0.3)
        began = loop.time()
        await fence.open(["orders"], timeout=5)
        assert loop.time() - began >= 0.29, (
            "a leader that has not heard of it still refuses what is forwarded"
        )
        assert authorizer.acls == {APP}
        await fence.open(["orders"], timeout=5)  # a crash later: nothing to do
        assert authorizer.acls == {APP}
        authorizer.late(2, 5)
        with pytest.raises(LinkerError, match=r"not every leader of the source refuses writes within 0.2 s"):
            await fence.close(["orders"], timeout=0.2)
    finally:
        await cluster.close()


async def test_a_refusal_names_itself(source: FakeCluster) -> None:
    authorizer = Authorizer(source, {APP}, error=31)
    cluster = client(source, "source")
    try:
        await cluster.connect()
        for work in (AclSourceFence(cluster).close, AclSourceFence(cluster).open):
            with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED") as raised:
                await work(["orders"], timeout=2)
            assert raised.value.code == 31
        assert authorizer.acls == {APP}
    finally:
        await cluster.close()


async def test_what_is_in_the_way_is_said_before(source: FakeCluster) -> None:
    authorizer = Authorizer(source, {APP})
    cluster = client(source, "source")
    try:
        await cluster.connect()
        assert await check_source_fence(cluster, {"orders": 2}, 256) == []
        [bare] = await check_source_fence(cluster, {"payments": 2}, 256)
        assert "topic payments has no ACL" in bare.detail
        authorizer.acls.add(fence_of("payments"))
        assert await check_source_fence(cluster, {"payments": 2}, 256), (
            "its own fence is no ACL of its clients"
        )
        authorizer.acls.add(TopicAcl(LITERAL, "*", "User:app", "*", READ, ALLOW))
        assert await check_source_fence(cluster, {"payments": 2}, 256) == []
        [parts] = await check_source_fence(cluster, {"orders": 257}, 256)
        assert "promoted in parts of 256" in parts.detail
        authorizer.error = 54
        [missing] = await check_source_fence(cluster, {"orders": 2}, 256)
        assert "no authorizer" in missing.detail
        authorizer.error = 31
        [right] = await check_source_fence(cluster, {"orders": 2}, 256)
        assert "lacks DESCRIBE on Cluster" in right.detail
    finally:
        await cluster.close()


@pytest.mark.parametrize(
    ("pattern", "name", "binds"),
    [
        (LITERAL, "orders", True),
        (LITERAL, "*", True),
        (LITERAL, "order", False),
        (PREFIXED, "ord", True),
        (PREFIXED, "pay", False),
    ],
)
def test_which_topics_an_acl_is_of(pattern: int, name: str, binds: bool) -> None:
    assert TopicAcl(pattern, name, "User:app", "*", READ, ALLOW).binds("orders") is binds
