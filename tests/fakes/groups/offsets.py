"""Committed and pending offsets, as OffsetMetadataManager.java keeps them: the newer of a commit and a pending one
stays when a transaction commits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

Partition = tuple[str, int]


@dataclass(frozen=True)
class Committed:
    offset: int
    metadata: str
    at: int  # the record's offset in __consumer_offsets


@dataclass
class Offsets:
    committed: dict[str, dict[Partition, Committed]] = field(default_factory=dict)
    pending: dict[int, dict[str, dict[Partition, Committed]]] = field(default_factory=dict)
    _records: itertools.count[int] = field(default_factory=itertools.count)

    def commit(self, group: str, partition: Partition, offset: int, metadata: str) -> None:
        self.committed.setdefault(group, {})[partition] = Committed(offset, metadata, next(self._records))

    def put_pending(
        self, producer_id: int, group: str, partition: Partition, offset: int, metadata: str
    ) -> None:
        groups = self.pending.setdefault(producer_id, {})
        groups.setdefault(group, {})[partition] = Committed(offset, metadata, next(self._records))

    def end(self, producer_id: int, *, commit: bool) -> None:
        for group, offsets in self.pending.pop(producer_id, {}).items():
            for partition, pending in offsets.items() if commit else ():
                old = self.committed.get(group, {}).get(partition)
                if old is None or old.at < pending.at:
                    self.committed.setdefault(group, {})[partition] = pending

    def unstable(self, group: str, partition: Partition) -> bool:
        return any(partition in groups.get(group, {}) for groups in self.pending.values())

    def get(self, group: str, partition: Partition) -> Committed | None:
        return self.committed.get(group, {}).get(partition)
