"""A mirrored consumer group as it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controller.group_phases import GroupPhase
from controller.groups import GateKind, GateRecord
from controller.json_fields import WRITTEN_IF_SET
from wire.frames.types import TopicPartition


class GroupProtocol(StrEnum):
    """The protocol that members of a group speak with their coordinator."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    STREAMS = "streams"  # KIP-1071
    SHARE = "share"  # KIP-932; the same with its start offsets


class GroupPolicy(StrEnum):
    MANUAL = "manual"
    AUTO = "auto"  # promoted by itself when it has left the source and waits on the target


class GroupOffset(NamedTuple):
    """A committed offset of a group, with the text that its consumer attached."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMove:
    """A promote or a demote of a group as it was asked for."""

    asked_at: int  # wall clock, ms
    until: int | None = None  # wall clock, ms: given up then; None: no limit
    force: bool = False
    automatic: bool = False
    unheld: bool = field(default=False, metadata=WRITTEN_IF_SET)  # begun while no gate held the group


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorGroup:
    """A consumer group of the source that is held on the target until it is promoted."""

    link: str
    group: str
    protocol: GroupProtocol
    gate: GateKind  # the one that is, or is to be, closed
    phase: GroupPhase = GroupPhase.DISCOVERED
    policy: GroupPolicy = GroupPolicy.MANUAL
    topics: tuple[str, ...] = ()  # mirrored topics that it reads, sorted
    unmirrored: tuple[str, ...] = ()  # topics that it reads and that are not mirrored, sorted
    reason: str | None = None
    gate_state: GateRecord | None = None  # None: no gate was planned yet, or it was opened or released
    move: GroupMove | None = None  # while a promote or demote is under way
    # From OPENING on: what is, or was, published. While DEMOTING: what goes to the source.
    offsets: tuple[GroupOffset, ...] = ()
    since: int = 0  # wall clock ms of the last phase change
