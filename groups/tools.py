"""Shared parts of one link's groups: both clusters' coordinators, the group book, the maker of gates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from controller.groups import GateRecord, GateStage
from controller.mirror_group import MirrorGroup
from groups.bounds import TargetBounds
from groups.gates.base import Gate, Save
from groups.gates.coordinators import Coordinators
from groups.gates.factory import make_gate, plan_gate
from groups.gates.settings import GateSettings
from groups.group_book import GroupBook
from groups.group_reader import GroupReader
from groups.views import GroupView
from wire.frames.types import TopicPartition


class GateMaker(Protocol):
    """Plans and builds gates on the target."""

    def plan(self, group: MirrorGroup, seen: GroupView | None, topology: str | None = None) -> GateRecord:
        """A new gate of the group's kind; nothing is asked or told yet. `topology`: of a streams group."""
        ...

    def build(self, record: GateRecord, save: Save) -> Gate: ...


class TargetGates:
    """Plans and builds gates over the coordinators of one target cluster."""

    def __init__(self, link: str, coordinators: Coordinators, settings: GateSettings | None = None) -> None:
        self._link = link
        self._coordinators = coordinators
        self._settings = settings

    def plan(self, group: MirrorGroup, seen: GroupView | None, topology: str | None = None) -> GateRecord:
        """A new record; the source's assignors come first, so that its clients find theirs."""
        protocols = () if seen is None else sorted(seen.assignors)
        return plan_gate(self._link, group.group, group.gate, protocols=protocols, topology=topology)

    def build(self, record: GateRecord, save: Save) -> Gate:
        stored = record.stage is not GateStage.PLANNED
        return make_gate(record, self._coordinators, save, stored=stored, settings=self._settings)


@dataclass(frozen=True, slots=True)
class Tools:
    """Shared parts of the work on one link's groups."""

    book: GroupBook
    source: GroupReader
    target: GroupReader
    bounds: TargetBounds
    gates: GateMaker
    #: Number of partitions of a mirrored topic.
    partitions: Callable[[str], int]
    #: Bounds the gates that are closed at the same time.
    closing: asyncio.Semaphore
    #: First fetch offset by client id, of partitions that are read through this sidecar.
    first_fetches: Callable[
        [Collection[TopicPartition]],
        AbstractContextManager[Mapping[TopicPartition, Mapping[str, int]]],
    ]
