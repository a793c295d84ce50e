"""What the work on one link's groups shares: both clusters' coordinators, what is durable, and how gates are made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from controller.groups import GateRecord
from controller.state import MirrorGroup
from groups.bounds import TargetBounds
from groups.gates import Gate, Save
from groups.group_book import GroupBook
from groups.group_reader import GroupReader
from groups.views import GroupView
from wire.frames.types import TopicPartition


class GateMaker(Protocol):
    """Plans and builds gates on the target."""

    def plan(self, group: MirrorGroup, seen: GroupView | None) -> GateRecord:
        """A new gate of the group's kind; nothing is asked or told yet."""
        ...

    def build(self, record: GateRecord, save: Save) -> Gate: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What the work on one link's groups shares."""

    book: GroupBook
    source: GroupReader
    target: GroupReader
    bounds: TargetBounds
    gates: GateMaker
    #: Partitions of a mirrored topic.
    partitions: Callable[[str], int]
    #: As many gates are closed at the same time.
    closing: asyncio.Semaphore
    #: What clients ask for first, of partitions that are read through this sidecar: client id -> offset.
    first_fetches: Callable[
        [Collection[TopicPartition]],
        AbstractContextManager[Mapping[TopicPartition, Mapping[str, int]]],
    ]
