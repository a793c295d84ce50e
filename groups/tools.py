"""What the work on one link's groups shares: both clusters' coordinators, what is durable, and how gates are made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from controller.groups import GateRecord, GateStage
from controller.state import MirrorGroup
from groups.bounds import TargetBounds
from groups.gates import Coordinators, Gate, GateSettings, Save, make_gate, plan_gate
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


class TargetGates:
    """Over the coordinators of one target cluster."""

    def __init__(self, link: str, coordinators: Coordinators, settings: GateSettings | None = None) -> None:
        self._link = link
        self._coordinators = coordinators
        self._settings = settings

    def plan(self, group: MirrorGroup, seen: GroupView | None) -> GateRecord:
        """A new record; the source's assignors come first, so that its clients find theirs."""
        protocols = () if seen is None else sorted(seen.assignors)
        return plan_gate(self._link, group.group, group.gate, protocols=protocols)

    def build(self, record: GateRecord, save: Save) -> Gate:
        stored = record.stage is not GateStage.PLANNED
        return make_gate(record, self._coordinators, save, stored=stored, settings=self._settings)


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
