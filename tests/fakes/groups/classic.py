"""A group of the classic protocol, as ClassicGroup.java and GroupMetadataManager.java keep it.

Time is given; whoever waits for a rebalance gets a future. Left out: static members, the initial rebalance delay, a
rebalance that times out (the gates ask for the longest timeout there is).
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Joined:
    """A JoinGroup answer."""

    error: int = 0
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: tuple[str, ...] = ()  # for the leader


@dataclass
class Member:
    member_id: str
    client_id: str
    protocols: list[str]
    session: float
    deadline: float
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[tuple[int, bytes]] | None = None
    assignment: bytes = b""


@dataclass
class ClassicGroup:
    group: str
    state: str = "Empty"  # Empty, PreparingRebalance, CompletingRebalance, Stable
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)  # member id -> deadline
    #: What __consumer_offsets has: the last generation whose assignment was written.
    persisted: tuple[int, str, str, dict[str, bytes]] | None = None

    def join(
        self,
        member_id: str,
        client_id: str,
        protocols: list[str],
        session: float,
        now: float,
        known_id_required: bool,
    ) -> asyncio.Future[Joined]:
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        if self.members and not self._supported(protocols):
            answer.set_result(Joined(INCONSISTENT_GROUP_PROTOCOL))
            return answer
        if not member_id:
            member_id = f"{client_id}-{next(_numbers)}"
            if known_id_required:
                self.pending[member_id] = now + session
                answer.set_result(Joined(MEMBER_ID_REQUIRED, member_id))
                return answer
            self.pending[member_id] = now + session
        if member_id in self.pending:
            del self.pending[member_id]
            self.members[member_id] = Member(member_id, client_id, protocols, session, now + session)
            self.leader = self.leader or member_id
        elif member_id not in self.members:
            answer.set_result(Joined(UNKNOWN_MEMBER_ID))
            return answer
        elif self._goes_on(member_id) and self.members[member_id].protocols == protocols:
            answer.set_result(self._joined(member_id))
            return answer
        member = self.members[member_id]
        member.protocols, member.deadline = protocols, now + session
        if member.joining is not None and not member.joining.done():
            member.joining.cancel()
        member.joining = answer
        self._rebalance()
        self._complete()
        return answer

    def _goes_on(self, member_id: str) -> bool:
        """Joining again starts no rebalance: the answer was lost."""
        return self.state == "CompletingRebalance" or (self.state == "Stable" and self.leader != member_id)

    def _supported(self, protocols: list[str]) -> bool:
        return any(all(name in m.protocols for m in self.members.values()) for name in protocols)

    def _joined(self, member_id: str) -> Joined:
        members = tuple(self.members) if member_id == self.leader else ()
        return Joined(0, member_id, self.generation, self.protocol, self.leader, members)

    def _rebalance(self) -> None:
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result((REBALANCE_IN_PROGRESS, b""))
            member.syncing = None
        self.state = "PreparingRebalance"

    def _complete(self) -> None:
        """End the rebalance if everybody has joined it."""
        if self.state != "PreparingRebalance":
            return
        if not self.members:
            self.state, self.leader, self.generation = "Empty", "", self.generation + 1
            self.persisted = None
            return
        if any(member.joining is None for member in self.members.values()):
            return
        self.generation += 1
        self.state = "CompletingRebalance"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        first = self.members[self.leader]
        self.protocol = next(
            name for name in first.protocols if all(name in m.protocols for m in self.members.values())
        )
        for member in self.members.values():
            waiting, member.joining = member.joining, None
            if waiting is not None and not waiting.done():
                waiting.set_result(self._joined(member.member_id))

    def check(self, member_id: str, generation: int) -> int:
        if member_id not in self.members:
            return UNKNOWN_MEMBER_ID
        return 0 if generation == self.generation else ILLEGAL_GENERATION

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes], now: float
    ) -> asyncio.Future[tuple[int, bytes]]:
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        code = self.check(member_id, generation)
        if code or self.state == "PreparingRebalance":
            answer.set_result((code or REBALANCE_IN_PROGRESS, b""))
            return answer
        member = self.members[member_id]
        member.deadline = now + member.session
        if self.state == "Stable":
            answer.set_result((0, member.assignment))
            return answer
        member.syncing = answer
        if member_id == self.leader:
            self.state = "Stable"
            for other in self.members.values():
                other.assignment = assignments.get(other.member_id, b"")
                if other.syncing is not None and not other.syncing.done():
                    other.syncing.set_result((0, other.assignment))
                other.syncing = None
            kept = {m.member_id: m.assignment for m in self.members.values()}
            self.persisted = (self.generation, self.protocol, self.leader, kept)
        return answer

    def heartbeat(self, member_id: str, generation: int, now: float) -> int:
        code = self.check(member_id, generation)
        if code:
            return code
        member = self.members[member_id]
        member.deadline = now + member.session
        return REBALANCE_IN_PROGRESS if self.state == "PreparingRebalance" else 0

    def leave(self, member_id: str) -> int:
        if self.pending.pop(member_id, None) is not None:
            return 0
        gone = self.members.pop(member_id, None)
        if gone is None:
            return UNKNOWN_MEMBER_ID
        for waiting in (gone.joining, gone.syncing):
            if waiting is not None and not waiting.done():
                waiting.cancel()
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")
        self._rebalance()
        self._complete()
        return 0

    def expire(self, now: float) -> None:
        self.pending = {m: deadline for m, deadline in self.pending.items() if deadline > now}
        for member in list(self.members.values()):
            if member.deadline <= now and member.joining is None:
                self.leave(member.member_id)

    def reload(self, now: float) -> None:
        """The coordinator was restarted or moved: what is written is what there is."""
        members, self.members, self.pending = self.members, {}, {}
        for member in members.values():
            for waiting in (member.joining, member.syncing):
                if waiting is not None and not waiting.done():
                    waiting.cancel()
        if self.persisted is None:
            self.state, self.leader = "Empty", ""
            return
        self.generation, self.protocol, self.leader, kept = self.persisted
        self.state = "Stable"
        for member_id, assignment in kept.items():
            old = members.get(member_id)
            session = 30.0 if old is None else old.session
            client = "?" if old is None else old.client_id
            self.members[member_id] = Member(
                member_id, client, [self.protocol], session, now + session, assignment=assignment
            )
