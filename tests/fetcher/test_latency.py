"""How long records take to a replica, what a partition has copied, and the timestamp of what a replica has."""

from __future__ import annotations

import pytest

from fetcher.budget import Charge, MemoryBudget
from fetcher.latency import ReplicationLatency
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.window import WindowChunk
from tests.fakes.batches import build_batch
from tests.fetcher.pure import pure_mirror
from wire.frames.batch import patch_batches

START = 1_795_000_000.0  # seconds


def stage(latency: ReplicationLatency) -> tuple[PartitionCopy, PartitionCursor]:
    """A mirror that replica 1 has copied to its end, 0."""
    mirror, _, _ = pure_mirror()
    mirror._latency = latency
    mirror.load(0, 0, 0, 0.0)
    mirror.follower_fetched(1, 0, 0, 0.0)
    cursor = mirror.followers[1].cursor
    assert cursor is not None
    return mirror, cursor


def chunk(cursor: PartitionCursor, newest: int, offsets: int = 10) -> WindowChunk:
    base = cursor.position
    return WindowChunk(
        base, base + offsets, memoryview(bytes(100)), 100, Charge(MemoryBudget(100), 100), newest
    )


def come(mirror: PartitionCopy, cursor: PartitionCursor, newest: int) -> None:
    """Ten records from the source."""
    one = chunk(cursor, newest)
    mirror.note_answer(one.next_offset, one.next_offset, 0)
    mirror.add_chunks(cursor, [one], [], mirror.high_watermark)


def told(mirror: PartitionCopy, replica: int = 1) -> None:
    """As follower_answers does it."""
    progress = mirror.followers[replica]
    reading = mirror.read_for(progress, 1000, at_least_one=True)
    assert reading is not None
    progress.told_to, progress.told_newest = reading.next_offset, reading.newest


def test_from_the_timestamp_to_the_fetch_that_shows_it() -> None:
    latency = ReplicationLatency(lambda: START + 0.2)
    mirror, cursor = stage(latency)
    come(mirror, cursor, int(1000 * START))
    told(mirror)
    assert sum(latency.histogram.counts) == 0  # it was sent, and nobody knows that it arrived
    mirror.follower_fetched(1, 10, 0, 1.0)
    assert sum(latency.histogram.counts) == 1
    assert latency.histogram.total_seconds == pytest.approx(0.2)
    assert mirror.followers[1].newest == int(1000 * START)
    mirror.follower_fetched(1, 10, 0, 1.5)  # asks again at the end
    assert sum(latency.histogram.counts) == 1


def test_a_clock_that_is_behind_counts_as_zero_and_is_told() -> None:
    latency = ReplicationLatency(lambda: START - 5)
    mirror, cursor = stage(latency)
    come(mirror, cursor, int(1000 * START))
    told(mirror)
    mirror.follower_fetched(1, 10, 0, 1.0)
    assert (latency.clamped, latency.histogram.total_seconds, latency.histogram.counts[0]) == (1, 0.0, 1)


def test_the_first_copy_of_a_topic_is_no_latency() -> None:
    latency = ReplicationLatency(lambda: START + 10**6)
    mirror, _, _ = pure_mirror()
    mirror._latency = latency
    mirror.load(20, 20, 0, 0.0)
    mirror.follower_fetched(1, 0, 0, 0.0)
    cursor = mirror.followers[1].cursor
    assert cursor is not None
    for offset in (10, 20):
        one = chunk(cursor, int(1000 * START))
        mirror.add_chunks(cursor, [one], [], 20)
        told(mirror)
        mirror.follower_fetched(1, offset, 0, 1.0)
    assert sum(latency.histogram.counts) == 0
    come(mirror, cursor, int(1000 * START))
    told(mirror)
    mirror.follower_fetched(1, 30, 0, 2.0)
    assert sum(latency.histogram.counts) == 1


def test_batches_without_a_timestamp_and_answers_that_were_not_taken_count_nowhere() -> None:
    latency = ReplicationLatency(lambda: START)
    mirror, cursor = stage(latency)
    come(mirror, cursor, -1)
    told(mirror)
    mirror.follower_fetched(1, 10, 0, 1.0)
    come(mirror, cursor, int(1000 * START))
    told(mirror)
    mirror.follower_fetched(1, 5, 0, 2.0)  # its disk lost five records
    assert sum(latency.histogram.counts) == 0
    assert mirror.followers[1].newest == -1


def test_a_replica_that_took_a_part_does_not_have_the_last_batch() -> None:
    latency = ReplicationLatency(lambda: START)
    mirror, cursor = stage(latency)
    come(mirror, cursor, int(1000 * START))
    told(mirror)
    mirror.follower_fetched(1, 5, 0, 1.0)
    assert (sum(latency.histogram.counts), mirror.followers[1].newest) == (0, -1)


def test_a_chunk_that_begins_below_what_is_there_counts_what_is_new() -> None:
    mirror, cursor = stage(ReplicationLatency())
    come(mirror, cursor, 1)
    cursor.restart(5)
    come(mirror, cursor, 1)  # 5 to 15, of which ten were there to 10
    assert mirror.offsets_mirrored == 15


def test_bytes_and_offsets_count_once() -> None:
    mirror, cursor = stage(ReplicationLatency())
    come(mirror, cursor, 1)
    come(mirror, cursor, 2)
    assert (mirror.bytes_mirrored, mirror.offsets_mirrored) == (200, 20)
    cursor.restart(0)
    come(mirror, cursor, 1)
    assert (mirror.bytes_mirrored, mirror.offsets_mirrored, mirror.bytes_fetched) == (200, 20, 300)


def test_the_walk_tells_the_timestamp_of_the_last_whole_batch() -> None:
    run = bytearray()
    for number, timestamp in enumerate((5, 9, 7)):
        batch = bytearray(build_batch([b"x"], base_offset=number))
        batch[35:43] = timestamp.to_bytes(8, "big")
        run += batch
    assert patch_batches(run, 0, len(run), 3, 1000, -1).newest == 7
    assert patch_batches(run, 0, len(run) - 1, 3, 1000, -1).newest == 9
    assert patch_batches(run, 0, 5, 3, 1000, -1).newest == -1
