"""State stores. `base` is the contract, `sqlite` the embedded default for one sidecar."""

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
]
