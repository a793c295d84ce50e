"""A group of the consumer protocol (KIP-848), as ConsumerGroup.java and CurrentAssignmentBuilder.java keep it.

The assignor is a plain range over the members in order of joining. Left out: regular expressions, racks, static
members, the rebalance timeout, and the classic protocol's view of such a group (its clients are taken for ours).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

UNKNOWN_MEMBER_ID = 25
FENCED_MEMBER_EPOCH = 110

Partition = tuple[str, int]


@dataclass
class Member:
    member_id: str
    client_id: str
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = -1
    state: str = "Stable"  # Stable, Unrevoked, Unreleased
    assigned: set[Partition] = field(default_factory=set)
    revoking: set[Partition] = field(default_factory=set)
    deadline: float = 0.0
    classic: bool = False


@dataclass
class ConsumerGroup:
    group: str
    existing: Callable[[str], Iterable[int]]  # the partitions of a topic
    epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    target: dict[str, set[Partition]] = field(default_factory=dict)
    _seen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        settled = all(m.state == "Stable" and m.epoch == self.epoch for m in self.members.values())
        return "Stable" if settled else "Reconciling"

    def _refresh(self, changed: bool) -> None:
        """A new target assignment, if members, subscriptions or the topics' partitions have changed."""
        topics = sorted({topic for member in self.members.values() for topic in member.topics})
        seen = {topic: tuple(self.existing(topic)) for topic in topics}
        if not changed and seen == self._seen:
            return
        self._seen = seen
        self.epoch += 1
        self.target = {member_id: set() for member_id in self.members}
        for topic, indexes in seen.items():
            subscribed = [m.member_id for m in self.members.values() if topic in m.topics]
            for place, index in enumerate(indexes):
                self.target[subscribed[place * len(subscribed) // len(indexes)]].add((topic, index))

    def _taken(self, partition: Partition, member_id: str) -> bool:
        return any(
            partition in m.assigned or partition in m.revoking
            for m in self.members.values()
            if m.member_id != member_id
        )

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        now: float,
        session: float,
        *,
        client_id: str,
        topics: tuple[str, ...] | None = None,
        owned: set[Partition] | None = None,
    ) -> tuple[int, Member | None, bool]:
        """Error code, the member, and whether the answer has to carry its assignment."""
        member = self.members.get(member_id)
        if member is None:
            if epoch != 0:
                return UNKNOWN_MEMBER_ID, None, False
            member = self.members[member_id] = Member(member_id, client_id)
        elif epoch > member.epoch or (
            0 < epoch < member.epoch
            and (epoch != member.previous_epoch or owned is None or not owned <= member.assigned)
        ):
            return FENCED_MEMBER_EPOCH, None, False
        changed = topics is not None and topics != member.topics
        if topics is not None:
            member.topics = topics
        self._refresh(changed or member.epoch == 0)
        before = set(member.assigned)
        self._reconcile(member, owned)
        member.deadline = now + session
        return 0, member, epoch == 0 or topics is not None or before != member.assigned

    def _reconcile(self, member: Member, owned: set[Partition] | None) -> None:
        if member.state == "Stable" and member.epoch == self.epoch:
            return
        if member.state == "Unrevoked" and (owned is None or owned & member.revoking):
            return
        target = self.target.get(member.member_id, set())
        mine = member.assigned | (member.revoking if member.state == "Unrevoked" else set())
        keep = member.assigned & target
        revoke = member.assigned - target
        if revoke and (owned is None or owned & revoke):
            member.assigned, member.revoking, member.state = keep, revoke, "Unrevoked"
            return
        wanted = target - keep
        free = {p for p in wanted if p in mine or not self._taken(p, member.member_id)}
        member.assigned, member.revoking = keep | free, set()
        member.state = "Stable" if free == wanted else "Unreleased"
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch

    def leave(self, member_id: str) -> int:
        if self.members.pop(member_id, None) is None:
            return UNKNOWN_MEMBER_ID
        self._refresh(True)
        return 0

    def expire(self, now: float) -> None:
        for member in list(self.members.values()):
            if member.deadline <= now:
                self.leave(member.member_id)

    def reload(self, now: float, session: float) -> None:
        """Everything is written; sessions begin anew."""
        for member in self.members.values():
            member.deadline = now + session
