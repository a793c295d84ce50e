"""State stores: `sqlite` for one sidecar; ZooKeeper, or a topic of the target, for a fleet.

- `base`: the contract every state store keeps; one test suite holds all of them to it
- `nodes`: A store's tree in memory, for stores that keep it there: reading it, and checking a commit against it
- `sole`: A store with one process as a store of a fleet of one: its seat is free for that process, and is never lost
- `sqlite`: the embedded store: one SQLite file, one process, one thread
- `topic/`: the state in a compacted topic of the target cluster
- `zookeeper/`: the state in ZooKeeper
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from controller.operations import Delete, Operation, Put, Versioned
from fleet.stores.base import (
    ControllerFenced,
    NodeNotEmpty,
    Store,
    StoreError,
    StoreLocked,
    StoreTooNew,
    VersionConflict,
)
from fleet.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from fleet.stores.zookeeper.store import ZooKeeperStore

__all__ = [
    "ControllerFenced",
    "Delete",
    "NodeNotEmpty",
    "Operation",
    "Put",
    "SqliteStore",
    "Store",
    "StoreError",
    "StoreLocked",
    "StoreTooNew",
    "VersionConflict",
    "Versioned",
    "ZooKeeperStore",
]

#: Loaded when first asked for: their client libraries are of no use to the others.
_LAZY = {"ZooKeeperStore": "fleet.stores.zookeeper.store"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
