"""Where a follower went back to stays known, however far it has come again."""

from __future__ import annotations

from typing import Any

import pytest

from fetcher.partition_copy import PartitionCopy
from fetcher.progress import FollowerLog
from fetcher.spec import MirrorSpec


def a_mirror() -> PartitionCopy:
    host: Any = None  # nothing is loaded: no cursor is opened
    events: Any = None
    spec = MirrorSpec(
        link="l",
        topic="t",
        partition=0,
        topic_id=b"t" * 16,
        source_topic_id=None,
        session_epoch=1,
        start_offset=0,
    )
    return PartitionCopy(
        spec, events, host, window_bytes=1, answer_bytes=1, detach_after=1.0, attach_grace=1.0
    )


def asked(mirror: PartitionCopy, *fetches: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    for offset, now in fetches:
        mirror.follower_fetched(7, offset, 0, now)
    return mirror.followers[7].restarts


def test_a_follower_that_asks_for_less_than_before_is_remembered() -> None:
    mirror = a_mirror()
    assert asked(mirror, (40, 1.0), (50, 2.0), (90, 3.0)) == ((40, 1.0),)
    assert asked(mirror, (70, 4.0), (95, 5.0)) == ((40, 1.0), (70, 4.0))
    assert asked(mirror, (60, 6.0), (99, 7.0)) == ((40, 1.0), (60, 6.0))
    assert asked(mirror, (0, 8.0), (99, 9.0)) == ((0, 8.0),)


@pytest.mark.parametrize(("offset", "noted"), [(90, False), (95, False), (89, True)])
def test_a_new_leader_epoch_neither_forgets_nor_takes_the_first_fetch_for_a_loss(
    offset: int, noted: bool
) -> None:
    mirror = a_mirror()
    asked(mirror, (0, 1.0), (90, 2.0))
    mirror.forget_followers()
    assert asked(mirror, (offset, 3.0)) == (((0, 1.0), (offset, 3.0)) if noted else ((0, 1.0),))


def test_positions_of_followers_hold_for_one_leader_epoch() -> None:
    mirror = a_mirror()
    asked(mirror, (90, 1.0))
    for epoch in (3, 3):  # the first word of an epoch says nothing about the followers before it
        mirror.led_under(epoch)
        assert mirror.followers
    mirror.led_under(4)
    assert not mirror.followers


def test_what_is_remembered_is_bounded_and_errs_towards_a_loss() -> None:
    log = FollowerLog()
    for number in range(20):
        log.restarted(number, float(number))
    assert len(log.restarts) == 8
    assert log.restarts[0] == (0, 12.0)
    assert log.restarts[-1] == (19, 19.0)
