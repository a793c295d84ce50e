"""Adds the verdicts of a replica's ranges up to one result, and judges where the replica starts and ends.

Pure. The source's own log start is no loss of the replica's: what the source no longer has cannot be compared. A replica
that starts later than that, and later than the mirror, lacks what the source still has there. The lack is
counted and told, whatever caused it (`Missing`, `late_start`), and never called equal. It does not end the comparison: what
the replica does hold is proved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from validator.compare import digest
from validator.compare.cleaner_bounds import (
    CLOCK_SLACK_MS,
    ONE_SEGMENT,
    TOO_YOUNG,
    SourceLog,
    cleaner_bounds,
    refusal,
)
from validator.compare.columns import CODECS, MOVED
from validator.compare.facts import MAX_FINDINGS, BatchFacts, Finding, FindingKind, Missing
from validator.compare.verdict import LogDifference, LogSide, RangeVerdict, ReplicaVerdict, note_cleaned
from validator.messages import PartitionPlan, ReplicaPlan, ReplicaResult
from validator.read.ranges import PartitionBounds, Range, ReplicaBounds


@dataclass(slots=True)
class ReplicaTally:
    """One replica over a run. Offer it every range of its partition in order; `result` at any time in between."""

    plan: PartitionPlan
    replica: ReplicaPlan
    bounds: PartitionBounds
    found: ReplicaBounds
    now_ms: int
    start: int = 0
    through: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    digest: int = 0
    source_digest: int = 0
    lawful: dict[str, int] = field(default_factory=dict)  # of the run, its rounds before included
    findings: list[Finding] = field(default_factory=list)
    findings_count: int = 0
    first_finding: int | None = None
    moved: bool = False
    read_batches: int = 0  # of this run alone
    read_records: int = 0
    read_bytes: int = 0
    missing: Missing | None = None
    _missing_to: int = 0
    _prefix: _Prefix | None = None
    _prefix_judged: bool = False
    _cleaned: ReplicaVerdict = field(default_factory=ReplicaVerdict)  # of all ranges, its `cleaned_*` alone
    _source_offsets: int = 0
    _source_bytes: int = 0
    _source_times: tuple[int | None, int] = (None, -1)

    def __post_init__(self) -> None:
        replica = self.replica
        begin = self.found.begin
        self.through = begin
        self.start = begin
        if replica.through is not None and replica.through > 0:
            self.start = self.plan.start if replica.start is None else replica.start
            self.batches, self.records, self.bytes = replica.batches, replica.records, replica.bytes
            self.digest = digest.from_hex(replica.digest)
            self.source_digest = digest.from_hex(replica.source_digest)
        expected = max(self.plan.start, replica.through or 0)
        if begin > expected:
            # counted in offsets: what is gone at the source cannot be counted in batches
            self._count_lawful("expired_at_source_offsets", begin - expected)
        if self.found.starts_late:
            self._missing_to = min(self.found.log_start, self.bounds.end)
            if self.found.counted:
                self.missing = replica.missing
            else:
                self._prefix = _Prefix()
            # The reading begins there now, and all that was read before lies below.
            self.through = max(begin, self._missing_to)
            if self.start == begin:
                self.start = self.through
            if self.missing is not None:
                self._tell_missing(self.missing, None)

    @property
    def tellable(self) -> bool:
        """Whether `result` can be told already: not while it is not known how much lies before a late start."""
        return self._prefix is None or self._prefix_judged

    def take(self, one: Range, verdict: RangeVerdict | None) -> None:
        """The next range in order of offsets; no verdict: nobody holds anything there."""
        spec = one.spec
        begin = self.found.begin
        if self._prefix is not None:
            if self.found.missing_from <= spec.start < self._missing_to:
                self.moved |= _source_moved(verdict)
                self._prefix.take(verdict)
                return
            if spec.start >= self._missing_to:
                self._judge_prefix()
        if self.moved:
            # Nobody has compared what lies before this range: an early end is for the round that has read up to it.
            return
        short_at = max(self.found.high_watermark, begin)
        if spec.start == short_at and self.found.high_watermark < self.bounds.end:
            self.moved = _source_moved(verdict)
            if not self.moved:
                self._end_short(verdict)
            return
        if self.found.slot not in spec.slots:
            return
        if verdict is not None:
            self._source_offsets += verdict.source_offsets
            self._source_bytes += verdict.source_bytes
            oldest, newest = self._source_times
            if verdict.source_batches:
                low = verdict.source_min_timestamp
                self._source_times = (
                    low if oldest is None else min(oldest, low),
                    max(newest, verdict.source_max_timestamp),
                )
            self._take_own(verdict.replicas[self.found.slot])
        if not self.moved and self.first_finding is None:
            self.through = max(self.through, min(spec.end, self.bounds.end))

    def finish(self) -> None:
        """All ranges have been taken: what hangs on their sums is judged."""
        self._judge_prefix()
        if not self.moved:
            self._judge_cleaned()
        if self.first_finding is not None:
            self.through = min(self.through, self.first_finding)

    def result(self, seconds: float) -> ReplicaResult:
        """The result so far. The findings come in the order of their offsets."""
        self.findings.sort(key=lambda one: one.offset)
        return ReplicaResult(
            topic=self.plan.topic,
            partition=self.plan.partition,
            broker_id=self.replica.broker_id,
            start=self.start,
            through=self.through,
            source_end=self.bounds.end,
            source_start=self.bounds.log_start,
            replica_start=self.found.log_start,
            replica_end=self.found.high_watermark,
            batches=self.batches,
            records=self.records,
            bytes=self.bytes,
            digest=digest.to_hex(self.digest),
            source_digest=digest.to_hex(self.source_digest),
            seconds=seconds,
            findings=tuple(self.findings[:MAX_FINDINGS]),
            findings_count=self.findings_count,
            lawful=dict(self.lawful),
            missing=self.missing,
        )

    # --- parts ----------------------------------------------------------------------------------------------

    def _take_own(self, verdict: ReplicaVerdict) -> None:
        self.read_batches += verdict.batches
        self.read_records += verdict.records
        self.read_bytes += verdict.bytes
        if self.first_finding is None:
            self.batches += verdict.batches
            self.records += verdict.records
            self.bytes += verdict.bytes
            self.digest = digest.add(self.digest, verdict.digest)
            self.source_digest = digest.add(self.source_digest, verdict.source_digest)
        for kind, count in verdict.lawful.items():
            self._count_lawful(kind, count)
        gone = (verdict.cleaned_first, verdict.cleaned_newest)
        note_cleaned(self._cleaned, *(copy for copy in gone if copy is not None))
        if verdict.differences:
            self.findings += [to_finding(one) for one in verdict.differences]
            self.findings_count += verdict.difference_count
            self._differs_at(verdict.first_difference)
        if verdict.moved_at is not None:
            self.moved = True
            if self.first_finding is None:
                self.through = max(self.through, verdict.moved_at)

    def _count_lawful(self, kind: str, count: int) -> None:
        self.lawful[kind] = self.lawful.get(kind, 0) + count

    def _differs_at(self, offset: int | None) -> None:
        if offset is None:
            return
        self.first_finding = offset if self.first_finding is None else min(offset, self.first_finding)
        self.through = min(max(self.through, offset), self.first_finding)

    def _end_short(self, verdict: RangeVerdict | None) -> None:
        at = max(self.found.high_watermark, self.found.begin)
        detail = (
            f"broker {self.replica.broker_id} ends at offset {self.found.high_watermark},"
            f" it has to hold everything below {self.bounds.end}"
        )
        source = verdict.source_first if verdict is not None else None
        self._add(FindingKind.SHORT, at, detail, source)

    def _judge_prefix(self) -> None:
        prefix = self._prefix
        if prefix is None or self._prefix_judged or self.moved:
            return  # if the source's log moved away there, nobody can tell what it holds
        self._prefix_judged = True
        broken = prefix.broken
        if not prefix.batches and broken is None:
            return  # the source holds nothing there either
        start, end = self.found.missing_from, self._missing_to
        if broken is not None:
            # It lies below what is proved, and ends nothing of it.
            detail = f"at the source: {broken.note}"
            self.findings.append(Finding(kind=FindingKind.CORRUPT, offset=broken.base_offset, detail=detail))
            self.findings_count += 1
        self.missing = Missing(
            start=start,
            end=end,
            batches=prefix.batches + (broken is not None),
            records=prefix.records(start, end) if broken is None else end - start,
            exact=broken is None and (prefix.whole(start, end) or not self.plan.compacted),
            why=why_late(self.plan, prefix.max_timestamp, self.now_ms),
        )
        self._tell_missing(self.missing, prefix.first)

    def _tell_missing(self, missing: Missing, first: LogSide | None) -> None:
        """It is told, and does not end what is proved: `through` and the sums are of what the replica holds."""
        self.findings.append(late_start(self.replica.broker_id, missing, first))
        self.findings_count += 1

    def _judge_cleaned(self) -> None:
        """A batch of a compacted topic that the replica lacks where no log cleaner can have been is missing."""
        first, newest = self._cleaned.cleaned_first, self._cleaned.cleaned_newest
        if first is None or newest is None:
            return
        source = SourceLog(self._source_offsets, self._source_bytes, *self._source_times)
        limits = cleaner_bounds(self.plan, self.bounds, self.found, source, self.now_ms)
        if newest.max_timestamp > limits.clean:
            self._not_cleaned(newest, TOO_YOUNG)
        if limits.one_segment:
            self._not_cleaned(first, ONE_SEGMENT)

    def _not_cleaned(self, copy: LogSide, why: str) -> None:
        if any(one.offset == copy.base_offset and one.kind is FindingKind.MISSING for one in self.findings):
            return
        detail = f"the source's batch is not there: {refusal(why, self.plan)}"
        self._add(FindingKind.MISSING, copy.base_offset, detail, copy)

    def _add(self, kind: FindingKind, offset: int, detail: str, source: LogSide | None) -> None:
        self.findings.append(Finding(kind=kind, offset=offset, detail=detail, source=to_facts(source)))
        self.findings_count += 1
        self._differs_at(offset)


def _source_moved(verdict: RangeVerdict | None) -> bool:
    return verdict is not None and verdict.source_cut is not None and verdict.source_cut.marker == MOVED


@dataclass(slots=True)
class _Prefix:
    """The source's batches before a replica's late start."""

    batches: int = 0
    held: int = 0
    reached: int = -1
    max_timestamp: int = -1
    first: LogSide | None = None
    broken: LogSide | None = None

    def take(self, verdict: RangeVerdict | None) -> None:
        if verdict is None:
            return
        self.broken = self.broken or verdict.source_cut
        self.batches += verdict.source_batches
        self.held += verdict.source_records
        self.reached = max(self.reached, verdict.source_reached)
        self.max_timestamp = max(self.max_timestamp, verdict.source_max_timestamp)
        self.first = self.first or verdict.source_first

    def records(self, start: int, end: int) -> int:
        """Without those of the first and the last batch that lie outside: a log may start inside a batch."""
        before = max(0, start - self.first.base_offset) if self.first is not None else 0
        return max(0, self.held - before - max(0, self.reached + 1 - end))

    def whole(self, start: int, end: int) -> bool:
        return self.reached < end and (self.first is None or self.first.base_offset >= start)


def late_start(broker_id: int, missing: Missing, first: LogSide | None = None) -> Finding:
    most = "" if missing.exact else "at most "
    detail = (
        f"broker {broker_id} starts at offset {missing.end}; from offset {missing.start} on the source has"
        f" {most}{missing.records} records that are not there: {missing.why}"
    )
    return Finding(kind=FindingKind.LATE_START, offset=missing.start, detail=detail, source=to_facts(first))


def why_late(plan: PartitionPlan, youngest: int, now_ms: int) -> str:
    """The reason for a late start, as far as the target's settings tell one. It never makes one lawful."""
    if plan.retention_ms is not None and 0 <= youngest <= now_ms - plan.retention_ms + CLOCK_SLACK_MS:
        return f"they are older than the target topic's retention.ms={plan.retention_ms}"
    if plan.retention_bytes is not None:
        return f"the target topic's retention.bytes={plan.retention_bytes} may have taken them"
    return (
        f"the target topic's retention as it is now (retention.ms={_limit(plan.retention_ms)},"
        f" retention.bytes=unlimited) does not explain it: deleted with DeleteRecords, by a retention"
        " that was set meanwhile, or lost with a disk"
    )


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def to_finding(difference: LogDifference) -> Finding:
    return Finding(
        kind=FindingKind(difference.kind),
        offset=difference.offset,
        detail=difference.detail,
        source=to_facts(difference.source),
        replica=to_facts(difference.replica),
    )


