"""Notes the first offset that each client asks for, for chosen partitions, from a given moment on.

How a promote of a consumer group sees that its members begin where they are to begin. Only what is fetched from this
sidecar is seen: promoted partitions, and those that another sidecar leads, are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from wire.frames.types import TopicPartition

_MOST_CLIENTS: Final = 64  # of one partition: a group's member, and whoever else reads it


class FirstFetches:
    """Everybody who watches. Costs nothing while nobody does."""

    def __init__(self) -> None:
        self._watching: list[dict[TopicPartition, dict[str, int]]] = []

    @contextmanager
    def watch(self, tps: Iterable[TopicPartition]) -> Iterator[Mapping[TopicPartition, Mapping[str, int]]]:
        """Partition -> client id -> offset, filled while the context lasts."""
        seen: dict[TopicPartition, dict[str, int]] = {tp: {} for tp in tps}
        self._watching.append(seen)
        try:
            yield seen
        finally:
            self._watching = [other for other in self._watching if other is not seen]

    def __bool__(self) -> bool:
        return bool(self._watching)

    def note(self, tp: TopicPartition, client_id: str | None, offset: int) -> None:
        """A consumer asks for an offset."""
        for seen in self._watching:
            clients = seen.get(tp)
            if clients is not None and len(clients) < _MOST_CLIENTS:
                clients.setdefault(client_id or "", offset)
