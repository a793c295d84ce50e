"""Large receive buffers, reused without anybody having to give them back.

Lives here: the pool of frames the fetcher receives into. Not here: the reader that fills them (framing.py),
the memory budget (fetcher).
"""

import sys
from typing import Final

MIN_CLASS: Final = 1 << 16
_STEPS: Final = 4
"""Sizes per doubling: at most a quarter of a new buffer lies idle behind its frame."""
_LARGER: Final = 2
"""How many times as large a free buffer may be as one that would be made: answers of a gigabyte that is copied are nearly
equal in size, and the last one is what is left over. A buffer of its own for that would be 2 or 3 MiB more of memory."""
_SMALLER: Final = 4
"""Down to which part of a buffer that is made a free one goes for it: the first answers of a mirror are of those of its
partitions that are there already, and what they were received into would be kept beside the buffers of whole ones."""


class FramePool:
    """Hands out bytearrays nobody else holds.

    The pool keeps every buffer it made and finds out by itself which are free: a memoryview, and every slice
    of one, holds a reference to its bytearray, so a buffer is free when the pool's reference is the only one.
    Windows, responses and write queues just drop their views; there is no count of ours to get wrong.

    Free buffers beyond max_idle_bytes are let go by trim(), which take() calls before it allocates; whoever
    owns the pool calls it now and then as well, for the time when nobody takes. Buffers in use are only
    watched: they count in the budget of whoever holds the views.
    """

    def __init__(self, max_idle_bytes: int) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._buffers: dict[int, list[bytearray]] = {}
        self.allocated = 0
        self.reused = 0

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes (often more), with whatever was in it before."""
        capacity = size_class(size)
        most = capacity * _LARGER
        for larger in sorted(one for one in self._buffers if capacity <= one <= most):
            buffers = self._buffers[larger]
            for position in range(len(buffers)):
                if _references(buffers, position) == _FREE:
                    self.reused += 1
                    # To the end: the scan begins with the buffers that were handed out longest ago.
                    buffers.append(buffers.pop(position))
                    return buffers[-1]
        self._let_one_go(capacity)
        self.trim()
        self._buffers.setdefault(capacity, []).append(bytearray(capacity))
        self.allocated += 1
        return self._buffers[capacity][-1]

    def _let_one_go(self, capacity: int) -> None:
        """The largest free buffer that is too small for what is asked now. Nothing goes round in circles: larger ones are
        never let go for smaller ones."""
        for smaller in sorted(
            (one for one in self._buffers if one < capacity <= _SMALLER * one), reverse=True
        ):
            buffers = self._buffers[smaller]
            for position in range(len(buffers)):
                if _references(buffers, position) == _FREE:
                    del buffers[position]
                    return

    def trim(self) -> int:
        """Let go of free buffers beyond max_idle_bytes; how many free bytes are kept."""
        idle = 0
        for capacity, buffers in list(self._buffers.items()):
            for position in reversed(range(len(buffers))):
                if _references(buffers, position) == _FREE:
                    if idle + capacity > self._max_idle_bytes:
                        del buffers[position]
                    else:
                        idle += capacity
            if not buffers:
                del self._buffers[capacity]
        return idle


def size_class(size: int) -> int:
    """The capacity `size` is rounded up to: a power of two, or a quarter, half or three quarters towards the
    next.
    """
    if size <= MIN_CLASS:
        return MIN_CLASS
    step = (1 << (size - 1).bit_length() - 1) // _STEPS
    return -(-size // step) * step


def size_below(size: int) -> int:
    """What fits into a buffer of at most `size` bytes: the largest capacity up to it, or all of it if it is small."""
    if size <= MIN_CLASS:
        return size
    step = (1 << size.bit_length() - 1) // _STEPS
    return size // step * step


def _references(buffers: list[bytearray], position: int) -> int:
    return sys.getrefcount(buffers[position])


# Measured, not written down: what the interpreter itself adds differs between its versions.
_FREE: Final = _references([bytearray(1)], 0)
