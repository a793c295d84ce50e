"""A store's tree in memory: reads, and the check of a commit. Pure.

A node is kept as encoded JSON: smaller than the decoded value, and safe from accidental changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controller import keys
from controller.operations import Delete, Operation, Versioned
from controller.state import JsonValue
from fleet.stores.base import NodeNotEmpty, StoreError, VersionConflict

_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), sort_keys=True)


class StoredNode(NamedTuple):
    """A node: its value as JSON text in UTF-8, and its version."""

    raw: bytes
    version: int

    def read(self) -> Versioned:
        return Versioned(json.loads(self.raw), self.version)


def prefix(path: str) -> str:
    """The prefix of all paths below a path."""
    if path == "/":
        return "/"
    keys.split(path)
    return f"{path}/"


def children(nodes: Mapping[str, StoredNode], path: str) -> list[str]:
    """As Store.children."""
    below = prefix(path)
    return sorted({found[len(below) :].split("/", 1)[0] for found in nodes if found.startswith(below)})


def tree(nodes: Mapping[str, StoredNode], path: str) -> dict[str, Versioned]:
    """As Store.tree."""
    below = prefix(path)
    return {found: nodes[found].read() for found in sorted(nodes) if found.startswith(below)}


def changes(
    nodes: Mapping[str, StoredNode], operations: Sequence[Operation], reserved: frozenset[str]
) -> dict[str, StoredNode | None]:
    """The nodes that the operations change, in their order; None is a deleted node.

    VersionConflict or NodeNotEmpty if one does not fit, StoreError for a value that is no JSON or for a path of the
    store's own. `nodes` stays as it is.
    """
    result: dict[str, StoredNode | None] = {}
    for operation in operations:
        path = operation.path
        keys.split(path)
        if path in reserved:
            raise StoreError(f"{path} is the store's own and changes by claim() or take_seat() only")
        current = result[path] if path in result else nodes.get(path)
        found = None if current is None else current.version
        if found != operation.expect:
            raise VersionConflict(path, operation.expect, found)
        if isinstance(operation, Delete):
            _check_empty(nodes, result, path)
            result[path] = None
        else:
            result[path] = StoredNode(encode(path, operation.value), 0 if found is None else found + 1)
    return result


def _check_empty(
    nodes: Mapping[str, StoredNode], changed: Mapping[str, StoredNode | None], path: str
) -> None:
    below = f"{path}/"
    for found, node in changed.items():
        if node is not None and found.startswith(below):
            raise NodeNotEmpty(f"{path} still has {found} below it")
    for found in nodes:
        if found.startswith(below) and found not in changed:
            raise NodeNotEmpty(f"{path} still has {found} below it")


def encode(path: str, value: JsonValue) -> bytes:
    return dump(path, value).encode()


def dump(path: str, value: JsonValue) -> str:
    """The JSON text of a value; StoreError if it is no JSON."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the value for {path} is not JSON: {error}") from error
