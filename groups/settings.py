"""The link's options about groups, as the work on them takes them."""

from __future__ import annotations

from dataclasses import dataclass

from controller.decide.groups import GroupRules

#: Seconds between looks at which groups the source has.
DISCOVERY_INTERVAL = 5.0


@dataclass(frozen=True, slots=True)
class GroupSettings:
    rules: GroupRules
    sync_interval: float  # seconds

    @property
    def any(self) -> bool:
        """Whether the link mirrors groups at all."""
        return bool(self.rules.include)
