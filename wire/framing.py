"""Cutting a byte stream into Kafka frames without copying. Sans-I/O: no socket and no event loop here.

Received bytes land in a scratch buffer; a frame that fits is handed out as a view of it. A scratch is never
written again where a view may point: when its rest is too small a *new* one is taken and only the partial
tail is copied. A frame too large for a scratch gets a buffer of its own and is received straight into it. So
a view stays valid for as long as somebody holds it, and the memory goes when the views go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from wire.errors import FrameTooLarge, LocalProtocolError, MalformedFrame

SCRATCH_MAX = 64 * 1024
# Thousands of idle connections must stay cheap, so a connection earns its large scratch by using it.
SCRATCH_MIN = 1024
# Less room than this is not worth a system call.
_ROOM_MIN = 1024

_SIZE = struct.Struct(">i")


class FrameReader:
    """Collects received bytes into frames.

    `commit_max` bounds what is allocated on the mere announcement of a size: beyond it the buffer of a large
    frame grows as its bytes arrive. A listener uses it, so a peer that only announces costs nothing.
    """

    __slots__ = (
        "_alloc",
        "_commit_max",
        "_end",
        "_large",
        "_large_filled",
        "_large_size",
        "_max_frame",
        "_min_frame",
        "_room_min",
        "_scratch",
        "_start",
        "_view",
        "error",
    )

    def __init__(
        self,
        max_frame: int,
        *,
        min_frame: int = 4,
        alloc: Callable[[int], bytearray] | None = None,
        commit_max: int | None = None,
    ) -> None:
        self._max_frame = max_frame
        self._min_frame = min_frame
        self._alloc: Callable[[int], bytearray] = bytearray if alloc is None else alloc
        self._commit_max = max_frame if commit_max is None else commit_max
        self._scratch = bytearray(SCRATCH_MIN)
        self._view = memoryview(self._scratch)
        self._room_min = SCRATCH_MIN // 4
        self._start = 0
        self._end = 0
        # Invariant: while _large is not None it is the only buffer that receives, and _start == _end.
        self._large: memoryview | None = None
        self._large_filled = 0
        self._large_size = 0
        #: Set once the stream is beyond repair; frames before the bad one were still handed out.
        self.error: MalformedFrame | None = None

    def set_max_frame(self, max_frame: int) -> None:
        """From the next frame on."""
        self._max_frame = max_frame

    @property
    def partial(self) -> bool:
        """Whether the stream stands inside a frame."""
        return self._large is not None or self._start != self._end

    def get_buffer(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        if self._large is not None:
            if self._large_filled == len(self._large):
                self._grow_large()
            return self._large[self._large_filled :]
        if len(self._scratch) - self._end < self._room_min:
            self._renew_scratch()
        return self._view[self._end :]

    def advance(self, count: int) -> list[memoryview]:
        """Take note of `count` bytes written into the last get_buffer(); returns the frames they complete."""
        if self.error is not None:
            raise LocalProtocolError("bytes were offered to a frame reader that had failed")
        if self._large is not None:
            self._large_filled += count
            if self._large_filled < self._large_size:
                return []
            frame = self._large[: self._large_size]
            self._large = None
            return [frame]
        self._end += count
        frames: list[memoryview] = []
        start, end, view = self._start, self._end, self._view
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(view, start)
            if not self._min_frame <= size <= self._max_frame:
                self.error = self._bad_size(size)
                break
            stop = start + 4 + size
            if stop > end:
                if stop > len(view) and size + 4 > SCRATCH_MAX // 2:
                    self._begin_large(size, view[start + 4 : end])
                    start = end
                elif stop > len(view):
                    self._start = start
                    self._renew_scratch(size + 4)
                    return frames
                break
            frames.append(view[start + 4 : stop])
            start = stop
        self._start = start
        return frames

    def _bad_size(self, size: int) -> MalformedFrame:
        if size > self._max_frame:
            return FrameTooLarge(f"a frame of {size} bytes was announced, the limit is {self._max_frame}")
        return MalformedFrame(f"a frame of {size} bytes was announced, the least is {self._min_frame}")

    def _begin_large(self, size: int, head: memoryview) -> None:
        self._large_size = size
        first = max(min(size, self._commit_max), len(head) + 1)
        self._large = memoryview(self._alloc(first))[:first]
        self._large[: len(head)] = head
        self._large_filled = len(head)

    def _grow_large(self) -> None:
        """Only reached when commit_max held the first allocation back."""
        filled = self._large_filled
        capacity = min(self._large_size, filled * 4)
        grown = memoryview(self._alloc(capacity))[:capacity]
        if self._large is not None:
            grown[:filled] = self._large[:filled]
        self._large = grown

    def _renew_scratch(self, at_least: int = 0) -> None:
        tail = self._view[self._start : self._end]
        size = min(max(len(self._scratch) * 2, SCRATCH_MIN), SCRATCH_MAX)
        while size < at_least or size - len(tail) < _ROOM_MIN:
            size *= 2
        scratch = bytearray(size)
        scratch[: len(tail)] = tail
        self._scratch = scratch
        self._view = memoryview(scratch)
        self._room_min = _ROOM_MIN
        self._end = len(tail)
        self._start = 0
