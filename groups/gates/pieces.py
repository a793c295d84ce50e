"""Commits of very many partitions, cut so that the records of each piece fit into one batch of __consumer_offsets.

A coordinator writes all records of a request as one batch, of at most the `max.message.bytes` of that topic (1 MiB in stock
Kafka); a larger one is refused for all of its partitions at once, with INVALID_COMMIT_OFFSET_SIZE, and since Kafka 4.0 with
UNKNOWN_SERVER_ERROR (CoordinatorOperationExceptionHelper.java).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from groups.gates.base import OffsetAndMetadata
from wire.frames.error_codes import INVALID_COMMIT_OFFSET_SIZE, UNKNOWN_SERVER_ERROR
from wire.frames.types import TopicPartition

MOST_PARTITIONS = 2000
MOST_BYTES = 400_000
_SMALLEST_BYTES = 4096  # a smaller piece is refused for another reason
_RECORD_BYTES = 80  # of a record without names and text: lengths, versions, offset, epoch, timestamps
_TOO_LARGE = frozenset({INVALID_COMMIT_OFFSET_SIZE, UNKNOWN_SERVER_ERROR})

Piece = dict[TopicPartition, OffsetAndMetadata]


def record_bytes(group: str, tp: TopicPartition, commit: OffsetAndMetadata) -> int:
    """Approximate size of a commit in __consumer_offsets."""
    return _RECORD_BYTES + len(group.encode()) + len(tp.topic) + len(commit.metadata.encode(errors="replace"))


def pieces(
    group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], most_bytes: int = MOST_BYTES
) -> Iterator[Piece]:
    """All commits, in order; one that is larger than a piece is a piece of its own."""
    piece: Piece = {}
    size = 0
    for tp in sorted(offsets):
        one = record_bytes(group, tp, offsets[tp])
        if piece and (size + one > most_bytes or len(piece) >= MOST_PARTITIONS):
            yield piece
            piece, size = {}, 0
        piece[tp] = offsets[tp]
        size += one
    if piece:
        yield piece


def smaller(group: str, piece: Piece, refused: Iterable[int]) -> list[Piece]:
    """The halves of a piece that was refused for its size; empty if the reason was another one.

    `refused`: the error codes, one for each refused partition.
    """
    found = list(refused)
    size = sum(record_bytes(group, tp, commit) for tp, commit in piece.items())
    if (
        len(piece) < 2
        or len(found) < len(piece)
        or not _TOO_LARGE.issuperset(found)
        or size < _SMALLEST_BYTES
    ):
        return []
    ordered = sorted(piece)
    middle = len(ordered) // 2
    return [{tp: piece[tp] for tp in half} for half in (ordered[:middle], ordered[middle:])]
