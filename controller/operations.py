"""A change of the state as a store takes it: nodes that are put and deleted, each with the version it must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controller.state import JsonValue


class Versioned(NamedTuple):
    value: JsonValue
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a node; `expect` is the version it must have now, None meaning that it must not exist."""

    path: str
    value: JsonValue
    expect: int | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node; `expect` is the version it must have now."""

    path: str
    expect: int


Operation = Put | Delete
