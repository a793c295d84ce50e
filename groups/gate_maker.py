"""Gates for the groups of one link, planned from what the source shows of a group (tools.GateMaker)."""

from __future__ import annotations

from controller.groups import GateRecord, GateStage
from controller.state import MirrorGroup
from groups.gates import Coordinators, Gate, GateSettings, Save, make_gate, plan_gate
from groups.views import GroupView


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
