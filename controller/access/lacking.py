"""Principals that may use mirrored topics and held groups at the source, and may not at the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.access.acls import ALLOW, ANY, EVERYBODY, GROUP, TOPIC, TRANSACTIONAL_ID, Acl, AclSet, allowed
from wire.shown_id import listed, shown_id

_OPERATIONS = {TOPIC: ("READ", "WRITE"), GROUP: ("READ",), TRANSACTIONAL_ID: ("WRITE",)}


@dataclass(frozen=True, slots=True)
class Lacking:
    """A right that a principal has at the source and has not at the target."""

    principal: str  # of the source
    mapped: str  # of the target
    operation: str
    kind: str
    names: tuple[str, ...]
    host: str = ANY

    @property
    def who(self) -> str:
        """The principal, by both names where they differ."""
        known = shown_id(self.principal)
        return known if self.principal == self.mapped else f"{known} ({shown_id(self.mapped)} at the target)"

    @property
    def right(self) -> str:
        """The right alone."""
        shown = listed(map(shown_id, self.names), 3)
        host = "" if self.host == ANY else f" from {self.host}"
        return f"{self.operation}{host} on {self.kind.lower().replace('_', ' ')} {shown}"


def lacking(
    source: AclSet,
    target: AclSet,
    topics: Iterable[str],
    groups: Iterable[str],
    mapped: Callable[[str], str],
) -> list[Lacking]:
    """topics, groups: those that the link mirrors. Groups and transactional ids count for principals that may use one of
    the topics."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    clients: set[str] = set()
    for topic in sorted(topics):
        about, there = list(source.about(TOPIC, topic)), list(target.about(TOPIC, topic))
        clients |= {acl.principal for acl in about if acl.permission == ALLOW}
        _compare(TOPIC, topic, about, there, mapped, found)
    everybody = EVERYBODY in clients
    for group in sorted(groups):
        about = [
            acl for acl in source.about(GROUP, group) if everybody or acl.principal in clients | {EVERYBODY}
        ]
        _compare(GROUP, group, about, list(target.about(GROUP, group)), mapped, found)
    ids = {acl.resource.name for acl in source.all if acl.resource.kind == TRANSACTIONAL_ID}
    for name in sorted(ids):
        about = [acl for acl in source.about(TRANSACTIONAL_ID, name) if everybody or acl.principal in clients]
        _compare(TRANSACTIONAL_ID, name, about, list(target.about(TRANSACTIONAL_ID, name)), mapped, found)
    return [
        Lacking(principal, mapped(principal), operation, kind, tuple(names), host)
        for (principal, operation, kind, host), names in sorted(found.items())
    ]


def _compare(
    kind: str,
    name: str,
    about: list[Acl],
    there: list[Acl],
    mapped: Callable[[str], str],
    found: dict[tuple[str, str, str, str], list[str]],
) -> None:
    askers = {(acl.principal, acl.host) for acl in about if acl.permission == ALLOW}
    for principal, host in askers:
        for operation in _OPERATIONS[kind]:
            if allowed(about, principal, operation, host) and not allowed(
                there, mapped(principal), operation, host
            ):
                found.setdefault((principal, operation, kind, host), []).append(name)
