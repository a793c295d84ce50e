"""Comparing records in Spark's own columns: no Python touches a record.

Each record becomes two 64-bit hashes of all that counts of it (offset, timestamp and its type, key, value, headers, with
lengths, so that null is not empty and no two fields run into each other). Rows of all sides are grouped by offset, then
every replica is held against the source. A few numbers of each record are shuffled, whatever its size.

Lives here: frames in, frames and rows out. Which ranges there are and what follows: records.py. Reading: kafka_source.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes PySpark calls it
from pyspark.sql import types as T  # noqa: N812

from validator.compare.cleaner_bounds import (
    NO_LIMIT,
    ONE_SEGMENT,
    RECORD_OVERHEAD,
    TOO_YOUNG,
    UNSETTLED,
    CleanerBounds,
    SourceLog,
)

SOURCE = -1
"""The source's slot; a replica's slot is its broker id."""
NO_END = (1 << 63) - 1
NEEDED = ("h1", "h2", "time", "key_size", "value_size")
"""Of a record, to tell whether it is equal."""
CLEANED = (*NEEDED, "key", "header_bytes")
"""And whether a log cleaner took it."""
TOLD = (*CLEANED, "time_type", "value", "headers", "header_count")
"""And what differs in it."""
_SALT = 0x6B61666B61
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Expected:
    """One replica of one partition (`part`: the partition's number in this job).

    It has to hold what the source holds in [start, end); the source's records in [prefix, start) were there before the
    replica's log begins.
    """

    part: int
    slot: int
    prefix: int
    start: int
    end: int


_EXPECTED = T.StructType(
    [
        T.StructField("part", T.IntegerType(), False),
        T.StructField("slot", T.IntegerType(), False),
        T.StructField("prefix", T.LongType(), False),
        T.StructField("start", T.LongType(), False),
        T.StructField("end", T.LongType(), False),
    ]
)
_PARTS = T.StructType(
    [
        T.StructField("topic", T.StringType(), False),
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("part", T.IntegerType(), False),
    ]
)


def sides(
    spark: SparkSession, frames: Iterable[tuple[int, DataFrame]], parts: Sequence[tuple[str, int]]
) -> DataFrame:
    """The connector's rows of each slot as one frame: part, slot, offset and the columns in TOLD."""
    known = F.broadcast(
        spark.createDataFrame([(topic, index, n) for n, (topic, index) in enumerate(parts)], _PARTS)
    )
    made = [_reduced(frame.join(known, ["topic", "partition"]), slot) for slot, frame in frames]
    whole = made[0]
    for one in made[1:]:
        whole = whole.unionAll(one)
    return whole


def _reduced(frame: DataFrame, slot: int) -> DataFrame:
    key_size = F.coalesce(F.length("key"), F.lit(-1))
    value_size = F.coalesce(F.length("value"), F.lit(-1))
    time = F.unix_millis("timestamp")
    headers = F.transform(
        F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>")),
        lambda one: F.struct(
            one["key"], F.coalesce(F.length(one["value"]), F.lit(-1)).alias("size"), one["value"]
        ),
    )
    everything = (
        F.col("offset"),
        time,
        F.col("timestampType"),
        key_size,
        F.col("key"),
        value_size,
        F.col("value"),
    )
    return frame.select(
        "part",
        F.lit(slot).alias("slot"),
        "offset",
        F.xxhash64(*everything, F.size(headers), headers).alias("h1"),
        F.xxhash64(F.lit(_SALT), *everything, F.size(headers), headers).alias("h2"),
        time.alias("time"),
        F.col("timestampType").alias("time_type"),
        key_size.alias("key_size"),
        value_size.alias("value_size"),
        F.xxhash64(key_size, "key").alias("key"),
        F.xxhash64(value_size, "value").alias("value"),
        F.xxhash64(F.size(headers), headers).alias("headers"),
        F.size(headers).alias("header_count"),
        F.aggregate(
            headers,
            F.lit(0),
            lambda sum_, one: (
                sum_ + F.coalesce(F.octet_length(one["key"]), F.lit(0)) + F.greatest(one["size"], F.lit(0))
            ),
        ).alias("header_bytes"),
    )


def pairs(
    spark: SparkSession, rows: DataFrame, expected: Sequence[Expected], fields: Sequence[str] = NEEDED
) -> DataFrame:
    """Source (s) and replica (r) side by side at each offset that either has: part, slot, offset, prefix, start, end, s, r,
    twice (the replica holds it more than once). s and r have the `fields`, and are null where there is nothing."""
    slots = (SOURCE, *sorted({one.slot for one in expected}))
    # A maximum of structs would be aggregated by sorting; one of numbers is hashed.
    aggregates = []
    for slot in slots:
        of = F.col("slot") == slot
        aggregates += [F.max(F.when(of, F.col(field))).alias(f"{field}@{slot}") for field in fields]
        aggregates.append(F.count(F.when(of, F.lit(1))).alias(f"times@{slot}"))
    wide = rows.groupBy("part", "offset").agg(*aggregates)

    def held(slot: int) -> Column:
        record = F.struct(*(F.col(f"`{field}@{slot}`").alias(field) for field in fields))
        return F.when(F.col(f"`times@{slot}`") > 0, record)

    replicas = F.array(
        *(
            F.struct(
                F.lit(slot).alias("slot"), held(slot).alias("r"), F.col(f"`times@{slot}`").alias("times")
            )
            for slot in slots[1:]
        )
    )
    long = wide.select("part", "offset", held(SOURCE).alias("s"), F.explode(replicas).alias("one")).select(
        "part", "offset", "s", "one.slot", "one.r", (F.col("one.times") > 1).alias("twice")
    )
    plan = spark.createDataFrame(
        [(one.part, one.slot, one.prefix, one.start, one.end) for one in expected], _EXPECTED
    )
    return long.join(F.broadcast(plan), ["part", "slot"]).where(
        (F.col("offset") < F.col("end")) & (F.col("s").isNotNull() | F.col("r").isNotNull())
    )


def _inside() -> Column:
    return F.col("offset") >= F.col("start")


def _trouble() -> Column:
    """The kind of difference at an offset inside of the range, null if there is none."""
    s, r = F.col("s"), F.col("r")
    same = (s["h1"] == r["h1"]) & (s["h2"] == r["h2"])
    return (
        F.when(~_inside(), F.lit(None).cast("string"))
        .when(r.isNull(), F.lit("record_missing"))
        .when(s.isNull() | F.col("twice"), F.lit("record_extra"))
        .when(~same, F.lit("record_differing"))
    )


def totals(paired: DataFrame) -> list[Row]:
    """Per replica: records and bytes it holds, sums of both sides' hashes, differences by kind with the first offset, and
    the source's records before the replica's log (prefix_records, prefix_time: their newest timestamp)."""
    r, s, inside = F.col("r"), F.col("s"), _inside()
    trouble = _trouble()
    sums: list[Column] = []
    for name, side in (("r", r), ("s", s)):
        for lane in ("h1", "h2"):
            # Sums of halves: a sum of whole 64-bit hashes would overflow, which Spark 4 (ANSI) takes for an error.
            part = F.when(inside, side[lane])
            sums.append(F.sum(part.bitwiseAND(_LOW)).alias(f"{name}_{lane}_low"))
            sums.append(F.sum(F.shiftrightunsigned(part, 32)).alias(f"{name}_{lane}_high"))
    kinds = ("record_missing", "record_extra", "record_differing")
    before = ~inside & (F.col("offset") >= F.col("prefix"))
    held = F.greatest(r["key_size"], F.lit(0)) + F.greatest(r["value_size"], F.lit(0))
    return (
        paired.groupBy("part", "slot")
        .agg(
            F.count(F.when(inside, r)).alias("records"),
            F.sum(F.when(inside, held)).alias("bytes"),
            *sums,
            *(F.count(F.when(trouble == kind, F.lit(1))).alias(kind) for kind in kinds),
            F.min(F.when(trouble.isNotNull(), F.col("offset"))).alias("first"),
            F.min(F.when(s.isNotNull() & trouble.isNotNull() & r.isNotNull(), F.col("offset"))).alias(
                "first_differing"
            ),
            F.count(F.when(before, s)).alias("prefix_records"),
            F.max(F.when(before, s["time"])).alias("prefix_time"),
        )
        .collect()
    )


def differences(
    spark: SparkSession, paired: DataFrame, limit: int, lonely: Sequence[tuple[int, int, int]] | None = None
) -> list[Row]:
    """The first `limit` differences of each replica: part, slot, offset, kind, s, r, twice.

    Of compacted partitions, records that one side alone holds count only at the (part, slot, offset) in `lonely`.
    """
    found = paired.select("part", "slot", "offset", _trouble().alias("kind"), "s", "r", "twice").where(
        F.col("kind").isNotNull()
    )
    if lonely is not None:
        asked = spark.createDataFrame(list(lonely), "part int, slot int, offset long").withColumn(
            "asked", F.lit(1)
        )
        found = (
            found.join(F.broadcast(asked), ["part", "slot", "offset"], "left")
            .where((F.col("s").isNotNull() & F.col("r").isNotNull()) | F.col("asked").isNotNull())
            .drop("asked")
        )
    return first_of_each(found, limit).collect()


def none_settled(spark: SparkSession) -> DataFrame:
    """Of `sides`, what is asked of committed records, without any."""
    return spark.createDataFrame([], "part int, slot int, offset long, key long, value_size int, time long")


def per_key(settled: DataFrame) -> DataFrame:
    """part, slot, key (its hash), latest: the offset of that key's last record, tombstone: whether that is one, time: its
    timestamp. `settled`: committed records alone, an aborted one is nobody's last."""
    last_tombstone = F.max(F.when(F.col("value_size") < 0, F.col("offset")))
    return settled.groupBy("part", "slot", "key").agg(
        F.max("offset").alias("latest"),
        (F.coalesce(last_tombstone, F.lit(-1)) == F.max("offset")).alias("tombstone"),
        F.max_by("time", "offset").alias("time"),
    )


def source_logs(paired: DataFrame) -> dict[tuple[int, int], SourceLog]:
    """The source's log in each replica's range; `fields` of the pairs were CLEANED."""
    s = F.col("s")
    size = F.greatest(s["key_size"], F.lit(0)) + F.greatest(s["value_size"], F.lit(0)) + s["header_bytes"]
    found = (
        paired.where(_inside() & s.isNotNull())
        .groupBy("part", "slot")
        .agg(
            F.count(F.lit(1)).alias("offsets"),
            F.sum(size + RECORD_OVERHEAD).alias("bytes"),
            F.min(s["time"]).alias("oldest"),
            F.max(s["time"]).alias("newest"),
        )
    )
    return {
        (row.part, row.slot): SourceLog(row.offsets, row.bytes, row.oldest, row.newest)
        for row in found.collect()
    }


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a cleaner is believed of one replica. `settled`: below it each side's transactions have ended; cleaners go no
    further. `whole`: the range begins where both logs begin."""

    part: int
    slot: int
    source_settled: int
    replica_settled: int
    whole: bool
    cleaner: CleanerBounds


_LIMITS = (
    "part int, slot int, source_settled long, replica_settled long, whole boolean, clean long, expired long,"
    " one_segment boolean"
)


def lonely(spark: SparkSession, settled: DataFrame, paired: DataFrame, limits: Sequence[Limits]) -> DataFrame:
    """Records that one side of a compacted partition alone holds: part, slot, offset, kind, key, other (the slot that has
    not this record), why: what a log cleaner does there (aborted, keyless, superseded, tombstone), or why the replica's
    cannot have been there (cleaner_bounds.py); null: not explained here. `settled`: both sides' committed records."""
    missing = F.col("r").isNull()
    known = spark.createDataFrame(
        [
            (
                one.part,
                one.slot,
                one.source_settled,
                one.replica_settled,
                one.whole,
                one.cleaner.clean,
                one.cleaner.expired,
                one.cleaner.one_segment,
            )
            for one in limits
        ],
        _LIMITS,
    )
    alone = (
        paired.where(_inside() & (F.col("s").isNull() | missing))
        .join(F.broadcast(known), ["part", "slot"])
        .withColumn("held", F.coalesce("s", "r"))
        .select(
            "part",
            "slot",
            "offset",
            F.when(missing, F.lit("record_missing")).otherwise(F.lit("record_extra")).alias("kind"),
            F.when(missing, F.col("slot")).otherwise(F.lit(SOURCE)).alias("other"),
            F.when(missing, F.lit(SOURCE)).otherwise(F.col("slot")).alias("holder"),
            F.col("held")["key"].alias("key"),
            (F.col("held")["key_size"] < 0).alias("keyless"),
            (F.col("offset") >= F.least("source_settled", "replica_settled")).alias("unsettled"),
            (missing & F.col("one_segment")).alias("one_segment"),
            (missing & (F.col("held")["time"] > F.col("clean"))).alias("too_young"),
            F.when(missing, F.col("expired")).otherwise(F.lit(NO_LIMIT)).alias("expired"),
            "whole",
        )
    )
    keys = per_key(settled)
    there = keys.select("part", F.col("slot").alias("other"), "key", "latest")
    here = keys.select(
        "part",
        F.col("slot").alias("holder"),
        "key",
        F.col("tombstone").alias("deleted"),
        F.col("time").alias("deleted_at"),
    )
    committed = settled.select("part", F.col("slot").alias("holder"), "offset", F.lit(1).alias("committed"))
    # `deleted`: the key ends with a tombstone, here or later, so nothing of it has to be left on the other side. Unless the
    # range is whole, something of the key may lie outside of it.
    return (
        alone.join(there, ["part", "other", "key"], "left")
        .join(here, ["part", "holder", "key"], "left")
        .join(committed, ["part", "holder", "offset"], "left")
        .withColumn(
            "why",
            F.when(F.col("one_segment"), F.lit(ONE_SEGMENT))
            .when(F.col("too_young"), F.lit(TOO_YOUNG))
            .when(F.col("unsettled"), F.lit(UNSETTLED))
            .when(F.col("committed").isNull(), F.lit("aborted"))
            .when(F.col("keyless"), F.lit("keyless"))  # before `latest`: they have no key in common
            .when(F.col("latest") > F.col("offset"), F.lit("superseded"))
            .when(
                F.col("whole")
                & F.col("latest").isNull()
                & F.col("deleted")
                & (F.col("deleted_at") <= F.col("expired")),
                F.lit("tombstone"),
            ),
        )
        .select("part", "slot", "offset", "kind", "other", "key", "why")
    )


def first_of_each(judged: DataFrame, limit: int) -> DataFrame:
    """The first `limit` rows of each replica."""
    order = Window.partitionBy("part", "slot").orderBy("offset")
    return judged.withColumn("n", F.row_number().over(order)).where(F.col("n") <= limit).drop("n")


def combine(row: Row, side: str) -> int:
    """The digest (validator/compare/digest.py's form: two lanes of 64 bits) out of the sums of `totals`; `side` is s
    or r."""
    lanes = 0
    for lane in ("h1", "h2"):
        low: Any = row[f"{side}_{lane}_low"] or 0
        high: Any = row[f"{side}_{lane}_high"] or 0
        lanes = lanes << 64 | (low + (high << 32)) & ((1 << 64) - 1)
    return lanes
