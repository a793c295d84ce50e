"""The running state of one group in this process: gate, offsets of both sides, members. Nothing here is durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.judge.group_offsets import Committed
from groups.gates.base import Gate, GroupMember
from groups.gates.topology import StreamsTopology
from groups.left_out import LeftOut
from groups.views import GroupView
from wire.backoff import Backoff
from wire.frames.types import TopicId, TopicPartition
from wire.shown_id import listed


@dataclass(slots=True)
class GroupRun:
    """The running side of a mirrored group, as others read it; `gate_keeper.GateKeeper` changes it."""

    name: str
    #: Held for every call of the gate: one at a time.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    gate: Gate | None = None
    covered: frozenset[TopicPartition] = frozenset()  # partitions that the gate was closed over
    covered_for: tuple[object, ...] | None = None  # the key that `covered` was computed for
    topic_ids: dict[str, TopicId] = field(default_factory=dict)  # of the mirrors that it was closed over
    source: Mapping[TopicPartition, Committed] | None = None  # None: not read yet
    target: dict[TopicPartition, Committed] | None = None  # as far as we know; None: to be read
    wanted: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    share_lag: Mapping[TopicPartition, int] = field(default_factory=dict)  # at the source, of a share group
    synced_at: float | None = None  # monotonic: the target has what the source had then
    source_view: GroupView | None = None
    topology: StreamsTopology | None = None  # of a streams group, as it was read last
    gone: bool = False  # the source does not have the group any more
    leaving: bool = False  # its gate is being released
    empty_looks: int = 0  # looks in a row that found no members
    # Error of the newest attempt, None if it worked: a step, a sync of offsets, a renewal of the gate.
    trouble: str | None = None
    sync_trouble: str | None = None
    renewal_trouble: str | None = None
    gate_trouble: str | None = None  # why it keeps the wrong gate
    waiting_for: str | None = None  # the reason why a promote or demote waits
    still_there: tuple[GroupMember, ...] = ()  # members that it waits for
    task: asyncio.Task[None] | None = None
    renewing: asyncio.Task[None] | None = None
    retry_at: float = 0.0  # monotonic: a refused or failed group is not looked at again before
    retries: Backoff = field(default_factory=lambda: Backoff(5.0, 60.0))

    @property
    def any_trouble(self) -> str | None:
        return self.trouble or self.renewal_trouble or self.sync_trouble or self.gate_trouble

    def sync_age(self) -> float | None:
        """Seconds since the target had everything that the source had; None: never yet."""
        return None if self.synced_at is None else max(0.0, time.monotonic() - self.synced_at)


def who(members: tuple[GroupMember, ...], most: int = 5) -> str:
    """Members for a person: client id, host, partitions."""
    return listed(
        (f"{one} ({listed(map(str, one.partitions), 4) or 'no partitions'})" for one in members), most
    )


def some(left: Mapping[TopicPartition, int]) -> str:
    """The first partitions, with their differences."""
    return listed(f"{tp} by {step}" for tp, step in sorted(left.items()))
