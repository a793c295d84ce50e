"""Verdicts: one planted fault per test and its near misses, on rows, without brokers and without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.fakes.log import FakeLog
from tests.validator import logs
from validator.compare.columns import ARROW_TYPES, MOVED
from validator.compare.digest import digest_of_one
from validator.compare.judging import COLUMNS, judge_sorted
from validator.compare.verdict import Judge, LogSide, RangeSpec, RangeVerdict

SCHEMA = pa.schema([(name, ARROW_TYPES[name]) for name in COLUMNS])
OTHER = 2  # a good replica beside the one under test


def verdict_of(all_logs: list[FakeLog], *, cut: int = 10_000, compacted: bool = False) -> RangeVerdict:
    """The verdict over source, replica and others, with the rows cut into Arrow batches of `cut` rows."""
    rows = logs.rows_of(0, all_logs)
    spec = RangeSpec(0, 0, 1 << 40, tuple(range(1, len(all_logs))), compacted)
    batches = [pa.RecordBatch.from_pylist(rows[i : i + cut], SCHEMA) for i in range(0, len(rows), cut)]
    (verdict,) = judge_sorted(batches, {0: spec})
    return RangeVerdict.from_json(verdict.to_json())


def judged(damage: Callable[[FakeLog], None], **options: object) -> RangeVerdict:
    source = logs.make_log()
    replica, other = logs.copy_log(source), logs.copy_log(source)
    damage(replica)
    verdict = verdict_of([source, replica, other], **options)  # type: ignore[arg-type]
    assert verdict.replicas[OTHER].difference_count == 0
    assert verdict.replicas[OTHER].batches == logs.BATCHES
    return verdict


def kinds(verdict: RangeVerdict, slot: int = 1) -> list[tuple[str, int]]:
    return [(one.kind, one.offset) for one in verdict.replicas[slot].differences]


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10_000])
def test_equal_logs_agree_however_the_rows_are_cut(cut: int):
    verdict = judged(lambda log: None, cut=cut)
    replica = verdict.replicas[1]
    assert (replica.batches, replica.records) == (logs.BATCHES, logs.BATCHES * logs.RECORDS)
    assert replica.digest == replica.source_digest != 0
    assert replica.differences == []
    assert verdict.source_batches == logs.BATCHES
    assert verdict.source_max_timestamp == 1_700_000_000_000 + logs.BATCHES - 1


FAULTS: list[tuple[str, Callable[[FakeLog], None], list[tuple[str, int]]]] = [
    ("one flipped bit", lambda log: logs.change(log, 50, logs.flip_bit), [("corrupt", 50)]),
    (
        "a changed record, its CRC fixed",
        lambda log: logs.change(log, 50, logs.flip_bit, fix_crc=True),
        [("differing", 50)],
    ),
    ("a missing batch", lambda log: logs.drop(log, 50), [("missing", 50)]),
    ("a hole", lambda log: (logs.drop(log, 50), logs.drop(log, 55)), [("gap", 50)]),
    ("a doubled batch", lambda log: logs.double(log, 50), [("overlapping", 50)]),
    ("swapped batches", lambda log: logs.swap(log, 50), [("reordered", 50)]),
    (
        "another base offset",
        lambda log: logs.change(log, 50, logs.shift_offset),
        [("overlapping", 48), ("missing", 50)],
    ),
    ("bytes that are no batch", lambda log: logs.change(log, 50, logs.break_length), [("corrupt", 50)]),
    ("a last record too few", logs.cut_record, [("differing", 95)]),
    ("the first batch missing", lambda log: logs.drop(log, 0), [("missing", 0)]),
    ("the last batch missing", lambda log: logs.drop(log, 95), [("missing", 95)]),
]


@pytest.mark.parametrize("cut", [1, 4, 10_000])
@pytest.mark.parametrize(("damage", "expected"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_each_planted_fault_is_found_where_it_lies(
    damage: Callable[[FakeLog], None], expected: list[tuple[str, int]], cut: int
):
    verdict = judged(damage, cut=cut)
    assert kinds(verdict) == expected
    replica = verdict.replicas[1]
    assert replica.first_difference == min(offset for _, offset in expected)
    assert replica.records < min(o for _, o in expected) + logs.RECORDS, (
        "nothing behind a difference is proved"
    )


def test_both_sides_facts_are_told():
    (found,) = judged(lambda log: logs.change(log, 50, logs.flip_bit, fix_crc=True)).replicas[1].differences
    assert found.source is not None and found.replica is not None
    assert found.source.crc != found.replica.crc
    assert found.source.base_offset == found.replica.base_offset == 50
    assert found.detail == f"source / replica: crc {found.source.crc} / {found.replica.crc}"


def test_the_source_itself_may_be_corrupt_and_every_replica_copies_it():
    source = logs.make_log()
    logs.change(source, 50, logs.flip_bit)
    verdict = verdict_of([source, logs.copy_log(source), logs.copy_log(source)])
    assert kinds(verdict, 1) == kinds(verdict, 2) == [("corrupt", 50)]


def test_a_source_that_cannot_be_read_ends_the_proof_for_every_replica():
    source = logs.make_log()
    replica = logs.copy_log(source)
    logs.change(source, 50, logs.break_length)
    verdict = verdict_of([source, replica])
    assert kinds(verdict) == [("corrupt", 50)]
    assert "at the source" in verdict.replicas[1].differences[0].detail
    assert verdict.replicas[1].records == 50


def test_a_log_that_moved_away_is_no_difference():
    judge = Judge(RangeSpec(0, 0, 100, (1, 2)))
    (row, *_) = logs.copies(logs.make_log(1))
    judge.group({0: [row], 1: [row._replace(marker=MOVED)], 2: [row]})
    verdict = judge.finish()
    assert verdict.replicas[1].moved_at == 0 and not verdict.replicas[1].differences
    assert verdict.replicas[2].moved_at is None and verdict.replicas[2].batches == 1


def test_many_differences_are_counted_and_the_first_are_kept():
    def damage(log: FakeLog) -> None:
        for offset in range(0, 100, 5):
            logs.change(log, offset, logs.flip_bit)
        log.add(1, at=100)
        log.add(1, at=101)

    replica = judged(damage).replicas[1]
    assert replica.difference_count == 22
    assert [one.offset for one in replica.differences] == list(range(0, 100, 5))


# --- compaction ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 10_000])
def test_what_compaction_takes_on_either_side_is_lawful(cut: int):
    source = logs.make_log()
    replica = logs.copy_log(source)
    logs.drop(source, 10)
    logs.drop(source, 15)
    logs.drop(replica, 50)
    logs.clean(replica, 60)
    logs.clean(source, 70)
    verdict = verdict_of([source, replica], cut=cut, compacted=True)
    assert verdict.replicas[1].differences == []
    assert verdict.replicas[1].lawful == {
        "compacted_at_source": 2,
        "compacted_on_replica": 1,
        "rewritten": 2,
    }


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda log: logs.change(log, 50, logs.flip_bit), "corrupt"),
        (lambda log: logs.change(log, 50, logs.flip_bit, fix_crc=True), "differing"),
        (lambda log: logs.swap(log, 50), "reordered"),
        (lambda log: logs.double(log, 50), "overlapping"),
    ],
)
def test_compaction_does_not_explain(damage: Callable[[FakeLog], None], kind: str):
    assert kinds(judged(damage, compacted=True)) == [(kind, 50)]


def test_a_rewritten_batch_of_another_producer_is_not_the_cleaners_work():
    def damage(log: FakeLog) -> None:
        logs.clean(log, 50)
        logs.change(log, 50, lambda data: data.__setitem__(slice(43, 51), bytes(7) + b"\x05"), fix_crc=True)

    assert kinds(judged(damage, compacted=True)) == [("differing", 50)]


# --- sums ---------------------------------------------------------------------------------------------------


def test_digests_add_up_over_any_cut_and_any_order():
    rows = logs.copies(logs.make_log())
    random.Random(3).shuffle(rows)
    expected_low = sum(_hash(row) & (1 << 64) - 1 for row in rows) & (1 << 64) - 1
    expected_high = sum(_hash(row) >> 64 for row in rows) & (1 << 64) - 1
    digest = judged(lambda log: None).replicas[1].digest
    assert (digest >> 64, digest & (1 << 64) - 1) == (expected_high, expected_low)


def flip(log: FakeLog, offset: int) -> None:
    logs.change(log, offset, logs.flip_bit)


def _hash(row: LogSide) -> int:
    return digest_of_one(row.base_offset, row.last_offset, row.record_count, row.crc)


def test_random_faults_are_found_the_same_however_the_rows_are_cut():
    """The column-by-column path and the batch-by-batch path decide alike."""
    for seed in range(40):
        dice = random.Random(seed)
        source = logs.make_log(12)
        replica = logs.copy_log(source)
        for _ in range(dice.randint(0, 3)):
            offset = dice.choice([stored.info.base_offset for stored in replica.batches[:-1]])
            fault = dice.choice([logs.drop, logs.double, logs.swap, flip])
            fault(replica, offset)
        whole = verdict_of([source, replica]).to_json()
        for cut in (1, 2, 5):
            assert verdict_of([source, replica], cut=cut).to_json() == whole, seed
        rows = logs.copies(replica)
        equal = [r._replace(follows=0) for r in rows] == [r._replace(follows=0) for r in logs.copies(source)]
        assert equal == (not whole["replicas"][1]["difference_count"]), seed
