"""Record mode: every record of source and replica held against each other with Spark's own Kafka connector.

For logs whose batches may lawfully differ: compacted ones, and such as were re-segmented. A record is its offset, timestamp
with type, key, value and headers. Aborted records count on both sides (read_uncommitted), control batches have no rows.

Each replica is read by name through the link broker (client.rack, router/fetch/decision.py). Once a stock broker leads, the
connector can only read that one: the other replicas are told as failures, never as proved. The leaders are looked up before
and after the reading.

A compacted log may lack the following, which is only counted: a record whose key has a later committed one on that side, all
of a key that ends with a tombstone old enough to be gone, a record without a key, a record of an aborted transaction; none
of them where no log cleaner can have been (cleaner_bounds.py). Everything else that one side alone holds is wrong; so the
latest value of every key is the same on both. Differences that a first look at the range cannot explain are looked for a
second time in the whole log of that side (second_look.py).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from validator.compare.facts import MAX_FINDINGS
from validator.compare.tally import whole_partition_finding
from validator.messages import PartitionPlan, ReplicaResult
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.kafka_source import ensure_connector
from validator.read.ranges import ReplicaBounds
from validator.records import frames
from validator.records.explain import explain
from validator.records.frames import CLEANED, TOLD, Expected
from validator.records.logs import RecordLogs, look
from validator.records.tally import Explained, RecordTally
from wire.errors import LinkerError

PARTITIONS_PER_JOB = 64
ATTEMPTS = 3
"""Reading is planned anew this often when a log's start or a leader moved meanwhile."""
_MOVED = re.compile(r"OffsetOutOfRange|KAFKA_DATA_LOSS")
"""An offset that was planned is not there any more: the broker's word, or the connector's (failOnDataLoss)."""


class RecordsUnreadable(LinkerError):
    """The connector could not read what both clusters say they hold. No secrets in its text."""


@dataclass(slots=True)
class RecordsChecked:
    """The result for a group of partitions. `failures`: replicas and clusters that could not be asked; of what they hold
    nothing is said. `read_*`: of this run alone."""

    results: list[ReplicaResult] = field(default_factory=list)
    failures: list[SideFailed] = field(default_factory=list)
    read_records: int = 0
    read_bytes: int = 0


def groups(
    plans: Sequence[PartitionPlan], size: int = PARTITIONS_PER_JOB
) -> Iterator[Sequence[PartitionPlan]]:
    """The partitions of one call of `check_records` each, compacted ones apart."""
    for compacted in (False, True):
        alike = [plan for plan in plans if plan.compacted is compacted]
        for first in range(0, len(alike), size):
            yield alike[first : first + size]


def check_records(
    spark: SparkSession,
    source: ClusterEndpoint,
    target: ClusterEndpoint,
    plans: Sequence[PartitionPlan],
    *,
    wait_s: float,
    now_ms: int,
) -> RecordsChecked:
    """Compare the records of these partitions (one of `groups`). Blocking; cancelled with its Spark job.

    Raises SideFailed if a cluster cannot be reached, RecordsUnreadable, ConnectorMissing.
    """
    ensure_connector(spark)
    left = ATTEMPTS
    while True:
        left -= 1
        found, leaders = asyncio.run(look(source, target, plans, wait_s))
        job = _Job(spark, source, target, plans, found, leaders, now_ms)
        try:
            checked = job.run()
            _, after = asyncio.run(look(source, target, (), 0.0, topics={plan.topic for plan in plans}))
            if all(after.get(tp) == leaders.get(tp) for tp in found.bounds):
                return checked
            if not left:
                raise RecordsUnreadable(
                    "leaders of the target move all the time: no replica could be read in one go"
                )
        except (Py4JJavaError, PySparkException) as error:
            reason = _reason(error, (source, target))
            if "cancelled" in reason.lower():
                raise
            if not left or not _MOVED.search(reason):
                gave_up = f"Spark's Kafka connector gave up: {reason}"
                try:
                    asyncio.run(
                        look(source, target, plans, 0.0)
                    )  # tells which side does not answer, and where
                except SideFailed as side:
                    raise SideFailed(side.side, side.address, f"{side.reason}; {gave_up}") from None
                raise RecordsUnreadable(gave_up) from None


