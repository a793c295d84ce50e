"""How fast a link may read its source: its limit, and what is left to it while clients write. Pure; the clock is passed in.

A copy at full speed takes all that a small machine has, whoever makes it, and clients whose writes are forwarded beside
it feel that. So it gives way to them: while they write, no more than a rate is read. But the source's log grows meanwhile,
by their writes and by those of others, and a copy that gives way must catch up all the same: it may read twice what came.

Not here: the buckets' arithmetic (throttle.py), what the rates are (the link's options, followed by ``linker.links``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fetcher.mirror_partition import MirrorPartition
from fetcher.throttle import LEAST_FETCH, Throttle

LATELY: Final = 1.0
"""Seconds after a write for which clients are taken to write: one that writes once a second minds, too."""
HEADWAY: Final = 2.0
"""What may be read beside writes, at least, over what the source's log grows by."""
_BURST_SECONDS: Final = 0.05
_ANSWERS: Final = 4


class SourceRate:
    """Of one link, shared by its fetchers. `writes`: how many produce requests clients have sent so far."""

    def __init__(self, clock: Callable[[], float], writes: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._writes = writes
        self._seen = writes()
        self._wrote_at = float("-inf")
        self._beside: float | None = None
        self._growth = Growth()
        self._read = 0  # since the last look
        self._looked_at = clock()
        self.limit = Throttle(clock)
        self.beside_writes = Throttle(clock, burst_seconds=_BURST_SECONDS)
        #: For as long as somebody waits for the last bytes.
        self.lifted = False
        #: Seconds that fetches were put off for, each fetcher's by themselves: for the limit, and for clients' writes.
        self.waited_for_limit = 0.0
        self.waited_for_writes = 0.0

    def set_beside_writes(self, rate: float | None) -> None:
        """Bytes per second while clients write, None for no limit."""
        self._beside = rate
        self.beside_writes.set_rate(rate)

    def spent(self, size: int) -> None:
        """So many bytes were read."""
        if self.lifted:
            return
        self._read += size
        self.limit.spent(size)
        if self._gives_way():
            self.beside_writes.spent(size)

    @property
    def debt(self) -> float:
        """Seconds until the next fetch may be sent."""
        return max(self._debts())

    def delay(self) -> float:
        """Seconds until the next fetch may be sent, which is put off for so long."""
        limit, beside = self._debts()
        if limit >= beside:
            self.waited_for_limit += limit
            return limit
        self.waited_for_writes += beside
        return beside

    def fetch_size(self, size: int) -> int:
        """How much one fetch may ask for, of `size` bytes that it would like to."""
        if self.lifted:
            return size
        size = self.limit.fetch_size(size)
        return self.beside_writes.fetch_size(size) if self._gives_way() else size

    def look(self, mirrors: Iterable[MirrorPartition]) -> None:
        """Called now and then: how fast the source's log grows, if that may matter."""
        now, seconds = self._clock(), self._clock() - self._looked_at
        # Long enough for some answers, of whatever size they may be.
        if self._beside is None or seconds < _ANSWERS * LEAST_FETCH / self._beside:
            return
        read, self._read, self._looked_at = self._read, 0, now
        grows = 0.0
        if self.lifted or not self._gives_way() or read * HEADWAY < self._beside * seconds:
            self._growth.forget()  # what comes is less than what may be read anyway
        else:
            grows = self._growth.look(now, mirrors)
        self.beside_writes.change_rate(max(self._beside, HEADWAY * grows))

    def _debts(self) -> tuple[float, float]:
        if self.lifted:
            return 0.0, 0.0
        return self.limit.debt, self.beside_writes.debt if self._gives_way() else 0.0

    def _gives_way(self) -> bool:
        if self._beside is None:
            return False
        if (writes := self._writes()) != self._seen:
            self._seen = writes
            self._wrote_at = self._clock()
        return self._clock() - self._wrote_at < LATELY


class Growth:
    """How much the source's log grows, as a link's partitions see it from one look to the next."""

    def __init__(self) -> None:
        self._at = 0.0
        self._before: dict[MirrorPartition, tuple[int, int, int]] = {}
        self._last = 0.0

    def forget(self) -> None:
        self._before = {}
        self._last = 0.0

    def look(self, now: float, mirrors: Iterable[MirrorPartition]) -> float:
        """Bytes per second since the last look. Offsets tell how many records came and how many were read, and the bytes
        of those that were read are known: the others are taken to be as large. Of a partition that was not read, nothing is
        known.
        """
        before, seconds = self._before, now - self._at
        found = self._before = {mirror: _seen(mirror) for mirror in mirrors}
        self._at = now
        if not before or seconds <= 0:
            return self._last
        came = 0.0
        for mirror, (end, position, size) in found.items():
            end_before, position_before, size_before = before.get(mirror, (end, position, size))
            read = position - position_before
            if read > 0 and position_before >= 0 and end > end_before >= 0:
                came += (size - size_before) * (end - end_before) / read
        self._last = came / seconds
        return self._last


def _seen(mirror: MirrorPartition) -> tuple[int, int, int]:
    position = max((lane.position for lane in mirror.lanes), default=-1)
    return mirror.high_watermark, position, mirror.bytes_fetched
