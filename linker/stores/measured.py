"""A store that counts and times its commits for the metrics; all else goes straight through."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from controller.operations import Operation, Versioned
from fleet.stores.base import Candidate, ControllerFenced, FleetStore, Seat
from wire.histogram import LatencyHistogram


class MeasuredStore:
    """FleetStore over another one. Empty commits, the proofs behind leases, count as well."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store
        self.latency = LatencyHistogram()
        #: Commits that failed or were given up; a fenced one was answered.
        self.failures = 0

    async def get(self, path: str) -> Versioned | None:
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        return await self._store.tree(path)

    async def claim(self) -> int:
        return await self._store.claim()

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        begun = time.monotonic()
        try:
            await self._store.commit(operations, controller_epoch=controller_epoch)
        except ControllerFenced:
            raise
        except BaseException:
            self.failures += 1
            raise
        self.latency.observe(time.monotonic() - begun)

    async def close(self) -> None:
        await self._store.close()

    @property
    def seat(self) -> Seat | None:
        return self._store.seat

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        return await self._store.seat_changed(known, timeout=timeout)

    async def announce(self, me: Candidate) -> None:
        await self._store.announce(me)

    async def take_seat(self, me: Candidate) -> int:
        return await self._store.take_seat(me)

    async def seat_lost(self) -> str:
        return await self._store.seat_lost()

    async def resign(self) -> None:
        await self._store.resign()
