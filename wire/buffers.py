"""Large receive buffers, reused without anybody having to give them back.

Lives here: the pool of frames the fetcher receives into. Not here: the reader that fills them (framing.py),
the memory budget (fetcher).
"""

from typing import Final

MIN_CLASS: Final = 1 << 16
_STEPS: Final = 4
"""Sizes per doubling: at most a quarter of a buffer lies idle behind its frame."""


class FramePool:
    """Hands out bytearrays nobody has a view of.

    The pool keeps a reference to every buffer it made and finds out by itself whether one is free: a
    bytearray refuses to change its size while a memoryview of it lives. So windows, responses and write
    queues just drop their views; there is no reference count to get wrong. Buffers that are free beyond
    max_idle_bytes are let go, and buffers still in use are merely watched: they belong to whoever holds the
    views and count in that owner's budget.
    """

    def __init__(self, max_idle_bytes: int) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._buffers: dict[int, list[bytearray]] = {}
        self.allocated = 0
        self.reused = 0

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes (often more), with whatever was in it before."""
        capacity = size_class(size)
        buffers = self._buffers.setdefault(capacity, [])
        for position, buffer in enumerate(buffers):
            if _is_free(buffer):
                # To the end of the list: the first one in it is the one used longest ago.
                buffers.append(buffers.pop(position))
                self.reused += 1
                return buffer
        self.trim()
        buffer = bytearray(capacity)
        self._buffers.setdefault(capacity, []).append(buffer)
        self.allocated += 1
        return buffer

    def trim(self) -> int:
        """Let go of free buffers beyond max_idle_bytes; how many free bytes are kept."""
        idle = 0
        for capacity, buffers in list(self._buffers.items()):
            kept = []
            for buffer in reversed(buffers):
                if _is_free(buffer):
                    if idle + capacity > self._max_idle_bytes:
                        continue
                    idle += capacity
                kept.append(buffer)
            kept.reverse()
            if kept:
                self._buffers[capacity] = kept
            else:
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


def _is_free(buffer: bytearray) -> bool:
    """Whether no memoryview of the buffer lives."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
