"""From sorted rows to verdicts: finds the runs in which all sides agree column by column, shows the rest to a Judge.

Rows come sorted by range, base offset and slot, whole ranges in a row, in Arrow batches cut anywhere. Knows numpy and Arrow,
not Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from validator.compare.columns import BATCH
from validator.compare.digest import digest_of
from validator.compare.verdict import CONTROL, FACTS, CleanRun, Judge, LogSide, RangeSpec, RangeVerdict
from validator.read.spans import SOURCE

COLUMNS = ("range_id", "slot", *LogSide._fields)
"""All that a comparison needs to know of each batch: `kafka-batches` builds just these."""
SORT = ("range_id", "base_offset", "slot")

_NUMBERS = tuple(name for name in COLUMNS if name != "note")
Columns = dict[str, npt.NDArray[np.int64]]


def judge_sorted(batches: Iterable[pa.RecordBatch], specs: Mapping[int, RangeSpec]) -> Iterator[RangeVerdict]:
    """One verdict per range that has any rows."""
    stream = _Stream(specs)
    carried: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = _Rows(batch if carried is None else pa.concat_batches([carried, batch]))
        # the last group may go on in the next batch
        carried = rows.batch.slice(int(rows.starts[-1]))
        yield from stream.take(rows, groups=len(rows.starts) - 1)
    if carried is not None:
        rows = _Rows(carried)
        yield from stream.take(rows, groups=len(rows.starts))
    yield from stream.finish()


class _Stream:
    """The range at work, and the step from one to the next."""

    def __init__(self, specs: Mapping[int, RangeSpec]) -> None:
        self._specs = specs
        self._judge: Judge | None = None

    def take(self, rows: _Rows, *, groups: int) -> Iterator[RangeVerdict]:
        """Show the first `groups` groups to their ranges' judges."""
        for range_id, starts, end in rows.ranges(groups):
            judge = self._judge
            if judge is None or judge.spec.range_id != range_id:
                yield from self.finish()
                judge = self._judge = Judge(self._specs[range_id])
            rows.show(judge, starts, end)

    def finish(self) -> Iterator[RangeVerdict]:
        if self._judge is not None:
            judge, self._judge = self._judge, None
            yield judge.finish()


class _Rows:
    """One Arrow batch as numpy columns, cut into groups of one range and base offset."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.columns: Columns = {
            name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
            for name in _NUMBERS
        }
        ranges, bases = self.columns["range_id"], self.columns["base_offset"]
        new = np.empty(len(ranges), bool)
        new[0] = True
        new[1:] = (ranges[1:] != ranges[:-1]) | (bases[1:] != bases[:-1])
        self.starts = np.flatnonzero(new)

    def ranges(self, groups: int) -> Iterator[tuple[int, npt.NDArray[np.int64], int]]:
        """(range id, first rows of its groups, row after the last) for each range among the first `groups` groups."""
        if not groups:
            return
        starts = self.starts[:groups]
        stop = int(self.starts[groups]) if groups < len(self.starts) else self.batch.num_rows
        ranges = self.columns["range_id"][starts]
        cuts = [0, *(np.flatnonzero(ranges[1:] != ranges[:-1]) + 1).tolist(), groups]
        for low, high in pairwise(cuts):
            yield int(ranges[low]), starts[low:high], stop if high == groups else int(starts[high])

    def show(self, judge: Judge, starts: npt.NDArray[np.int64], end: int) -> None:
        """Show a range's groups to its judge."""
        agree = self._agreeing(judge, starts, end)
        flips = [0, *(np.flatnonzero(agree[1:] != agree[:-1]) + 1).tolist(), len(starts)]
        for low, high in pairwise(flips):
            if agree[low]:
                judge.clean(self._run(starts[low:high]))
                continue
            for index in range(low, high):
                stop = int(starts[index + 1]) if index + 1 < len(starts) else end
                judge.group(self._copies(int(starts[index]), stop))

    def _agreeing(self, judge: Judge, starts: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.bool_]:
        """Which groups hold each side exactly once, all alike, intact and in order."""
        slots = np.asarray((SOURCE, *judge.spec.slots), np.int64)
        sizes = np.diff(np.append(starts, end))
        first, rows = int(starts[0]), slice(int(starts[0]), end)
        group = np.repeat(np.arange(len(starts)), sizes)
        leader = starts[group]
        place = np.arange(first, end) - leader
        column = self.columns
        fine = column["slot"][rows] == slots[np.minimum(place, len(slots) - 1)]
        fine &= column["crc"][rows] == column["crc_computed"][rows]
        fine &= column["marker"][rows] == BATCH
        fine &= column["follows"][rows] <= column["base_offset"][rows]
        for name in FACTS:
            fine &= column[name][rows] == column[name][leader]
        agree: npt.NDArray[np.bool_] = np.logical_and.reduceat(fine, starts - first)
        agree &= sizes == len(slots)
        reached = np.empty(len(starts), np.int64)
        reached[0] = judge.reached
        np.maximum.accumulate(column["last_offset"][starts][:-1], out=reached[1:])
        np.maximum(reached, judge.reached, out=reached)
        agree &= column["base_offset"][starts] > reached
        return agree

    def _run(self, firsts: npt.NDArray[np.int64]) -> CleanRun:
        column = self.columns
        base, last, count, crc = (
            column[name][firsts] for name in ("base_offset", "last_offset", "record_count", "crc")
        )
        return CleanRun(
            first=self._copy(int(firsts[0])),
            batches=len(firsts),
            records=int(count.sum()),
            bytes=int(column["size"][firsts].sum()),
            digest=digest_of(base, last, count, crc),
            max_timestamp=int(column["max_timestamp"][firsts].max()),
            last_offset=int(last[-1]),
            min_timestamp=int(column["max_timestamp"][firsts].min()),
            markers=int(count[(column["attributes"][firsts] & CONTROL) != 0].sum()),
        )

    def _copies(self, start: int, stop: int) -> dict[int, list[LogSide]]:
        copies: dict[int, list[LogSide]] = {}
        for row in range(start, stop):
            copies.setdefault(int(self.columns["slot"][row]), []).append(self._copy(row))
        return copies

    def _copy(self, row: int) -> LogSide:
        values: list[Any] = [int(self.columns[name][row]) for name in LogSide._fields[:-1]]
        values.append(self.batch.column("note")[row].as_py())
        return LogSide._make(values)
