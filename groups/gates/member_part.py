"""The member (`MemberPart`) of a gate, and the gate that is only a member.

The hold knows its protocol and nothing of stages; the gate moves the stages and is the face for others. PairGate puts
a transaction beside a hold.
"""

from __future__ import annotations

import abc
from collections.abc import Container, Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

from controller.groups import GateRecord, GateStage
from groups.gates import codes
from groups.gates.base import CommitFailed, GateError, GateLost, LostReason, OffsetAndMetadata
from groups.gates.coordinators import Coordinators
from groups.gates.ledger import GatePart
from groups.gates.requests import CoordinatorGroup, describe, offset_fetch
from groups.gates.transaction_part import TransactionPart
from wire.frames.error_codes import GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from wire.frames.types import TopicPartition


class MemberPart(GatePart, abc.ABC):
    """A member of the group that keeps all others from reading."""

    def set_up(self) -> None:
        #: Partitions that a client owns all the same, as of the last look.
        self.unheld: frozenset[TopicPartition] = frozenset()
        #: Set if the member is in the group, and no longer keeps all others from reading.
        self.weakness: GateLost | None = None
        self._due = self.clock()

    @property
    @abc.abstractmethod
    def member_id(self) -> str: ...

    @property
    @abc.abstractmethod
    def joined(self) -> bool:
        """Whether the record says that the member has joined."""

    @abc.abstractmethod
    async def take(self, partitions: Iterable[TopicPartition]) -> None:
        """Join, confirm the member of the record, or widen its partitions."""

    @abc.abstractmethod
    def interval(self) -> float:
        """Seconds between two heartbeats."""

    @abc.abstractmethod
    async def beat(self) -> None: ...

    @abc.abstractmethod
    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        held_otherwise: Container[TopicPartition] = frozenset(),
    ) -> None:
        """Commit as the member. `held_otherwise`: partitions that clients cannot read even if they were given them."""

    @abc.abstractmethod
    async def leave(self) -> None:
        """Leave, or see that the member has left."""

    async def await_others(self) -> None:
        """Before the last leave: wait, within reason, until the other members can cope with it."""
        return

    @abc.abstractmethod
    async def forget(self) -> None:
        """The member is gone: the record is as it was before it joined."""

    def due(self) -> float:
        return self._due

    def beaten(self) -> None:
        """The next heartbeat is due an interval from now, a little less at random: many groups spread by it."""
        self._due = self.clock() + self.interval() * (1 - 0.2 * self.jitter())

    async def lost(self, detail: str) -> GateLost:
        """The error to raise, with the present members; the record is reset, so that the gate can be taken anew."""
        error = self.explain(await self.described(), detail)
        await self.forget()
        return error

    async def described(self) -> CoordinatorGroup:
        return await describe(
            self.coordinators,
            self.group,
            streams=self.protocol == "streams",
            timeout=self.settings.operation_timeout,
        )

    def explain(self, described: CoordinatorGroup, detail: str) -> GateLost:
        others = described.others(self.member_id)
        if others and described.protocol and described.protocol != self.protocol:
            reason = LostReason.CONVERTED
        elif others:
            reason = LostReason.SOMEBODY_ELSE
        elif not described.protocol:
            reason = LostReason.DELETED
        else:
            reason = LostReason.EXPIRED
        advice = "stop these members, then the gate can be taken again" if others else "take it again"
        return GateLost(self.group, self.ledger.record.kind, reason, f"{detail}; {advice}", members=others)

    #: As DescribeGroups and ListGroups call it.
    protocol: ClassVar[str] = "consumer"

    def check_rights(self, failed: Mapping[TopicPartition, int]) -> None:
        """Raise if a right is missing, which no repetition helps."""
        for tp, code in failed.items():
            if code in (GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED):
                codes.check(code, "offset_commit", self.group, resource=tp.topic)


async def see_committed(
    coordinators: Coordinators,
    group: str,
    final: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    timeout: float,
) -> None:
    """CommitFailed unless the coordinator has exactly these offsets."""
    found = await offset_fetch(coordinators, group, final, require_stable=False, timeout=timeout)
    wrong = {
        tp: f"{wanted.offset} was committed, the coordinator has {_shown(found.offsets.get(tp))}"
        for tp, wanted in final.items()
        if found.offsets.get(tp) != wanted
    }
    if wrong:
        raise CommitFailed(group, wrong)


def _shown(found: OffsetAndMetadata | None) -> str:
    return "nothing" if found is None else str(found.offset)


def committable(final: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Without the partitions that have no offset: there the client's own reset rule counts."""
    return {tp: offset for tp, offset in final.items() if offset.offset >= 0}


def check_stage(record: GateRecord, *allowed: GateStage) -> None:
    """Refuse a call that the stage does not allow: a gate that is being opened is not closed or renewed any more."""
    if record.stage not in allowed:
        raise GateError(
            record.group, f"the gate is {record.stage}, it can only be opened to the end or released"
        )


PartT = TypeVar("PartT", MemberPart, TransactionPart)


class OnePartGate(Generic[PartT]):
    """A gate that one part alone holds: a member or a transaction."""

    def __init__(self, hold: PartT) -> None:
        self.hold: PartT = hold
        self.ledger = hold.ledger

    @property
    def record(self) -> GateRecord:
        return self.ledger.record

    def unheld(self) -> frozenset[TopicPartition]:
        return self.hold.unheld

    def weakness(self) -> GateLost | None:
        return None

    def due(self) -> float:
        return self.hold.due()


class MemberGate(OnePartGate[MemberPart]):
    """A gate that is a member and nothing else."""

    async def close(self, assignment: Mapping[TopicPartition, int]) -> GateRecord:
        check_stage(self.record, GateStage.PLANNED, GateStage.HELD)
        try:
            await self.hold.take(assignment)
            await self._see_weakness()
        except GateLost:
            await self.ledger.update(stage=GateStage.PLANNED)
            raise
        await self.ledger.update(stage=GateStage.HELD)
        return self.record

    async def renew(self) -> GateRecord:
        check_stage(self.record, GateStage.HELD)
        if self.hold.clock() >= self.hold.due():
            try:
                await self.hold.beat()
                await self._see_weakness()
            except GateLost:
                await self.ledger.update(stage=GateStage.PLANNED)
                raise
        return self.record

    async def _see_weakness(self) -> None:
        """Treat a member that does not hold as a lost gate; its partitions go to the clients."""
        weakness, self.hold.weakness = self.hold.weakness, None
        if weakness is not None:
            await self.hold.leave()
            await self.hold.forget()
            raise weakness

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        check_stage(self.record, GateStage.HELD)
        try:
            await self.hold.commit(committable(offsets))
            return True
        except GateLost:
            await self.ledger.update(stage=GateStage.PLANNED)
            raise

    async def open(self, final: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        hold, offsets = self.hold, committable(final)
        if self.record.stage is GateStage.HELD:
            await self.commit(offsets)
            await see_committed(
                hold.coordinators, hold.group, offsets, timeout=hold.settings.operation_timeout
            )
            await self.ledger.update(stage=GateStage.LEAVING)
        if self.record.stage is GateStage.LEAVING:
            await hold.await_others()
            await hold.leave()
            await self.ledger.update(stage=GateStage.OPEN)
        check_stage(self.record, GateStage.OPEN)

    async def release(self) -> None:
        await self.hold.leave()
        await self.ledger.update(stage=GateStage.OPEN)
