"""The link's options about groups."""

from __future__ import annotations

from dataclasses import dataclass

from controller.decide.groups import GroupRules

#: Seconds between two lists of the source's groups.
DISCOVERY_INTERVAL = 5.0


@dataclass(frozen=True, slots=True)
class GroupSettings:
    rules: GroupRules
    sync_interval: float  # seconds

    @property
    def any(self) -> bool:
        """Whether the link mirrors groups at all."""
        return bool(self.rules.include)
