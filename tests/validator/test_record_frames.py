"""What a log cleaner is believed, on records of a session of Spark's own: no broker, no connector."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from validator.compare.cleaner_bounds import ONE_SEGMENT, TOO_YOUNG, UNSETTLED, CleanerBounds, SourceLog
from validator.records import frames as record_frames
from validator.records.frames import CLEANED, SOURCE, Expected, Limits

# PySpark leaves the sockets of its gateway to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.timeout(300),  # Spark starts once
]

REPLICA = 2
END = 100
LATE = 1000
"""A timestamp after which neither records nor tombstones can have been cleaned, where a test says so."""


class Written(NamedTuple):
    offset: int
    key: str | None
    value: str | None = "v"
    time: int = 5
    aborted: bool = False


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder: Any = SparkSession.builder
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.master("local[1]").getOrCreate()
    yield made
    made.stop()
    gc.collect()


def connector_rows(spark: SparkSession, records: Sequence[Written]) -> DataFrame:
    """As Spark's connector makes them."""
    header = "array<struct<key:string,value:binary>>"
    schema = T._parse_datatype_string(
        "topic string, partition int, offset long, time long, timestampType int, key binary, value binary,"
        f" headers {header}"
    )
    rows = [
        (
            "t",
            0,
            one.offset,
            one.time,
            0,
            None if one.key is None else bytearray(one.key.encode()),
            None if one.value is None else bytearray(one.value.encode()),
            [("name", bytearray(b"12345"))],
        )
        for one in records
    ]
    frame = spark.createDataFrame(rows, schema)
    return frame.selectExpr(
        "topic", "partition", "offset", "timestamp_millis(time) as timestamp", "timestampType", "key", "value",
        "headers",
    )  # fmt: skip


def sides(spark: SparkSession, source: Sequence[Written], replica: Sequence[Written]) -> DataFrame:
    frames = [(SOURCE, connector_rows(spark, source)), (REPLICA, connector_rows(spark, replica))]
    return record_frames.sides(spark, frames, [("t", 0)])


def paired(spark: SparkSession, source: Sequence[Written], replica: Sequence[Written]) -> DataFrame:
    expected = [Expected(0, REPLICA, 0, 0, END)]
    return record_frames.pairs(spark, sides(spark, source, replica), expected, CLEANED)


def why(
    spark: SparkSession,
    source: Sequence[Written],
    replica: Sequence[Written],
    *,
    settled: int = END,
    whole: bool = True,
    **cleaner: Any,
) -> dict[int, str | None]:
    committed = [
        [one for one in side if not one.aborted and one.offset < settled] for side in (source, replica)
    ]
    limits = Limits(0, REPLICA, settled, settled, whole, CleanerBounds(**cleaner))
    found = record_frames.lonely(spark, sides(spark, *committed), paired(spark, source, replica), [limits])
    return {row.offset: row.why for row in found.collect()}


def test_a_later_record_supersedes_only_if_it_was_committed(spark: SparkSession) -> None:
    later, aborted = Written(7, "k"), Written(7, "k", aborted=True)
    source = [Written(1, "k"), Written(2, "other")]
    assert why(spark, [*source, later], [source[1], later]) == {1: "superseded"}
    # The only value of a key that counts is lost: the later one was never there for a reader.
    assert why(spark, [*source, aborted], [source[1], aborted]) == {1: None}
    # An earlier one that was committed still does it.
    between = [Written(4, "k"), aborted]
    assert why(spark, [*source, *between], [source[1], *between]) == {1: "superseded"}
    # An aborted record itself may be gone.
    assert why(spark, [*source, aborted], source) == {7: "aborted"}


def test_an_aborted_tombstone_deletes_nothing_and_an_aborted_value_revives_nothing(
    spark: SparkSession,
) -> None:
    value, tombstone = Written(1, "k"), Written(4, "k", None)
    assert why(spark, [value, tombstone], []) == {1: "tombstone", 4: "tombstone"}
    never = tombstone._replace(aborted=True)
    assert why(spark, [value, never], [never]) == {1: None}
    assert why(spark, [value, tombstone, Written(6, "k", aborted=True)], []) == {
        1: "tombstone", 4: "tombstone", 6: "aborted",
    }  # fmt: skip


def test_a_tombstone_is_there_for_its_time(spark: SparkSession) -> None:
    value, old, young = Written(1, "k"), Written(4, "k", None, LATE), Written(4, "k", None, LATE + 1)
    assert why(spark, [value, old], [], expired=LATE) == {1: "tombstone", 4: "tombstone"}
    assert why(spark, [value, young], [], expired=LATE) == {1: None, 4: None}
    # Of an old value's young tombstone only the tombstone has to be there.
    assert why(spark, [value, young], [young], expired=LATE) == {1: "superseded"}
    # The replica's setting says nothing of the source's cleaner.
    assert why(spark, [], [value, young], expired=LATE) == {1: "tombstone", 4: "tombstone"}
    # A value that was left without its tombstone comes back to life.
    assert why(spark, [value, old], [value], expired=LATE) == {4: None}


def test_of_a_part_of_a_log_tombstones_are_not_judged(spark: SparkSession) -> None:
    assert why(spark, [Written(4, "k", None)], [], whole=False) == {4: None}


def test_records_without_a_key_are_gone_only_where_a_cleaner_can_have_been(spark: SparkSession) -> None:
    source = [Written(1, None), Written(2, None, time=LATE + 1), Written(3, "k"), Written(9, None)]
    left = source[2:]
    assert why(spark, source, left) == {1: "keyless", 2: "keyless"}
    assert why(spark, source, left, clean=LATE) == {1: "keyless", 2: TOO_YOUNG}
    assert why(spark, source, left, one_segment=True) == {1: ONE_SEGMENT, 2: ONE_SEGMENT}
    assert why(spark, source, left, settled=2) == {1: "keyless", 2: UNSETTLED}


@pytest.mark.parametrize(
    "lost",
    [
        Written(1, "k", time=LATE + 1),
        Written(1, "k", None, LATE + 1),
        Written(1, "k", aborted=True, time=LATE + 1),
    ],
)
def test_nothing_at_all_is_cleaned_where_no_cleaner_can_have_been(spark: SparkSession, lost: Written) -> None:
    later = Written(5, "k")
    assert set(why(spark, [lost, later], [later]).values()) <= {"superseded", "aborted"}
    assert why(spark, [lost, later], [later], clean=LATE) == {1: TOO_YOUNG}
    assert why(spark, [lost, later], [later], one_segment=True) == {1: ONE_SEGMENT}
    assert why(spark, [lost, later], [later], settled=1) == {1: UNSETTLED}


def test_the_sources_size_is_told_with_headers_and_overhead(spark: SparkSession) -> None:
    found = record_frames.source_logs(
        paired(spark, [Written(1, "key", "value", 3), Written(2, None, None, 9)], [])
    )
    # 3 + 5 of the first record, a header of 4 + 5 in each, 100 for each
    assert found == {(0, REPLICA): SourceLog(offsets=2, bytes=8 + 2 * 9 + 2 * 100, oldest=3, newest=9)}
