"""Makes a source refuse writes to a topic, with a DENY WRITE ACL for everybody.

Why an ACL: a broker asks its authorizer before each append, whatever `acks` a producer has, and a DENY wins over every
ALLOW but a super user's (StandardAuthorizerData). It binds WRITE alone: reads, followers and transaction markers go on.
Other means were rejected. `min.insync.replicas` above the number of replicas binds `acks=all` only, newer brokers take
the smaller of the two (`Partition.effectiveMinIsr`), and below it the high watermark stands still, which a promote
waits for. `max.message.bytes` refuses transaction markers too. Quotas delay, and belong to users.

An ACL on a topic that had none takes access, reads included, from everybody who had it by
`allow.everyone.if.no.acl.found` (`hasResourceAcls`). Such topics are not fenced. Doctor and a dry run report them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from controller.access.acls import ANY, DENY, EVERYBODY, LITERAL, TOPIC, Acl, Resource
from linker.access.cluster_access import acl_fields
from linker.checks.preflight import TIMEOUT, PreflightFinding, allowed, cluster_operations, lacks
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError, error_name
from wire.frames.error_codes import CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED
from wire.frames.types import AclRight
from wire.together import together, together_by_key

_TOPIC = 2  # org.apache.kafka.common.resource.ResourceType
_ANY, _LITERAL, _PREFIXED = 1, 3, 4  # PatternType; 1 is also any operation and any permission
_DENY = 2  # AclPermissionType
_POLL = 0.02


class TopicAcl(NamedTuple):
    """Of a topic. `pattern` is a PatternType, `operation` an AclOperation, `permission` an AclPermissionType."""

    pattern: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int

    def binds(self, topic: str) -> bool:
        if self.pattern == _PREFIXED:
            return topic.startswith(self.name)
        return self.name in (topic, "*")


def fence_of(topic: str) -> TopicAcl:
    """The fence for a topic."""
    return TopicAcl(_LITERAL, topic, EVERYBODY, ANY, AclRight.WRITE, _DENY)


def _fence(topic: str) -> Acl:
    """The same in the words of Kafka's enums."""
    return Acl(Resource(TOPIC, LITERAL, topic), EVERYBODY, ANY, "WRITE", DENY)


