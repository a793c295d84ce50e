"""Large receive buffers, reused when no view of them is left."""

import sys
from typing import Final

MIN_CLASS: Final = 1 << 16
_STEPS: Final = 4
"""Sizes per doubling: at most a quarter of a new buffer lies idle behind its frame."""
_LARGER: Final = 2
"""A free buffer may be this many times as large as a new one would be. The answers of a gigabyte that is copied are nearly
equal in size except the last one, and a buffer of its own for that would take 2 or 3 MiB more."""
_SMALLER: Final = 4
"""A new buffer replaces a free one that is at least this fraction of its size. A mirror's first answers cover few of its
partitions, and their buffers would otherwise be kept beside those of full answers."""


class FramePool:
    """Hands out bytearrays that nobody else holds.

    The pool keeps every buffer it made and finds the free ones itself: a memoryview, and every slice of one, holds a
    reference to its bytearray, so a buffer is free when the pool's reference is the only one. Windows, responses and
    write queues just drop their views; there is no count of ours to get wrong.

    trim() frees idle buffers beyond max_idle_bytes. take() calls it before it allocates, and the pool's owner calls it
    now and then for times without a take(). Buffers in use count in the budget of the holders of their views.
    """

    def __init__(self, max_idle_bytes: int) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._buffers: dict[int, list[bytearray]] = {}

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes (often more). Its old contents are still in it."""
        capacity = size_class(size)
        most = capacity * _LARGER
        for larger in sorted(one for one in self._buffers if capacity <= one <= most):
            buffers = self._buffers[larger]
            for position in range(len(buffers)):
                if _references(buffers, position) == _FREE:
                    # To the end: the scan begins with the buffers that were handed out longest ago.
                    buffers.append(buffers.pop(position))
                    return buffers[-1]
        self._let_one_go(capacity)
        self.trim()
        self._buffers.setdefault(capacity, []).append(bytearray(capacity))
        return self._buffers[capacity][-1]

    def _let_one_go(self, capacity: int) -> None:
        """Free the largest idle buffer that is too small for this request. Larger ones are never freed for smaller ones, so
        buffers are not replaced in circles."""
        for smaller in sorted(
            (one for one in self._buffers if one < capacity <= _SMALLER * one), reverse=True
        ):
            buffers = self._buffers[smaller]
            for position in range(len(buffers)):
                if _references(buffers, position) == _FREE:
                    del buffers[position]
                    return

    def trim(self) -> int:
        """Free idle buffers beyond max_idle_bytes. Returns the idle bytes that are kept."""
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
    """The largest capacity of at most `size` bytes; `size` itself if it is small."""
    if size <= MIN_CLASS:
        return size
    step = (1 << size.bit_length() - 1) // _STEPS
    return size // step * step


def _references(buffers: list[bytearray], position: int) -> int:
    return sys.getrefcount(buffers[position])


# Measured, not a constant: the references that the interpreter itself adds differ between its versions.
_FREE: Final = _references([bytearray(1)], 0)
