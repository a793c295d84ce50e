"""Two gates as one: a member that keeps clients from partitions, and a transaction that keeps them from offsets.

Each closes holes of the other: the transaction holds partitions that came into being after the member had joined, and
goes on for minutes when the member's session ends; the member holds clients that do not ask for stable offsets.
Either may fail alone and is taken again as long as nobody else got into the group; only both together are lost.

Opening: the final offsets are committed by the member, then the member leaves, the clients get their partitions and
wait for stable offsets, then the transaction is *aborted*. Nothing is published by it: a client that does not wait
for stable offsets reads as soon as the member has left, and a transaction that committed afterwards could set its
progress back. It also makes expiry harmless: a transaction that ends by itself while opening has the same effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.groups import GateRecord, GateStage
from linker.groups.gates.base import GateLost, GroupActive, LostReason, OffsetAndMetadata
from linker.groups.gates.member import MemberHold, check_stage, committable, see_committed
from linker.groups.gates.requests import describe
from linker.groups.gates.transaction import TransactionHold
from wire.types import TopicPartition

_POLL = 0.1


class PairGate:
    """See the module. The two holds share one record."""

    def __init__(self, member: MemberHold, transaction: TransactionHold) -> None:
        self.member = member
        self.transaction = transaction
        self.ledger = member.ledger
        #: How often one part was lost and taken again while the other one held.
        self.retaken = 0
        self._assignment: dict[TopicPartition, int] = {}

    @property
    def record(self) -> GateRecord:
        return self.ledger.record

    def unheld(self) -> frozenset[TopicPartition]:
        return self.transaction.unheld | (self.member.unheld - self.transaction.pending)

    async def close(self, assignment: Mapping[TopicPartition, int]) -> GateRecord:
        check_stage(self.record, GateStage.PLANNED, GateStage.HELD)
        if self.record.stage is GateStage.PLANNED:
            await self.member.take(assignment)
            await self._take_transaction(assignment)
            await self.ledger.update(stage=GateStage.HELD)
        else:
            await self._hold_on(assignment)
        self._assignment.update(assignment)
        return self.record

    async def _take_transaction(self, assignment: Mapping[TopicPartition, int]) -> None:
        """Where the record's one has ended, a new one; the member holds meanwhile."""
        try:
            await self.transaction.take(assignment)
        except GateLost as error:
            if error.reason is LostReason.FENCED:
                raise
            self.retaken += 1
            await self.transaction.take(assignment)

    async def _hold_on(self, assignment: Mapping[TopicPartition, int]) -> None:
        """Take over, or extend. The transaction first: a new partition is pending before the member asks for it."""
        lost: GateLost | None = None
        try:
            await self.transaction.take(assignment)
        except GateLost as error:
            if error.reason is LostReason.FENCED:
                raise
            lost = error
        try:
            await self.member.take(assignment)
        except GateLost as error:
            await self._take_again(error, assignment, transaction_held=lost is None)
        if lost is not None:
            self.retaken += 1
            await self.transaction.take(assignment)

    async def _take_again(
        self, error: GateLost, assignment: Mapping[TopicPartition, int], *, transaction_held: bool
    ) -> None:
        """The member is gone; join again if nobody can have read anything."""
        if error.members or not transaction_held:
            await self.ledger.update(stage=GateStage.PLANNED)
            raise error
        try:
            await self.member.take(assignment)
        except GroupActive as active:
            await self.ledger.update(stage=GateStage.PLANNED)
            raise GateLost(
                self.record.group,
                self.record.kind,
                LostReason.SOMEBODY_ELSE,
                "its member's session had ended; stop these members, then the gate can be taken again",
                members=active.members,
            ) from active
        self.retaken += 1

    def due(self) -> float:
        return min(self.member.due(), self.transaction.due())

    async def renew(self) -> GateRecord:
        check_stage(self.record, GateStage.HELD)
        now = self.member.clock()
        if now >= self.member.due():
            await self._beat()
        if now >= self.transaction.due():
            try:
                await self.transaction.renew()
            except GateLost as error:
                if error.reason is LostReason.FENCED:
                    raise
                await self._take_transaction(self._assignment)
                self.retaken += 1
        return self.record

    async def _beat(self) -> None:
        try:
            await self.member.beat()
        except GateLost as error:
            held = await self.transaction.holds(self._assignment)
            await self._take_again(error, self._assignment, transaction_held=held)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        check_stage(self.record, GateStage.HELD)
        try:
            await self.member.commit(committable(offsets), held_otherwise=self.transaction.pending)
        except GateLost as error:
            held = await self.transaction.holds(self._assignment)
            await self._take_again(error, self._assignment, transaction_held=held)
            await self.member.commit(committable(offsets), held_otherwise=self.transaction.pending)

    async def open(self, final: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        offsets = committable(final)
        member, timeout = self.member, self.member.settings.operation_timeout
        if self.record.stage is GateStage.HELD:
            await self.commit(offsets)
            await see_committed(member.coordinators, member.group, offsets, timeout=timeout)
            await self.ledger.update(stage=GateStage.LEAVING)
        if self.record.stage is GateStage.LEAVING:
            await member.leave()
            await self._assigned()
            await self.ledger.update(stage=GateStage.ENDING)
        if self.record.stage is GateStage.ENDING:
            await self.transaction.abort()
            await self.transaction.see_stable(offsets)
            await self.ledger.update(stage=GateStage.OPEN)
        check_stage(self.record, GateStage.OPEN)

    async def _assigned(self) -> None:
        """Wait until the clients have their partitions, or there are none, or they take too long."""
        member = self.member
        deadline = member.clock() + member.settings.assignment_timeout
        while True:
            described = await describe(
                member.coordinators, member.group, timeout=member.settings.operation_timeout
            )
            ready = described.state == "Stable" and any(found.partitions for found in described.members)
            if ready or not described.members or member.clock() >= deadline:
                return
            await member.sleep(_POLL)

    async def release(self) -> None:
        await self.member.leave()
        await self.transaction.abort()
        await self.ledger.update(stage=GateStage.OPEN)
