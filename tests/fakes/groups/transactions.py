"""The transaction coordinator with group offsets in it: what FakeCoordinator leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.transactions import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    FakeCoordinator,
    FakeTransaction,
)

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.groups.coordinator import FakeGroups

INVALID_TRANSACTION_TIMEOUT = 50
TRANSACTION_ABORTABLE = 120


class GroupTransactions(FakeCoordinator):
    """Transactions expire by the clock of `FakeGroups`, with a higher epoch, as the coordinator's own aborts do."""

    def __init__(self, groups: FakeGroups) -> None:
        super().__init__(groups.cluster)
        self.groups = groups
        self.max_timeout = 900.0
        self._timeouts: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        groups.cluster.handlers["add_offsets_to_txn"] = self.add_offsets

    def _name(self, wanted: FakeTransaction) -> str:
        return next(name for name, known in self.transactions.items() if known is wanted)

    async def init_producer_id(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        refused = {"producer_id": -1, "producer_epoch": -1}
        if entity.transactional_id is not None and not request.forced_error:
            code = self.groups.refused(broker, 1, entity.transactional_id)
            if code:
                return {"error_code": code, **refused}
            timeout = entity.transaction_timeout.total_seconds()
            if timeout > self.max_timeout:
                return {"error_code": INVALID_TRANSACTION_TIMEOUT, **refused}
            self._timeouts[entity.transactional_id] = timeout
        return await super().init_producer_id(broker, request)

    async def add_offsets(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        entity = request.entity
        name = entity.transactional_id
        known = self.transactions.get(name)
        code = request.forced_error or self.groups.refused(broker, 1, name)
        code = code or self._check(known, entity.producer_id, entity.producer_epoch)
        if not code and known is not None and known.state != "ongoing":
            known.state = "ongoing"
            self._deadlines[name] = self.groups.now + self._timeouts[name]
        return {"error_code": code}

    async def end_txn(self, broker: FakeBroker, request: Request) -> Mapping[str, object]:
        code = self.groups.refused(broker, 1, request.entity.transactional_id)
        return {"error_code": code} if code else await super().end_txn(broker, request)

    def verify(self, entity: Any) -> int:
        """What the group coordinator asks before it appends (AddPartitionsToTxn, verify only)."""
        known = self.transactions.get(entity.transactional_id)
        code = self._check(known, entity.producer_id, entity.producer_epoch)
        if code in (INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS) or known is None:
            return code
        return code or (0 if known.state == "ongoing" else TRANSACTION_ABORTABLE)

    def expire(self, now: float) -> None:
        for name, known in self.transactions.items():
            if known.state == "ongoing" and self._deadlines[name] <= now:
                known.last_epoch, known.epoch = known.epoch, known.epoch + 1
                self._decide(known, commit=False)

    def _decide(self, known: FakeTransaction, *, commit: bool) -> None:
        super()._decide(known, commit=commit)
        self.groups.offsets.end(known.producer_id, commit=commit)
        self.groups.on_change()
