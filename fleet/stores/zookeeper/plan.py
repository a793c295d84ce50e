"""A commit as znode operations of one transaction; nodes as JSON envelopes. Pure.

A node of the store is a znode whose data is an envelope: `{"format": 1, "value": ...}`, UTF-8 JSON. A znode
without data is only on the way to others: it is no node, and none is ever left without a node below it (the
commit that deletes the last one removes it too, but for `PINNED`).

Versions. The contract counts a node's puts from 0; ZooKeeper counts a znode's setData from 0. Both are the
same unless the znode was there without data before it became a node: then the envelope also carries "base",
ZooKeeper's version at that moment, and the contract's version is ZooKeeper's minus base. It is right under
concurrent writers because the two numbers are never decided apart: base is written by a setData that demands
the version from which base was computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from controller import keys
from controller.errors import CorruptState
from controller.operations import Delete, Operation, Put
from controller.state import JsonValue
from fleet.stores.base import Candidate, NodeNotEmpty, Seat, StoreError, StoreTooNew, VersionConflict
from fleet.stores.nodes import dump

FORMAT = 1

CONTROLLER = "/controller"  # ephemeral: the holder of the seat
COMMITS = "/commits"  # its version counts the commits; also the mark of a store of ours
FLEET = "/fleet"  # the target cluster this store belongs to
LIVE = f"{keys.SIDECARS}/ids"  # below it, ephemeral: the sidecars that are alive
#: Not part of the committed tree. "zookeeper" is the server's own, if the store has no path of its own.
RESERVED = frozenset({CONTROLLER, COMMITS, FLEET, LIVE, "/zookeeper"})
PINNED = frozenset({keys.SIDECARS, LIVE})


class Znode(NamedTuple):
    """A znode as a commit needs it."""

    version: int  # ZooKeeper's
    base: int | None  # ZooKeeper's version when it became a node; None: it is none
    children: int

    @property
    def node_version(self) -> int | None:
        return None if self.base is None else self.version - self.base


class Create(NamedTuple):
    path: str
    data: bytes
    ephemeral: bool = False


class Write(NamedTuple):
    path: str
    data: bytes
    version: int  # -1: any


class Remove(NamedTuple):
    path: str
    version: int


class VersionCheck(NamedTuple):
    path: str
    version: int


Step = Create | Write | Remove | VersionCheck


class TransactionPlan(NamedTuple):
    steps: Sequence[Step]
    changed: Mapping[str, Znode | None]  # znodes as they are after the steps; None: gone


def plan_commit(nodes: Mapping[str, Znode], operations: Sequence[tuple[Operation, str]]) -> TransactionPlan:
    """The transaction for these operations, each with its value's JSON, on exactly these znodes.

    Raises VersionConflict or NodeNotEmpty as the contract wants it.
    """
    steps: list[Step] = []
    changed: dict[str, Znode | None] = {}

    def at(path: str) -> Znode | None:
        return changed[path] if path in changed else nodes.get(path)

    def count(parent: str, by: int) -> None:
        above = at(parent)
        if above is not None:  # the root is not in here
            changed[parent] = above._replace(children=above.children + by)

    def create(path: str, data: bytes, base: int | None) -> None:
        parent = parent_of(path)
        if parent != "/" and at(parent) is None:
            create(parent, b"", None)
        steps.append(Create(path, data))
        changed[path] = Znode(0, base, 0)
        count(parent, 1)

    def remove(path: str, node: Znode) -> None:
        steps.append(Remove(path, node.version))
        changed[path] = None
        parent = parent_of(path)
        count(parent, -1)
        above = at(parent)
        if above is not None and above.base is None and not above.children and parent not in PINNED:
            remove(parent, above)

    for operation, text in operations:
        path = operation.path
        node = at(path)
        found = None if node is None else node.node_version
        if found != operation.expect:
            raise VersionConflict(path, operation.expect, found)
        if isinstance(operation, Put):
            if node is None:
                create(path, envelope(text), 0)
            else:
                base = node.version + 1 if node.base is None else node.base
                steps.append(Write(path, envelope(text, base), node.version))
                changed[path] = Znode(node.version + 1, base, node.children)
        elif node is not None:
            if node.children:
                raise NodeNotEmpty(f"{path} still has nodes below it")
            remove(path, node)
    return TransactionPlan(steps, changed)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_reserved(path: str) -> bool:
    """Whether the path is one that commits may not touch, or below one."""
    return any(path == reserved or path.startswith(f"{reserved}/") for reserved in RESERVED)


def prepare(operations: Sequence[Operation]) -> list[tuple[Operation, str]]:
    """Operations with their values' JSON; refuses what could never be committed."""
    prepared: list[tuple[Operation, str]] = []
    for operation in operations:
        keys.split(operation.path)
        if operation.path == keys.CONTROLLER_EPOCH:
            raise StoreError(f"{operation.path} changes by claim() only")
        if is_reserved(operation.path):
            raise StoreError(f"{operation.path} is the store's own and cannot be committed to")
        prepared.append(
            (operation, "" if isinstance(operation, Delete) else dump(operation.path, operation.value))
        )
    return prepared


