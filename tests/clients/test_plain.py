"""How long waiting members took, out of what was read."""

from __future__ import annotations

from tests.clients.judge import SOURCE, GroupRead
from tests.clients.plain import taken_over_after
from wire.frames.types import TopicPartition


def read(member: str, partition: int, time: float) -> GroupRead:
    return GroupRead(member, SOURCE, 1, TopicPartition("t", partition), 0, None, 0, time)


def test_from_the_last_read_of_those_who_left_to_the_last_partition_that_is_read_again() -> None:
    reads = [
        read("old-1", 0, 10.0),
        read("old-2", 1, 10.5),  # the last one to leave
        read("new-1", 1, 9.0),  # before: no take-over
        read("new-1", 0, 11.0),
        read("new-1", 0, 11.5),
        read("new-2", 1, 12.5),
        read("new-2", 1, 14.0),
    ]
    assert taken_over_after(reads, {"old-1", "old-2"}) == 2000.0
