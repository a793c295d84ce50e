"""State stores as the configuration names them. What a store does is in `controller.store`.

A store that was copied to another place (`linker store copy`) is marked, and is not opened again for use:
two sidecars on two copies of one state would both believe to be right.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.store.base import FleetStore, Store, StoreError
from linker.config import Config
from linker.stores.location import Location

MOVED_TO = "/moved_to"

__all__ = ["MOVED_TO", "Location", "StoreMoved", "check_not_moved", "open_store"]


class StoreMoved(StoreError):
    """The state was copied to another store, which is the one to use."""

    def __init__(self, place: str, to: str) -> None:
        super().__init__(
            f"the state in {place} was moved to {to}: let the section store name that one; or, to go on with "
            f"the old state as it was then, run: linker store reopen {place}"
        )
        self.to = to


async def open_store(config: Config, *, real_brokers: Sequence[int] | None = None) -> FleetStore:
    """The store of a sidecar. StoreMoved if its content was moved away, StoreError if it cannot be opened.

    `real_brokers`: which brokers of the target may get a replica of a state topic that has to be created; by
    default Kafka places it.
    """
    location = Location.of(config)
    store = await location.open(client_id=_client_id(config), real_brokers=real_brokers)
    try:
        await check_not_moved(store, location)
    except BaseException:
        await store.close()
        raise
    return store


async def check_not_moved(store: Store, location: Location) -> None:
    moved = await store.get(MOVED_TO)
    if moved is not None:
        to = moved.value.get("store") if isinstance(moved.value, dict) else None
        raise StoreMoved(str(location), str(to))


def _client_id(config: Config) -> str:
    return config.target.properties.get("client.id", f"kafka-linker-{config.sidecar.broker_id}")
