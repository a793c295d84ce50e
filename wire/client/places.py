"""Cache of coordinators: key -> node, forgotten when unused."""

from __future__ import annotations

import time
from collections.abc import Callable

_KEPT = 120.0  # seconds


class Places:
    """Key -> node. An entry that is unused for two to four minutes is forgotten, so that groups which came and went do
    not stay for the life of a link."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}
        self._turned_at = clock()

    def get(self, key: str) -> int | None:
        """The last known node."""
        self._turn()
        node = self._young.get(key)
        if node is None and (node := self._old.pop(key, None)) is not None:
            self._young[key] = node
        return node

    def set(self, key: str, node: int) -> None:
        self._turn()
        self._young[key] = node

    def forget(self, key: str) -> None:
        """Drop the entry: the coordinator has moved."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def _turn(self) -> None:
        now = self._clock()
        if now - self._turned_at >= _KEPT:
            self._old, self._young = (self._young if now - self._turned_at < 2 * _KEPT else {}), {}
            self._turned_at = now

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
