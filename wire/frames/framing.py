"""A byte stream cut into Kafka frames without a copy. No socket and no event loop here.

Received bytes land in a scratch buffer, and a frame that fits is handed out as a view of it. A scratch is never
written again where a view may point: when its rest is too small a *new* one is taken, and only the partial tail is
copied. A frame that is too large for a scratch gets its own buffer and is received straight into it. So a view stays
valid while it is referenced, and the memory is freed with the last view.

A stream of large frames (a producer's requests under load) is read several frames at a time into buffers of `alloc`.
They are given up as soon as no part of a frame is left in them, so an idle connection holds none. They end where a
frame is likely to end, so that few frames are cut and have to be copied. Where two frames would not fit into one
buffer, each gets its own, and as little as possible is read before its size is known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from wire.errors import FrameTooLarge, LocalProtocolError, MalformedFrame

SCRATCH_MAX = 64 * 1024
# `limit` is not called for frames up to this size.
ORDINARY = 1024 * 1024
# The buffer of a stream holds four frames, but no more bytes than this.
STREAM_MAX = 512 * 1024
_STREAM_FRAMES = 4
# Frames of at least this size make a stream; many smaller ones fit into a scratch.
_STREAM_FROM = SCRATCH_MAX // _STREAM_FRAMES + 1
_STREAM_TO = STREAM_MAX // 2 - 4
# Bytes that are read ahead of a frame that is likely to be too large for a stream: they have to be copied.
_HEAD = 16 * 1024
# After a smaller frame the expected size falls by this fraction of the difference.
_FORGET = 8
# The most memory that an announcement alone gets from a peer whose frames were as large before.
_COMMIT_PROVEN = 1024 * 1024
# Thousands of idle connections must stay cheap, so a connection earns its large scratch by using it.
SCRATCH_MIN = 1024
# Less room than this is not worth a system call.
_ROOM_MIN = 1024

_SIZE = struct.Struct(">i")


class FrameReader:
    """Collects received bytes into frames.

    `commit_max` limits the allocation for a size that was only announced: beyond it the buffer of a large frame grows as
    its bytes arrive. Listeners use it, so that an announcement alone costs nothing.

    `limit(behind)` gives the largest size of the frame after `behind` others of the same read; it is called for frames
    beyond ORDINARY only.

    `alloc` gives the buffers of large frames, and with `stream` those of several large ones in a row: at least as long
    as asked for, with any contents.
    """

    __slots__ = (
        "_alloc",
        "_commit_max",
        "_end",
        "_large",
        "_large_filled",
        "_large_size",
        "_limit",
        "_max_frame",
        "_min_frame",
        "_proven",
        "_room_min",
        "_scratch_size",
        "_start",
        "_stream",
        "_typical",
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
        stream: bool = False,
        limit: Callable[[int], int] | None = None,
    ) -> None:
        self._limit = limit
        self._max_frame = max_frame
        self._min_frame = min_frame
        self._alloc: Callable[[int], bytearray] = bytearray if alloc is None else alloc
        self._commit_max = max_frame if commit_max is None else commit_max
        self._stream = stream
        self._typical = 0  # the next frame is likely not larger than this
        self._proven = 0  # size of the largest frame that had its own buffer
        self._scratch_size = SCRATCH_MIN  # of the latest one, up to SCRATCH_MAX
        self._view = memoryview(bytearray(SCRATCH_MIN))
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

    def set_min_frame(self, min_frame: int) -> None:
        """From the next frame on."""
        self._min_frame = min_frame

    @property
    def partial(self) -> bool:
        """Whether the stream stands inside a frame."""
        return self._large is not None or self._start != self._end

    @property
    def large_size(self) -> int:
        """Bytes of the buffer of a large frame that is under way; 0 where none is."""
        return 0 if self._large is None else len(self._large)

    @property
    def large_needs(self) -> int:
        """Bytes by which the next byte of the frame makes that buffer longer."""
        if self._large is None or self._large_filled < len(self._large):
            return 0
        return self._grown() - len(self._large)

    @property
    def missing(self) -> int:
        """Bytes that a large frame still lacks; 0 where no such frame is under way."""
        return 0 if self._large is None else self._large_size - self._large_filled

    def get_buffer(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        if self._large is not None:
            if self._large_filled == len(self._large):
                self._grow_large()
            return self._large[self._large_filled :]
        if len(self._view) - self._end < self._room_min:
            self._renew_scratch()
        return self._view[self._end :]

    def advance(self, count: int) -> list[memoryview]:
        """Note `count` bytes written into the last get_buffer(). Returns the frames that they complete."""
        if self.error is not None:
            raise LocalProtocolError("bytes were offered to a frame reader that had failed")
        if self._large is not None:
            self._large_filled += count
            if self._large_filled < self._large_size:
                return []
            frame = self._large[: self._large_size]
            self._large = None
            self._note(self._large_size)
            if self._large_size > self._proven:
                self._proven = self._large_size
            return [frame]
        self._end += count
        frames: list[memoryview] = []
        start, end, view = self._start, self._end, self._view
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(view, start)
            if not self._min_frame <= size <= self._max_frame:
                self.error = self._bad_size(size, self._max_frame)
                break
            if size > ORDINARY and self._limit is not None and size > (most := self._limit(len(frames))):
                self.error = self._bad_size(size, most)
                break
            stop = start + 4 + size
            if stop > end:
                if stop > len(view) and size + 4 > self._scratch_limit(size) // 2:
                    self._begin_large(size, view[start + 4 : end])
                    start = end
                elif stop > len(view):
                    self._start = start
                    if frames:
                        self._note(len(frames[-1]))
                    self._renew_scratch(size + 4)
                    return frames
                else:
                    self._room_min = 1  # it ends in this buffer, however little is missing
                break
            frames.append(view[start + 4 : stop])
            start = stop
        self._start = start
        if frames:
            self._note(len(frames[-1]))
        if start == end and len(view) > SCRATCH_MAX:
            self._let_go()
        return frames

    def _note(self, size: int) -> None:
        """Note the size of a whole frame. A frame that is too small ends the stream at once, because a small frame
        that is kept must not keep a stream's buffer.
        """
        less = self._typical - size
        self._typical = size if less <= 0 or size < _STREAM_FROM else self._typical - -(-less // _FORGET)

    def _scratch_limit(self, size: int) -> int:
        """The longest scratch for a frame of this size: only a peer that sent such frames before gets a long one."""
        return STREAM_MAX if self._streams and size <= 2 * self._typical else SCRATCH_MAX

    @property
    def _streams(self) -> bool:
        return self._stream and _STREAM_FROM <= self._typical <= _STREAM_TO

    def _let_go(self) -> None:
        """No part of a frame is left in a stream's buffer: the next read takes another one, or this one if it is free."""
        self._view = memoryview(bytearray())
        self._start = self._end = 0

    def _bad_size(self, size: int, most: int) -> MalformedFrame:
        if size > most:
            return FrameTooLarge(f"a frame of {size} bytes was announced, the limit is {most}")
        return MalformedFrame(f"a frame of {size} bytes was announced, the least is {self._min_frame}")

    def _begin_large(self, size: int, head: memoryview) -> None:
        self._large_size = size
        commit = max(self._commit_max, min(max(self._typical, self._proven), _COMMIT_PROVEN))
        first = max(min(size, commit), len(head) + 1)
        self._large = memoryview(self._alloc(first))[:first]
        self._large[: len(head)] = head
        self._large_filled = len(head)

    def _grow_large(self) -> None:
        """Only reached when commit_max limited the first allocation."""
        filled = self._large_filled
        capacity = self._grown()
        grown = memoryview(self._alloc(capacity))[:capacity]
        if self._large is not None:
            grown[:filled] = self._large[:filled]
        self._large = grown

    def _grown(self) -> int:
        return min(self._large_size, self._large_filled * 4)

    def _renew_scratch(self, at_least: int = 0) -> None:
        tail = self._view[self._start : self._end]
        size = self._scratch_size = min(self._scratch_size * 2, SCRATCH_MAX)
        if self._streams:
            size = min(_STREAM_FRAMES, STREAM_MAX // (self._typical + 4)) * (self._typical + 4)
        elif self._stream and self._typical > _STREAM_TO:
            size = _HEAD
        while size < at_least or size - len(tail) < _ROOM_MIN:
            size *= 2
        scratch = bytearray(size) if size <= SCRATCH_MAX else self._alloc(size)
        scratch[: len(tail)] = tail
        self._view = memoryview(scratch)[:size]
        self._room_min = _ROOM_MIN
        self._end = len(tail)
        self._start = 0
