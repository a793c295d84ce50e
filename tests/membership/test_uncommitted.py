"""The uncommitted tail against a deliberately dumb model: every split, every high watermark, every
truncation.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linker.membership.uncommitted import OffsetGap, UncommittedTail
from tests.fakes.metadata_records import encode_batch
from wire.errors import MalformedFrame

BATCHES = [encode_batch(0, 1, [b"a"]), encode_batch(1, 1, [b"b", b"c"]), encode_batch(3, 2, [b"d"])]
WHOLE = b"".join(BATCHES)


def tail(*batches: bytes) -> UncommittedTail:
    result = UncommittedTail()
    for batch in batches:
        result.append(batch)
    return result


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
def test_cut_anywhere_only_whole_batches_are_kept(cut: int) -> None:
    got = tail(WHOLE[:cut])
    whole = sum(cut >= len(b"".join(BATCHES[: n + 1])) for n in range(len(BATCHES)))
    assert got.end_offset == [0, 1, 3, 4][whole]
    # The next answer begins with the batch that holds the offset, or with any before it.
    got.append(WHOLE)
    assert (got.end_offset, got.last_epoch) == (4, 2)
    assert got.take_committed(4) == WHOLE


@pytest.mark.parametrize(
    ("high_watermark", "taken"), [(-1, 0), (0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (9, 3)]
)
def test_only_below_the_high_watermark(high_watermark: int, taken: int) -> None:
    got = tail(WHOLE)
    assert got.take_committed(high_watermark) == b"".join(BATCHES[:taken])
    assert got.committed_offset == [0, 1, 3, 4][taken]
    assert (got.end_offset, got.last_epoch) == (4, 2)


def test_the_epoch_of_what_was_taken_is_remembered() -> None:
    got = tail(WHOLE)
    got.take_committed(3)
    assert got.truncate(1, 3) == 1
    assert (got.end_offset, got.last_epoch) == (3, 1)
    assert got.truncate(1, 2) == 0, "committed: not ours to drop"


@given(epoch=st.integers(0, 3), end=st.integers(0, 5))
def test_truncation_leaves_what_the_leader_has(epoch: int, end: int) -> None:
    got = tail(WHOLE)
    got.truncate(epoch, end)
    kept = 0
    for after, batch_epoch in ((1, 1), (3, 1), (4, 2)):
        if after > end or batch_epoch > epoch:
            break
        kept = after
    assert got.end_offset == kept


def test_a_gap_and_a_damaged_batch_are_refused_and_nothing_is_kept() -> None:
    got = tail(BATCHES[0])
    with pytest.raises(OffsetGap, match="offset 3 follows 0"):
        got.append(BATCHES[2])
    damaged = bytearray(BATCHES[1])
    damaged[-1] ^= 1
    with pytest.raises(MalformedFrame, match="CRC"):
        got.append(bytes(damaged))
    assert got.end_offset == 1


def test_reset() -> None:
    got = tail(WHOLE)
    got.reset(50, 7)
    assert (got.committed_offset, got.end_offset, got.last_epoch, bool(got)) == (50, 50, 7, False)
