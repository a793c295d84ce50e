"""A gate that is a member of the consumer protocol (KIP-848): it owns every partition and never gives one back.

Holds: clients of both protocols that join the group afterwards. The coordinator asks the gate to revoke, the gate does
not, and so they wait with an empty assignment (CurrentAssignmentBuilder.java: UNREVOKED_PARTITIONS; the rebalance
timeout of 24.8 days is the longest there is). Commits go on as the member.

Does not hold: partitions of topics it is not subscribed to, or that come into being while somebody waits: the
assignor gives those to a client at once. Clients outside the group (`assign()`). Assignors that need user data of the
previous assignment. It opens by itself a session timeout (45 s in stock Kafka) after its last heartbeat.

Another sidecar takes over with the member id alone. It must not join again with epoch 0: such a request has to report
no partitions, which releases all that were asked for. The epoch is asked of ConsumerGroupDescribe instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping
from typing import Any, ClassVar

from controller.groups import ConsumerMember
from groups.gates import codes
from groups.gates.base import CommitFailed, GateRefused, GroupActive, OffsetAndMetadata
from groups.gates.coordinators import KeyType
from groups.gates.member_part import MemberGate, MemberPart
from groups.gates.requests import CoordinatorGroup, CoordinatorMember, explained, offset_commit
from groups.gates.settings import REBALANCE_TIMEOUT_MS
from wire.backoff import Backoff
from wire.errors import UnsupportedApi
from wire.frames.error_codes import FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH
from wire.frames.types import TopicPartition, topic_id_to_uuid

_LEAVE = -1  # ConsumerGroupHeartbeatRequest.LEAVE_GROUP_MEMBER_EPOCH
_FIRST_PAUSE = 0.05
_ATTEMPTS = 5  # the epoch may move between asking for it and using it
_DEFAULT_INTERVAL = 5.0


class ConsumerHold(MemberPart):
    """The member of a ConsumerGate."""

    _api: ClassVar[str] = "consumer_group_heartbeat"
    _lacking: ClassVar[str] = "the target lacks the consumer protocol (KIP-848); choose a classic gate"
    _interval = _DEFAULT_INTERVAL

    @property
    def member(self) -> ConsumerMember:
        member = self.ledger.record.consumer
        if member is None:
            raise ValueError(f"a {self.ledger.record.kind} gate is no consumer member")
        return member

    @property
    def member_id(self) -> str:
        return self.member.member_id

    @property
    def joined(self) -> bool:
        return self.member.member_epoch > 0

    async def take(self, partitions: Iterable[TopicPartition]) -> None:
        topics = self._topics(partitions)
        resumed = self.joined
        if not resumed:
            described = await self.described()
            others, mine = described.others(self.member_id), described.member(self.member_id)
            if others and mine is None:
                raise GroupActive(self.group, others, described.state)
            await self.ledger.consumer(topics=topics)  # from here on we can be found
            # A process joined with our member id and ended before it saved that.
            await self._beat(topics, 0 if mine is None else mine.epoch)
        else:
            await self.ledger.consumer(topics=topics)
            await self._beat(topics, self.member.member_epoch)
        await self._own(topics, resumed)

    def _topics(self, partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
        return tuple(sorted({tp.topic for tp in partitions} | set(self.member.topics)))

    async def _own(self, topics: tuple[str, ...], resumed: bool) -> None:
        """Wait until every partition is ours. A member that was there before keeps its partitions, whatever it is
        told: only the other owners are to be found out."""
        deadline = self.clock() + self.settings.take_timeout
        backoff = Backoff(_FIRST_PAUSE, 1.0)
        while True:
            described = await self.described()
            mine = described.member(self.member_id)
            if mine is None:
                raise await self.lost("the member vanished while it was joining")
            elsewhere = _elsewhere(described, self.member_id)
            self.unheld = frozenset(elsewhere)
            if resumed:
                return
            if elsewhere:
                await self.leave()
                await self.forget()
                raise GroupActive(self.group, tuple(dict.fromkeys(elsewhere.values())), described.state)
            missing = sorted(await self._existing(topics) - set(mine.partitions))
            if not missing:
                return
            if backoff.over(self.clock(), deadline):
                await self.leave()
                await self.forget()
                raise GateRefused(
                    self.group,
                    f"the target's coordinator gave the gate no {missing[0]} (and {len(missing) - 1} more) within "
                    f"{self.settings.take_timeout:g} s; look for errors of its assignor in the broker's log",
                )
            await self.sleep(backoff.next())
            await self._beat(None, self.member.member_epoch)

    async def _existing(self, topics: tuple[str, ...]) -> set[TopicPartition]:
        cluster = self.coordinators.cluster
        await cluster.refresh(topics, timeout=self.settings.operation_timeout)
        return {
            TopicPartition(name, index)
            for name in topics
            if name in cluster.topics
            for index in cluster.topics[name].partitions
        }

    def _owned(self, topics: tuple[str, ...]) -> list[dict[str, object]]:
        known = (self.coordinators.cluster.topics.get(name) for name in topics)
        return [
            {"topic_id": topic_id_to_uuid(topic.topic_id), "partitions": sorted(topic.partitions)}
            for topic in known
            if topic is not None and topic.topic_id is not None and topic.partitions
        ]

    async def _beat(self, topics: tuple[str, ...] | None, epoch: int) -> None:
        """One heartbeat; with `topics` a full one. Recovers from an epoch that is not the coordinator's.

        A heartbeat without the owned partitions means "as before", which keeps what was asked for.
        """
        self.beaten()
        for _ in range(_ATTEMPTS):
            fields: dict[str, object] = {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": epoch,
            }
            if topics is not None:
                await self._existing(topics)
                fields |= self._full(topics, joining=epoch == 0)
            answer = await self._heartbeat(fields)
            code = int(answer.error_code)
            if code == 0:
                self._interval = max(0.1, answer.heartbeat_interval.total_seconds())
                self.beaten()
                await self.ledger.consumer(member_epoch=answer.member_epoch)
                return
            if code in codes.MEMBER_GONE:
                raise await self.lost("its session ended")
            if code != FENCED_MEMBER_EPOCH:
                self._check(code, answer.error_message)
            epoch = await self._epoch()
            topics = self.member.topics
        raise await self.lost("the coordinator does not agree on the member's epoch")

    def _full(self, topics: tuple[str, ...], *, joining: bool) -> dict[str, object]:
        """The fields of a full heartbeat."""
        return {
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "subscribed_topic_names": list(topics),
            "topic_partitions": [] if joining else self._owned(topics),
        }

    def _check(self, code: int, message: str | None) -> None:
        codes.check(code, self._api, self.group, resource=",".join(self.member.topics), message=message)

    async def _heartbeat(self, fields: Mapping[str, object]) -> Any:
        try:
            return await self.coordinators.call(
                KeyType.GROUP,
                self.group,
                self._api,
                fields,
                timeout=self.settings.heartbeat_timeout,
            )
        except UnsupportedApi as error:
            raise GateRefused(self.group, self._lacking) from error

    async def _epoch(self) -> int:
        described = await self.described()
        mine = described.member(self.member_id)
        if mine is None:
            raise await self.lost("its session ended")
        return mine.epoch

    def interval(self) -> float:
        return self._interval

    async def beat(self) -> None:
        await self._beat(None, self.member.member_epoch)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        held_otherwise: Container[TopicPartition] = frozenset(),
    ) -> None:
        """Commit as the member. Refused for a partition that a client already owns (see the module) unless it is held
        otherwise: the client's own commits count there."""
        for _ in range(_ATTEMPTS):
            described = await self.described()
            mine = described.member(self.member_id)
            if mine is None:
                raise await self.lost("its session ended")
            elsewhere = _elsewhere(described, self.member_id)
            self.unheld = frozenset(elsewhere)
            reading = {tp: member for tp, member in elsewhere.items() if tp not in held_otherwise}
            failed = await offset_commit(
                self.coordinators,
                self.group,
                {tp: offset for tp, offset in offsets.items() if tp not in reading},
                member_id=self.member_id,
                generation_or_epoch=mine.epoch,
                timeout=self.settings.operation_timeout,
            )
            if any(code in codes.MEMBER_GONE for code in failed.values()):
                raise await self.lost("its session ended")
            if STALE_MEMBER_EPOCH in failed.values():
                continue
            self.check_rights(failed)
            why = explained(failed) | {tp: f"is read by {reading[tp]}" for tp in offsets if tp in reading}
            if why:
                raise CommitFailed(self.group, why, codes=failed)
            return
        raise CommitFailed(self.group, dict.fromkeys(offsets, "the member's epoch keeps moving"))

    async def await_others(self) -> None:
        """Until every other member is at the group's epoch; the last one that joined has moved it.

        When nobody is left but classic members, the coordinator makes the group a classic one whose generation is the
        group's epoch (`GroupMetadataManager.convertToClassicGroup`). A member of an earlier epoch learns of it by
        ILLEGAL_GENERATION, upon which some libraries (aiokafka, Java's before KAFKA-13419) join as somebody new, while
        the member they were keeps the rebalance waiting until its session ends. One of that epoch is asked to join again.

        Our heartbeats go on: since Kafka 4.3 a new epoch has no assignment for a second, and classic members are not asked
        to join again before it has; a classic heartbeat does not have it made, one of the consumer protocol does.
        """
        deadline = self.clock() + self.settings.rejoin_time
        while True:
            described = await self.described()
            mine, others = described.member(self.member_id), described.others(self.member_id)
            if (
                mine is None
                or not all(other.classic for other in others)  # the group stays what it is
                or all(other.epoch >= described.epoch for other in others)
                or self.clock() >= deadline
            ):
                return
            # The answer does not matter: the next look shows the state of the member.
            await self._heartbeat(
                {"group_id": self.group, "member_id": self.member_id, "member_epoch": mine.epoch}
            )
            await self.sleep(self.settings.rejoin_poll)

    async def leave(self) -> None:
        answer = await self.coordinators.call(
            KeyType.GROUP,
            self.group,
            self._api,
            {"group_id": self.group, "member_id": self.member_id, "member_epoch": _LEAVE},
            timeout=self.settings.operation_timeout,
        )
        code = int(answer.error_code)
        if code not in codes.MEMBER_GONE:
            codes.check(code, self._api, self.group, message=answer.error_message)

    async def forget(self) -> None:
        await self.ledger.consumer(member_id=new_member_id(), member_epoch=0)


def _elsewhere(described: CoordinatorGroup, member_id: str) -> dict[TopicPartition, CoordinatorMember]:
    return {tp: member for member in described.others(member_id) for tp in member.partitions}


def new_member_id() -> str:
    return str(uuid.uuid4())


class ConsumerGate(MemberGate):
    """A gate that is a member of the consumer protocol; the module docstring says what it holds."""
