"""A gate that is a member of the classic protocol: it leads the group and never joins a second rebalance.

Holds: every classic client that joins afterwards. Its JoinGroup starts a rebalance, the rebalance waits for the gate
for the longest rebalance timeout there is (24.8 days), and the client waits in JoinGroup, of whatever topic. Commits go
on as the member of the last generation.

Does not hold: clients outside the group (`assign()`), and clients of the consumer protocol: the first one converts the
group and is let in at once. A client killed while it waits leaves a ghost, which lengthens the first rebalance after
opening by up to its session timeout. A client whose assignor the gate does not name is refused by the coordinator
(INCONSISTENT_GROUP_PROTOCOL). The gate opens by itself a session timeout after its last heartbeat.

Another sidecar takes over with member id and generation. A coordinator that was restarted knows the gate's last
generation and the one assignor that was chosen, so the assignor that the source group uses is named first.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Mapping
from typing import Any, ClassVar

from controller.groups import ClassicMember
from groups.gates import codes
from groups.gates.base import CommitFailed, GateError, GateRefused, GroupActive, OffsetAndMetadata
from groups.gates.coordinators import KeyType
from groups.gates.member_part import MemberGate, MemberPart
from groups.gates.requests import describe, explained, offset_commit
from groups.gates.settings import DEFAULT_PROTOCOLS, REBALANCE_TIMEOUT_MS
from wire.frames.error_codes import (
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from wire.frames.types import TopicPartition

_ATTEMPTS = 8
_SHORTEST_SESSION_MS = 6000  # group.min.session.timeout.ms of a stock broker
# ConsumerProtocolAssignment version 0 without topics: our assignment for every member.
_NOTHING_ASSIGNED = struct.pack(">hii", 0, 0, -1)
_GONE = frozenset({ILLEGAL_GENERATION}) | codes.MEMBER_GONE


class ClassicHold(MemberPart):
    """The member of a ClassicGate."""

    protocol: ClassVar[str] = "classic"

    @property
    def member(self) -> ClassicMember:
        member = self.ledger.record.classic
        if member is None:
            raise ValueError(f"a {self.ledger.record.kind} gate is no classic member")
        return member

    @property
    def member_id(self) -> str:
        return self.member.member_id

    @property
    def joined(self) -> bool:
        return self.member.generation >= 0

    async def take(self, partitions: Iterable[TopicPartition]) -> None:
        if self.joined:
            await self.beat()  # it holds every topic
            return
        described = await describe(self.coordinators, self.group, timeout=self.settings.operation_timeout)
        others = described.others(self.member_id)
        if others and described.member(self.member_id) is None:
            raise GroupActive(self.group, others, described.state)
        await self._join(sorted({tp.topic for tp in partitions}))

    async def _join(self, topics: list[str]) -> None:
        session_ms = int(self.settings.classic_session * 1000)
        for _ in range(_ATTEMPTS):
            answer = await self._join_group(topics, session_ms)
            code = int(answer.error_code)
            if code == MEMBER_ID_REQUIRED:
                await self.ledger.classic(member_id=answer.member_id)  # from here on we can be found
            elif code == UNKNOWN_MEMBER_ID:
                await self.ledger.classic(member_id="")
            elif code == INVALID_SESSION_TIMEOUT and session_ms > _SHORTEST_SESSION_MS:
                session_ms = max(_SHORTEST_SESSION_MS, session_ms // 2)
            elif code == INCONSISTENT_GROUP_PROTOCOL:
                raise await self._active("its members use other assignors than the gate knows")
            elif code == GROUP_MAX_SIZE_REACHED:
                raise GateRefused(self.group, "is full on the target (group.max.size)")
            else:
                codes.check(code, "join_group", self.group)
                if answer.leader != answer.member_id:
                    await self.leave()
                    raise await self._active("somebody else leads it")
                if await self._sync(answer):
                    return
        raise GateError(
            self.group, f"could not be joined in {_ATTEMPTS} attempts; its members change all the time"
        )

    async def _join_group(self, topics: list[str], session_ms: int) -> Any:
        names = self.member.protocols or DEFAULT_PROTOCOLS
        metadata = _subscription(topics)
        return await self.coordinators.call(
            KeyType.GROUP,
            self.group,
            "join_group",
            {
                "group_id": self.group,
                "session_timeout_ms": session_ms,
                "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
                "member_id": self.member_id,
                "protocol_type": "consumer",
                "protocols": [{"name": name, "metadata": metadata} for name in names],
                "reason": "held until it has left the source",
            },
            timeout=self.settings.take_timeout,
            waits_for=self.settings.join_timeout,
        )

    async def _sync(self, joined: Any) -> bool:
        """Assign nothing to every member. False if the group has moved on and must be joined again.

        REBALANCE_IN_PROGRESS is as good: clients have come, and wait for us.
        """
        answer = await self.coordinators.call(
            KeyType.GROUP,
            self.group,
            "sync_group",
            {
                "group_id": self.group,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "protocol_type": "consumer",
                "protocol_name": joined.protocol_name,
                "assignments": [
                    {"member_id": member.member_id, "assignment": _NOTHING_ASSIGNED}
                    for member in joined.members
                ],
            },
            timeout=self.settings.operation_timeout,
        )
        code = int(answer.error_code)
        if code in _GONE:
            return False
        if code != REBALANCE_IN_PROGRESS:
            codes.check(code, "sync_group", self.group)
        await self.ledger.classic(
            member_id=joined.member_id, generation=joined.generation_id, protocol=joined.protocol_name or ""
        )
        self.beaten()
        return True

    async def _active(self, otherwise: str) -> GateError:
        described = await describe(self.coordinators, self.group, timeout=self.settings.operation_timeout)
        others = described.others(self.member_id)
        if others:
            return GroupActive(self.group, others, described.state)
        return GateRefused(self.group, f"cannot be held by a classic gate: {otherwise}")

    def interval(self) -> float:
        return self.settings.classic_heartbeat

    async def beat(self) -> None:
        self.beaten()
        answer = await self.coordinators.call(
            KeyType.GROUP,
            self.group,
            "heartbeat",
            {
                "group_id": self.group,
                "generation_id": self.member.generation,
                "member_id": self.member_id,
            },
            timeout=self.settings.heartbeat_timeout,
        )
        code = int(answer.error_code)
        if code in _GONE:
            raise await self.lost("its session ended, or the group was rebalanced without it")
        if code != REBALANCE_IN_PROGRESS:
            codes.check(code, "heartbeat", self.group)
            self.weakness = None
            return
        # The sign that clients wait, or that one of the consumer protocol has converted the group.
        described = await describe(self.coordinators, self.group, timeout=self.settings.operation_timeout)
        if described.protocol != self.protocol:
            self.weakness = self.explain(described, "a client of the consumer protocol has joined it")

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        held_otherwise: Container[TopicPartition] = frozenset(),
    ) -> None:
        """Commit as the member of our generation: the coordinator refuses it once the group has gone on without us."""
        failed = await offset_commit(
            self.coordinators,
            self.group,
            offsets,
            member_id=self.member_id,
            generation_or_epoch=self.member.generation,
            timeout=self.settings.operation_timeout,
        )
        if any(code in _GONE for code in failed.values()):
            raise await self.lost("its session ended, or the group was rebalanced without it")
        self.check_rights(failed)
        if failed:
            raise CommitFailed(self.group, explained(failed), codes=failed)

    async def leave(self) -> None:
        if not self.member_id:
            return
        answer = await self.coordinators.call(
            KeyType.GROUP,
            self.group,
            "leave_group",
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "members": [{"member_id": self.member_id, "reason": "the group has left the source"}],
            },
            timeout=self.settings.operation_timeout,
        )
        found = [int(answer.error_code)] + [int(m.error_code) for m in getattr(answer, "members", ())]
        for code in found:
            if code not in codes.MEMBER_GONE:
                codes.check(code, "leave_group", self.group)

    async def forget(self) -> None:
        await self.ledger.classic(member_id="", generation=-1, protocol="")


def _subscription(topics: list[str]) -> bytes:
    """ConsumerProtocolSubscription version 0. Subscribed topics would not keep the offsets: they expire all the same."""
    parts = [struct.pack(">hi", 0, len(topics))]
    for topic in topics:
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


class ClassicGate(MemberGate):
    """A gate that is a classic member; the module docstring says what it holds."""
