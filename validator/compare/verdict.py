"""Decides how a replica differs, from the batches that source and replica hold at the same offsets.

Pure. A Judge is shown one piece of a partition (a range of offsets) in the order of the offsets: runs in which all sides
agree as sums (`clean`), everything else batch by batch (`group`). Lawful differences:
- the partition leader epoch: it is outside of a batch's CRC and is not looked at;
- compaction works on each log by itself: on a compacted topic batches may be gone on either side, and one that lost records
  keeps its offsets (MemoryRecords.filterTo keeps base and last offset). Such batches are counted, and judged by records;
  where no cleaner can have been (tally.py) a batch that is gone is missing;
- log starts: what the source has dropped cannot be compared. A replica that starts later than the source is tally.py's.

Control batches and those of aborted transactions are batches like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from validator.compare import digest
from validator.compare.columns import BATCH, MOVED
from validator.read.spans import SOURCE

KEPT_FINDINGS = 20
CONTROL = 0x20
"""Attribute bit: the batch ends a transaction; no consumer is shown its record."""
DELETE_HORIZON = 0x40
"""Attribute bit: the cleaner has put the delete horizon into the base timestamp (KIP-534)."""


class LogSide(NamedTuple):
    """One side's row at an offset; names and units are those of columns.py."""

    base_offset: int
    last_offset: int
    record_count: int
    size: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    crc: int
    crc_computed: int
    follows: int = -1
    marker: int = BATCH
    note: str | None = None

    @property
    def intact(self) -> bool:
        return self.crc == self.crc_computed


FACTS = LogSide._fields[1:10]
"""These have to be equal. Base timestamp and records are under the CRC."""


@dataclass(slots=True)
class LogDifference:
    """A finding before it is a message; `kind` is a FindingKind's value."""

    kind: str
    offset: int
    detail: str
    source: LogSide | None = None
    replica: LogSide | None = None


