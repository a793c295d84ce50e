"""How fast a link may read its source: its limit, and what is left to it while clients write. Pure; the clock is passed in.

A copy at full speed takes all that a small machine has, and clients whose writes are forwarded beside it feel that. So
the copy gives way: while clients write, it reads no faster than a given rate. But the source's log grows meanwhile, by
their writes and by those of others, and a copy that gives way must catch up all the same: it may read twice what came.

Not here: the bucket's arithmetic (throttle.py), what the rates are (the link's options, followed by ``linker.links``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fetcher.partition_copy import PartitionCursor
from fetcher.throttle import Throttle

LATELY: Final = 1.0
"""Seconds after a write for which clients are taken to write: one that writes once a second minds, too."""
HEADWAY: Final = 2.0
"""How much may be read beside writes, at least, over the growth of the source's log."""
_BURST_SECONDS: Final = 0.05
#: An answer that was asked for before anybody wrote may be larger than what is left for long; how much comes has to be seen.
_DEBT_SECONDS: Final = 5.0
#: After a write, for which what comes is reckoned with: to clients that write now and then it gives way now and then.
_RECKONED: Final = 10.0
_WINDOW: Final = 1.0
"""Seconds over which growth is averaged."""


class SourceRate:
    """Of one link, shared by its fetchers. `writes`: how many writes of clients were forwarded so far."""

    def __init__(self, clock: Callable[[], float], writes: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._writes = writes
        self._seen = writes()
        self._wrote_at = float("-inf")
        self._beside: float | None = None
        self._growth: LogGrowth | None = None
        self.limit = Throttle(clock)
        self.beside_writes = Throttle(clock, burst_seconds=_BURST_SECONDS, debt_seconds=_DEBT_SECONDS)
        self._lifted = False
        #: Called when nobody has to wait any more.
        self.waiters: set[Callable[[], None]] = set()
        #: Seconds that fetches were put off for, each fetcher's by themselves: for the limit, and for clients' writes.
        self.waited_for_limit = 0.0
        self.waited_for_writes = 0.0

    def set_beside_writes(self, rate: float | None) -> None:
        """Bytes per second while clients write, None for no limit."""
        if rate != self._beside:
            self._beside, self._growth = rate, None
            self.beside_writes.set_rate(rate)

    def lift(self, *, lifted: bool) -> None:
        """Lift the limits, or put them back. They are lifted for as long as somebody waits for the last bytes."""
        if lifted and not self._lifted:
            self._lifted, self._growth = True, None
            for wake in list(self.waiters):
                wake()
        self._lifted = lifted

    def spent(self, size: int) -> LogGrowth | None:
        """So many bytes were read. Returns the LogGrowth that has to be told of them, if growth matters now."""
        if self._lifted:
            return None
        self.limit.spent(size)
        beside, now = self._beside, self._clock()
        self._look_for_writes(now)
        if beside is None or now - self._wrote_at >= _RECKONED:
            self._growth = None
            return None
        if self._growth is None:
            self._growth = LogGrowth(now)
        self.beside_writes.change_rate(max(beside, HEADWAY * self._growth.per_second(now)))
        self.beside_writes.spent(size)
        return self._growth

    @property
    def debt(self) -> float:
        """Seconds until the next fetch may be sent."""
        return max(self._debts())

    def put_off(self, delay: float) -> float:
        """Seconds until the next fetch is sent, one that has to wait for `delay` anyway. It does wait for so long."""
        limit, beside = self._debts()
        wait = max(limit, beside)
        if wait <= delay:
            return delay
        more = wait - max(delay, 0.0)
        if limit >= beside:
            self.waited_for_limit += more
        else:
            self.waited_for_writes += more
        return wait

    def fetch_size(self, size: int) -> int:
        """How much one fetch may ask for, of `size` bytes that it would like to."""
        if self._lifted:
            return size
        size = self.limit.fetch_size(size)
        # All of them at once, and no more than the burst: else each waits for what all the others have read.
        return self.beside_writes.fetch_size(size, len(self.waiters)) if self._gives_way() else size

    def _debts(self) -> tuple[float, float]:
        if self._lifted:
            return 0.0, 0.0
        return self.limit.debt, self.beside_writes.debt if self._gives_way() else 0.0

    def _gives_way(self) -> bool:
        if self._beside is None:
            return False
        now = self._clock()
        self._look_for_writes(now)
        return now - self._wrote_at < LATELY

    def _look_for_writes(self, now: float) -> None:
        if (writes := self._writes()) != self._seen:
            if now - self._wrote_at >= LATELY:
                self.beside_writes.forgive()  # nobody minded
            self._seen, self._wrote_at = writes, now


class LogGrowth:
    """How much the source's log grows, as the answers to fetches tell it: in offsets, of partitions that were not read, too.

    The bytes per offset are those of the records that were read last; of a partition that was not read yet, those of
    all the others. Each cursor of a partition has to read what came.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._came = 0.0
        self._last = 0.0
        self._bytes = self._offsets = 0

    def note(self, cursor: PartitionCursor, end: int, position: int, appended: int) -> None:
        """An answer was taken that had something of the cursor's partition; its high watermark, position and bytes
        were those
        before. Bytes in whole batches: a source cuts the last one off anywhere.
        """
        if cursor.growth is not self:
            # Nobody knows in what time the records since its answer before came, and it may have begun inside of a
            # batch.
            cursor.growth = self
            return
        read, size = cursor.position - position, cursor.appended - appended
        if size > 0 and read > 0:
            cursor.offset_bytes = size / read
            self._bytes += size
            self._offsets += read
        came = cursor.mirror.high_watermark - end
        if came > 0:
            each = cursor.offset_bytes or (self._bytes / self._offsets if self._offsets else 0.0)
            self._came += came * each * len(cursor.mirror.cursors)

    def per_second(self, now: float) -> float:
        """Bytes, over the last second or so that is over; 0 in the first one."""
        seconds = now - self._since
        if seconds >= _WINDOW:
            self._last = self._came / seconds
            self._since, self._came = now, 0.0
        return self._last
