"""ACLs, client quotas and SCRAM users of one cluster, read and changed.

The source needs DESCRIBE on Cluster for ACLs and SCRAM users, and DESCRIBE_CONFIGS on Cluster for quotas. The target
needs ALTER and ALTER_CONFIGS on Cluster besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from controller.access.acls import Acl, Resource
from controller.access.quotas import Entity
from wire.client.cluster import Cluster
from wire.errors import BrokerError, MalformedFrame, error_name
from wire.frames.error_codes import RESOURCE_NOT_FOUND, SECURITY_DISABLED
from wire.frames.types import AclRight

_TIMEOUT: Final = 10.0
_ANY: Final = 1

_KINDS: Final = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
_PATTERNS: Final = {3: "LITERAL", 4: "PREFIXED"}
_OPERATIONS: Final = {one.value: one.name for one in AclRight}
_PERMISSIONS: Final = {2: "DENY", 3: "ALLOW"}
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def _code(names: Mapping[int, str], name: str) -> int:
    return next(code for code, one in names.items() if one == name)


class NoAuthorizer(BrokerError):
    """The cluster has no authorizer: everybody may do everything."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(SECURITY_DISABLED, message=f"{cluster.name} has no authorizer", api="describe_acls")
        self.cluster = cluster


async def read_acls(cluster: Cluster, *, node: int | None = None) -> frozenset[Acl]:
    """All ACLs, as one broker has them. NoAuthorizer; BrokerError CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on Cluster.
    ACLs of kinds that this program does not know are left out."""
    answer = await cluster.call(
        "describe_acls",
        {
            "resource_type_filter": _ANY,
            "resource_name_filter": None,
            "pattern_type_filter": _ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": _ANY,
            "permission_type": _ANY,
        },
        node_id=node,
        timeout=_TIMEOUT,
    )
    code = int(answer.error_code)
    if code == SECURITY_DISABLED:
        raise NoAuthorizer(cluster)
    _check(cluster, "describe_acls", code, "does not tell its ACLs")
    found: set[Acl] = set()
    for resource in answer.resources:
        kind = _KINDS.get(int(resource.resource_type))
        # Brokers before 2.0 have no pattern types: all of theirs are literal.
        pattern = _PATTERNS.get(int(getattr(resource, "pattern_type", 3)))
        if kind is None or pattern is None:
            continue
        about = Resource(kind, pattern, str(resource.resource_name))
        for one in resource.acls:
            operation = _OPERATIONS.get(int(one.operation))
            permission = _PERMISSIONS.get(int(one.permission_type))
            if operation is not None and permission is not None:
                found.add(Acl(about, str(one.principal), str(one.host), operation, permission))
    return frozenset(found)


Refusals = dict[Acl, BrokerError]


async def create_acls(cluster: Cluster, acls: Sequence[Acl], *, node: int | None = None) -> Refusals:
    """Create ACLs in one request; returns why some were refused. One that exists already is no error."""
    answer = await cluster.call(
        "create_acls", {"creations": [acl_fields(acl) for acl in acls]}, node_id=node, timeout=_TIMEOUT
    )
    return _refusals(cluster, "create_acls", "does not take", acls, answer.results)


async def delete_acls(cluster: Cluster, acls: Sequence[Acl], *, node: int | None = None) -> Refusals:
    """Delete exactly these in one request; returns why some were refused. One that is gone already is no error."""
    answer = await cluster.call(
        "delete_acls",
        {"filters": [acl_fields(acl, "_filter") for acl in acls]},
        node_id=node,
        timeout=_TIMEOUT,
    )
    return _refusals(cluster, "delete_acls", "does not remove", acls, answer.filter_results)


def acl_fields(acl: Acl, suffix: str = "") -> dict[str, object]:
    """The fields of a creation or, with the suffix `_filter`, of the filter that finds exactly this ACL."""
    kind, pattern, name = acl.resource
    return {
        f"resource_type{suffix}": _code(_KINDS, kind),
        f"resource_name{suffix}": name,
        "pattern_type_filter" if suffix else "resource_pattern_type": _code(_PATTERNS, pattern),
        f"principal{suffix}": acl.principal,
        f"host{suffix}": acl.host,
        "operation": _code(_OPERATIONS, acl.operation),
        "permission_type": _code(_PERMISSIONS, acl.permission),
    }


def _refusals(cluster: Cluster, api: str, what: str, acls: Sequence[Acl], results: Sequence[Any]) -> Refusals:
    if len(results) != len(acls):
        raise MalformedFrame(f"{cluster.name} answered {len(results)} ACLs of {len(acls)}", api=api)
    return {
        acl: BrokerError(
            code, message=f"{cluster.name} {what} {acl} ({result.error_message or error_name(code)})", api=api
        )
        for acl, result in zip(acls, results, strict=True)
        if (code := int(result.error_code))
    }


async def read_quotas(cluster: Cluster, *, node: int | None = None) -> dict[Entity, dict[str, float]]:
    """All client quotas; BrokerError, or UnsupportedApi before Kafka 2.6."""
    answer = await cluster.call(
        "describe_client_quotas", {"components": [], "strict": False}, node_id=node, timeout=_TIMEOUT
    )
    code = int(answer.error_code)
    _check(cluster, "describe_client_quotas", code, "does not tell its quotas", answer.error_message)
    found: dict[Entity, dict[str, float]] = {}
    for entry in answer.entries or ():
        entity = Entity(tuple(sorted((one.entity_type, one.entity_name) for one in entry.entity)))
        found[entity] = {one.key: one.value for one in entry.values}
    return found


async def set_quotas(
    cluster: Cluster, quotas: Mapping[Entity, Mapping[str, float]], *, node: int | None = None
) -> None:
    """Add these values; BrokerError for the first entity that is refused."""
    if not quotas:
        return
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.parts],
            "ops": [{"key": key, "value": value, "remove": False} for key, value in values.items()],
        }
        for entity, values in quotas.items()
    ]
    answer = await cluster.call(
        "alter_client_quotas", {"entries": entries, "validate_only": False}, node_id=node, timeout=_TIMEOUT
    )
    for entry in answer.entries:
        named = Entity(tuple(sorted((one.entity_type, one.entity_name) for one in entry.entity)))
        what = f"does not take the quotas of {named}"
        _check(cluster, "alter_client_quotas", int(entry.error_code), what, entry.error_message)


async def read_scram_users(cluster: Cluster, *, node: int | None = None) -> dict[str, set[str]]:
    """Users with SCRAM credentials, and their mechanisms; BrokerError, or UnsupportedApi before Kafka 2.7."""
    answer = await cluster.call(
        "describe_user_scram_credentials", {"users": None}, node_id=node, timeout=_TIMEOUT
    )
    code = int(answer.error_code)
    if code == RESOURCE_NOT_FOUND:
        return {}
    _check(cluster, "describe_user_scram_credentials", code, "does not tell its users", answer.error_message)
    return {
        str(one.user): {
            _MECHANISMS[int(info.mechanism)]
            for info in one.credential_infos
            if int(info.mechanism) in _MECHANISMS
        }
        for one in answer.results
        if int(one.error_code) == 0
    }


def _check(cluster: Cluster, api: str, code: int, what: str, message: str | None = None) -> None:
    if code:
        told = message or error_name(code)
        raise BrokerError(code, message=f"{cluster.name} {what} ({told})", api=api)
