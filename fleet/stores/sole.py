"""A store of one process as the store of a fleet of one: the seat is always free and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from controller.operations import Operation, Versioned
from fleet.stores.base import Candidate, Seat, Store


class SoleSeat:
    """`FleetStore` around a `Store` that no other process can open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seat: Seat | None = None

    async def get(self, path: str) -> Versioned | None:
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        return await self._store.tree(path)

    async def claim(self) -> int:
        return await self._store.claim()

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        await self._store.commit(operations, controller_epoch=controller_epoch)

    async def close(self) -> None:
        await self._store.close()

    @property
    def seat(self) -> Seat | None:
        return self._seat

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        if self._seat == known:
            await asyncio.sleep(timeout)
        return self._seat

    async def announce(self, me: Candidate) -> None:
        return None

    async def take_seat(self, me: Candidate) -> int:
        epoch = await self._store.claim()
        self._seat = Seat(holder=me, epoch=epoch)
        return epoch

    async def seat_lost(self) -> str:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a future that nobody completes was completed")

    async def resign(self) -> None:
        self._seat = None
