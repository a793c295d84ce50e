"""From a history and the final logs to what went wrong, with evidence; a pure function.

Each rule is made to err on neither side: a record of unknown outcome may be in the log once or not at all, a
record below the log start is not lost, offsets need not be contiguous (control records, compaction), and a
re-read by a consumer that was started again is no duplicate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lab.workload.history import Ack, History, LogRecord, Outcome, PartitionLog, Read
from wire.frames.types import TopicPartition

MAX_EVIDENCE = 20


class Finding(NamedTuple):
    """One violation, as a line that can be looked up in the logs."""

    partition: TopicPartition
    offset: int | None
    what: str

    def __str__(self) -> str:
        at = f" offset {self.offset}" if self.offset is not None else ""
        return f"{self.partition.topic}-{self.partition.partition}{at}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the history and the logs. `ok` is true if nothing at all is off."""

    acked: int
    failed: int
    unknown: int
    read: int
    reread: int
    lost: Sequence[Finding] = ()
    misplaced: Sequence[Finding] = ()  # in the log, but not at the offset that was acknowledged
    duplicated: Sequence[Finding] = ()
    reordered: Sequence[Finding] = ()
    phantom: Sequence[Finding] = ()  # in the log, though nobody sent it or the client said it was not sent
    misread: Sequence[Finding] = ()  # a consumer got something else than the log holds there
    skipped: Sequence[Finding] = ()  # a running consumer jumped over a record
    read_back: Sequence[Finding] = ()  # a running consumer went backwards
    unread: Sequence[Finding] = ()  # in the log, but no consumer ever got it
    client_errors: Sequence[str] = ()
    promote_pause_ms: float | None = None
    pauses_ms: Mapping[str, float] = field(default_factory=dict)  # the same by producer
    usual_gap_ms: float | None = None  # 99.9th percentile of such gaps at all other times

    @property
    def violations(self) -> dict[str, Sequence[object]]:
        """Every rule that was broken, with its evidence."""
        rules = {
            "lost": self.lost,
            "misplaced": self.misplaced,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "phantom": self.phantom,
            "misread": self.misread,
            "skipped": self.skipped,
            "read_back": self.read_back,
            "unread": self.unread,
            "client_errors": self.client_errors,
        }
        return {rule: evidence for rule, evidence in rules.items() if evidence}

    @property
    def ok(self) -> bool:
        return not self.violations


@dataclass(slots=True)
class _Index:
    """The final logs by record and by position."""

    places: dict[tuple[str, int], list[tuple[TopicPartition, int]]] = field(default_factory=dict)
    at: dict[tuple[TopicPartition, int], tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, logs: Mapping[TopicPartition, PartitionLog]) -> _Index:
        index = cls()
        for partition, log in logs.items():
            for record in log.records:
                identity = (record.producer, record.sequence)
                index.places.setdefault(identity, []).append((partition, record.offset))
                index.at[partition, record.offset] = identity
        return index


