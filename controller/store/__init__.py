"""State stores. `base` is the contract, `sqlite` the embedded default for one sidecar, `zookeeper` for a fleet."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from controller.store.base import (
    ControllerFenced,
    Delete,
    NodeNotEmpty,
    Operation,
    Put,
    Store,
    StoreError,
    StoreLocked,
    StoreTooNew,
    VersionConflict,
    Versioned,
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
