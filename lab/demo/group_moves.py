"""How consumer groups came through a move: records they missed, records they read twice, how long they read nothing.

A pure function of the history and the final logs. A group is its members together: whoever of them read a record, the
group has read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lab.workload.checker import MAX_EVIDENCE, Finding
from lab.workload.history import History, PartitionLog
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupMoves:
    """The move as all groups saw it. Records below a log's start are lawfully gone and count for nothing."""

    missed: Sequence[Finding]
    repeated: Sequence[Finding]
    pauses_ms: Mapping[str, float]  # by group: the longest time without a record that overlaps the move
    opening_ms: Mapping[str, float]  # by group: from the opening to its first record after it

    @property
    def pause_ms(self) -> float | None:
        """Of the group that paused longest."""
        return max(self.pauses_ms.values(), default=None)

    def as_json(self) -> dict[str, object]:
        """For the report: counts, and some evidence apart from them."""
        return {
            "consumer_missed": len(self.missed),
            "consumer_repeated": len(self.repeated),
            "consumer_pause_ms": self.pause_ms,
            "consumer_pauses_ms": dict(self.pauses_ms),
            "consumer_opening_ms": dict(self.opening_ms),
            "consumer_evidence": [str(one) for one in (*self.missed, *self.repeated)[:MAX_EVIDENCE]],
        }

    @property
    def problems(self) -> list[str]:
        """One line for each rule that was broken."""
        found = {"missed by a group": self.missed, "read twice by a group": self.repeated}
        return [f"{what}: {len(list_)}, first {list_[0]}" for what, list_ in found.items() if list_]


def judge_groups(
    history: History,
    logs: Mapping[TopicPartition, PartitionLog],
    groups: Mapping[str, str],
    *,
    move: tuple[float, float],
    opened: float,
) -> GroupMoves:
    """`groups`: consumer name -> its group; each group reads every partition of `logs`. `move`: from the first member that
    stopped at the source to the end of the opening. `opened`: when the opening was over.
    """
    counts: dict[str, Counter[tuple[TopicPartition, int]]] = {group: Counter() for group in groups.values()}
    times: dict[str, list[float]] = defaultdict(list)
    for read in history.reads:
        group = groups.get(read.consumer)
        if group is not None:
            counts[group][read.partition, read.offset] += 1
            times[group].append(read.time)
    missed: list[Finding] = []
    repeated: list[Finding] = []
    for group, counted in counts.items():
        for partition, log in logs.items():
            for record in log.records:
                seen = counted[partition, record.offset]
                what = f"{record.producer} record {record.sequence}"
                if seen == 0:
                    missed.append(Finding(partition, record.offset, f"{group} never got {what}"))
                elif seen > 1:
                    repeated.append(Finding(partition, record.offset, f"{group} got {what} {seen} times"))
    pauses: dict[str, float] = {}
    opening: dict[str, float] = {}
    for group, moments in times.items():
        moments.sort()
        gaps = [
            later - earlier for earlier, later in pairwise(moments) if later >= move[0] and earlier <= move[1]
        ]
        if gaps:
            pauses[group] = round(max(gaps) * 1000, 1)
        first = next((moment for moment in moments if moment >= opened), None)
        if first is not None:
            opening[group] = round((first - opened) * 1000, 1)
    return GroupMoves(missed, repeated, pauses, opening)
