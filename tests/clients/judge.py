"""What became of a group's records: from reads and final logs to missed, repeated, too early; pure functions.

The group began at the start of its topic, so every record of the final log is to be read once. A record that
was read twice is told apart by where: twice at the source (the library's own rebalances), once at each cluster
(the hand-over: ours), or twice at the target. What producers were promised is lab.workload.checker's business;
`largest_gap` and `longest_waits` only look at their times, and `differences` at the logs of both clusters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lab.workload.checker import Finding
from lab.workload.history import Ack, PartitionLog
from wire.frames.types import TopicPartition

SOURCE, TARGET = "source", "target"


class GroupRead(NamedTuple):
    """A record as a member got it; producer None if no live producer wrote it. Times: seconds of one clock."""

    member: str
    cluster: str
    run: int
    partition: TopicPartition
    offset: int
    producer: str | None
    number: int
    time: float


class Membership(NamedTuple):
    """Partitions that a member was given or that were taken from it."""

    member: str
    cluster: str
    run: int
    event: str  # assigned, revoked, lost
    partitions: Sequence[TopicPartition]
    time: float


class Window(NamedTuple):
    """From when to when, both included."""

    begin: float
    end: float

    def overlaps(self, begin: float, end: float) -> bool:
        return end >= self.begin and begin <= self.end


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """What the group did with the records of its topic."""

    records: int
    missed: Sequence[Finding] = ()
    misread: Sequence[Finding] = ()  # another record than the log holds at that offset
    early: Sequence[Finding] = ()  # read at the target before its group was opened
    repeated_at_source: Sequence[Finding] = ()
    repeated_across: Sequence[Finding] = ()
    repeated_at_target: Sequence[Finding] = ()
    repeated_back_ms: float = 0.0  # how old, at the source's last read, the oldest record repeated across was
    longest_pause_ms: float | None = None  # between two reads of one partition
    opening_ms: float | None = None  # from the opening to the first read of the last partition
    reopening_ms: float | None = None  # the same of the opening after a demote

    @property
    def moved_cleanly(self) -> bool:
        """Nothing missed, nothing repeated by the move, nothing read too early or wrongly."""
        return not (
            self.missed or self.misread or self.early or self.repeated_across or self.repeated_at_target
        )


def judge_group(
    reads: Iterable[GroupRead],
    logs: Mapping[TopicPartition, PartitionLog],
    *,
    opened: float | None = None,
    returned: Window | None = None,
) -> GroupVerdict:
    """Judge a group by everything its members read, the final logs, and when the target opened to it.

    `returned`: from when a demote had returned it to the source until the target opened to it again.
    """
    ordered = sorted(reads, key=lambda read: read.time)
    by_partition: dict[TopicPartition, list[GroupRead]] = defaultdict(list)
    for read in ordered:
        by_partition[read.partition].append(read)
    missed: list[Finding] = []
    misread: list[Finding] = []
    for partition, log in logs.items():
        got = {read.offset for read in by_partition[partition]}
        there = {record.offset: record for record in log.records}
        for record in log.records:
            if record.offset not in got:
                what = f"nobody read {record.producer} record {record.sequence}"
                missed.append(Finding(partition, record.offset, what))
        for read in by_partition[partition]:
            held = there.get(read.offset)
            wanted = (held.producer, held.sequence) if held else (None, -1)
            if read.offset >= log.start and (read.producer, read.number) != wanted:
                what = f"{read.member} got {read.producer} record {read.number}, the log holds {wanted}"
                misread.append(Finding(partition, read.offset, what))
    early = [
        Finding(
            read.partition,
            read.offset,
            f"{read.member} read it {(opening - read.time) * 1000:.0f} ms too early",
        )
        for read in ordered
        if read.cluster == TARGET and (opening := _opening_to_come(read.time, opened, returned)) is not None
    ]
    repeated, back = _repeated(by_partition)
    pauses = [after.time - before.time for some in by_partition.values() for before, after in pairwise(some)]
    return GroupVerdict(
        records=sum(len(log.records) for log in logs.values()),
        missed=missed,
        misread=misread,
        early=early,
        repeated_at_source=repeated[SOURCE],
        repeated_across=repeated["across"],
        repeated_at_target=repeated[TARGET],
        repeated_back_ms=round(back * 1000, 1),
        longest_pause_ms=round(max(pauses) * 1000, 1) if pauses else None,
        opening_ms=_opening(by_partition, opened),
        reopening_ms=None if returned is None else _opening(by_partition, returned.end, since=returned.end),
    )


def _opening_to_come(time: float, opened: float | None, returned: Window | None) -> float | None:
    """When the target opened to a group that it was closed to at that time; None if it was open."""
    if opened is not None and time < opened:
        return opened
    return returned.end if returned is not None and returned.begin < time < returned.end else None


def _repeated(
    by_partition: Mapping[TopicPartition, Sequence[GroupRead]],
) -> tuple[dict[str, list[Finding]], float]:
    repeated: dict[str, list[Finding]] = {SOURCE: [], "across": [], TARGET: []}
    back = 0.0
    for partition, some in by_partition.items():
        first: dict[int, GroupRead] = {}
        last_at_source = 0.0  # so far: after a demote there are reads at the source again
        for read in some:
            if read.cluster == SOURCE:
                last_at_source = read.time
            before = first.setdefault(read.offset, read)
            if before is read:
                continue
            where = read.cluster if read.cluster == before.cluster else "across"
            what = f"{read.member} ({read.cluster}) read it again, {before.member} ({before.cluster}) had"
            repeated[where].append(Finding(partition, read.offset, what))
            if where == "across":
                back = max(back, last_at_source - before.time)
    return repeated, back


def _opening(
    by_partition: Mapping[TopicPartition, Sequence[GroupRead]], opened: float | None, since: float = 0.0
) -> float | None:
    """Milliseconds until every partition that was read at the target had its first read."""
    if opened is None:
        return None
    firsts = [
        min(times)
        for some in by_partition.values()
        if (times := [r.time for r in some if r.cluster == TARGET and r.time >= since])
    ]
    return round((max(firsts) - opened) * 1000, 1) if firsts else None


def judge_output(
    inputs: Mapping[TopicPartition, PartitionLog], outputs: Mapping[TopicPartition, PartitionLog]
) -> tuple[list[Finding], list[Finding]]:
    """(missed, repeated) of an application that copies every record: by what its output holds."""
    written = Counter(
        (record.producer, record.sequence) for log in outputs.values() for record in log.records
    )
    missed: list[Finding] = []
    repeated: list[Finding] = []
    for partition, log in inputs.items():
        for record in log.records:
            count = written[record.producer, record.sequence]
            name = f"{record.producer} record {record.sequence}"
            if count == 0:
                missed.append(Finding(partition, record.offset, f"{name} never got to the output"))
            elif count > 1:
                repeated.append(Finding(partition, record.offset, f"{name} is in the output {count} times"))
    return missed, repeated


def by_event(times: Iterable[float], events: Mapping[str, float]) -> dict[str, int]:
    """How many of these times fall to each event: to the latest that had begun, else to "before"."""
    begun = sorted((begin, name) for name, begin in events.items() if begin)
    names = [next((name for begin, name in reversed(begun) if begin <= time), "before") for time in times]
    return dict(Counter(names))


def largest_gap(
    acks: Iterable[Ack], *, within: Window | None = None, without: Sequence[Window] = ()
) -> float | None:
    """The longest time between two acknowledgements in ms; `without` are restarts, gaps over them do not count."""
    times = sorted(ack.time for ack in acks)
    gaps = [
        after - before
        for before, after in pairwise(times)
        if (within is None or within.overlaps(before, after))
        and not any(window.overlaps(before, after) for window in without)
    ]
    return round(max(gaps) * 1000, 1) if gaps else None


def longest_waits(
    series: Iterable[Iterable[float]], phases: Mapping[str, Window], end: float
) -> dict[str, float | None]:
    """By phase, the longest time in ms between two moments of one series that overlaps it.

    Silence counts until `end`, so that a partition that never goes on is not overlooked.
    """
    gaps = [
        gap
        for times in series
        if (ordered := sorted(times))
        for gap in pairwise([*ordered, max(end, ordered[-1])])
    ]
    return {
        name: round(max(lasted) * 1000, 1)
        if (lasted := [after - before for before, after in gaps if phase.overlaps(before, after)])
        else None
        for name, phase in phases.items()
    }


def differences(
    source: Mapping[TopicPartition, PartitionLog], target: Mapping[TopicPartition, PartitionLog]
) -> list[Finding]:
    """Offsets at which both clusters do not hold the same record of the same producer."""
    found: list[Finding] = []
    for partition, log in source.items():
        here, there = (
            {record.offset: (record.producer, record.sequence) for record in side.records}
            for side in (log, target.get(partition, PartitionLog(0, 0, [])))
        )
        for offset in sorted(here.keys() | there.keys()):
            if here.get(offset) != there.get(offset):
                what = f"the source holds {here.get(offset)}, the target {there.get(offset)}"
                found.append(Finding(partition, offset, what))
    return found
