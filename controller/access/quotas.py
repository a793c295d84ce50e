"""Client quotas and SCRAM users that the target lacks.

Passwords cannot be carried: brokers tell only for whom there are SCRAM credentials, with the mechanism and the number of
iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_USER, _CLIENT_ID = "user", "client-id"


class Entity(NamedTuple):
    """The clients that a quota binds; None is the default of its kind."""

    parts: tuple[tuple[str, str | None], ...]  # (user | client-id | ip, name), sorted by kind

    def __str__(self) -> str:
        return " and ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in self.parts)


Quotas = Mapping[Entity, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """The source's quotas beside the target's."""

    add: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)
    # (entity, quota, at the source, at the target): the target's stays
    differ: tuple[tuple[Entity, str, float, float], ...] = ()
    # Defaults and addresses: they bind clients that have nothing to do with the link
    not_copied: tuple[tuple[Entity, str, float], ...] = ()


def compare(source: Quotas, target: Quotas, principals: Mapping[str, str]) -> QuotaPlan:
    """principals: those of the link's clients, source -> target; quotas of other users are none of its business."""
    users = {_user(one): _user(other) for one, other in principals.items()}
    add: dict[Entity, dict[str, float]] = {}
    differ: list[tuple[Entity, str, float, float]] = []
    not_copied: list[tuple[Entity, str, float]] = []
    for entity, values in sorted(source.items(), key=lambda item: str(item[0])):
        mapped = _mapped(entity, users)
        if mapped is None:
            continue
        there = target.get(mapped, {})
        for key, value in sorted(values.items()):
            if key in there:
                if there[key] != value:
                    differ.append((mapped, key, value, there[key]))
            elif any(name is None or kind not in (_USER, _CLIENT_ID) for kind, name in mapped.parts):
                not_copied.append((mapped, key, value))
            else:
                add.setdefault(mapped, {})[key] = value
    return QuotaPlan(add, tuple(differ), tuple(not_copied))


def users_of(quotas: Quotas) -> set[str]:
    """The users that have quotas of their own."""
    return {name for entity in quotas for kind, name in entity.parts if kind == _USER and name is not None}


def _user(principal: str) -> str:
    return principal.removeprefix("User:")


def _mapped(entity: Entity, users: Mapping[str, str]) -> Entity | None:
    parts: list[tuple[str, str | None]] = []
    for kind, name in entity.parts:
        if kind == _USER and name is not None:
            if name not in users:
                return None
            parts.append((kind, users[name]))
        else:
            parts.append((kind, name))
    return Entity(tuple(parts))


@dataclass(frozen=True, slots=True)
class MissingUser:
    """A user who cannot log in at the target as at the source."""

    user: str
    mechanisms: tuple[str, ...]


def missing_users(
    source: Mapping[str, Collection[str]],
    target: Mapping[str, Collection[str]],
    principals: Iterable[str],
    mapped: Callable[[str], str],
) -> list[MissingUser]:
    """source, target: SCRAM users with their mechanisms. principals: the link's clients at the source."""
    found = []
    for principal in sorted(principals):
        here, there = _user(principal), _user(mapped(principal))
        lacks = sorted(set(source.get(here, ())) - set(target.get(there, ())))
        if lacks:
            found.append(MissingUser(there, tuple(lacks)))
    return found
