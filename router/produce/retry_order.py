"""Batches that went back to an idempotent producer, so that none behind them overtakes them. Pure: the time is passed in.

A client has several requests on the way. Where the first is refused and the second is forwarded, because the lease came
or a fence went in between, the source sees a gap and answers OUT_OF_ORDER_SEQUENCE_NUMBER. By the protocol that is
right, and a broker that becomes leader between two requests does the same. But librdkafka then takes a new epoch for
all its partitions (`rd_kafka_idemp_drain_epoch_bump`), and what it was not told the outcome of elsewhere it writes a
second time. So all batches behind one that went back go back too, until that one comes again.
"""

from __future__ import annotations

from typing import Final

from wire.frames.error_codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT
from wire.frames.types import TopicPartition

# Codes that make a producer send the batch again, and what those behind it get: they certainly were not written.
_BEHIND: Final = {
    NOT_LEADER_OR_FOLLOWER: NOT_LEADER_OR_FOLLOWER,
    NOT_ENOUGH_REPLICAS: NOT_ENOUGH_REPLICAS,
    REQUEST_TIMED_OUT: NOT_LEADER_OR_FOLLOWER,
}
#: Seconds. Batches that were on the way with it are here by then; a client that went to another sidecar with it may be back.
PATIENCE: Final = 1.0
_MOST: Final = 10_000
_HALF: Final = 1 << 30  # sequences wrap at 2^31 (DefaultRecordBatch.incrementSequence)


class RetryOrder:
    """Of one client connection."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        # Base sequence of the first one, the code for those behind it, and until when.
        self._first: dict[tuple[TopicPartition, int, int], tuple[int, int, float]] = {}

    def note(
        self, tp: TopicPartition, producer: tuple[int, int], base_sequence: int, code: int, now: float
    ) -> None:
        """The batch was answered with the code. Others than those that bring it back are ignored."""
        behind = _BEHIND.get(code)
        if producer[0] < 0 or behind is None:
            return
        key = (tp, *producer)
        known = self._first.get(key)
        if known is not None and now < known[2] and later(base_sequence, known[0]):
            return
        if len(self._first) >= _MOST:
            self._first.clear()
        self._first[key] = base_sequence, behind, now + PATIENCE

    def code(
        self, tp: TopicPartition, producer: tuple[int, int], base_sequence: int, now: float
    ) -> int | None:
        """The error code for a batch that came too early; None if it may go on."""
        if not self._first:
            return None
        key = (tp, *producer)
        known = self._first.get(key)
        if known is None:
            return None
        first, behind, until = known
        if now < until and later(base_sequence, first):
            return behind
        del self._first[key]
        return None


def brings_back(code: int) -> bool:
    """Whether a producer that gets it sends the batch again."""
    return code in _BEHIND


def later(one: int, other: int) -> bool:
    """Whether a batch with the base sequence `one` comes after that with `other`."""
    return 0 < (one - other) & (2 * _HALF - 1) < _HALF
