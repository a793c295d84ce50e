"""An ACL as Kafka has it, and the answer of Kafka's authorizer to a question.

The rules are those of StandardAuthorizerData in Kafka: a DENY beats every ALLOW, some operations imply others, and
`*` is a name of its own for resources, principals and hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from wire.shown_id import shown_id

ANY: Final = "*"
EVERYBODY: Final = "User:*"
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"
LITERAL, PREFIXED = "LITERAL", "PREFIXED"
ALLOW, DENY = "ALLOW", "DENY"
ALL: Final = "ALL"

#: An ALLOW of one of these is an ALLOW of the key, too.
_IMPLIED_BY: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "DESCRIBE": frozenset({"READ", "WRITE", "DELETE", "ALTER"}),
        "DESCRIBE_CONFIGS": frozenset({"ALTER_CONFIGS"}),
    }
)


class Resource(NamedTuple):
    """The name or the prefix that an ACL is about."""

    kind: str
    pattern: str
    name: str

    @property
    def everything(self) -> bool:
        """Whether it is about every resource of its kind."""
        return self.pattern == LITERAL and self.name == ANY

    def covers(self, name: str) -> bool:
        """Whether it is about the resource of that name."""
        if self.pattern == PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY)

    def overlaps(self, other: Resource) -> bool:
        """Whether there may be a resource that both are about."""
        if self.kind != other.kind:
            return False
        if self.pattern == other.pattern == PREFIXED:
            return self.name.startswith(other.name) or other.name.startswith(self.name)
        if self.everything or other.everything:
            return True
        return self.covers(other.name) if other.pattern == LITERAL else other.covers(self.name)

    def __str__(self) -> str:
        prefix = "prefix " if self.pattern == PREFIXED else ""
        return f"{self.kind} {prefix}{shown_id(self.name)}"


class Acl(NamedTuple):
    """One ACL. The words are those of Kafka's enums (ResourceType, PatternType, AclOperation, AclPermissionType)."""

    resource: Resource
    principal: str
    host: str
    operation: str
    permission: str

    def restricts(self, allow: Acl) -> bool:
        """Whether this DENY may take something from what an ALLOW gives. Hosts and operations are not compared."""
        return (
            self.permission == DENY
            and allow.permission == ALLOW
            and (self.principal in (allow.principal, EVERYBODY) or allow.principal == EVERYBODY)
            and self.resource.overlaps(allow.resource)
        )

    def __str__(self) -> str:
        host = "" if self.host == ANY else f" from {self.host}"
        return f"{shown_id(self.principal)} {self.permission} {self.operation}{host} on {self.resource}"


class AclSet:
    """The ACLs of one cluster, and its authorizer's answers."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.all = frozenset(acls)
        self._literal: dict[tuple[str, str], list[Acl]] = defaultdict(list)
        self._prefixed: dict[str, dict[str, list[Acl]]] = defaultdict(lambda: defaultdict(list))
        for acl in self.all:
            kind, pattern, name = acl.resource
            if pattern == PREFIXED:
                self._prefixed[kind][name].append(acl)
            else:
                self._literal[kind, name].append(acl)
        self._lengths = {
            kind: sorted({len(prefix) for prefix in prefixes}) for kind, prefixes in self._prefixed.items()
        }

    def about(self, kind: str, name: str) -> Iterator[Acl]:
        """Those that decide about one resource."""
        yield from self._literal.get((kind, name), ())
        if name != ANY:
            yield from self._literal.get((kind, ANY), ())
        prefixed = self._prefixed.get(kind, {})
        for length in self._lengths.get(kind, ()):
            if length <= len(name):
                yield from prefixed.get(name[:length], ())


def allowed(acls: Iterable[Acl], principal: str, operation: str, host: str) -> bool:
    """The authorizer's answer, from the ACLs about one resource. The host `*` asks for all hosts. Super users and
    `allow.everyone.if.no.acl.found` are not known here: brokers do not tell these settings."""
    found = False
    enough = _IMPLIED_BY.get(operation, frozenset()) | {operation, ALL}
    for acl in acls:
        if acl.principal not in (principal, EVERYBODY) or acl.host not in (host, ANY):
            continue
        if acl.permission == DENY:
            if acl.operation in (operation, ALL):
                return False
        elif acl.operation in enough:
            found = True
    return found
