"""Are source and replicas at the same place? Pure judgements of offsets read at one moment, for a fenced
batch.

ALIGNED means, for each partition: the source's log end offset == its high watermark == its last stable
offset == each target replica's position. Before VALIDATED the source's end is read once more, after all
replicas got there, and has to be the same.

The one movement of the source's end that is not somebody writing past the fence: while a transaction is
open there (last stable offset below the high watermark) its marker, or a producer that still writes to the
source directly inside it, moves the end. Such a partition is not aligned anyway; its end is taken anew
until the transaction is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wire.frames.types import TopicPartition


class SourceEnd(NamedTuple):
    """One partition at the source, at one moment."""

    log_end_offset: int
    high_watermark: int
    last_stable_offset: int

    @property
    def settled(self) -> bool:
        """Everything written is committed, and no transaction is open."""
        return self.log_end_offset == self.high_watermark == self.last_stable_offset

    @property
    def in_transaction(self) -> bool:
        return self.last_stable_offset < self.high_watermark


class ReplicaPosition(NamedTuple):
    """The offset a target replica asked for last: it holds everything below."""

    offset: int
    broker_epoch: int = -1  # of the incarnation that asked; -1 where its fetch version does not say


@dataclass(frozen=True, slots=True)
class EndsVerdict:
    """A new reading of the source's ends, judged against the baseline."""

    baseline: Mapping[TopicPartition, SourceEnd]
    moved: Mapping[TopicPartition, str]
    unsettled: Mapping[TopicPartition, str]


def judge_ends(
    baseline: Mapping[TopicPartition, SourceEnd], now: Mapping[TopicPartition, SourceEnd]
) -> EndsVerdict:
    """Compare a reading with the earlier one; a partition that is new in it only gets its baseline."""
    merged = dict(baseline)
    moved: dict[TopicPartition, str] = {}
    unsettled: dict[TopicPartition, str] = {}
    for tp, end in now.items():
        before = baseline.get(tp)
        if before is not None and end.log_end_offset != before.log_end_offset and not before.in_transaction:
            moved[tp] = f"its end at the source went from {before.log_end_offset} to {end.log_end_offset}"
            continue
        merged[tp] = end
        if end.in_transaction:
            unsettled[tp] = (
                f"a transaction is open at the source (last stable offset {end.last_stable_offset}, "
                f"high watermark {end.high_watermark})"
            )
        elif not end.settled:
            unsettled[tp] = (
                f"the source has not committed its end yet (high watermark {end.high_watermark}, "
                f"log end {end.log_end_offset})"
            )
    return EndsVerdict(merged, moved, unsettled)


def gone_on(
    ends: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """After the hand-over: which partitions' logs at the source have grown beyond where they were handed over, in words.

    One that is shorter than that, or not there, has nothing that the target lacks.
    """
    return {
        tp: f"the source's log went on from offset {end} to {now[tp]} after it was handed over: "
        "what was written there is not at the target"
        for tp, end in sorted(ends.items())
        if tp in now and now[tp] > end
    }


def grown_at_source(mirrored: int, now: int, why: str) -> str:
    """For people: a mirror has not taken yet what was added at the source."""
    return f"the source topic has {now} partitions now, the mirror {mirrored}; it does not take the others yet: {why}"


@dataclass(frozen=True, slots=True)
class PositionsVerdict:
    behind: Mapping[TopicPartition, Mapping[int, int | None]]  # replica -> position, None if never heard of
    ahead: Mapping[TopicPartition, str]

    @property
    def all_there(self) -> bool:
        return not self.behind and not self.ahead


def judge_positions(
    ends: Mapping[TopicPartition, int],
    replicas: Mapping[TopicPartition, Mapping[int, int]],
    positions: Mapping[TopicPartition, Mapping[int, ReplicaPosition]],
) -> PositionsVerdict:
    """Which replicas are not exactly at the end. A position of an earlier incarnation of a broker counts as
    unknown: after an unclean stop its log may be shorter than what it once asked for.
    """
    behind: dict[TopicPartition, Mapping[int, int | None]] = {}
    ahead: dict[TopicPartition, str] = {}
    for tp, end in ends.items():
        late: dict[int, int | None] = {}
        known = positions.get(tp, {})
        for broker_id, broker_epoch in replicas.get(tp, {}).items():
            position = known.get(broker_id)
            if position is None or position.broker_epoch not in (-1, broker_epoch):
                late[broker_id] = None
            elif position.offset < end:
                late[broker_id] = position.offset
            elif position.offset > end:
                ahead[tp] = f"replica {broker_id} is at {position.offset}, beyond the source's end {end}"
        if late or not replicas.get(tp):
            behind[tp] = late
    return PositionsVerdict(behind, ahead)


@dataclass(frozen=True, slots=True)
class CommonEnds:
    ends: Mapping[TopicPartition, int]  # where all replicas of a partition stand
    apart: Mapping[TopicPartition, str]  # of the others, who is where


def judge_common_ends(
    least: Mapping[TopicPartition, int],
    replicas: Mapping[TopicPartition, Mapping[int, int]],
    positions: Mapping[TopicPartition, Mapping[int, ReplicaPosition]],
) -> CommonEnds:
    """Where all replicas of a partition stand together, at `least` or beyond. A position of an earlier incarnation of a
    broker counts as unknown, as in `judge_positions`."""
    ends: dict[TopicPartition, int] = {}
    apart: dict[TopicPartition, str] = {}
    for tp, end in least.items():
        known = positions.get(tp, {})
        at = {
            broker_id: known[broker_id].offset
            for broker_id, broker_epoch in replicas.get(tp, {}).items()
            if broker_id in known and known[broker_id].broker_epoch in (-1, broker_epoch)
        }
        furthest = max([end, *at.values()])
        late = {
            broker_id: at.get(broker_id)
            for broker_id in replicas.get(tp, {})
            if at.get(broker_id) != furthest
        }
        if late or not replicas.get(tp):
            apart |= describe_behind({tp: late}, {tp: furthest})
        else:
            ends[tp] = furthest
    return CommonEnds(ends, apart)


def describe_behind(
    behind: Mapping[TopicPartition, Mapping[int, int | None]], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """For people: which replica waits where."""
    described: dict[TopicPartition, str] = {}
    for tp, late in behind.items():
        where = [
            f"broker {broker_id} has not fetched" if at is None else f"broker {broker_id} is at {at}"
            for broker_id, at in sorted(late.items())
        ]
        described[tp] = f"{', '.join(where) or 'no target replica is known'} of {ends[tp]}"
    return described
