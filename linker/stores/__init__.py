"""State stores as the configuration names them.

- `copy`: copies the state from one store to another while no sidecar runs
- `location`: the place of a state store, from the configuration or in short form on the command line
- `measured`: a store that counts and times its commits for the metrics
"""

from __future__ import annotations

from controller.state import JsonValue
from fleet.stores.base import FleetStore, Store, StoreUnusable
from linker.config.model import Config
from linker.stores.location import Location
from wire.client.cluster import Cluster

MOVED_TO = "/moved_to"
COPYING = "/copying"  # in the store that is copied to, until all is there

__all__ = ["COPYING", "MOVED_TO", "CopyUnfinished", "Location", "StoreMoved", "check_usable", "open_store"]


class StoreMoved(StoreUnusable):
    """The state was copied to another store, which is the one to use now."""

    def __init__(self, place: str, to: str) -> None:
        super().__init__(
            f"the state in {place} was moved to {to}: let the section store name that one; or, to go on with "
            f"the old state as it was then, run: linker store reopen {place}"
        )


class CopyUnfinished(StoreUnusable):
    """A copy into the store was begun and not finished."""

    def __init__(self, place: str, source: str) -> None:
        super().__init__(
            f"a copy from {source} into {place} did not come to its end: repeat it, "
            f"linker store copy --from {source} --to {place}"
        )


async def open_store(config: Config, cluster: Cluster | None = None) -> FleetStore:
    """The store of a sidecar; one for a single process comes with a seat of its own (SoleSeat).

    StoreMoved if its content was moved away, other StoreErrors if it cannot be opened. `cluster` is the target, whose
    client id is used; connections of a store are its own.
    """
    location = Location.of(config)
    client_id = _client_id(config) if cluster is None else cluster.client_id
    store = await location.open(client_id=client_id)
    try:
        await check_usable(store, location)
    except BaseException:
        await store.close()
        raise
    return store


async def check_usable(store: Store, location: Location) -> None:
    """Raise StoreMoved or CopyUnfinished if the store must not be used. Holds for as long as the caller has the seat: a copy
    needs it, too."""
    moved = await store.get(MOVED_TO)
    if moved is not None:
        raise StoreMoved(str(location), _place(moved.value))
    copying = await store.get(COPYING)
    if copying is not None:
        raise CopyUnfinished(str(location), _place(copying.value))


def _place(value: JsonValue) -> str:
    return str(value.get("store")) if isinstance(value, dict) else str(value)


def _client_id(config: Config) -> str:
    return config.target.properties.get("client.id", f"kafka-linker-{config.sidecar.broker_id}")