def to_facts(copy: LogSide | None) -> BatchFacts | None:
    if copy is None:
        return None
    return BatchFacts(
        base_offset=copy.base_offset,
        last_offset=copy.last_offset,
        records=copy.record_count,
        size=copy.size,
        crc=copy.crc,
        crc_computed=copy.crc_computed,
        attributes=copy.attributes,
        codec=CODECS[copy.attributes & 7],
        producer_id=copy.producer_id,
        producer_epoch=copy.producer_epoch,
        base_sequence=copy.base_sequence,
        max_timestamp=copy.max_timestamp,
    )


def whole_partition_finding(
    plan: PartitionPlan,
    replica: ReplicaPlan,
    kind: FindingKind,
    detail: str,
    source_end: int | None = None,
    replica_end: int | None = None,
) -> ReplicaResult:
    """A partition of which nothing needs to be read to know that it is wrong. Its proof stays as it was."""
    at = replica.through if replica.through is not None else plan.start
    return ReplicaResult(
        topic=plan.topic,
        partition=plan.partition,
        broker_id=replica.broker_id,
        start=replica.start if replica.start is not None else plan.start,
        through=at,
        source_end=(plan.end or 0) if source_end is None else source_end,
        replica_end=replica_end,
        batches=replica.batches,
        records=replica.records,
        bytes=replica.bytes,
        digest=digest.to_hex(digest.from_hex(replica.digest)),
        source_digest=digest.to_hex(digest.from_hex(replica.source_digest)),
        seconds=0.0,
        findings=(Finding(kind=kind, offset=at, detail=detail),),
        findings_count=1,
        missing=replica.missing,
    )
