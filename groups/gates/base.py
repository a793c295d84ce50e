"""The contract of a gate, and its errors.

A gate holds one consumer group on a stock target cluster: clients may connect, join and wait, and get no record until
it is opened. It is built from a `GateRecord` (a planned one, or one that another sidecar left) and a `save` that makes
a record durable. The gate saves *before* any step whose trace at the coordinator could not be found again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from controller.groups import GateKind, GateRecord
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.shown_id import listed, shown_id

# Makes a record durable; raises if it cannot, and then the gate does not take the step.
Save = Callable[[GateRecord], Awaitable[None]]

# The offset of a partition that the group covers and has no commit for.
NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset as it is written on the target. The leader epoch is always -1: the source's epoch means
    nothing here."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, named so that a person can find it."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        return f"{shown_id(self.client_id or self.member_id)} at {self.host}"


class Gate(Protocol):
    """One gate. One call at a time; calls are cancellation safe and have deadlines of their own."""

    @property
    def record(self) -> GateRecord:
        """The newest record, whether saved or not."""
        ...

    async def close(self, assignment: Mapping[TopicPartition, int]) -> GateRecord:
        """Take the group, or take it over from the record. Idempotent.

        `assignment` is every partition the group may read, with its newest offset (NO_OFFSET: none). Called
        again with more partitions it extends the gate; call it before the partitions exist on the target.
        Raises GroupActive (somebody is in the group), GateRefused (right missing, protocol unknown to the
        target), GateLost (resumed from a record, and it no longer holds).
        """
        ...

    def due(self) -> float:
        """When `renew` has to be called next, on the gate's monotonic clock."""
        ...

    async def renew(self) -> GateRecord:
        """Do what is due: a heartbeat, a younger transaction. Returns the newest record (saved if it changed).

        Raises GateLost when clients may have been let in. Errors of `wire` (coordinator away) are to be retried: the
        gate holds until `GateLost`.
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Commit while gated. Raises CommitFailed by partition, GateLost, GroupActive.

        False: nothing was committed. Clients are in the group, so the coordinator takes commits of members only, and
        the gate has no member there. Opening publishes.
        """
        ...

    def unheld(self) -> frozenset[TopicPartition]:
        """Partitions of the group that no part of the gate holds, as far as known."""
        ...

    def weakness(self) -> GateLost | None:
        """Why one part of the gate no longer holds while the other does; to be shown. None: all of it holds."""
        ...

    async def open(self, final: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Publish the final offsets, let the clients in, and see that they can read those offsets.

        Resumable: another sidecar may call it again with the same offsets from any saved stage.
        """
        ...

    async def release(self) -> None:
        """Let go without publishing anything: the group is no longer mirrored, or demoted."""
        ...


class GateError(LinkerError):
    """Base of the errors about gates; the text says what to do."""

    def __init__(self, group: str, message: str) -> None:
        super().__init__(f"group {shown_id(group)}: {message}")


class GateRefused(GateError):
    """The target does not let us hold the group: a right is missing, or it lacks the protocol."""


class GroupActive(GateRefused):
    """The group has members on the target (`members`), so its offsets are theirs."""

    def __init__(self, group: str, members: Sequence[GroupMember], state: str = "") -> None:
        self.members = tuple(members)
        shown = listed(map(str, self.members))
        super().__init__(
            group,
            f"is active on the target already ({shown or state}); stop these members, or give the mirrored "
            "group up",
        )


class CommitFailed(GateError):
    """The coordinator refused offsets and has taken those of all other partitions. `failed`: reason by partition;
    `codes`: the coordinator's error codes, where there are any."""

    def __init__(
        self,
        group: str,
        failed: Mapping[TopicPartition, str],
        *,
        codes: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.failed = dict(failed)
        self.codes = dict(codes or {})
        lines = (f"{tp}: {why}" for tp, why in sorted(self.failed.items()))
        super().__init__(group, f"offsets were not committed: {listed(lines, apart='; ', last='; and ')}")


class LostReason(StrEnum):
    """Why a gate no longer holds its group."""

    EXPIRED = "expired"  # no renewal in time: it opened by itself
    SOMEBODY_ELSE = "somebody else is in the group"
    CONVERTED = "the group changed its protocol"
    FENCED = "another sidecar took it over"
    DELETED = "the group was deleted"
    TOPICS_GONE = "topics of it are not on the target"


class GateLost(GateError):
    """The gate no longer holds: clients may have read from the last committed offsets."""

    def __init__(
        self,
        group: str,
        kind: GateKind,
        reason: LostReason,
        detail: str,
        *,
        members: Sequence[GroupMember] = (),
    ) -> None:
        self.reason = reason
        self.members = tuple(members)
        who = f" ({listed(map(str, self.members))})" if self.members else ""
        super().__init__(group, f"the {kind} gate on the target was lost, {reason}{who}: {detail}")
