"""Judges the records that a promote would leave behind because replicas start later than the source; pure.

Records below a replica's log start are at the source only. Once the target owns the topic nobody gets them from there any
more, so a promote says how many they are, and goes on only if somebody has accepted that many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.proof import MissingRecords
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LateStart:
    """A replica whose log starts at `log_start`, while the source, and the mirror, go back to `start`. `counted`: the
    validator has read the source's batches in between; else only the offsets are known, an upper bound."""

    broker_id: int
    start: int
    log_start: int
    counted: MissingRecords | None = None

    @property
    def records(self) -> int:
        return self.log_start - self.start if self.counted is None else self.counted.records

    def __str__(self) -> str:
        if self.counted is None:
            many, why = (
                f"the {self.records} offsets before it were not read, that is at most as many records",
                "",
            )
        else:
            most = "" if self.counted.exact else "at most "
            many, why = f"{most}{self.records} records of the source are not there", f": {self.counted.why}"
        return (
            f"broker {self.broker_id}'s log starts at offset {self.log_start}, the source goes back to offset"
            f" {self.start}; {many}{why}"
        )


Late = Mapping[TopicPartition, Sequence[LateStart]]


def judge(
    tp_start: int, source_start: int, log_starts: Mapping[int, int], counted: Mapping[int, MissingRecords]
) -> list[LateStart]:
    """The replicas of a partition that start late. `tp_start`: where the mirror began, `log_starts` and `counted` by broker.
    Counts of other offsets than these say nothing of them."""
    start = max(tp_start, source_start)
    late = []
    for broker_id, log_start in sorted(log_starts.items()):
        if log_start <= start:
            continue
        known = counted.get(broker_id)
        if known is not None and (known.start, known.end) != (start, log_start):
            known = None
        late.append(LateStart(broker_id, start, log_start, known))
    return late


def worst(late: Sequence[LateStart]) -> LateStart:
    """The replica that lacks most; each of them may be the leader tomorrow."""
    return max(late, key=lambda one: (one.records, -one.broker_id))


def lost(late: Late) -> dict[TopicPartition, int]:
    """Records by partition. One that lacks on several replicas is one record."""
    return {tp: worst(those).records for tp, those in late.items() if those}


def refusal(late: Late, accepted: int, before: int = 0) -> dict[TopicPartition, str]:
    """Why this must not be promoted, by partition; empty if so many records were accepted. `before`: of the same promote,
    promoted already. A late start that lacks not one record is no reason."""
    found = lost(late)
    if before + sum(found.values()) <= accepted:
        return {}
    return {tp: str(worst(those)) for tp, those in sorted(late.items()) if found.get(tp)}


def refusal_text(late: Late, accepted: int, before: int = 0) -> str:
    """The reason for all of them together, and what to do."""
    total = before + sum(lost(late).values())
    told = f", {accepted} were accepted" if accepted else ""
    return (
        f"replicas start later than the source: up to {total} records would be at the source only{told}."
        " Find what deletes there and copy the mirror again (linker mirror delete, create), or promote with"
        f" --accept-missing {total}"
    )
