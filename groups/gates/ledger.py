"""The gate's record, made durable before the step that needs it; a gate's halves, member and transaction, share it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from controller.groups import GateRecord
from groups.gates.base import Save
from groups.gates.coordinators import Coordinators
from groups.gates.settings import GateSettings


class Ledger:
    """The newest record of one gate. `update` returns only when the new one is durable."""

    def __init__(self, record: GateRecord, save: Save, *, saved: bool) -> None:
        self.record = record
        self._save = save
        self._saved = saved

    async def update(self, **changes: Any) -> None:
        """Write a record with these fields changed; nothing is written if the stored one is the same.

        Errors of `save` are raised, and the record stays as it was.
        """
        changed = dataclasses.replace(self.record, **changes)
        if self._saved and changed == self.record:
            return
        await self._save(changed)
        self.record, self._saved = changed, True

    async def consumer(self, **changes: Any) -> None:
        """Change fields of the consumer member."""
        if self.record.consumer is None:
            raise ValueError(f"a {self.record.kind} gate is no consumer member")
        await self.update(consumer=dataclasses.replace(self.record.consumer, **changes))

    async def classic(self, **changes: Any) -> None:
        """Change fields of the classic member."""
        if self.record.classic is None:
            raise ValueError(f"a {self.record.kind} gate is no classic member")
        await self.update(classic=dataclasses.replace(self.record.classic, **changes))

    async def transaction(self, **changes: Any) -> None:
        """Change fields of the transaction."""
        if self.record.transaction is None:
            raise ValueError(f"a {self.record.kind} gate has no transaction")
        await self.update(transaction=dataclasses.replace(self.record.transaction, **changes))


class GatePart:
    """Knows a protocol of the group's coordinators, and nothing of stages."""

    def __init__(
        self,
        coordinators: Coordinators,
        ledger: Ledger,
        settings: GateSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.coordinators = coordinators
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.sleep = sleep
        self.jitter = jitter
        self.set_up()

    def set_up(self) -> None:
        """The part's own state, at its beginning."""

    @property
    def group(self) -> str:
        return self.ledger.record.group
