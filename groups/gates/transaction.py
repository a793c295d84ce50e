"""The gate that is only a transaction: its stages. The transaction itself is in `transaction_part`."""

from __future__ import annotations

from collections.abc import Mapping

from controller.groups import GateRecord, GateStage
from groups.gates.base import GateLost, GroupActive, LostReason, OffsetAndMetadata
from groups.gates.member_part import OnePartGate, check_stage, committable
from groups.gates.requests import commit_as_nobody, describe
from groups.gates.transaction_part import TransactionPart
from wire.frames.types import TopicPartition


class TransactionGate(OnePartGate[TransactionPart]):
    """The gate of a group without members; its clients join and wait in it."""

    async def close(self, assignment: Mapping[TopicPartition, int]) -> GateRecord:
        check_stage(self.record, GateStage.PLANNED, GateStage.HELD)
        hold = self.hold
        if not hold.begun:
            await self.ledger.update(stage=GateStage.PLANNED)  # from here on we can be found
            described = await describe(hold.coordinators, hold.group, timeout=hold.settings.operation_timeout)
            if described.members:
                raise GroupActive(hold.group, described.members, described.state)
        try:
            await hold.take(assignment)
        except GateLost as error:
            if error.reason is not LostReason.FENCED:
                await self.ledger.update(stage=GateStage.PLANNED)
            raise
        await self.ledger.update(stage=GateStage.HELD)
        return self.record

    async def renew(self) -> GateRecord:
        check_stage(self.record, GateStage.HELD)
        if self.hold.clock() >= self.hold.due():
            try:
                await self.hold.renew()
            except GateLost:
                if not self.hold.begun:
                    await self.ledger.update(stage=GateStage.PLANNED)
                raise
        return self.record

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Works while the group is empty. Once clients wait in it only opening publishes: they cannot read pending
        offsets, so nothing they do depends on it."""
        check_stage(self.record, GateStage.HELD)
        hold, timeout = self.hold, self.hold.settings.operation_timeout
        return await commit_as_nobody(hold.coordinators, hold.group, committable(offsets), timeout=timeout)

    async def open(self, final: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        hold, offsets = self.hold, committable(final)
        if self.record.stage is GateStage.HELD:
            await hold.prepare(offsets)
            await self.ledger.update(stage=GateStage.PUBLISHING)
        if self.record.stage is GateStage.PUBLISHING:
            await hold.publish()
            await hold.see_stable(offsets)
            await self.ledger.update(stage=GateStage.OPEN)
        check_stage(self.record, GateStage.OPEN)

    async def release(self) -> None:
        await self.hold.abort()
        await self.ledger.update(stage=GateStage.OPEN)
