"""Wall clock milliseconds of the link state as a datetime."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)
