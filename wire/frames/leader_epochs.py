"""The leader epochs of a log that was led by others first, as a leader's own cache of them has it (LeaderEpochFileCache).

A leader that took a log over tells followers and clients of the epochs before its own: where each one ended, so that a log
that went on alone under it is cut there. The batches of these epochs keep them when they are copied once more, whatever
epochs they have where they are read. Pure.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from wire.errors import MalformedFrame
from wire.frames.batch import Walk, iter_batch_headers, patch_batches

_BASE = struct.Struct(">q")


class BatchSpansEnd(MalformedFrame):
    """A batch begins below the offset from which on a log is led under another epoch, and ends behind it."""


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """The log up to `end` has the epochs of those who led it before; everything from there on has `own`."""

    own: int
    end: int
    #: (epoch, start offset), both ascending; all below `end` and `own`.
    before: tuple[tuple[int, int], ...]
    _starts: tuple[int, ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, own: int, end: int, epochs: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """As the cache would have it after these (LeaderEpochFileCache.assign): a later entry ends what contradicts it."""
        kept: list[tuple[int, int]] = []
        for epoch, start in epochs:
            known = bool(kept) and kept[-1][0] == epoch and kept[-1][1] <= start
            if known or start >= end or not 0 <= epoch < own:
                continue
            while kept and (kept[-1][0] >= epoch or kept[-1][1] >= start):
                kept.pop()
            kept.append((epoch, start))
        return cls(own, end, tuple(kept), tuple(start for _, start in kept))

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """The largest known epoch up to this one, and where it ends (endOffsetFor); None: nothing is known of it."""
        if epoch == self.own:
            return epoch, log_end
        if epoch < 0 or epoch > self.own:
            return None
        index = bisect.bisect_right(self.before, (epoch, self.end))
        higher = self.before[index][1] if index < len(self.before) else self.end
        # Below the first known one: its own number, and the beginning of what is known.
        return (self.before[index - 1][0] if index else epoch), higher

    def at(self, offset: int) -> int:
        """The epoch of a batch that begins at this offset. One before all that is known has the first known epoch."""
        if offset >= self.end:
            return self.own
        if not self.before:
            return self.own
        return self.before[max(bisect.bisect_right(self._starts, offset) - 1, 0)][0]

    def epoch_below(self, offset: int) -> int:
        """The epoch of the record before this offset; -1: none is known."""
        return self.at(offset - 1) if self.before and offset > self.before[0][1] else -1

    def agreed(self, epoch: int, end: int) -> int:
        """A log with this history was told where the other one's epochs end (a follower's getOffsetTruncationState): up to
        here the two may be equal. Below the end of it the question may have to be put again."""
        known = self.end_of(epoch, self.end)
        if known is None:
            return min(end, self.end)
        return min(known[1], end) if known[0] == epoch else known[1]

    def stamp(
        self, buf: bytearray | memoryview, start: int, end: int, chunk_bytes: int, last_epoch: int
    ) -> Walk:
        """`patch_batches` with the epoch that each batch has here. BatchSpansEnd if one begins below our own epoch and goes
        beyond its beginning: then the logs are not the same."""
        if end - start >= _BASE.size and _BASE.unpack_from(buf, start)[0] >= self.end:
            return patch_batches(buf, start, end, self.own, chunk_bytes, last_epoch)
        walks: list[Walk] = []
        run, floor, epoch = start, 0, self.own  # of the batches from `run` on
        for header in iter_batch_headers(buf, start, end):
            base = header.base_offset
            if base < floor:
                raise MalformedFrame(f"offsets run backwards, expected at least {floor}", offset=base)
            floor = header.next_offset
            if base < self.end < floor:
                raise BatchSpansEnd(
                    f"a batch has offsets {base} to {floor - 1}, and the partition was taken over at {self.end}"
                )
            found = self.at(base)
            if header.position > run and found != epoch:
                walks.append(patch_batches(buf, run, header.position, epoch, chunk_bytes, last_epoch))
                last_epoch = walks[-1].epochs[-1][0] if walks[-1].epochs else last_epoch
                run = header.position
            epoch = found
        walks.append(patch_batches(buf, run, end, epoch, chunk_bytes, last_epoch))
        return walks[0] if len(walks) == 1 else _joined(walks)


def _joined(walks: list[Walk]) -> Walk:
    """All but the last have batches; of the last only its beginning may be there."""
    full = [walk for walk in walks if walk.batches]
    return Walk(
        [chunk for walk in full for chunk in walk.chunks],
        full[-1].next_offset,
        [epoch for walk in full for epoch in walk.epochs],
        sum(walk.batches for walk in full),
        max(walk.largest for walk in full),
        full[-1].newest,
    )
