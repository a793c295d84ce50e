"""The epochs of a log that others led first, against Kafka's cache, and the stamps of its batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.batches import build_batch, parse_batches
from wire.errors import MalformedFrame
from wire.frames.batch import patch_batches
from wire.frames.leader_epochs import BatchSpansEnd, LeaderEpochs

OWN, END = 9, 100


def make_batch(base: int, values: list[bytes], *, leader_epoch: int = 0) -> bytes:
    return build_batch([(None, value) for value in values], base_offset=base, leader_epoch=leader_epoch)


class EpochCache:
    """LeaderEpochFileCache, as its source has it."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}

    def assign(self, epoch: int, start: int) -> None:
        latest = max(self.entries, default=None)
        if latest is not None and epoch == latest and start >= self.entries[latest]:
            return
        self.entries = {e: s for e, s in self.entries.items() if e < epoch and s < start}
        self.entries[epoch] = start

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        if epoch == -1:
            return -1, -1
        if self.entries and max(self.entries) == epoch:
            return epoch, log_end
        higher = [e for e in self.entries if e > epoch]
        if not higher:
            return -1, -1
        floor = [e for e in self.entries if e <= epoch]
        return (max(floor) if floor else epoch), self.entries[min(higher)]

    def truncate(self, end: int) -> None:
        self.entries = {e: s for e, s in self.entries.items() if s < end}


@given(
    st.lists(st.tuples(st.integers(0, OWN - 1), st.integers(0, END - 1)), max_size=6),
    st.integers(-1, OWN + 2),
    st.integers(0, 50),
)
def test_ends_are_those_of_kafkas_cache(epochs: list[tuple[int, int]], asked: int, further: int) -> None:
    cache = EpochCache()
    for entry in epochs:
        cache.assign(*entry)
    cache.assign(OWN, END)
    known = LeaderEpochs.of(OWN, END, epochs)
    assert (known.end_of(asked, END + further) or (-1, -1)) == cache.end_offset_for(asked, END + further)
    assert known == LeaderEpochs.of(OWN, END, [*epochs, (OWN, END), (3, END + 1)])


@given(st.sets(st.integers(0, 30), max_size=6), st.integers(0, 40), st.integers(1, 7))
def test_each_batch_has_the_epoch_of_its_place(starts: set[int], end: int, chunk: int) -> None:
    history = [(epoch, start) for epoch, start in enumerate(sorted(s for s in starts if s < end))]
    known = LeaderEpochs.of(OWN, end, history)
    data = bytearray(b"".join(make_batch(at, [b"v" * 10], leader_epoch=50 + at // 7) for at in range(40)))
    size = len(data) // 40
    plain = patch_batches(bytearray(data), 0, len(data), 1, chunk * size, -1)
    walk = known.stamp(data, 0, len(data), chunk * size, -1)
    assert [info.leader_epoch for info in parse_batches(bytes(data))] == [known.at(at) for at in range(40)]
    assert walk[1:] == plain[1:]  # all that is seen of the source, but for where chunks end
    assert walk.chunks[0].start == 0 and walk.chunks[-1].end == len(data)
    for one, following in zip(walk.chunks, walk.chunks[1:], strict=False):
        assert (one.end, one.next_offset) == (following.start, following.base_offset)
        assert one.end - one.start <= chunk * size


def test_a_batch_that_is_cut_short_is_left_for_the_next_answer() -> None:
    known = LeaderEpochs.of(OWN, 2, [(3, 0), (4, 1)])
    whole = b"".join(make_batch(at, [b"v"]) for at in range(3))
    for cut in range(1, len(whole)):
        data = bytearray(whole[:cut])
        walk = known.stamp(data, 0, cut, 1000, -1)
        assert walk.batches == cut // (len(whole) // 3)
        stamped = [info.leader_epoch for info in parse_batches(bytes(data[: walk.batches * len(whole) // 3]))]
        assert stamped == [3, 4, 9][: walk.batches]


def test_a_batch_across_the_end_is_of_another_log() -> None:
    known = LeaderEpochs.of(OWN, 5, [(3, 0)])
    data = bytearray(make_batch(0, [b"v"] * 4) + make_batch(4, [b"v", b"w"]))
    with pytest.raises(BatchSpansEnd, match="offsets 4 to 5, and the partition was taken over at 5"):
        known.stamp(data, 0, len(data), 1000, -1)


def test_offsets_that_run_backwards_are_malformed_where_the_epoch_changes_too() -> None:
    known = LeaderEpochs.of(OWN, 5, [(3, 0), (4, 2)])
    data = bytearray(make_batch(2, [b"v"]) + make_batch(1, [b"v"]))
    with pytest.raises(MalformedFrame):
        known.stamp(data, 0, len(data), 1000, -1)
