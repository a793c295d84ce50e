"""State stores: `sqlite` for one sidecar; ZooKeeper, or a topic of the target, for a fleet.

- `base`: the contract of every state store; one test suite holds all of them to it
- `nodes`: a store's tree in memory: reads, and the check of a commit
- `sole`: a store of one process as the store of a fleet of one: the seat is always free and never lost
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
