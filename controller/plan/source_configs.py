"""A source topic's configs where the source's brokers differ in their defaults."""

from __future__ import annotations

from collections.abc import Mapping

from controller.plan.topic_configs import MAX_MESSAGE_BYTES, RETENTION_BYTES, RETENTION_MS, SEVERAL

#: Such a cluster keeps and takes as much as the most generous of its brokers.
_WIDEST = (RETENTION_MS, RETENTION_BYTES, MAX_MESSAGE_BYTES)


def widest(
    effective: Mapping[str, str], overrides: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """`effective` as one broker tells it (`ConfigHelper.describeConfigs`: with that broker's defaults), and where the
    brokers' defaults differ the value that keeps or takes most: any of them may lead a partition, and the one that was asked
    need not have any. `defaults`: of all brokers, parted by SEVERAL."""
    found = dict(effective)
    for name in _WIDEST:
        values = defaults.get(name, "").split(SEVERAL)
        if name not in overrides and len(values) > 1:
            found[name] = max(values, key=_room)
    return found


def _room(value: str) -> float:
    """-1 is no limit."""
    return float("inf") if value.startswith("-") else float(value) if value.isdigit() else -1.0
