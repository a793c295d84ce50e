"""Which offsets of a source group are committed on the target, and when two sets of offsets are the same.

Offsets are identical on both clusters, so nothing is translated; a commit is only kept inside what the target has. The
leader epoch is never carried over: that of the source means nothing on the target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from wire.frames.types import TopicPartition


class Committed(NamedTuple):
    """A committed offset with the text that its consumer attached."""

    offset: int
    metadata: str = ""


class Bounds(NamedTuple):
    """The target's part of a partition: offsets from start up to, and without, end."""

    start: int
    end: int


Offsets = Mapping[TopicPartition, Committed]


def clamp(offset: int, bounds: Bounds | None) -> int:
    """max(start, min(offset, end)). Below the start the records are gone, beyond the end a consumer would be out of range
    and begin anew wherever its configuration says. Without bounds the offset is taken as it is.
    """
    return offset if bounds is None else max(bounds.start, min(offset, bounds.end))


def wanted_offsets(
    source: Offsets, mirrored: Collection[str], bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, Committed]:
    """The commits that the target's group has to have: all of mirrored topics, clamped, with their metadata."""
    return {
        tp: Committed(clamp(commit.offset, bounds.get(tp)), commit.metadata)
        for tp, commit in source.items()
        if tp.topic in mirrored and commit.offset >= 0
    }


def to_commit(wanted: Offsets, target: Offsets) -> dict[TopicPartition, Committed]:
    """Only what differs from what the target has."""
    return {tp: commit for tp, commit in wanted.items() if target.get(tp) != commit}


def differences(wanted: Offsets, target: Offsets) -> dict[TopicPartition, int]:
    """Per partition the offsets that the target's group is behind (negative: ahead of) what it should have. A partition
    without a commit on the target counts from 0.
    """
    lacking = Committed(0)
    return {
        tp: commit.offset - target.get(tp, lacking).offset
        for tp, commit in wanted.items()
        if tp not in target or target[tp].offset != commit.offset
    }


def behind_by(final: Offsets, target: Offsets) -> dict[TopicPartition, int]:
    """By how much the target is behind the final offsets. A partition without a commit is, even if it is by 0: a consumer
    would begin where its configuration says."""
    return {tp: step for tp, step in differences(final, target).items() if step > 0 or tp not in target}


def not_behind(final: Offsets, target: Offsets) -> dict[TopicPartition, Committed]:
    """The final offsets of an opening that another process began: clients that were let in already, and that have
    committed since, are not sent back.
    """
    return {
        tp: commit if (found := target.get(tp)) is None or found.offset <= commit.offset else found
        for tp, commit in final.items()
    }
