"""Of every replica of a compacted partition: which records that one side alone holds a log cleaner explains.

A first look at the range in Spark (`frames`), a second one at whole logs for what is left open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes PySpark calls it

from validator.compare.cleaner_bounds import SourceLog, cleaner_bounds
from validator.records import frames
from validator.records.commits import StableEnds
from validator.records.frames import SOURCE, Expected
from validator.records.logs import RecordLogs
from validator.records.second_look import Suspect, second_look
from validator.records.tally import LAWFUL, Explained

MAX_SUSPECTS = 10_000
"""Of a replica: more unexplained records than this are no cleaner's doing, and not looked for a second time."""


def explain(
    job: RecordLogs, paired: DataFrame, expected: Sequence[Expected]
) -> dict[tuple[int, int], Explained]:
    """Of every replica: what a log cleaner explains, and what nothing does."""
    ends = job.stable_ends(job.found.bounds)
    committed = job.read_settled(job.stretches(expected), ends)
    if committed is None:  # nothing is settled: so it is not in what was read either
        committed = frames.none_settled(job.spark)
    committed = committed.persist(StorageLevel.DISK_ONLY)
    limits = _limits(job, paired, expected, ends)
    judged = frames.lonely(job.spark, committed, paired, limits).persist(StorageLevel.DISK_ONLY)
    try:
        return _judge(job, judged, {(one.part, one.slot): one.cleaner.expired for one in limits})
    finally:
        judged.unpersist()
        committed.unpersist()


def _limits(
    job: RecordLogs, paired: DataFrame, expected: Sequence[Expected], ends: StableEnds
) -> list[frames.Limits]:
    source = frames.source_logs(paired)
    limits = []
    for one in expected:
        tp, key = job.tps[one.part], (one.part, one.slot)
        bounds = cleaner_bounds(
            job.plans[tp],
            job.found.bounds[tp],
            job.readable[key],
            source.get(key, SourceLog()),
            job.now_ms,
        )
        limits.append(
            frames.Limits(
                *key,
                source_settled=ends.get((tp, SOURCE), 0),
                replica_settled=ends.get((tp, one.slot), 0),
                whole=one.start == one.prefix and _from_the_start(job, one),
                cleaner=bounds,
            )
        )
    return limits


def _judge(
    job: RecordLogs, judged: DataFrame, expired: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], Explained]:
    explained: dict[tuple[int, int], Explained] = {}
    open_: dict[tuple[int, int], int] = {}
    for row in judged.groupBy("part", "slot", "kind", "why").count().collect():
        key = row.part, row.slot
        if row.why in LAWFUL:
            explained.setdefault(key, Explained()).count(row.kind, row.why, row["count"])
        else:
            open_[key] = open_.get(key, 0) + row["count"]
    if not open_:
        return explained
    open_rows = judged.where(~F.coalesce(F.col("why").isin(*LAWFUL), F.lit(False)))
    found: dict[Suspect, str | None] = {}
    suspects = []
    for row in frames.first_of_each(open_rows, MAX_SUSPECTS + 1).collect():
        suspect = Suspect(row.part, row.slot, row.other, row.offset, row.kind, row.key)
        found[suspect] = row.why
        if row.why is None and open_[row.part, row.slot] <= MAX_SUSPECTS:
            suspects.append(suspect)
    found |= second_look(job, suspects, expired)
    for suspect, why in found.items():
        explained.setdefault((suspect.part, suspect.slot), Explained()).take(suspect, why)
    for key, count in open_.items():
        explained.setdefault(key, Explained()).more(count, MAX_SUSPECTS)
    return explained


def _from_the_start(job: RecordLogs, one: Expected) -> bool:
    """Whether the range begins where both logs begin: then it holds all there is of a key."""
    bounds = job.found.bounds[job.tps[one.part]]
    return one.start <= max(bounds.log_start, job.readable[one.part, one.slot].log_start)
