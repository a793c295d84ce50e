"""Window and budget against a deliberately dumb model: a list of batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fetcher.budget import Charge, MemoryBudget
from fetcher.source_records import _read
from fetcher.window import Window, WindowChunk
from tests.fakes.batches import build_batch, parse_batches
from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.batch import patch_batches
from wire.frames.types import TopicPartition

Batch = tuple[int, int, bytes]  # base offset, next offset, bytes


def chunk_of(batches: list[Batch], budget: MemoryBudget) -> WindowChunk:
    data = memoryview(bytearray(b"".join(b[2] for b in batches)))
    charge = Charge(budget, len(data))
    return WindowChunk(batches[0][0], batches[-1][1], data, len(data), charge)


def batches(draw: st.DrawFn, start: int, count: int) -> list[Batch]:
    made = []
    for _ in range(count):
        base = start + draw(st.sampled_from([0, 0, 0, 1, 7]))  # compaction gaps
        records = draw(st.integers(1, 4))
        made.append((base, base + records, build_batch(records, base_offset=base)))
        start = base + records
    return made


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_window_against_a_list(data: st.DataObject) -> None:
    budget = MemoryBudget(1 << 30)
    start = data.draw(st.integers(0, 50))
    window = Window(start)
    model: list[Batch] = []
    cut: list[tuple[int, int]] = []  # chunk borders, as eviction goes by whole chunks
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["append", "append", "release", "truncate", "reset", "read"]))
        if action == "append":
            new = batches(data.draw, window.next_offset, data.draw(st.integers(1, 4)))
            chunk = chunk_of(new, budget)
            window.append(chunk)
            chunk.charge.drop()
            model += new
            cut.append((new[0][0], new[-1][1]))
        elif action == "release":
            offset = data.draw(st.integers(0, window.next_offset + 3))
            freed = window.release(offset)
            gone = {end for base, end in cut if end <= offset}
            cut = [c for c in cut if c[1] not in gone]
            limit = max(gone, default=0)
            assert freed == sum(len(b[2]) for b in model if b[1] <= limit)
            model = [b for b in model if b[1] > limit]
        elif action == "truncate":
            offset = data.draw(st.integers(0, window.next_offset + 3))
            window.truncate(offset)
            if offset <= window.start:
                model = []
            model = [b for b in model if b[1] <= offset]
            cut = [(c[0], min(c[1], max((b[1] for b in model), default=0))) for c in cut]
            cut = [c for c in cut if any(c[0] <= b[0] < c[1] for b in model)]
        elif action == "reset":
            window.reset(data.draw(st.integers(0, 99)))
            model, cut = [], []
        if model:
            assert window.next_offset == model[-1][1]
        assert window.bytes == sum(len(b[2]) for b in model)
        assert budget.used >= window.bytes
        offset = data.draw(st.integers(0, window.next_offset + 2))
        room = data.draw(st.integers(0, 1000))
        check_read(window, model, offset, room, data.draw(st.booleans()))
    window.reset(0)
    assert budget.used == 0


def check_read(window: Window, model: list[Batch], offset: int, room: int, at_least_one: bool) -> None:
    reading = window.read(offset, room, at_least_one=at_least_one)
    expected: list[Batch] = []
    size = 0
    if window.covers(offset):
        for batch in model:
            if batch[1] <= offset:
                continue
            if size + len(batch[2]) > room and not (not expected and at_least_one):
                break
            expected.append(batch)
            size += len(batch[2])
    if not expected:
        assert reading is None
        return
    assert reading is not None
    assert b"".join(reading.views) == b"".join(b[2] for b in expected)
    assert reading.size == size
    assert reading.next_offset == expected[-1][1]


def test_a_chunk_that_does_not_follow_is_refused() -> None:
    budget = MemoryBudget(1000)
    window = Window(10)
    made = [(10, 12, build_batch(2, base_offset=10)), (12, 13, build_batch(1, base_offset=12))]
    window.append(chunk_of(made, budget))
    with pytest.raises(LocalProtocolError):
        window.append(chunk_of(made, budget))
    assert window.next_offset == 13
    assert len(window) == 1


def test_an_offset_span_no_segment_can_hold_is_cut() -> None:
    budget = MemoryBudget(100_000)
    window = Window(0)
    far = 1 << 31
    window.append(chunk_of([(0, 1, build_batch(1)), (far, far + 1, build_batch(1, base_offset=far))], budget))
    first = window.read(0, 10_000)
    assert first is not None
    assert first.next_offset == 1
    second = window.read(1, 10_000)
    assert second is not None
    assert second.next_offset == far + 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(80, 700), st.integers(0, 70))
def test_chunks_of_the_walk_fill_a_window(sizes: list[int], chunk_bytes: int, partial: int) -> None:
    raw = bytearray()
    base = 0
    for records in sizes:
        raw += build_batch(records, base_offset=base, leader_epoch=3)
        base += records
    frame = memoryview(raw + build_batch(1, base_offset=base)[:partial])
    walk = patch_batches(frame, 0, len(frame), 7, chunk_bytes, -1)
    budget = MemoryBudget(1 << 20)
    window = Window(0)
    charge = Charge(budget, len(frame))
    for first, last, base_offset, following in walk.chunks:
        window.append(WindowChunk(base_offset, following, frame[first:last], last - first, charge))
    charge.drop()
    reading = window.read(0, 1 << 20)
    if partial >= 69:  # build_batch(1) may be whole then
        return
    assert reading is not None
    assert [b.leader_epoch for b in parse_batches(b"".join(reading.views))] == [7] * len(sizes)
    window.release(base)
    assert budget.used == 0


def test_budget_refuses_and_wakes() -> None:
    budget = MemoryBudget(100)
    woken = []
    assert budget.try_reserve(70)
    assert not budget.try_reserve(40)

    def wake() -> None:
        woken.append(budget.used)

    budget.when_released(wake)
    budget.when_released(wake)
    budget.release(10)
    assert woken == [60]
    budget.release(60)
    assert woken == [60]
    assert budget.try_reserve(500)  # alone it may be larger than everything
    assert not budget.try_reserve(1)
    budget.release(500)
    with pytest.raises(LocalProtocolError):
        budget.release(1)


def test_a_charge_ends_with_its_last_holder() -> None:
    budget = MemoryBudget(100)
    charge = Charge(budget, 60)
    charge.hold()
    charge.drop()
    assert budget.used == 60
    charge.drop()
    assert budget.used == 0
    with pytest.raises(LocalProtocolError):
        charge.drop()


@pytest.mark.parametrize("base", [(1 << 63) - 1, (1 << 63) - 2])
def test_a_batch_that_ends_where_offsets_end_is_malformed(base: int) -> None:
    """What follows it could not be asked for; its base offset is not under its CRC."""
    batch = build_batch(1, base_offset=base)
    frame = memoryview(bytearray(batch))
    tp = TopicPartition("t", 0)
    cursor: Any = SimpleNamespace(
        mirror=SimpleNamespace(
            tp=tp, spec=SimpleNamespace(segment_bytes=1 << 30, session_epoch=3, taken=None)
        ),
        last_epoch=-1,
        position=10,
    )
    part: Any = SimpleNamespace(records_start=0, records_end=len(frame))
    charge = Charge(MemoryBudget(1 << 20), len(frame))
    if base + 1 < 1 << 63:
        walk, (chunk,) = _read(cursor, part, frame, charge, 1 << 20)
        assert (walk.next_offset, chunk.base_offset) == (base + 1, base)
    else:
        with pytest.raises(MalformedFrame, match=f"ends at offset {base}"):
            _read(cursor, part, frame, charge, 1 << 20)