async def topic_acls(
    cluster: Cluster, node: int | None, *, timeout: float, fences: bool = False
) -> list[TopicAcl]:
    """As one broker's authorizer has them; with `fences` only those that look like ours. BrokerError with the code if
    it does not tell: SECURITY_DISABLED without an authorizer, CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on
    Cluster."""
    answer = await cluster.call(
        "describe_acls",
        {
            "resource_type_filter": _TOPIC,
            "resource_name_filter": None,
            "pattern_type_filter": _LITERAL if fences else _ANY,
            "principal_filter": EVERYBODY if fences else None,
            "host_filter": ANY if fences else None,
            "operation": AclRight.WRITE if fences else _ANY,
            "permission_type": _DENY if fences else _ANY,
        },
        node_id=node,
        timeout=timeout,
    )
    _check(cluster, "describe_acls", int(answer.error_code), "does not tell its ACLs")
    return [
        TopicAcl(
            int(resource.pattern_type),
            str(resource.resource_name),
            str(acl.principal),
            str(acl.host),
            int(acl.operation),
            int(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    ]


def _check(cluster: Cluster, api: str, code: int, what: str) -> None:
    if code:
        raise BrokerError(code, message=f"{cluster.name} {what} ({error_name(code)})", api=api)


class AclSourceFence:
    """linker.promote.ports.SourceFence"""

    def __init__(self, source: Cluster) -> None:
        self._source = source

    def not_yet(self) -> str | None:
        return None

    async def closed(self, topics: Collection[str], *, timeout: float) -> Collection[str]:
        """As every leader of theirs has it. One that is behind may still show what was opened."""
        async with _deadline(timeout, "tells its ACLs"):
            await self._source.refresh(sorted(topics), timeout=timeout)
            leaders: list[int | None] = [*sorted(self._leaders(topics))] or [None]
            found = await together_by_key(
                {node: topic_acls(self._source, node, timeout=timeout, fences=True) for node in leaders}
            )
        return {topic for topic in topics if all(fence_of(topic) in acls for acls in found.values())}

    async def prepare(self, topics: Collection[str], *, timeout: float) -> None:
        """An ACL is one step."""

    async def close(self, topics: Collection[str], *, timeout: float) -> None:
        async with _deadline(timeout, "refuses writes"):
            creations = [acl_fields(_fence(topic)) for topic in sorted(topics)]
            answer = await self._source.call("create_acls", {"creations": creations}, timeout=timeout)
            for result in answer.results:
                _check(self._source, "create_acls", int(result.error_code), "does not refuse writes")
            await self._everywhere(topics, closed=True, timeout=timeout)

    async def open(self, topics: Collection[str], *, timeout: float) -> None:
        async with _deadline(timeout, "accepts writes"):
            filters = [acl_fields(_fence(topic), "_filter") for topic in sorted(topics)]
            answer = await self._source.call("delete_acls", {"filters": filters}, timeout=timeout)
            for result in answer.filter_results:
                _check(self._source, "delete_acls", int(result.error_code), "does not accept writes again")
            await self._everywhere(topics, closed=False, timeout=timeout)

    def _leaders(self, topics: Collection[str]) -> set[int]:
        """As the source's metadata have them just now."""
        return {
            partition.leader
            for topic in topics
            if (found := self._source.topics.get(topic)) is not None
            for partition in found.partitions.values()
            if partition.leader >= 0
        }

    async def _everywhere(self, topics: Collection[str], *, closed: bool, timeout: float) -> None:
        """Until every leader's own authorizer shows it: an ACL is written by one broker and read by all, each when it
        hears of it."""
        await self._source.refresh(sorted(topics), timeout=timeout)
        leaders = self._leaders(topics)
        wanted = {fence_of(topic) for topic in topics}

        async def shown(node: int) -> None:
            while True:
                found = wanted.intersection(
                    await topic_acls(self._source, node, timeout=timeout, fences=True)
                )
                if found == (wanted if closed else set()):
                    return
                await asyncio.sleep(_POLL)

        await together(shown(node) for node in leaders)


@asynccontextmanager
async def _deadline(timeout: float, what: str) -> AsyncIterator[None]:
    """asyncio.timeout whose end is a LinkerError."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as late:
        raise LinkerError(f"not every leader of the source {what} within {timeout:.3g} s") from late


async def check_source_fence(
    source: Cluster, topics: Mapping[str, int], most_partitions: int
) -> list[PreflightFinding]:
    """Obstacles to closing these topics (with their numbers of partitions); all of them fatal."""
    name = "fence source"
    try:
        acls = await topic_acls(source, None, timeout=TIMEOUT)
    except BrokerError as error:
        if error.code == SECURITY_DISABLED:
            return [
                PreflightFinding(
                    name,
                    True,
                    "the source has no authorizer: nothing there can refuse writes",
                    "promote without --fence-source",
                )
            ]
        if error.code == CLUSTER_AUTHORIZATION_FAILED:
            return [lacks(name, AclRight.DESCRIBE)]
        raise
    findings: list[PreflightFinding] = []
    if not allowed(await cluster_operations(source), AclRight.ALTER):
        findings.append(lacks(name, AclRight.ALTER))
    for topic, partitions in sorted(topics.items()):
        others = [acl for acl in acls if acl.binds(topic) and acl != fence_of(topic)]
        if not others:
            findings.append(
                PreflightFinding(
                    name,
                    True,
                    f"topic {topic} has no ACL at the source: with a first one, clients that may use it because of "
                    "allow.everyone.if.no.acl.found could not even read it any more, and super users are not bound",
                    "give its clients ACLs of their own, or promote without --fence-source",
                )
            )
        if partitions > most_partitions:
            findings.append(
                PreflightFinding(
                    name,
                    True,
                    f"topic {topic} has {partitions} partitions and is promoted in parts of {most_partitions}: its source "
                    "would refuse what is still forwarded",
                    "promote it without --fence-source",
                )
            )
    return findings
