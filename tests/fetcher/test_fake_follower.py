"""The fake follower must mind what a stock one minds, else the other tests prove nothing."""

from __future__ import annotations

from tests.fakes.batches import build_batch
from tests.fakes.follower import FollowerLog


def log(**changes: int) -> FollowerLog:
    return FollowerLog("t", b"i" * 16, 0, 7, **changes)  # type: ignore[arg-type]


def test_offsets_that_go_back_fail_the_partition() -> None:
    follower = log()
    follower.append(build_batch(5, leader_epoch=7))
    assert follower.end == 5
    follower.append(build_batch(5, base_offset=3, leader_epoch=7))
    assert follower.failed is not None


def test_more_than_a_segment_fails_the_partition() -> None:
    follower = log(segment_bytes=50)
    follower.append(build_batch(5, leader_epoch=7))
    assert follower.failed is not None


def test_batches_of_a_later_epoch_are_skipped_silently() -> None:
    follower = log()
    follower.append(build_batch(5, leader_epoch=8))
    assert (follower.end, follower.failed) == (0, None)


def test_a_batch_around_the_log_start_moves_an_empty_log_back() -> None:
    follower = log()
    follower.start_over(7)
    follower.append(build_batch(5, base_offset=4, leader_epoch=7))
    assert (follower.log_start, follower.end, follower.failed) == (4, 9, None)


def test_truncation() -> None:
    follower = log()
    for base in (0, 5, 10):
        follower.append(build_batch(5, base_offset=base, leader_epoch=7))
    follower.truncate(10)
    assert (follower.end, follower.last_epoch) == (10, 7)
    follower.truncate(0)
    assert (follower.end, follower.last_epoch, follower.data()) == (0, -1, b"")