def check(
    history: History,
    logs: Mapping[TopicPartition, PartitionLog],
    *,
    promote: tuple[float, float] | None = None,
    drained: bool = True,
) -> Verdict:
    """Judge a history by the final logs of all partitions that live producers wrote to.

    `promote` is when a promote began and when it was over. `drained` says that consumers were given the time
    to read everything; without it nothing counts as unread.
    """
    index = _Index.of(logs)
    lost, misplaced = _acks_against_logs(history.acks, logs, index)
    misread, skipped, read_back, reread = _reads_against_logs(history.reads, logs, index)
    unknown = [send for send in history.unacked if send.outcome is Outcome.UNKNOWN]
    failed = [send for send in history.unacked if send.outcome is Outcome.FAIL]
    around, others = _gaps(history.acks, promote)
    pauses: dict[str, float] = {}
    for seconds, producer in around:
        pauses[producer] = max(pauses.get(producer, 0.0), round(seconds * 1000, 1))
    usual = sorted(others)[len(others) * 999 // 1000] if others else None
    return Verdict(
        acked=len({(ack.producer, ack.sequence) for ack in history.acks}),
        failed=len(failed),
        unknown=len(unknown) + max(history.pending(), 0),
        read=len(history.reads),
        reread=reread,
        lost=lost,
        misplaced=misplaced,
        duplicated=list(_duplicated(index)),
        reordered=list(_reordered(logs)),
        phantom=list(_phantoms(history, index)),
        misread=misread,
        skipped=skipped,
        read_back=read_back,
        unread=list(_unread(history.reads, logs)) if drained and history.reads else (),
        client_errors=[
            *(f"{send.producer} record {send.sequence}: {send.error}" for send in history.unacked),
            *(f"{error.client}: {error.error}" for error in history.errors),
        ],
        promote_pause_ms=max(pauses.values(), default=None),
        pauses_ms=pauses,
        usual_gap_ms=None if usual is None else round(usual[0] * 1000, 1),
    )


def _acks_against_logs(
    acks: Iterable[Ack], logs: Mapping[TopicPartition, PartitionLog], index: _Index
) -> tuple[list[Finding], list[Finding]]:
    lost: list[Finding] = []
    misplaced: list[Finding] = []
    for ack in acks:
        name = f"{ack.producer} record {ack.sequence}"
        log = logs.get(ack.partition)
        if log is None:
            lost.append(
                Finding(ack.partition, ack.offset, f"{name} was acknowledged, the partition has no log")
            )
            continue
        places = index.places.get((ack.producer, ack.sequence))
        if ack.offset is not None and ack.offset < log.start:
            continue  # retention took it
        if not places:
            there = None if ack.offset is None else index.at.get((ack.partition, ack.offset))
            instead = f", there is {there[0]} record {there[1]}" if there else ""
            lost.append(
                Finding(ack.partition, ack.offset, f"{name} was acknowledged and is in no log{instead}")
            )
        elif ack.offset is None:
            if all(partition != ack.partition for partition, _ in places):
                misplaced.append(Finding(ack.partition, None, f"{name} is in another partition: {places}"))
        elif (ack.partition, ack.offset) not in places:
            found = ", ".join(f"{tp.topic}-{tp.partition} offset {offset}" for tp, offset in places)
            misplaced.append(
                Finding(ack.partition, ack.offset, f"{name} was acknowledged here and is at {found}")
            )
    return lost, misplaced


def _duplicated(index: _Index) -> Iterable[Finding]:
    for (producer, sequence), places in index.places.items():
        if len(places) > 1:
            partition, offset = places[1]
            everywhere = ", ".join(f"{tp.topic}-{tp.partition} offset {offset}" for tp, offset in places)
            yield Finding(
                partition, offset, f"{producer} record {sequence} is there {len(places)} times: {everywhere}"
            )


def _reordered(logs: Mapping[TopicPartition, PartitionLog]) -> Iterable[Finding]:
    for partition, log in logs.items():
        highest: dict[str, LogRecord] = {}
        seen: set[tuple[str, int]] = set()
        for record in log.records:
            if (record.producer, record.sequence) in seen:
                continue  # a duplicate; that is another rule's
            seen.add((record.producer, record.sequence))
            before = highest.get(record.producer)
            if before is not None and record.sequence < before.sequence:
                what = f"{record.producer} record {record.sequence} comes after record {before.sequence}"
                yield Finding(partition, record.offset, f"{what} (offset {before.offset})")
            else:
                highest[record.producer] = record


def _phantoms(history: History, index: _Index) -> Iterable[Finding]:
    failed = {(send.producer, send.sequence) for send in history.unacked if send.outcome is Outcome.FAIL}
    for (producer, sequence), places in index.places.items():
        sends = history.sends.get(producer, [])
        if sequence >= len(sends):
            yield Finding(*places[0], f"{producer} never sent a record {sequence}")
        elif sends[sequence] != places[0][0]:
            wanted = sends[sequence]
            yield Finding(
                *places[0], f"{producer} sent record {sequence} to {wanted.topic}-{wanted.partition}"
            )
        elif (producer, sequence) in failed:
            yield Finding(*places[0], f"{producer} was told that record {sequence} was not sent")


def _reads_against_logs(
    reads: Iterable[Read], logs: Mapping[TopicPartition, PartitionLog], index: _Index
) -> tuple[list[Finding], list[Finding], list[Finding], int]:
    misread: list[Finding] = []
    skipped: list[Finding] = []
    read_back: list[Finding] = []
    reread = 0
    runs: dict[tuple[str, int, TopicPartition], list[int]] = defaultdict(list)
    seen: set[tuple[str, TopicPartition, int]] = set()
    for read in reads:
        key = (read.consumer, read.partition, read.offset)
        reread += key in seen
        seen.add(key)
        run = runs[read.consumer, read.run, read.partition]
        if run and read.offset <= run[-1]:
            what = f"{read.consumer} got this offset after offset {run[-1]}"
            read_back.append(Finding(read.partition, read.offset, what))
        run.append(read.offset)
        log = logs.get(read.partition)
        if log is None or read.offset < log.start:
            continue
        there = index.at.get((read.partition, read.offset))
        got = None if read.producer is None else (read.producer, read.sequence)
        if there != got:
            what = f"{read.consumer} got {_named(got)}, the log holds {_named(there)}"
            misread.append(Finding(read.partition, read.offset, what))
    for (consumer, _, partition), offsets in runs.items():
        log = logs.get(partition)
        if log is None:
            continue
        got_offsets = set(offsets)
        for record in log.records:
            if offsets[0] < record.offset < offsets[-1] and record.offset not in got_offsets:
                what = f"{consumer} went over {record.producer} record {record.sequence}"
                skipped.append(Finding(partition, record.offset, what))
    return misread, skipped, read_back, reread


def _named(identity: tuple[str, int] | None) -> str:
    return "nothing of a live producer" if identity is None else f"{identity[0]} record {identity[1]}"


def _unread(reads: Iterable[Read], logs: Mapping[TopicPartition, PartitionLog]) -> Iterable[Finding]:
    got: dict[TopicPartition, set[int]] = defaultdict(set)
    for read in reads:
        got[read.partition].add(read.offset)
    for partition, log in logs.items():
        offsets = got[partition]
        for record in log.records:
            if record.offset not in offsets:
                yield Finding(
                    partition, record.offset, f"nobody read {record.producer} record {record.sequence}"
                )


def _gaps(
    acks: Iterable[Ack], window: tuple[float, float] | None
) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Times between two acks of one producer: those that overlap the window, and all others."""
    times: dict[str, list[float]] = defaultdict(list)
    for ack in acks:
        times[ack.producer].append(ack.time)
    around: list[tuple[float, str]] = []
    others: list[tuple[float, str]] = []
    for producer, moments in times.items():
        moments.sort()
        for before, after in pairwise(moments):
            overlaps = window is not None and after >= window[0] and before <= window[1]
            (around if overlaps else others).append((after - before, producer))
    return around, others
