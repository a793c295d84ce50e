"""Record mode without Spark: what is read, how it is told, and what a replica's start, end and sums come to."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from validator.compare.cleaner_bounds import TOMBSTONE_TOO_YOUNG, TOO_YOUNG
from validator.compare.facts import FindingKind
from validator.messages import PartitionPlan, ReplicaPlan
from validator.read.endpoint import ClusterEndpoint
from validator.read.kafka_source import client_options
from validator.read.ranges import PartitionBounds, ReplicaBounds
from validator.records.frames import combine
from validator.records.records import _reason, groups
from validator.records.second_look import Suspect, judged, second_look
from validator.records.tally import Explained, RecordTally, describe

DAY_MS = 86_400_000


def plan(partition: int = 0, **changes: Any) -> PartitionPlan:
    fields = {"topic": "t", "partition": partition, "replicas": (ReplicaPlan(broker_id=2),)}
    return PartitionPlan(**{**fields, **changes})


def totals(**changes: Any) -> Row:
    sums = {f"{side}_{lane}_{half}": 3 for side in "rs" for lane in ("h1", "h2") for half in ("low", "high")}
    fields = {
        "records": 10, "bytes": 100, "record_missing": 0, "record_extra": 0, "record_differing": 0, "first": None,
        "first_differing": None, "prefix_records": 0, "prefix_time": None, **sums,
    }  # fmt: skip
    return Row(**{**fields, **changes})


def tally(found: ReplicaBounds, *, end: int = 100, now_ms: int = 10 * DAY_MS, **changes: Any) -> RecordTally:
    made = plan(**changes)
    return RecordTally(made, PartitionBounds("t", 0, 0, end, (found,)), found, now_ms)


def bounds(*, begin: int = 0, log_start: int = 0, high_watermark: int = 100) -> ReplicaBounds:
    return ReplicaBounds(1, 2, begin, log_start, high_watermark)


def test_the_connector_is_told_who_to_read_and_how() -> None:
    side = ClusterEndpoint(
        "target",
        "west",
        ("a:1", "b:2"),
        {
            "security.protocol": "SASL_SSL",
            "sasl.jaas.config": "secret",
            "group.id": "mine",
            "client.rack": "x",
            "isolation.level": "read_committed",
        },
    )
    options = client_options(side, replica=3)
    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == "secret"
    assert options["kafka.client.rack"] == "linker.replica=3"
    assert options["kafka.isolation.level"] == "read_uncommitted"
    assert options["failOnDataLoss"] == "true"
    assert "kafka.group.id" not in options  # the connector makes its own
    assert "kafka.client.rack" not in client_options(side)
    assert "secret" not in repr(side)


def test_jobs_are_bounded_and_compacted_partitions_apart() -> None:
    plans = [plan(index, compacted=index % 3 == 0) for index in range(10)]
    jobs = list(groups(plans, 4))
    assert [[one.partition for one in job] for job in jobs] == [[1, 2, 4, 5], [7, 8], [0, 3, 6, 9]]
    assert list(groups([])) == []


def test_equal_records_validate_up_to_the_end() -> None:
    one = tally(bounds())
    one.take(totals(), None, False)
    result = one.result(1.0)
    assert (result.start, result.through, result.records, result.bytes) == (0, 100, 10, 100)
    assert (result.findings_count, result.lawful) == (0, {})
    assert result.digest == result.source_digest


def test_a_run_adds_to_what_is_known() -> None:
    known = ReplicaPlan(broker_id=2, start=5, through=50, records=7, bytes=1, batches=3, digest="f" * 32)
    one = tally(bounds(begin=50), replicas=(known,))
    one.take(totals(), None, False)
    result = one.result(1.0)
    assert (result.start, result.through, result.records, result.bytes, result.batches) == (
        5,
        100,
        17,
        101,
        3,
    )
    assert result.digest != result.source_digest  # the digests of before differed already


def test_a_replica_that_ends_early_is_short() -> None:
    one = tally(bounds(high_watermark=99))
    one.take(totals(), None, False)
    result = one.result(1.0)
    assert (result.through, result.findings_count) == (99, 1)
    assert (result.findings[0].kind, result.findings[0].offset) == (FindingKind.SHORT, 99)


def test_an_empty_partition_is_validated() -> None:
    one = tally(bounds(high_watermark=0), end=0)
    one.take(None, None, False)
    result = one.result(1.0)
    assert (result.through, result.records, result.findings_count) == (0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "youngest", "explained"),
    [
        ({}, 0, False),
        ({"retention_ms": DAY_MS}, 8 * DAY_MS, True),
        ({"retention_ms": DAY_MS}, 9 * DAY_MS + 60_001, False),
        ({"retention_bytes": 1}, 10 * DAY_MS, True),
    ],
)
def test_a_late_start_is_never_equal_whether_retention_explains_it_or_not(
    changes: dict[str, Any], youngest: int, explained: bool
) -> None:
    one = tally(bounds(log_start=40), **changes)
    one.take(totals(prefix_records=38, prefix_time=youngest), None, False)
    result = one.result(1.0)
    assert (result.start, result.through, result.lawful) == (40, 100, {})
    assert [finding.kind for finding in result.findings] == [FindingKind.LATE_START]
    assert result.findings_count == 1
    assert result.missing is not None
    assert (result.missing.start, result.missing.end, result.missing.records) == (0, 40, 38)
    assert ("does not explain" not in result.missing.why) == explained


def test_before_a_late_start_there_may_be_nothing_to_miss() -> None:
    one = tally(bounds(log_start=40))
    one.take(totals(), None, False)
    result = one.result(1.0)
    assert (result.start, result.through, result.findings) == (40, 100, ())


def test_what_the_source_has_dropped_is_not_missed() -> None:
    one = tally(bounds(begin=30))
    one.take(totals(), None, False)
    assert one.result(1.0).lawful == {"expired_at_source_offsets": 30}


def test_a_cleaner_is_believed_only_where_it_is_explained() -> None:
    explained = Explained()
    explained.count("record_missing", "superseded", 5)
    explained.count("record_extra", "tombstone", 2)
    explained.count("record_missing", "aborted", 1)
    one = tally(bounds(), compacted=True)
    one.take(totals(record_missing=6, record_extra=2, first=3), explained, True)
    result = one.result(1.0)
    assert (result.through, result.findings_count) == (100, 0)
    assert result.lawful == {
        "compacted_on_replica": 5,
        "tombstones_expired_at_source": 2,
        "aborted_removed_on_replica": 1,
    }
    explained.unexplained.append(Suspect(0, 2, 2, 17, "record_missing", 1))
    other = tally(bounds(), compacted=True)
    other.take(totals(record_missing=7, first=3), explained, True)
    assert (other.result(1.0).through, other.result(1.0).findings_count) == (17, 1)


def test_differences_stop_the_watermark_at_the_first() -> None:
    one = tally(bounds())
    one.take(totals(record_missing=2, record_differing=1, first=42), None, False)
    result = one.result(1.0)
    assert (result.through, result.findings_count) == (42, 3)


RECORD = {
    "time": 5, "time_type": 0, "key": 1, "key_size": 3, "value": 2, "value_size": -1, "headers": 7, "header_count": 1,
}  # fmt: skip


def told(source: dict[str, Any] | None, replica: dict[str, Any] | None, *, twice: bool = False) -> str:
    return describe(
        Row(
            s=None if source is None else Row(**{**RECORD, **source}),
            r=None if replica is None else Row(**{**RECORD, **replica}),
            twice=twice,
        )
    )


@pytest.mark.parametrize(
    ("source", "replica", "text"),
    [
        ({}, None, "the source's record is not there (key 3 bytes, value null, timestamp 5)"),
        (None, {}, "the source has no record at this offset, the replica has one (key 3 bytes, value null, timestamp 5)"),
        ({}, {"key": 9}, "key: 3 bytes on both sides"),
        ({}, {"value": 9, "value_size": 0}, "value: null at the source, 0 bytes on the replica"),
        ({}, {"time": 6}, "timestamp: 5 at the source, 6 on the replica"),
        ({}, {"time_type": 1}, "timestamp type: 0 at the source, 1 on the replica"),
        ({}, {"headers": 8, "header_count": 2}, "headers: 1 at the source, 2 on the replica"),
    ],
)  # fmt: skip
def test_differences_are_told_in_sizes(source: Any, replica: Any, text: str) -> None:
    assert told(source, replica) == text


def test_a_doubled_record_is_told() -> None:
    assert told({}, {}, twice=True) == "the replica has the record more than once"


def test_sums_of_halves_make_the_digest() -> None:
    hashes = [0xFFFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0001, 0x1234_5678_9ABC_DEF0]
    fields = {}
    for lane in ("h1", "h2"):
        fields[f"r_{lane}_low"] = sum(one & 0xFFFFFFFF for one in hashes)
        fields[f"r_{lane}_high"] = sum(one >> 32 for one in hashes)
    total = sum(hashes) & 0xFFFF_FFFF_FFFF_FFFF
    assert combine(Row(**fields), "r") == total << 64 | total
    assert combine(Row(s_h1_low=None, s_h1_high=None, s_h2_low=None, s_h2_high=None), "s") == 0


def held(latest: int, *, tombstone: bool = False, time: int = 5) -> Row:
    return Row(latest=latest, tombstone=tombstone, time=time)


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        (held(18), held(17), "superseded"),
        (held(3), held(18, tombstone=True), None),
        (None, held(18), None),
        (None, held(18, tombstone=True), "tombstone"),
        (None, held(18, tombstone=True, time=6), TOMBSTONE_TOO_YOUNG),
        (None, None, None),
    ],
)
def test_the_second_look_goes_by_the_last_committed_record_of_the_key(
    there: Row | None, here: Row | None, why: str | None
) -> None:
    assert judged(Suspect(0, 2, 2, 17, "record_missing", 1), there, here, expired=5) == why


def test_more_than_can_be_looked_at_are_counted_all_the_same() -> None:
    explained = Explained()
    for offset in range(5):
        explained.take(Suspect(0, 2, 2, offset, "record_missing", 1), TOO_YOUNG)
    explained.more(12, 4)
    one = tally(bounds(), compacted=True, min_compaction_lag_ms=7)
    one.take(totals(record_missing=12, first=0), explained, True)
    record = Row(**RECORD)
    one.tell(Row(offset=0, kind="record_missing", s=record, r=None, twice=False))
    result = one.result(1.0)
    assert (result.through, result.findings_count, result.lawful) == (0, 12, {})
    assert result.findings[0].detail.endswith(
        "younger than min.compaction.lag.ms=7, within which nothing is cleaned"
    )


def test_nothing_is_looked_for_if_nothing_is_suspicious() -> None:
    job: Any = None  # nothing is read
    assert second_look(job, [], {}) == {}


def test_an_error_is_told_without_secrets() -> None:
    side = ClusterEndpoint("source", "east", ("a:1",), {"ssl.key.password": "hunter2", "x": "is"})
    text = _reason(RuntimeError("the key hunter2 is wrong\nat java"), (side,))
    assert text == "the key *** is wrong"
