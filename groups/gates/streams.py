"""A gate that is a member of the streams protocol (KIP-1071): it owns every task and never gives one back.

Holds: members of the application that join afterwards. The coordinator asks the gate to revoke, the gate does not, and so
they wait without an active task (CurrentAssignmentBuilder.java: UNRELEASED_TASKS; the rebalance timeout of 24.8 days is the
longest there is). They may get standby tasks: those copy a changelog, which is right on the target at any time. Commits go
on as the member. Clients outside the group (`assign()`) are not held.

The member joins with the topology of the application (see `topology`); the first one makes it the group's, and it stays with
the group until that is deleted. It is in no group while an internal topic is missing on the target: the coordinator would
create that for the gate, and it could never be a mirror.

It opens by itself a session timeout (45 s in stock Kafka) after its last heartbeat. Another sidecar takes over with the
member id alone, as in `consumer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from groups.gates.base import GateLost, GateRefused, LostReason
from groups.gates.consumer import ConsumerHold
from groups.gates.settings import REBALANCE_TIMEOUT_MS
from groups.gates.topology import StreamsTopology, parsed
from wire.frames.error_codes import INVALID_REQUEST
from wire.frames.types import TopicPartition

# StreamsGroupHeartbeatResponse.Status: source topics are missing, wrong numbers of partitions, internal topics are missing.
_NOT_READY = frozenset({1, 2, 3})


class StreamsHold(ConsumerHold):
    """The member of a StreamsGate."""

    protocol: ClassVar[str] = "streams"
    _api: ClassVar[str] = "streams_group_heartbeat"
    _lacking: ClassVar[str] = "the target lacks the streams protocol (KIP-1071)"
    #: Why the coordinator assigns no task, as of the last heartbeat.
    _not_ready = ""

    @property
    def topology(self) -> StreamsTopology:
        return parsed(self.member.topology or "")

    def _topics(self, partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
        return tuple(sorted(self.topology.topics))

    async def _existing(self, topics: tuple[str, ...]) -> set[TopicPartition]:
        """The partitions that tasks read. GateRefused while a topic of the application is missing."""
        if missing := await self._missing(topics):
            raise GateRefused(self.group, f"{_named(missing)} of its topology is not on the target")
        sources = self.topology.sources
        return {tp for tp in await super()._existing(topics) if tp.topic in sources}

    async def _missing(self, topics: tuple[str, ...]) -> list[str]:
        cluster = self.coordinators.cluster
        await cluster.refresh(topics, timeout=self.settings.operation_timeout)
        known = (cluster.topics.get(name) for name in topics)
        return [
            name
            for name, topic in zip(topics, known, strict=True)
            if topic is None or topic.error or not topic.partitions
        ]

    async def _own(self, topics: tuple[str, ...], resumed: bool) -> None:
        if self._not_ready and not resumed:
            await self.leave()
            await self.forget()
            raise GateRefused(self.group, f"the target's coordinator assigns no task: {self._not_ready}")
        await super()._own(topics, resumed)

    def _full(self, topics: tuple[str, ...], *, joining: bool) -> dict[str, object]:
        """A member that is there says nothing of its tasks: it has them as before."""
        if not joining:
            return {}
        return {
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "topology": self.topology.entity,
            "process_id": self.member_id,
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
            "client_tags": [],
        }

    def _check(self, code: int, message: str | None) -> None:
        if code == INVALID_REQUEST:
            raise GateRefused(
                self.group,
                f"the target's coordinator does not take the topology of its application ({message}): the group has another "
                "one there. If nobody needs that group, delete it there (kafka-streams-groups.sh --delete)",
            )
        super()._check(code, message)

    async def _heartbeat(self, fields: Mapping[str, object]) -> Any:
        answer = await super()._heartbeat(fields)
        told = [one.status_detail for one in answer.status or () if one.status_code in _NOT_READY]
        self._not_ready = "; ".join(told)
        return answer

    async def beat(self) -> None:
        if missing := await self._missing(self.member.topics):
            self.weakness = GateLost(
                self.group,
                self.ledger.record.kind,
                LostReason.TOPICS_GONE,
                f"{_named(missing)} is missing, and its coordinator would create it for the gate",
            )
            return
        await super().beat()


def _named(topics: list[str]) -> str:
    return topics[0] + (f" (and {len(topics) - 1} more)" if len(topics) > 1 else "")
