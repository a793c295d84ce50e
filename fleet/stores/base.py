"""The contract of every state store; one test suite holds all of them to it.

A store is a tree of nodes. A node's value is JSON; its version is 0 when it is created and grows by one
with each put (ZooKeeper's rule). Parents need not exist. A commit is atomic and durable when it returns; if
it raises anything but the refusals below, or is cancelled, its outcome is *unknown* and the caller reads
the store again. That read settles it: a commit of this process that it does not show is never carried out
any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.errors import ControllerError
from controller.operations import Operation, Versioned


class StoreError(ControllerError):
    """The store cannot do what was asked."""


class StoreLocked(StoreError):
    """Another process has the store open."""

    def __init__(self, path: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"the state store {path} is in use by {holder}: stop it, "
            "or give this sidecar a store.path of its own"
        )


class StoreMissing(StoreError):
    """There is no store at that place, and it was not to be created."""


class StoreUnusable(StoreError):
    """The state in the store is not to be used: it lives elsewhere by now, or is not whole."""


class StoreTooNew(StoreError):
    """Written by a newer version of this program."""

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            f"the state store {path} has schema version {found}, this program knows only up to {supported}: "
            "use the newer version of the linker that wrote it"
        )


class VersionConflict(StoreError):
    """A node was not as expected. Nothing of the commit was written."""

    def __init__(self, path: str, expected: int | None, found: int | None) -> None:
        super().__init__(f"{path}: expected {_version(expected)}, found {_version(found)}")
        self.path = path


class ControllerFenced(StoreError):
    """A controller with a higher epoch has taken over. Nothing of the commit was written."""

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(f"controller epoch {epoch} is fenced by epoch {current}")
        self.epoch = epoch
        self.current = current


class NodeNotEmpty(StoreError):
    """A node that still has children was to be deleted. Nothing of the commit was written."""


def _version(version: int | None) -> str:
    return "no node" if version is None else f"version {version}"


class Store(Protocol):
    """The controller's contract with a state store."""

    async def get(self, path: str) -> Versioned | None:
        """One node."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names below a path that are nodes or have nodes below them, sorted."""
        ...

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        """All nodes strictly below a path, from one consistent moment."""
        ...

    async def claim(self) -> int:
        """Become the controller: a controller epoch above every earlier one, which fences the earlier
        ones.
        """
        ...

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        """All of the operations in their order, or none.

        Without operations it proves one thing: at a moment between call and return no controller with a
        higher epoch had claimed the store (a linearizable read of the epoch; leases rest on it).
        """
        ...

    async def close(self) -> None:
        """Release the store; waits for writes under way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sidecar as the others find it: the value of `/controller`, and of `/sidecars/ids/N`."""

    broker_id: int
    control: str = ""  # host:port where the link controller of this sidecar takes the other sidecars
    admin: str = ""  # host:port of its admin API
    session: str = ""  # of this process: two processes with one broker id are two sessions
    cluster_id: str = ""  # of the target: two fleets must not share a store


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The link controller, as far as the store has told this process."""

    holder: Candidate
    epoch: int


class FleetStore(Store, Protocol):
    """A store that several sidecars share: it also elects the one of them that writes.

    Only liveness rests on the election. An old controller cannot write because of the epoch alone.
    """

    @property
    def seat(self) -> Seat | None:
        """As last seen; None while nobody holds it."""
        ...

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        """Wait until the seat differs from `known`, at most `timeout` seconds; the seat as seen then."""
        ...

    async def announce(self, me: Candidate) -> None:
        """Be known as alive until the process or its session with the store ends (`/sidecars/ids/N`).

        StoreError if another live session has this broker id, or if the store belongs to the fleet of another
        target cluster.
        """
        ...

    async def take_seat(self, me: Candidate) -> int:
        """Wait until the seat is free, take it and claim: the new controller epoch. May be cancelled."""
        ...

    async def seat_lost(self) -> str:
        """Wait until the seat that `take_seat` gave is lost; why. Losing it later than another took it is
        harmless: see `commit`."""
        ...

    async def resign(self) -> None:
        """Give the seat back now, so that the next one need not wait for a timeout. Without the seat: no error.

        If it fails, or is cancelled, it may be called again for as long as `seat` shows this process; only this
        process's session with the store keeps the seat from the others then.
        """
        ...