@dataclass(slots=True)
class ReplicaVerdict:
    """One replica in one range. Sums cover what is proved: everything before the first difference."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    digest: int = 0
    source_digest: int = 0
    differences: list[LogDifference] = field(default_factory=list)  # the first KEPT_FINDINGS, by offset
    difference_count: int = 0  # batches, also those in a hole of many
    first_difference: int | None = None
    lawful: dict[str, int] = field(default_factory=dict)
    # Of the source's batches that a cleaner may have taken from the replica, the first and the newest by timestamp.
    cleaned_first: LogSide | None = None
    cleaned_newest: LogSide | None = None
    moved_at: int | None = None  # one of the logs was not there any more from here on: to be planned anew


@dataclass(slots=True)
class RangeVerdict:
    """All replicas in one range, and what the source holds there."""

    range_id: int
    replicas: dict[int, ReplicaVerdict]
    source_batches: int = 0
    source_records: int = 0  # those of transaction markers left out
    source_bytes: int = 0
    source_offsets: int = 0  # records, those of markers included
    source_min_timestamp: int = -1  # of batches' newest ones; -1: there is none
    source_reached: int = -1  # the highest last offset
    source_max_timestamp: int = -1
    source_first: LogSide | None = None
    source_cut: LogSide | None = (
        None  # the marker (columns.py) where its log ends early: what lies behind is not known
    )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> RangeVerdict:
        """The inverse of to_json, after a way through JSON."""
        replicas = {}
        for slot, raw in fields["replicas"].items():
            differences = [
                LogDifference(**{**one, **{side: _copy(one[side]) for side in ("source", "replica")}})
                for one in raw["differences"]
            ]
            cleaned = {name: _copy(raw[name]) for name in ("cleaned_first", "cleaned_newest")}
            replicas[int(slot)] = ReplicaVerdict(**{**raw, **cleaned, "differences": differences})
        sources = {name: _copy(fields[name]) for name in ("source_first", "source_cut")}
        return RangeVerdict(**{**fields, "replicas": replicas, **sources})


def _copy(fields: Sequence[Any] | None) -> LogSide | None:
    return None if fields is None else LogSide(*fields)


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """A range as a Judge has to know it: who has to hold it, and whether its topic is compacted."""

    range_id: int
    start: int
    end: int
    slots: tuple[int, ...]  # of the replicas; the source is always there
    compacted: bool = False


class CleanRun(NamedTuple):
    """Batches that all sides hold alike, as sums."""

    first: LogSide
    batches: int
    records: int
    bytes: int
    digest: int
    max_timestamp: int
    last_offset: int
    markers: int = 0  # of `records`, those that end transactions
    min_timestamp: int = -1


@dataclass(slots=True)
class _Hole:
    """Batches of the source in a row that a replica does not have."""

    first: LogSide
    last_offset: int
    batches: int = 1


class Judge:
    """Judges one range; show it everything in the order of base offsets, then `finish`."""

    def __init__(self, spec: RangeSpec) -> None:
        self.spec = spec
        self._verdict = RangeVerdict(spec.range_id, {slot: ReplicaVerdict() for slot in spec.slots})
        self._reached = dict.fromkeys((SOURCE, *spec.slots), -1)  # the highest last offset so far, by slot
        self._holes: dict[int, _Hole] = {}
        self._blind: set[int] = set()  # replicas of which nothing more can be said in this range

    @property
    def reached(self) -> int:
        """The highest last offset that any side has shown."""
        return max(self._reached.values())

    def clean(self, run: CleanRun) -> None:
        """All sides hold these batches, intact and in order."""
        self._note_source(
            run.first, run.batches, run.records - run.markers, run.bytes, run.last_offset, run.max_timestamp
        )
        self._note_all(run.records, run.min_timestamp)
        for slot, verdict in self._verdict.replicas.items():
            self._close_hole(slot)
            if slot in self._blind or verdict.first_difference is not None:
                continue
            verdict.batches += run.batches
            verdict.records += run.records
            verdict.bytes += run.bytes
            verdict.digest = digest.add(verdict.digest, run.digest)
            verdict.source_digest = digest.add(verdict.source_digest, run.digest)
        self._reached = dict.fromkeys(self._reached, run.last_offset)

    def group(self, copies: Mapping[int, Sequence[LogSide]]) -> None:
        """Judge one base offset: `copies` has the batches of the sides by slot; a slot without an entry holds nothing
        there."""
        self._take_markers(copies)
        by_slot = {
            slot: sorted(copy for copy in held if copy.marker == BATCH) for slot, held in copies.items()
        }
        source = by_slot.get(SOURCE, [])
        if source:
            size = sum(copy.size for copy in source)
            records = sum(copy.record_count for copy in source if not copy.attributes & CONTROL)
            last = max(copy.last_offset for copy in source)
            newest = max(copy.max_timestamp for copy in source)
            self._note_source(source[0], len(source), records, size, last, newest)
            self._note_all(
                sum(copy.record_count for copy in source), min(copy.max_timestamp for copy in source)
            )
        for slot in self._verdict.replicas:
            held = by_slot.get(slot, [])
            if slot not in self._blind and (source or held):
                self._compare(slot, source, held)
        for slot, held in by_slot.items():
            if slot in self._reached and held:
                self._reached[slot] = max(self._reached[slot], *(copy.last_offset for copy in held))

    def finish(self) -> RangeVerdict:
        for slot in self._verdict.replicas:
            self._close_hole(slot)
        return self._verdict

    # --- one replica at one offset --------------------------------------------------------------------------

    def _compare(self, slot: int, source: Sequence[LogSide], held: Sequence[LogSide]) -> None:
        verdict = self._verdict.replicas[slot]
        if not held:
            if self.spec.compacted:
                self._lawful(slot, "compacted_on_replica", len(source))
                note_cleaned(verdict, *source)
                self._count(slot, source, held)
            else:
                self._widen_hole(slot, source)
            return
        self._close_hole(slot)
        found = self._content(source, held) or self._order(slot, source, held)
        if found is None and not source and not self.spec.compacted:
            found = "extra", "the source has no batch that begins here"
        if found is None:
            if not source:
                self._lawful(slot, "compacted_at_source", len(held))
            elif source[0][1:10] != held[0][1:10]:  # FACTS
                self._lawful(slot, "rewritten", 1)
            self._count(slot, source, held)
            return
        kind, detail = found
        self._differ(
            verdict, LogDifference(kind, held[0].base_offset, detail, source[0] if source else None, held[0])
        )

    def _content(self, source: Sequence[LogSide], held: Sequence[LogSide]) -> tuple[str, str] | None:
        for where, copies in (("", held), ("at the source: ", source)):
            for copy in copies:
                if not copy.intact:
                    stored = f"stored CRC {copy.crc:08x}, its bytes have {copy.crc_computed:08x}"
                    return "corrupt", f"{where}{stored}"
        if not source:
            return None
        mine, theirs = held[0], source[0]
        differing = [name for name in FACTS if getattr(mine, name) != getattr(theirs, name)]
        if not differing or (self.spec.compacted and _rewritten(theirs, mine)):
            return None
        facts = ", ".join(f"{name} {getattr(theirs, name)} / {getattr(mine, name)}" for name in differing)
        return "differing", f"source / replica: {facts}"

    def _order(self, slot: int, source: Sequence[LogSide], held: Sequence[LogSide]) -> tuple[str, str] | None:
        base = held[0].base_offset
        reached, source_reached = self._reached[slot], self._reached[SOURCE]
        if len(held) > max(len(source), 1):
            return "overlapping", f"the batch is there {len(held)} times"
        if base <= reached and not (source and base <= source_reached):
            return "overlapping", f"an earlier batch of the replica goes up to offset {reached}"
        if any(copy.follows > base for copy in held) and not any(copy.follows > base for copy in source):
            return "reordered", f"it lies behind offset {max(copy.follows for copy in held) - 1}"
        return None

    # --- holes ----------------------------------------------------------------------------------------------

    def _widen_hole(self, slot: int, source: Sequence[LogSide]) -> None:
        last = max(copy.last_offset for copy in source)
        hole = self._holes.get(slot)
        if hole is None:
            self._holes[slot] = _Hole(source[0], last, len(source))
            verdict = self._verdict.replicas[slot]
            if verdict.first_difference is None:
                verdict.first_difference = source[0].base_offset
        else:
            hole.last_offset = max(hole.last_offset, last)
            hole.batches += len(source)

    def _close_hole(self, slot: int) -> None:
        hole = self._holes.pop(slot, None)
        if hole is None:
            return
        kind, detail = "missing", "the source's batch is not there"
        if hole.batches > 1:
            kind = "gap"
            detail = (
                f"{hole.batches} batches of the source are not there,"
                f" offsets {hole.first.base_offset} to {hole.last_offset}"
            )
        difference = LogDifference(kind, hole.first.base_offset, detail, hole.first)
        self._differ(self._verdict.replicas[slot], difference, hole.batches)

    # --- what ends a log early ------------------------------------------------------------------------------

    def _take_markers(self, copies: Mapping[int, Sequence[LogSide]]) -> None:
        for slot, held in copies.items():
            for copy in (one for one in held if one.marker != BATCH):
                if slot == SOURCE and self._verdict.source_cut is None:
                    self._verdict.source_cut = copy
                for replica in self._verdict.replicas if slot == SOURCE else (slot,):
                    self._end(replica, slot, copy)

    def _end(self, slot: int, of: int, copy: LogSide) -> None:
        if slot in self._blind or slot not in self._verdict.replicas:
            return
        self._close_hole(slot)
        self._blind.add(slot)
        verdict = self._verdict.replicas[slot]
        if copy.marker == MOVED:
            verdict.moved_at = copy.base_offset
            return
        where = "at the source: " if of == SOURCE else ""
        self._differ(verdict, LogDifference("corrupt", copy.base_offset, f"{where}{copy.note}"))

    # --- sums -----------------------------------------------------------------------------------------------

    def _note_source(
        self, first: LogSide, batches: int, records: int, size: int, last_offset: int, max_timestamp: int
    ) -> None:
        verdict = self._verdict
        if verdict.source_first is None:
            verdict.source_first = first
        verdict.source_batches += batches
        verdict.source_records += records
        verdict.source_reached = max(verdict.source_reached, last_offset)
        verdict.source_bytes += size
        verdict.source_max_timestamp = max(verdict.source_max_timestamp, max_timestamp)

    def _note_all(self, records: int, min_timestamp: int) -> None:
        verdict = self._verdict
        before = verdict.source_min_timestamp
        verdict.source_offsets += records
        verdict.source_min_timestamp = min_timestamp if before < 0 else min(before, min_timestamp)

    def _count(self, slot: int, source: Sequence[LogSide], held: Sequence[LogSide]) -> None:
        verdict = self._verdict.replicas[slot]
        if verdict.first_difference is not None:
            return
        for copy in held:
            verdict.batches += 1
            verdict.records += copy.record_count
            verdict.bytes += copy.size
            verdict.digest = digest.add(verdict.digest, _digest(copy))
        for copy in source:
            verdict.source_digest = digest.add(verdict.source_digest, _digest(copy))

    def _lawful(self, slot: int, kind: str, count: int) -> None:
        lawful = self._verdict.replicas[slot].lawful
        lawful[kind] = lawful.get(kind, 0) + count

    @staticmethod
    def _differ(verdict: ReplicaVerdict, difference: LogDifference, batches: int = 1) -> None:
        verdict.difference_count += batches
        if verdict.first_difference is None:
            verdict.first_difference = difference.offset
        if len(verdict.differences) < KEPT_FINDINGS:
            verdict.differences.append(difference)


def note_cleaned(verdict: ReplicaVerdict, *gone: LogSide) -> None:
    """Whether a cleaner can have been there is judged when the whole log was seen (tally.py)."""
    for copy in gone:
        if verdict.cleaned_first is None:
            verdict.cleaned_first = copy
        if verdict.cleaned_newest is None or copy.max_timestamp > verdict.cleaned_newest.max_timestamp:
            verdict.cleaned_newest = copy


def _digest(copy: LogSide) -> int:
    return digest.digest_of_one(copy.base_offset, copy.last_offset, copy.record_count, copy.crc)


def _rewritten(source: LogSide, replica: LogSide) -> bool:
    """Whether the cleaner explains the difference: it keeps a batch's offsets, producer and codec, and takes records out
    or sets the delete horizon. A batch that has all its records on both sides was not cleaned."""
    kept = ("last_offset", "producer_id", "producer_epoch", "base_sequence")
    if any(getattr(source, name) != getattr(replica, name) for name in kept):
        return False
    if (source.attributes ^ replica.attributes) & ~DELETE_HORIZON:
        return False
    span = source.last_offset - source.base_offset + 1
    return (
        source.record_count < span
        or replica.record_count < span
        or bool((source.attributes | replica.attributes) & DELETE_HORIZON)
    )