def _reason(error: Exception, sides: Sequence[ClusterEndpoint]) -> str:
    """The innermost cause in one line, without anything that is in the client properties."""
    java = getattr(error, "java_exception", None)
    text = str(error)
    while java is not None:
        text = str(java.toString())
        java = java.getCause()
    text = text.strip().splitlines()[0]
    for side in sides:
        for value in sorted(side.properties.values(), key=len, reverse=True):
            if len(value) >= 4:
                text = text.replace(value, "***")
    return text[:500]


class _Job(RecordLogs):
    """One attempt at a group of partitions."""

    def run(self) -> RecordsChecked:
        self.began = time.monotonic()
        self.checked = RecordsChecked(failures=self.failures)
        self.checked.results += [whole_partition_finding(*wrong) for wrong in self.found.wrong]
        if self.readable:
            self._compare()
        return self.checked

    def _compare(self) -> None:
        expected = [self._expected(part, one) for (part, _), one in self.readable.items()]
        rows = self.rows(expected)
        compacted = any(self.found.bounds[tp].compacted for tp in self.tps)
        explained: dict[tuple[int, int], Explained] = {}
        totals: dict[tuple[int, int], Row] = {}
        if rows is not None:
            if compacted:
                rows = rows.persist(StorageLevel.DISK_ONLY)
            try:
                paired = frames.pairs(self.spark, rows, expected, CLEANED)
                totals = {(row.part, row.slot): row for row in frames.totals(paired)}
                if compacted and any(row.record_missing or row.record_extra for row in totals.values()):
                    explained = explain(self, paired, expected)
            finally:
                if compacted:
                    rows.unpersist()
        tallies = {
            key: RecordTally(
                self.plans[self.tps[key[0]]], self.found.bounds[self.tps[key[0]]], one, self.now_ms
            )
            for key, one in self.readable.items()
        }
        for key, tally in tallies.items():
            tally.take(totals.get(key), explained.get(key), compacted)
        self._tell_differences(expected, tallies, explained)
        seconds = time.monotonic() - self.began
        for tally in tallies.values():
            self.checked.results.append(tally.result(seconds))
            self.checked.read_records += tally.read_records
            self.checked.read_bytes += tally.read_bytes

    # --- reading --------------------------------------------------------------------------------------------

    def _expected(self, part: int, one: ReplicaBounds) -> Expected:
        bounds = self.found.bounds[self.tps[part]]
        start = min(max(one.begin, one.log_start), bounds.end)
        return Expected(
            part, one.broker_id, one.begin, start, max(start, min(bounds.end, one.high_watermark))
        )

    # --- findings -------------------------------------------------------------------------------------------

    def _tell_differences(
        self,
        expected: Sequence[Expected],
        tallies: Mapping[tuple[int, int], RecordTally],
        explained: Mapping[tuple[int, int], Explained],
    ) -> None:
        """Read again what differs, to say how; and count anew what lies before the first difference."""
        wrong = [one for one in expected if tallies[one.part, one.slot].first is not None]
        if not wrong:
            return
        rows = self.rows(wrong)
        if rows is None:
            return
        rows = rows.persist(StorageLevel.DISK_ONLY)  # read once: a log may move between two readings
        try:
            self._tell_rows(rows, wrong, tallies, explained)
        finally:
            rows.unpersist()

    def _tell_rows(
        self,
        rows: DataFrame,
        wrong: Sequence[Expected],
        tallies: Mapping[tuple[int, int], RecordTally],
        explained: Mapping[tuple[int, int], Explained],
    ) -> None:
        compacted = any(self.found.bounds[tp].compacted for tp in self.tps)
        paired = frames.pairs(self.spark, rows, wrong, TOLD)
        lonely = (
            [
                (key[0], key[1], suspect.offset)
                for key, one in explained.items()
                for suspect in one.unexplained[:MAX_FINDINGS]
            ]
            if compacted
            else None
        )
        for row in frames.differences(self.spark, paired, MAX_FINDINGS, lonely):
            tallies[row.part, row.slot].tell(row)
        before = [
            replace(one, end=max(one.start, min(one.end, tallies[one.part, one.slot].first or 0)))
            for one in wrong
        ]
        counted = frames.totals(frames.pairs(self.spark, rows, before))
        by_key = {(row.part, row.slot): row for row in counted}
        for one in before:
            tallies[one.part, one.slot].recount(by_key.get((one.part, one.slot)))
