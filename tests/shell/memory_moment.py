"""The moment at which everything in a MemoryService happens."""

from __future__ import annotations

from datetime import UTC, datetime

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
