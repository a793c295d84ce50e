"""A switch as clients saw it that were never restarted, and whether both clusters have the same bytes after it.

Pure functions of the history, the final logs and the comparisons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.demo.group_moves import GroupMoves, judge_groups
from lab.workload.checker import Verdict, check
from lab.workload.history import History, PartitionLog
from lab.workload.log_compare import ReplicaComparison
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Switch:
    """One that went through. `window`: from before the command to a moment after it."""

    direction: str  # there, or back
    window: tuple[float, float]
    phases_ms: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrestarted:
    """The clients that stayed at the source's bootstrap servers, and the topic that was switched under them."""

    switches: Sequence[Switch]
    pauses_ms: Sequence[float | None]  # one for each switch: the longest time between two acknowledgements
    verdict: Verdict  # of those clients alone
    groups: GroupMoves  # of theirs
    comparisons: Sequence[ReplicaComparison]  # every replica of both clusters against the owner's leader

    @property
    def source_bytes_identical(self) -> bool:
        return bool(self.comparisons) and all(
            one.identical and one.offsets_identical for one in self.comparisons
        )

    @property
    def problems(self) -> list[str]:
        """One line for everything that is not as it should be."""
        verdict = self.verdict
        counted = {**verdict.violations, "missed": self.groups.missed, "repeated": self.groups.repeated}
        lines = [f"{rule}: {len(found)}, first {found[0]}" for rule, found in counted.items() if found]
        if verdict.acked == 0:
            lines.append("no record was acknowledged at all")
        if verdict.unknown:
            lines.append(f"unknown: {verdict.unknown} records without an outcome")
        for number, (switch, pause) in enumerate(zip(self.switches, self.pauses_ms, strict=True), 1):
            if pause is None:
                lines.append(f"switch {number}, {switch.direction}: no acknowledgement before and after it")
        if not self.comparisons:
            lines.append("no replica was compared after the switch")
        for one in self.comparisons:
            if not (one.identical and one.offsets_identical):
                where = f"{one.partition.topic}-{one.partition.partition} on broker {one.broker}"
                lines.append(f"after the switch, replica {where}: {one.difference}")
        return [f"never restarted: {line}" for line in lines]

    def as_json(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "switches": [
                {"direction": one.direction, "pause_ms": pause, "phases_ms": dict(one.phases_ms)}
                for one, pause in zip(self.switches, self.pauses_ms, strict=True)
            ],
            "unrestarted": {
                "acked": verdict.acked,
                "lost": len(verdict.lost),
                "duplicated": len(verdict.duplicated),
                "reordered": len(verdict.reordered),
                "client_errors": len(verdict.client_errors),
                "missed": len(self.groups.missed),
                "repeated": len(self.groups.repeated),
            },
            "source_bytes_identical_after": self.source_bytes_identical,
        }


def judge_unrestarted(
    history: History,
    logs: Mapping[TopicPartition, PartitionLog],
    switches: Sequence[Switch],
    comparisons: Sequence[ReplicaComparison],
    *,
    producers: Collection[str],
    consumers: Mapping[str, str],
) -> Unrestarted:
    """`logs`: of the topic that was switched. `producers` and `consumers` (name -> group): those that stayed. Other clients
    wrote to the topic, too: the groups have to have read their records as well."""
    own, own_logs = _of(history, logs, producers, consumers)
    verdicts = [check(own, own_logs, promote=one.window, drained=False) for one in switches]
    whole = switches[0].window[0], switches[-1].window[1]
    return Unrestarted(
        switches=switches,
        pauses_ms=[one.promote_pause_ms for one in verdicts],
        verdict=verdicts[0],
        groups=judge_groups(history, logs, consumers, move=whole, opened=whole[1]),
        comparisons=comparisons,
    )


def _of(
    history: History,
    logs: Mapping[TopicPartition, PartitionLog],
    producers: Collection[str],
    consumers: Collection[str],
) -> tuple[History, dict[TopicPartition, PartitionLog]]:
    """Their part of the history and of the logs. All reads are judged with those of all other clients."""
    clients = {*producers, *consumers}
    part = History(
        sends={name: sent for name, sent in history.sends.items() if name in producers},
        acks=[one for one in history.acks if one.producer in producers],
        unacked=[one for one in history.unacked if one.producer in producers],
        errors=[one for one in history.errors if one.client in clients],
    )
    return part, {
        tp: PartitionLog(log.start, log.end, [one for one in log.records if one.producer in producers])
        for tp, log in logs.items()
    }
