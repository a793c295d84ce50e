"""Records in portions, of which each fits in one commit of every store. For records that are right one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TypeVar

from controller import codec
from controller.state import Entity

#: Half of what ZooKeeper takes in one transaction: a node is weighed, not measured.
MOST_BYTES = 500_000
# Of a node that is made: the names and rights of it and of the one that is made above it, in a store with a path of its own.
_NODE = 300
# Of a node that goes, and of the one above it that goes with it.
_REMOVAL = 150

R = TypeVar("R", bound=Entity)
T = TypeVar("T")


def weight(record: Entity) -> int:
    """About as many bytes as the record has in a commit, or more."""
    return _NODE + 2 * len(codec.path_of(record)) + len(json.dumps(codec.encode(record)))


def weight_of_removal(path: str) -> int:
    return _REMOVAL + 2 * len(path)


def portions(records: Iterable[R]) -> list[list[R]]:
    """In their order. A record that is heavier than a portion may be is one by itself."""
    return packed(records, weight)


def packed(items: Iterable[T], weigh: Callable[[T], int]) -> list[list[T]]:
    """As `portions`, of items that stand for records: an item weighs as much as its records together."""
    found: list[list[T]] = []
    room = 0
    for item in items:
        needed = weigh(item)
        if not found or needed > room:
            found.append([])
            room = MOST_BYTES
        found[-1].append(item)
        room -= needed
    return found
