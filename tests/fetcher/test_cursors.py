"""Which follower reads from which window."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fetcher.budget import Charge, MemoryBudget
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.window import WindowChunk
from tests.fakes.batches import build_batch
from tests.fetcher.pure import Host, append, pure_mirror


def test_cursors_split_and_join() -> None:
    mirror, _, host = pure_mirror()
    mirror.load(1000, 1000, 0, 0.0)
    a = mirror.follower_fetched(1, 500, 0, 1.0)
    assert a.cursor is not None
    assert a.cursor.position == 500
    b = mirror.follower_fetched(2, 100, 0, 1.0)
    assert b.cursor is not a.cursor
    assert len(mirror.cursors) == 2
    mirror.follower_fetched(2, 500, 0, 2.0)
    assert b.cursor is a.cursor
    assert len(mirror.cursors) == 1
    assert len(host.closed) == 1
    mirror.follower_gone(1)
    mirror.follower_gone(2)
    assert mirror.cursors == []


def test_memory_taken_back_gives_a_full_window_room_and_says_so() -> None:
    """The tail kept for a laggard made the window full; without word of the room nobody would fetch again."""
    mirror, _, host = pure_mirror()
    mirror.load(1000, 1000, 0, 0.0)
    mirror.follower_fetched(1, 500, 0, 1.0)
    mirror.follower_fetched(2, 100, 0, 1.0)
    cursor = mirror.followers[1].cursor
    assert cursor is not None
    mirror.tick(10.0)  # nobody is expected any more
    tail = cursor.limit * 3 // 4
    append(mirror, cursor, tail)
    mirror.follower_fetched(1, 510, 0, 2.0)
    assert cursor.window.bytes == tail, "kept for follower 2"
    append(mirror, cursor, tail)
    assert cursor.full
    host.changed.clear()
    assert mirror.reclaim(0.0) == tail
    assert not cursor.full
    assert host.changed == [cursor]


def test_an_epoch_where_another_was_known_truncates_every_copy_beyond() -> None:
    mirror, events, _ = pure_mirror(source_epochs=((1, 0),))
    mirror.load(1000, 1000, 0, 0.0)
    mirror.follower_fetched(1, 400, 0, 1.0)
    mirror.follower_fetched(2, 90, 0, 1.0)
    cursor = mirror.followers[2].cursor
    assert cursor is not None
    mirror.add_chunks(cursor, [], [(5, 90)], 1000)
    assert mirror.untruncated == {1: 90}
    assert mirror.may_copy_from(1, 400) == 90
    assert mirror.may_copy_from(2, 90) is None
    assert mirror.may_copy_from(1, 90) is None
    assert mirror.untruncated == {}
    assert events.epochs == [(mirror.tp, 5, 90)]
    assert [offset for _, offset, _ in events.truncations] == [90, 90]


@pytest.mark.parametrize("noted", [True, False])
def test_replicas_get_an_epoch_when_it_is_written_down_unless_nobody_will(
    noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, events, _ = pure_mirror(source_epochs=((1, 0),))
    mirror.load(1000, 1000, 0, 0.0)
    for replica in (1, 2):
        mirror.follower_fetched(replica, 0, 0, 1.0)
    (cursor,) = mirror.cursors
    source_epoch = events.source_epoch
    monkeypatch.setattr(events, "source_epoch", lambda *told: source_epoch(*told) and noted)
    for base, epochs in ((0, []), (10, [(5, 10)])):
        raw = memoryview(build_batch(10, base_offset=base))
        charge = Charge(MemoryBudget(len(raw)), len(raw))
        mirror.add_chunks(cursor, [WindowChunk(base, base + 10, raw, len(raw), charge)], epochs, 1000)

    def end() -> int:
        reading = mirror.read_for(mirror.followers[1], 1 << 20, at_least_one=True)
        assert reading is not None
        return reading.next_offset

    assert end() == (10 if noted else 20)
    mirror.epochs_written(((1, 0),))  # of before
    assert end() == (10 if noted else 20)
    heard: list[object] = []
    mirror.listeners.add(heard.append)
    mirror.epochs_written(((1, 0), (5, 10)))
    assert end() == 20
    assert bool(heard) == noted


def two_followers(first: int, second: int) -> tuple[PartitionCopy, Host, PartitionCursor, PartitionCursor]:
    """At these offsets, far enough from each other for a cursor of each; nobody is expected any more."""
    mirror, _, host = pure_mirror(source_epochs=((1, 0),))
    mirror.load(1000, 1000, 0, 0.0)
    mirror.follower_fetched(1, first, 0, 1.0)
    mirror.follower_fetched(2, second, 0, 1.0)
    mirror.tick(10.0)
    leading, behind = mirror.followers[1].cursor, mirror.followers[2].cursor
    assert leading is not None
    assert behind is not None
    assert leading is not behind
    host.changed.clear()
    return mirror, host, leading, behind


def test_an_epoch_that_one_cursor_finds_replaced_takes_the_others_back() -> None:
    """What they hold beyond is not at the source any more, nor may anybody be given it."""
    mirror, host, leading, behind = two_followers(400, 90)
    append(mirror, leading, 100)
    mirror.add_chunks(behind, [], [(5, 90)], 1000)
    assert leading.position == 90
    assert leading.window.bytes == 0
    assert leading in host.changed, "its fetcher has to ask from there"
    assert not mirror.followers[1].has_more()


def test_the_window_waits_for_replicas_that_have_not_asked_yet_but_not_for_ever() -> None:
    mirror, _, host = pure_mirror()
    mirror.load(1000, 1000, 0, 0.0)
    mirror.follower_fetched(1, 0, 0, 1.0)
    assert host.watched == 1, "somebody has to look at the time"
    (cursor,) = mirror.cursors
    append(mirror, cursor, cursor.limit)
    mirror.follower_fetched(1, 10, 0, 1.5)
    assert cursor.full, "kept for replica 2"
    assert mirror.tick(2.9)
    assert cursor.full
    host.changed.clear()
    mirror.tick(3.1)
    assert not cursor.full
    assert cursor in host.changed


def test_the_last_replica_that_was_waited_for_ends_the_wait() -> None:
    mirror, _, _ = pure_mirror()
    mirror.load(1000, 1000, 0, 0.0)
    mirror.follower_fetched(1, 0, 0, 1.0)
    (cursor,) = mirror.cursors
    append(mirror, cursor, cursor.limit)
    mirror.follower_fetched(2, 0, 0, 1.2)
    mirror.follower_fetched(1, 10, 0, 1.3)
    mirror.follower_fetched(2, 10, 0, 1.3)
    assert cursor.window.bytes == 0


def test_whoever_waits_is_told_when_a_follower_is_let_go() -> None:
    mirror, _, _ = pure_mirror()
    mirror.load(1000, 1000, 0, 0.0)
    mirror.follower_fetched(1, 0, 0, 1.0)
    mirror.follower_fetched(2, 0, 0, 1.0)
    (cursor,) = mirror.cursors
    append(mirror, cursor, cursor.limit)
    mirror.follower_fetched(1, 10, 0, 1.1)
    told: list[PartitionCopy] = []
    mirror.listeners.add(told.append)
    assert mirror.tick(2.0)
    assert not told
    assert mirror.tick(3.1), "the first one's window is full still"
    assert told == [mirror]
    assert cursor.followers.keys() == {1}
    assert mirror.followers[2].cursor is None


@pytest.mark.parametrize("end", [lambda mirror: mirror.fail("why"), lambda mirror: mirror.close()])
def test_nobody_reads_from_a_partition_that_has_ended(end: Callable[[PartitionCopy], None]) -> None:
    mirror, host, leading, behind = two_followers(400, 90)
    append(mirror, leading, 100)
    end(mirror)
    assert list(mirror.cursors) == []
    assert host.closed == [leading, behind]
    assert leading.window.bytes == 0
    assert [one.cursor for one in mirror.followers.values()] == [None, None]
