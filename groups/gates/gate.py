"""A member and a transaction as one gate: one keeps clients from partitions, the other from offsets.

When the member's session ends, the transaction goes on for minutes, and holds Java clients off partitions that were
created while they waited. The member holds clients that do not ask for stable offsets, and librdkafka, which does not
stand waiting for them. The gate is lost only when both are. A part that is lost alone is taken again. If clients got
into the group meanwhile, the member stays out, the transaction goes on alone, and `weakness` names those clients.

With a consumer member, partitions that appear while clients wait go to those clients, with the transaction alone
between them and the records: `unheld` names them. With a classic member nothing of the kind happens.

Opening: the member commits the final offsets, the transaction is *aborted* (its pending offsets are placeholders, so
it does not matter whether we end it or it expires), and the member leaves last: librdkafka must not have to wait for
stable offsets while its partitions change (see `transaction_part`), and on leaving they do. Without a member the
transaction publishes, as a TransactionGate does.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.groups import GateRecord, GateStage
from groups.gates.base import GateLost, GroupActive, LostReason, OffsetAndMetadata
from groups.gates.member_part import MemberPart, check_stage, committable, see_committed
from groups.gates.requests import commit_as_nobody, describe
from groups.gates.transaction_part import TransactionPart
from wire.frames.types import TopicPartition


class PairGate:
    """A member and a transaction that share one record."""

    def __init__(self, member: MemberPart, transaction: TransactionPart) -> None:
        self.member = member
        self.transaction = transaction
        self.ledger = member.ledger
        self._weakness: GateLost | None = None
        self._assignment: dict[TopicPartition, int] = {}

    @property
    def record(self) -> GateRecord:
        return self.ledger.record

    def unheld(self) -> frozenset[TopicPartition]:
        """Partitions that clients own count as unheld: only some libraries wait while offsets are pending (see
        `transaction_part`)."""
        return self.transaction.unheld | self.member.unheld

    def weakness(self) -> GateLost | None:
        return self._weakness or self.member.weakness

    # --- holding --------------------------------------------------------------------------------------------

    async def close(self, assignment: Mapping[TopicPartition, int]) -> GateRecord:
        check_stage(self.record, GateStage.PLANNED, GateStage.HELD)
        self._assignment.update(assignment)
        if self.record.stage is GateStage.PLANNED:
            await self.member.take(self._assignment)  # GroupActive, if it is
            await self._take_transaction()
            await self.ledger.update(stage=GateStage.HELD)
        else:
            await self._hold_on()
        return self.record

    async def _hold_on(self) -> None:
        """Take over, or extend. The transaction goes first: new partitions are pending before the member moves."""
        transaction_lost = False
        try:
            await self.transaction.take(self._assignment)
        except GateLost as error:
            if error.reason is LostReason.FENCED:
                raise
            transaction_lost = True
        try:
            await self.member.take(self._assignment)
            self._weakness = None
        except GateLost as error:
            await self._without_member(error, held=not transaction_lost)
        except GroupActive as error:
            await self._without_member(self._joined_by(error), held=not transaction_lost)
        if transaction_lost:
            await self._take_transaction()

    async def _take_transaction(self) -> None:
        """Take the record's transaction, or a new one if it has ended; the member holds meanwhile."""
        try:
            await self.transaction.take(self._assignment)
        except GateLost as error:
            if error.reason is LostReason.FENCED:
                raise
            await self.transaction.take(self._assignment)

    async def _without_member(self, lost: GateLost, *, held: bool) -> None:
        """The member is gone. Join again if no client came in; else go on without it if they wait for stable offsets."""
        if not held:
            await self.ledger.update(stage=GateStage.PLANNED)
            raise lost
        self._weakness = lost
        if lost.members:
            self.member.beaten()
            return
        try:
            await self.member.take(self._assignment)
        except GroupActive as error:
            self.member.beaten()
            self._weakness = self._joined_by(error)
        else:
            self._weakness = None

    def _joined_by(self, error: GroupActive) -> GateLost:
        return GateLost(
            self.record.group,
            self.record.kind,
            LostReason.SOMEBODY_ELSE,
            "the gate's member could not join again; Java clients are held by its transaction all the same, stop the "
            "others",
            members=error.members,
        )

    def due(self) -> float:
        return min(self.member.due(), self.transaction.due())

    async def renew(self) -> GateRecord:
        check_stage(self.record, GateStage.HELD)
        now = self.member.clock()
        if now >= self.member.due():
            await self._beat()
        if now >= self.transaction.due():
            await self._renew_transaction()
        return self.record

    async def _beat(self) -> None:
        try:
            if self.member.joined:
                await self.member.beat()
                return
            await self.member.take(self._assignment)  # out since it was lost
            self._weakness = None
        except GateLost as lost:
            await self._without_member(lost, held=await self.transaction.holds(self._assignment))
        except GroupActive as active:
            held = await self.transaction.holds(self._assignment)
            await self._without_member(self._joined_by(active), held=held)

    async def _renew_transaction(self) -> None:
        try:
            await self.transaction.renew()
        except GateLost as error:
            if error.reason is LostReason.FENCED:
                raise
            if not self.member.joined:
                await self.ledger.update(stage=GateStage.PLANNED)
                raise
            await self._take_transaction()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        check_stage(self.record, GateStage.HELD)
        return await self._commit(committable(offsets))

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether the coordinator has taken them. Without a member it may not, and opening publishes them."""
        if self.member.joined:
            try:
                await self.member.commit(offsets, held_otherwise=self.transaction.pending)
                return True
            except GateLost as lost:
                await self._without_member(lost, held=await self.transaction.holds(self._assignment))
        if self.member.joined:
            await self.member.commit(offsets, held_otherwise=self.transaction.pending)
            return True
        hold, timeout = self.transaction, self.transaction.settings.operation_timeout
        return await commit_as_nobody(hold.coordinators, hold.group, offsets, timeout=timeout)

    # --- opening --------------------------------------------------------------------------------------------

    async def open(self, final: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        offsets = committable(final)
        member, timeout = self.member, self.member.settings.operation_timeout
        if self.record.stage is GateStage.HELD:
            if await self._commit(offsets):
                await see_committed(member.coordinators, member.group, offsets, timeout=timeout)
                await self.ledger.update(stage=GateStage.ENDING)
            else:
                await self.transaction.prepare(offsets)
                await self.ledger.update(stage=GateStage.PUBLISHING)
        if self.record.stage is GateStage.ENDING:
            await self.transaction.abort()
            await self.transaction.see_stable(offsets)
            await self._settle()
            await self.ledger.update(stage=GateStage.LEAVING)
        if self.record.stage is GateStage.PUBLISHING:
            await self.transaction.publish()
            await self.transaction.see_stable(offsets)
            await self._settle()
            await self.ledger.update(stage=GateStage.LEAVING)
        if self.record.stage is GateStage.LEAVING:
            await member.await_others()
            await member.leave()
            await self.ledger.update(stage=GateStage.OPEN)
        check_stage(self.record, GateStage.OPEN)
        self._weakness = None

    async def _settle(self) -> None:
        """Clients that have partitions already get the time to ask for their offsets again, before they get more."""
        member = self.member
        described = await describe(
            member.coordinators, member.group, timeout=member.settings.operation_timeout
        )
        if any(other.partitions for other in described.others(member.member_id)):
            await member.sleep(member.settings.settle_time)

    async def release(self) -> None:
        await self.transaction.abort()
        await self._settle()
        await self.member.leave()
        await self.ledger.update(stage=GateStage.OPEN)
