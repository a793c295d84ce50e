"""The source's leader epochs as our copy has them: where each one begins. Pure.

The history tells which epoch to send as LastFetchedEpoch, so that a source that lost data says so. It describes the copies,
not the source's cache of epochs: an epoch that turns up where another was known means that the source replaced something.

Epochs rise along a log, but for one whose cluster lost its metadata and kept its logs: there they began again somewhere. A
broker's cache forgets what lies before such a place (LeaderEpochFileCache), so only what is behind the last one can be
compared with it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from enum import Enum


class EpochNoted(Enum):
    KNOWN = "nothing new"
    EARLIER = "before all that was known"
    REPLACED = "from here on the history had another epoch, or none"


class EpochHistory:
    """Invariant: entries are (epoch, start offset), offsets strictly ascend, and neighbours have different epochs."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start in sorted(entries, key=_start_of):
            self.truncate(start)
            if self._entries[-1:] != [] and self._entries[-1][0] == epoch:
                continue
            self._entries.append((epoch, start))

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def before(self, offset: int) -> int:
        """The epoch of the batch before `offset`, -1 if it was not seen."""
        index = bisect.bisect_left(self._entries, offset, key=_start_of)
        return self._entries[index - 1][0] if index else -1

    def end_of(self, epoch: int) -> int | None:
        """Where our copy of an epoch ends, behind the last place where they began again; None if it is the last one, or
        unknown."""
        first = len(self._entries) - 1
        while first > 0 and self._entries[first - 1][0] < self._entries[first][0]:
            first -= 1
        for known, start in self._entries[max(first, 0) :]:
            if known > epoch:
                return start
        return None

    def note(self, epoch: int, offset: int) -> EpochNoted:
        """A batch of `epoch` begins at `offset`."""
        index = bisect.bisect_right(self._entries, offset, key=_start_of)
        if index:
            if self._entries[index - 1][0] == epoch:
                return EpochNoted.KNOWN
            # No epoch that began there or later is true any more.
            self.truncate(offset)
            if not self._entries or self._entries[-1][0] != epoch:
                self._entries.append((epoch, offset))
            return EpochNoted.REPLACED
        if self._entries and self._entries[0][0] < epoch:
            # It may also be a log whose epochs went back. To copy the records again is right in either case.
            self._entries = [(epoch, offset)]
            return EpochNoted.REPLACED
        if self._entries and self._entries[0][0] == epoch:
            self._entries[0] = (epoch, offset)
        else:
            self._entries.insert(0, (epoch, offset))
        return EpochNoted.EARLIER

    def truncate(self, offset: int) -> None:
        """Forget what begins at `offset` or beyond."""
        self._entries = [entry for entry in self._entries if entry[1] < offset]


def _start_of(entry: tuple[int, int]) -> int:
    return entry[1]
