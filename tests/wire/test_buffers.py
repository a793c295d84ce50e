"""The frame pool: never hands out a buffer somebody still sees, keeps no more idle memory than it may."""

from __future__ import annotations

import gc
import random

from hypothesis import given
from hypothesis import strategies as st

from wire.frames.buffers import MIN_CLASS, FramePool, size_below, size_class


@given(st.integers(0, 1 << 28))
def test_a_size_class_fits_and_wastes_at_most_a_quarter(size: int) -> None:
    capacity = size_class(size)
    assert capacity >= size
    assert capacity == MIN_CLASS or capacity <= size * 5 / 4 + 1
    assert size_class(capacity) == capacity


@given(st.integers(1, 1 << 28))
def test_what_a_buffer_of_at_most_a_size_holds(size: int) -> None:
    below = size_below(size)
    assert size * 3 / 4 < below <= size
    assert size <= MIN_CLASS or size_class(below) == below
    assert size_below(size_class(size)) == size_class(size)


def test_a_buffer_comes_back_when_its_last_view_goes() -> None:
    pool = FramePool(1 << 30)
    buffer = pool.take(100_000)
    where = id(buffer)
    part = memoryview(buffer)[10:20]
    del buffer
    other = pool.take(100_000)
    assert id(other) != where
    del other
    deeper = part[1:2]
    del part
    assert id(pool.take(90_000)) != where
    del deeper
    seen = {id(pool.take(100_000)) for _ in range(3)}
    assert where in seen


def test_a_free_buffer_that_is_somewhat_larger_is_taken_before_one_is_made() -> None:
    pool = FramePool(1 << 30)
    large, larger = pool.take(1_100_000), pool.take(1_500_000)
    where, whole = id(large), len(large)
    del large
    assert id(pool.take(1_000_000)) == where, "the smallest one that is large enough"
    held = pool.take(900_000)
    assert (id(held), len(held)) == (where, whole)
    other = pool.take(900_000)
    assert other is not larger and len(other) < whole, "held ones are left alone"
    del larger
    del held
    rest = pool.take(600_000)
    assert len(rest) == whole, "one that is twice as large"
    del rest
    small = pool.take(500_000)
    assert len(small) < 600_000, "not one that is more than twice as large"
    del other, small
    made = sum(size_class(size) for size in (1_100_000, 1_500_000, 900_000, 500_000))
    assert pool.trim() == made, "and no more were made"


def test_a_free_buffer_that_is_too_small_goes_for_one_that_is_made() -> None:
    pool = FramePool(1 << 30)
    tiny, small, middle, held = (pool.take(size) for size in (900_000, 1_000_000, 1_700_000, 2_500_000))
    idle = [size_class(len(one)) for one in (tiny, small, middle)]
    large = [pool.take(4_000_000)]
    assert pool.trim() == 0
    del tiny, small, middle
    assert pool.trim() == sum(idle), "what is held stays, and nothing was made since"
    large.append(pool.take(4_000_000))
    assert pool.trim() == sum(idle[:2]), "the largest went"
    large.append(pool.take(4_000_000))
    assert pool.trim() == idle[0], "and the next"
    large.append(pool.take(4_000_000))
    assert pool.trim() == idle[0], "but not one of less than a quarter"
    assert len(held) == size_class(2_500_000)
    large.clear()
    pool.take(1_000_000)
    assert pool.trim() == idle[1] + 4 * size_class(4_000_000), "a larger one never goes for a smaller"


def test_sizes_in_turn_find_their_buffers_again() -> None:
    pool = FramePool(1 << 30)
    source = random.Random(7)
    for round_number in range(2000):
        made = pool.trim()
        held = [
            pool.take(source.choice((100_000, 500_000, 1_000_000, 2_000_000, 4_000_000))) for _ in range(3)
        ]
        held.clear()
        assert round_number < 1000 or pool.trim() == made


def test_a_buffer_held_without_a_view_is_not_handed_out_twice() -> None:
    pool = FramePool(1 << 30)
    first, second = pool.take(10), pool.take(10)
    assert first is not second


def test_a_slice_of_the_buffer_is_a_copy_and_does_not_hold_it() -> None:
    pool = FramePool(1 << 30)
    where = id(pool.take(10))
    copy = bytes(memoryview(pool.take(10))[:5])
    assert id(pool.take(10)) == where
    assert len(copy) == 5


def test_idle_memory_is_bounded() -> None:
    pool = FramePool(max_idle_bytes=3 << 20)
    held = [pool.take(1 << 20) for _ in range(10)]
    assert pool.trim() == 0
    del held
    assert pool.trim() == 3 << 20
    held = [pool.take(1 << 20) for _ in range(3)]
    assert pool.trim() == 0, "none was made while others were idle"
    del held
    big = pool.take(4 << 20)
    assert pool.trim() <= 3 << 20
    del big
    assert pool.trim() <= 3 << 20


def test_nobody_ever_sees_foreign_bytes() -> None:
    """Random takers and droppers; each holder's bytes stay as the holder wrote them."""
    random_source = random.Random(7)
    pool = FramePool(1 << 20)
    held: list[tuple[memoryview, int]] = []
    fresh = again = 0
    gc.disable()
    try:
        for step in range(3000):
            if held and random_source.random() < 0.5:
                view, mark = held.pop(random_source.randrange(len(held)))
                assert view[0] == view[-1] == mark
                view.release()
            else:
                size = random_source.choice((1, 70_000, 200_000))
                view = memoryview(pool.take(size))[:size]
                again += view[0] != 0
                fresh += view[0] == 0
                view[0] = view[-1] = mark = 1 + step % 251
                held.append((view, mark))
            if len(held) > 20:
                held.pop(0)
    finally:
        gc.enable()
    assert again > fresh
