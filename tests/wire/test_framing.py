"""FrameReader: every split, hostile sizes, and views that stay what they were."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable

import pytest

from wire.errors import FrameTooLarge, LocalProtocolError, MalformedFrame
from wire.frames.buffers import FramePool
from wire.frames.framing import SCRATCH_MAX, FrameReader


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(p)) + p for p in payloads)


def feed(reader: FrameReader, data: bytes, sizes: list[int] | None = None) -> list[memoryview]:
    """Feed data in pieces of the given sizes (then whatever fits)."""
    frames = []
    position = 0
    steps = iter(sizes or [])
    while position < len(data) and reader.error is None:
        target = reader.get_buffer()
        assert len(target) > 0
        count = min(len(target), len(data) - position, next(steps, len(target)))
        target[:count] = data[position : position + count]
        frames += reader.advance(count)
        position += count
    return frames


def payloads_of(seed: int, sizes: list[int]) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(size) for size in sizes]


def test_byte_at_a_time() -> None:
    payloads = payloads_of(1, [4, 5, 100, 3000, 5000, 4])
    data = framed(*payloads)
    assert [bytes(f) for f in feed(FrameReader(10_000), data, [1] * len(data))] == payloads


def test_what_a_large_frame_still_lacks() -> None:
    reader = FrameReader(1 << 20)
    size = 2 * SCRATCH_MAX
    assert reader.missing == 0
    seen = []
    for count in (4, 100, size - 101, 1):
        feed(reader, (framed(bytes(size)) if not seen else bytes(count))[:count])
        seen.append(reader.missing)
    assert seen == [size, size - 100, 1, 0]
    feed(reader, framed(bytes(3000))[:2000])
    assert reader.partial
    assert reader.missing == 0  # of what fits into a scratch nobody knows more than that


@pytest.mark.parametrize("seed", range(30))
def test_any_split_gives_the_same_frames_and_views_keep_their_content(seed: int) -> None:
    source = random.Random(seed)
    sizes = [source.choice([4, 17, 500, 4000, 30_000, 66_000, 200_000]) for _ in range(40)]
    payloads = payloads_of(seed, sizes)
    commit = source.choice([None, 1000, 50_000])
    reader = FrameReader(1 << 20, commit_max=commit)
    steps = [source.choice([1, 3, 100, 5000, 70_000]) for _ in range(2000)]
    # compared only at the end: a view that was overwritten by later bytes would show
    frames = feed(reader, framed(*payloads), steps)
    assert [bytes(f) for f in frames] == payloads, f"seed {seed}"
    assert not reader.partial


def test_two_writable_frames_from_one_read_do_not_overlap() -> None:
    first, second = feed(FrameReader(100), framed(b"aaaa", b"bbbb"))
    first[:] = b"XXXX"
    assert bytes(second) == b"bbbb"


def test_a_large_frame_is_received_straight_into_the_given_buffer() -> None:
    made: list[bytearray] = []

    def alloc(size: int) -> bytearray:
        made.append(bytearray(size + 100))  # a pool may give more than was asked for
        return made[-1]

    payload = random.Random(2).randbytes(SCRATCH_MAX * 3)
    (frame,) = feed(FrameReader(1 << 20, alloc=alloc), framed(payload))
    assert len(made) == 1
    assert frame.obj is made[0]
    assert bytes(frame) == payload


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3])
def test_a_size_below_the_least_is_malformed(size: int) -> None:
    reader = FrameReader(1000)
    assert feed(reader, struct.pack(">i", size) + b"rest") == []
    assert isinstance(reader.error, MalformedFrame)
    assert not isinstance(reader.error, FrameTooLarge)


def test_frames_before_a_bad_size_are_still_handed_out() -> None:
    reader = FrameReader(1000)
    frames = feed(reader, framed(b"good") + b"GET / HTTP/1.1\r\n")
    assert [bytes(f) for f in frames] == [b"good"]
    assert isinstance(reader.error, FrameTooLarge)
    with pytest.raises(LocalProtocolError):
        reader.advance(1)


def test_the_limit_itself_is_allowed() -> None:
    assert len(feed(FrameReader(100_000), framed(bytes(100_000)))) == 1
    reader = FrameReader(100_000)
    feed(reader, struct.pack(">i", 100_001))
    assert isinstance(reader.error, FrameTooLarge)


def test_an_announced_size_allocates_no_more_than_commit_max() -> None:
    asked: list[int] = []

    def alloc(size: int) -> bytearray:
        asked.append(size)
        return bytearray(size)

    reader = FrameReader(100 << 20, alloc=alloc, commit_max=1 << 20)
    feed(reader, struct.pack(">i", 100 << 20) + b"x" * 10)
    assert sum(asked) <= 1 << 20
    assert reader.partial


def stream_reader(pool: FramePool) -> FrameReader:
    return FrameReader(1 << 20, alloc=pool.take, commit_max=SCRATCH_MAX, stream=True)


def test_a_stream_of_large_frames_is_read_several_at_a_time() -> None:
    pool = FramePool(4 << 20)
    reader = stream_reader(pool)
    payloads = payloads_of(3, [66_000] * 40)
    data = framed(*payloads)
    frames, reads = [], 0
    while data:
        target = reader.get_buffer()
        count = min(len(target), len(data))
        target[:count] = data[:count]
        frames += reader.advance(count)
        data = data[count:]
        reads += 1
    assert [bytes(frame) for frame in frames] == payloads
    assert reads < len(payloads) / 2


class CountedPool(FramePool):
    reused = 0

    def take(self, size: int) -> bytearray:
        buffer = super().take(size)
        self.reused += any(buffer)  # one that was just made has zeros
        return buffer


@pytest.mark.parametrize("seed", range(30))
def test_views_into_the_pooled_buffers_of_a_stream_keep_their_content(seed: int) -> None:
    """Some frames are held for long and some dropped at once, so that buffers are reused in between."""
    source = random.Random(seed)
    pool = CountedPool(4 << 20)
    reader = stream_reader(pool)
    sizes = [source.choice([4, 500, 20_000, 30_000, 66_000, 66_000, 66_000, 200_000]) for _ in range(200)]
    payloads = payloads_of(seed, sizes)
    data = framed(*payloads)
    kept: dict[int, memoryview] = {}
    position = number = 0
    while position < len(data):
        target = reader.get_buffer()
        count = min(len(target), len(data) - position, source.choice([1000, 70_000, 1 << 20]))
        target[:count] = data[position : position + count]
        for frame in reader.advance(count):
            assert frame == payloads[number], f"seed {seed}"
            if source.random() < 0.2:
                kept[number] = frame
            number += 1
        position += count
    assert number == len(payloads)
    assert pool.reused > 0
    assert all(frame == payloads[at] for at, frame in kept.items()), f"seed {seed}"


def test_a_stream_that_rests_holds_no_buffer() -> None:
    pool = FramePool(4 << 20)
    reader = stream_reader(pool)
    frames = feed(reader, framed(*payloads_of(4, [66_000] * 20)))
    idle = pool.trim()
    del frames
    assert idle < pool.trim() == sum(len(buffer) for one in pool._buffers.values() for buffer in one)


@pytest.mark.parametrize("size", [100_000, 1 << 20])
def test_only_who_has_sent_large_frames_gets_a_long_buffer(size: int) -> None:
    """Announced sizes are worth nothing."""
    asked: list[int] = []

    def alloc(size: int) -> bytearray:
        asked.append(size)
        return bytearray(size)

    reader = FrameReader(1 << 20, alloc=alloc, commit_max=SCRATCH_MAX, stream=True)
    feed(reader, framed(*[b"x" * 100] * 5000))
    assert not asked
    feed(reader, struct.pack(">i", size) + b"x")
    assert asked == [SCRATCH_MAX]


def test_who_has_sent_as_much_in_one_frame_before_gets_it_at_once() -> None:
    """However small the frames in between are: growing a buffer costs a copy of what is there."""
    asked: list[int] = []

    def alloc(size: int) -> bytearray:
        asked.append(size)
        return bytearray(size)

    reader = FrameReader(4 << 20, alloc=alloc, commit_max=SCRATCH_MAX, stream=True)
    feed(reader, framed(bytes(600_000), bytes(100), bytes(300_000), bytes(100)))
    assert len(asked) > 2, "the first one had to prove itself"
    asked.clear()
    feed(reader, struct.pack(">i", 600_000) + b"x")
    assert asked == [600_000]


class Watched(FrameReader):
    """Counts the bytes of frames that it copies."""

    copied = 0

    def _renew_scratch(self, at_least: int = 0) -> None:
        self.copied += self._end - self._start
        super()._renew_scratch(at_least)

    def _begin_large(self, size: int, head: memoryview) -> None:
        self.copied += len(head)
        super()._begin_large(size, head)

    def _grow_large(self) -> None:
        self.copied += self._large_filled
        super()._grow_large()


Sizes = Callable[[random.Random], int]
STREAMS: dict[str, tuple[Sizes, float]] = {
    "64 kB": (lambda _: 65_600, 0.01),
    "about 64 kB": (lambda some: some.randint(64_000, 65_600), 0.05),
    "128 kB": (lambda _: 131_200, 0.01),
    "about 128 kB": (lambda some: some.randint(129_000, 131_200), 0.05),
    "256 kB": (lambda _: 262_300, 0.07),
    "512 kB": (lambda _: 524_700, 0.05),
    "one to four batches": (lambda some: some.randint(1, 4) * 131_200, 0.08),
}


PIECES: dict[str, Sizes] = {
    "all": lambda _: 1 << 30,
    "up to 200 kB": lambda some: some.randint(1, 200_000),
    "64 KiB": lambda _: 1 << 16,
    "a segment": lambda _: 1448,
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("stream", STREAMS)
def test_of_a_stream_hardly_anything_is_copied(stream: str, pieces: str) -> None:
    sizes, share = STREAMS[stream]
    some = random.Random(stream)
    data = framed(*(bytes(sizes(some)) for _ in range(200)))
    pool = FramePool(8 << 20)
    reader = Watched(1 << 20, alloc=pool.take, commit_max=SCRATCH_MAX, stream=True)
    position = 0
    kept: deque[memoryview] = deque(maxlen=8)  # in flight
    while position < len(data):
        target = reader.get_buffer()
        count = min(len(target), len(data) - position, PIECES[pieces](some))
        target[:count] = data[position : position + count]
        kept.extend(reader.advance(count))
        position += count
    # The first ones have to show what they are.
    assert reader.copied < share * len(data) + (1 << 19)


@pytest.mark.parametrize("large", [131_200, 262_000])
def test_small_frames_that_are_kept_do_not_keep_a_streams_buffers(large: int) -> None:
    """Each comes by itself, behind a large one, and is in flight for long."""
    pool = FramePool(8 << 20)
    reader = stream_reader(pool)
    kept = []
    for size in [large, *[100] * 31]:
        kept += feed(reader, framed(bytes(size)))
    assert len(kept) == 32
    assert sum(len(buffer) for one in pool._buffers.values() for buffer in one) < 1 << 20
