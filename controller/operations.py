"""A commit as the store takes it: puts and deletes of nodes, each with the version that the node must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controller.state import JsonValue


class Versioned(NamedTuple):
    value: JsonValue
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a node. `expect`: the version that it must have now; None: it must not exist."""

    path: str
    value: JsonValue
    expect: int | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node. `expect`: the version that it must have now."""

    path: str
    expect: int


Operation = Put | Delete
