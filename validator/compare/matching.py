"""Holds the sides of a range against each other while they are read, as long as they are alike.

Pure: headers in, sums out. Nothing is sorted and nothing waits for the end of a range: what all sides have shown is compared
and forgotten. Anything that is not the same batch, intact and in order on every side, makes a range *odd*: what is wrong
with it, or whether it is lawful, is found out from all of its rows (judging.py), which are read once more for that.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from validator.compare.columns import BATCH, HeaderBlock
from validator.compare.digest import digest_of
from validator.compare.verdict import CONTROL, FACTS, CleanRun, Judge, LogSide, RangeSpec, RangeVerdict
from validator.read.spans import SOURCE

FIELDS = ("base_offset", *FACTS)
_AT = {name: place for place, name in enumerate(FIELDS)}

Rows = npt.NDArray[np.int64]
"""One row per field of FIELDS, one column per batch."""


def rows_of(block: HeaderBlock) -> Rows | None:
    """The fields of each batch that have to be equal; None if a batch is damaged or out of order."""
    rows: Rows = np.empty((len(FIELDS), block.rows), np.int64)
    for place, name in enumerate(FIELDS):
        rows[place] = block.column(name)
    if not np.array_equal(block.crc_computed(), rows[_AT["crc"]]):
        return None
    if (block.follows() > rows[_AT["base_offset"]]).any():
        return None
    return rows


class RangeMatch:
    """One range: give it each side's rows as they come, then `finish`."""

    def __init__(self, spec: RangeSpec) -> None:
        self.odd = False
        self._judge = Judge(spec)
        self._waiting: dict[int, deque[Rows]] = {slot: deque() for slot in (SOURCE, *spec.slots)}

    def add(self, slot: int, rows: Rows | None) -> bool:
        """A side's next rows; None: there is something to be looked at more closely. False: the range is odd."""
        if rows is None:
            self.give_up()
        elif not self.odd:
            self._waiting[slot].append(rows)
            self._match()
        return not self.odd

    def give_up(self) -> None:
        """Mark the range as odd: its rows are compared no further here."""
        self.odd = True
        for held in self._waiting.values():
            held.clear()

    def finish(self) -> RangeVerdict | None:
        """After the last row of every side. None: the range is odd."""
        if any(self._waiting.values()):
            self.give_up()  # what one side has shown and another has not
        return None if self.odd else self._judge.finish()

    def _match(self) -> None:
        sides = list(self._waiting.values())
        while all(sides):
            count = min(held[0].shape[1] for held in sides)
            first, *others = (held[0][:, :count] for held in sides)
            if not all(np.array_equal(first, other) for other in others) or not self._rises(first):
                self.give_up()
                return
            self._judge.clean(_sums(first))
            for held in sides:
                if held[0].shape[1] == count:
                    held.popleft()
                else:
                    held[0] = held[0][:, count:]

    def _rises(self, rows: Rows) -> bool:
        """Whether each batch begins behind all of those before it."""
        bases, lasts = rows[_AT["base_offset"]], rows[_AT["last_offset"]]
        reached = np.empty_like(bases)
        reached[0] = self._judge.reached
        np.maximum.accumulate(lasts[:-1], out=reached[1:])
        np.maximum(reached, self._judge.reached, out=reached)
        return bool((bases > reached).all())


def _sums(rows: Rows) -> CleanRun:
    base, last, count, crc = (
        rows[_AT[name]] for name in ("base_offset", "last_offset", "record_count", "crc")
    )
    return CleanRun(
        first=LogSide._make((*rows[:, 0].tolist(), int(crc[0]), -1, BATCH, None)),
        batches=rows.shape[1],
        records=int(count.sum()),
        bytes=int(rows[_AT["size"]].sum()),
        digest=digest_of(base, last, count, crc),
        max_timestamp=int(rows[_AT["max_timestamp"]].max()),
        last_offset=int(last[-1]),
        min_timestamp=int(rows[_AT["max_timestamp"]].min()),
        markers=int(count[(rows[_AT["attributes"]] & CONTROL) != 0].sum()),
    )
