"""State stores: `sqlite` the embedded default for one sidecar, `zookeeper` and `topic` for a fleet.

File map: `base` the contract, `sole` a store of one process as one of a fleet, `nodes` a tree in memory. Of ZooKeeper:
`zookeeper` the store, `zookeeper_plan` a commit as its transaction, `zookeeper_client`, `zookeeper_session` and
`zookeeper_kazoo` how it is asked, `zookeeper_seat` who is alive and who decides. Of a compacted topic: `topic` the
store, `topic_admin` the topic itself, `topic_brokers` connections, `topic_writer` and `topic_producer` writing,
`topic_records` what records mean, `topic_tail` reading.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from controller.operations import Delete, Operation, Put, Versioned
from controller.store.base import (
    ControllerFenced,
    NodeNotEmpty,
    Store,
    StoreError,
    StoreLocked,
    StoreTooNew,
    VersionConflict,
)
from controller.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from controller.store.zookeeper import ZooKeeperStore

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
_LAZY = {"ZooKeeperStore": "controller.store.zookeeper"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