# Envelopes.


def envelope(text: str, base: int = 0) -> bytes:
    moved = f'"base":{base},' if base else ""
    return f'{{{moved}"format":{FORMAT},"value":{text}}}'.encode()


MARK = envelope("null")  # the value of /commits: only its version and its format matter


class Opened(NamedTuple):
    value: JsonValue
    base: int


def open_envelope(where: str, data: bytes | None) -> Opened | None:
    """A znode's node, None if it is none; `where` is for the errors.

    CorruptState if it is not one of ours, StoreTooNew if a newer version wrote it.
    """
    if not data:
        return None
    try:
        found = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptState(f"{where} in ZooKeeper is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptState(f"{where} in ZooKeeper is not a node of this store")
    version = found.get("format")
    if type(version) is not int or version < 1:
        raise CorruptState(f"{where} in ZooKeeper is not a node of this store: it has no format version")
    if version > FORMAT:
        raise StoreTooNew(where, version, FORMAT)
    base = found.get("base", 0)
    if type(base) is not int or base < 0 or "value" not in found:
        raise CorruptState(f"{where} in ZooKeeper is not a node of this store: wrong or missing fields")
    return Opened(found["value"], base)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def epoch_of(where: str, data: bytes | None) -> int:
    opened = open_envelope(where, data)
    if opened is None or type(opened.value) is not int or opened.value < 1:
        raise CorruptState(f"{where} in ZooKeeper is not a controller epoch")
    return opened.value


# Values of the ephemeral nodes.


def candidate_fields(candidate: Candidate) -> dict[str, JsonValue]:
    return {
        "broker_id": candidate.broker_id,
        "control": candidate.control,
        "admin": candidate.admin,
        "session": candidate.session,
        "cluster_id": candidate.cluster_id,
    }


def live_node(candidate: Candidate) -> bytes:
    return envelope(dump(LIVE, candidate_fields(candidate)))


def seat_node(candidate: Candidate, epoch: int) -> bytes:
    return envelope(dump(CONTROLLER, {**candidate_fields(candidate), "epoch": epoch}))


def open_seat(where: str, data: bytes | None) -> Seat:
    opened = open_envelope(where, data)
    fields: Any = None if opened is None else opened.value
    try:
        holder = Candidate(
            broker_id=_typed(fields["broker_id"], int),
            **{name: _typed(fields[name], str) for name in ("control", "admin", "session", "cluster_id")},
        )
        return Seat(holder=holder, epoch=_typed(fields["epoch"], int))
    except (KeyError, TypeError) as error:
        raise CorruptState(f"{where} in ZooKeeper is not a seat: {error!r}") from error


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value
