"""The evidence's verdict, its samples, and its way through JSON."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.validator.evidence_examples import OTHER, evidence, finding, partition, replica
from validator.compare.facts import Missing
from validator.evidence.model import MAX_SAMPLES, Evidence, ReplicaEvidence, Sample
from validator.evidence.samples import TOTAL, budget, thin
from validator.evidence.verdict import Verdict, missing_records, replica_verdict, verdict_of

MISSING = Missing(start=0, end=60, batches=6, records=55, why="the target topic's retention.ms=604800000")


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, Verdict.EQUAL, None),
        ({"findings": (finding(),), "findings_count": 1}, Verdict.DIFFERENT, "1 finding, first at offset 7"),
        ({"findings_count": 30}, Verdict.DIFFERENT, "30 findings"),
        ({"digest": OTHER}, Verdict.DIFFERENT, "the digests differ"),
        (
            {"digest": OTHER, "lawful": {"compacted_at_source": 3}},
            Verdict.CLEANED,
            "3 batches are not alike where",
        ),
        (
            {"lawful": {"compacted_on_replica": 3, "rewritten": 1}},
            Verdict.CLEANED,
            "4 batches are not alike where",
        ),
        ({"lawful": {"expired_at_source_offsets": 9}}, Verdict.EQUAL, None),
        (
            {"digest": OTHER, "lawful": {"expired_at_source_offsets": 9}},
            Verdict.DIFFERENT,
            "the digests differ",
        ),
        ({"lawful": {"expired_on_replica": 9}}, Verdict.NOT_PROVED, "an earlier version counted 9 batches"),
        (
            {"missing": MISSING},
            Verdict.STARTS_LATE,
            "starts at offset 60: 55 records that the source has from offset 0",
        ),
        ({"missing": MISSING, "through": 99}, Verdict.STARTS_LATE, "starts at offset 60: 55 records"),
        ({"missing": MISSING, "digest": OTHER}, Verdict.DIFFERENT, "the digests differ"),
        ({"digest": OTHER, "lawful": {"compacted": 0}}, Verdict.DIFFERENT, "the digests differ"),
        ({"digest": None}, Verdict.NOT_PROVED, "a digest is missing"),
        ({"through": 99}, Verdict.NOT_PROVED, "compared up to 99, the end is 100"),
        ({"through": None}, Verdict.NOT_PROVED, "nothing was compared"),
        ({"through": 0}, Verdict.NOT_PROVED, "compared up to 0, the end is 100"),
        ({"end": 0}, Verdict.NOT_PROVED, "it ended at 0 when it was read last, the end is 100"),
        ({"end": None}, Verdict.EQUAL, None),
        ({"end": 130}, Verdict.EQUAL, None),
        ({"tail_equal": False}, Verdict.DIFFERENT, "the last batch differed inside the fence"),
        ({"tail_equal": True}, Verdict.EQUAL, None),
    ],
)
def test_replica(changes: dict[str, Any], verdict: Verdict, reason: str | None) -> None:
    one = replica(**changes)
    found, why = replica_verdict(partition(one), one)
    assert found is verdict
    assert why == reason or (reason is not None and why is not None and why.startswith(reason))


def test_a_late_start_says_from_where_to_where_it_was_proved_and_why() -> None:
    one = replica(missing=MISSING)
    _, why = replica_verdict(partition(one), one)
    assert why is not None
    assert "(the target topic's retention.ms=604800000)" in why
    assert why.endswith("equal from offset 60 up to 100")
    assert one.proved_from == 60
    emptied = replica(missing=MISSING.model_copy(update={"end": 100}))
    assert "nothing of it was compared" in str(replica_verdict(partition(emptied), emptied)[1])


@pytest.mark.parametrize(
    ("source_start", "verdict", "reason"),
    [
        (0, Verdict.EQUAL_FROM, "equal from offset 40, where the mirror began; the source goes back to 0"),
        (None, Verdict.EQUAL_FROM, "equal from offset 40, where the mirror began"),
        (40, Verdict.EQUAL, None),
        (50, Verdict.EQUAL, None),  # the source's retention has reached it
    ],
)
def test_a_mirror_that_began_later_is_equal_from_there(
    source_start: int | None, verdict: Verdict, reason: str | None
) -> None:
    one = replica(start=40)
    assert replica_verdict(partition(one, start=40, source_start=source_start), one) == (verdict, reason)


def test_records_that_are_missing_are_counted_once_per_partition() -> None:
    worse_one = MISSING.model_copy(update={"records": 60})
    whole = evidence(
        partition(replica(1, missing=MISSING), replica(2, missing=worse_one)),
        partition(replica(1, missing=MISSING), index=1),
        partition(replica(1), index=2),
    )
    assert missing_records(whole) == 115
    assert verdict_of(whole)[0] is Verdict.STARTS_LATE


def test_the_worst_replica_decides_and_is_named() -> None:
    whole = evidence(
        partition(replica(1), replica(2, through=50)),
        partition(replica(1), replica(3, digest=OTHER), index=1),
    )
    assert verdict_of(whole) == (Verdict.DIFFERENT, "orders-1, broker 3: the digests differ")
    unproved = evidence(partition(replica(1), replica(2, through=50)), partition(replica(1), index=1))
    assert verdict_of(unproved) == (
        Verdict.NOT_PROVED,
        "orders-0, broker 2: compared up to 50, the end is 100",
    )
    assert verdict_of(evidence(partition(replica(1)))) == (Verdict.EQUAL, None)


def test_nothing_compared_is_nothing_proved() -> None:
    assert verdict_of(evidence())[0] is Verdict.NOT_PROVED
    assert verdict_of(evidence(partition()))[0] is Verdict.NOT_PROVED


def test_an_empty_partition_is_equal() -> None:
    empty = replica(through=0, end=0, batches=0, records=0, bytes=0)
    assert verdict_of(evidence(partition(empty, end=0)))[0] is Verdict.EQUAL


def test_json_and_back() -> None:
    samples = (Sample(at_ms=5, source_end=3, validated={1: 2}),)
    whole = evidence(partition(replica(findings=(finding(),), findings_count=1), samples=samples))
    assert Evidence.model_validate_json(whole.model_dump_json()) == whole


def test_unknown_fields_and_impossible_numbers_are_refused() -> None:
    for bad in ({"through": -1}, {"digest": "x"}, {"surprise": 1}):
        with pytest.raises(ValidationError):
            replica(**bad)
    with pytest.raises(ValidationError):
        ReplicaEvidence(broker_id=1, start=0, findings=(finding(),) * 21)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 499, 500, 501, 5000])
@pytest.mark.parametrize("limit", [1, 2, 3, 10, MAX_SAMPLES])
def test_thinned_samples_keep_both_ends_and_order(count: int, limit: int) -> None:
    samples = [Sample(at_ms=at) for at in range(count)]
    kept = thin(samples, limit)
    assert len(kept) == min(count, max(2, limit))
    times = [sample.at_ms for sample in kept]
    assert times == sorted(set(times))
    if samples:
        assert (kept[0], kept[-1]) == (samples[0], samples[-1])


def test_the_budget_bounds_all_partitions_together() -> None:
    assert budget(1) == budget(0) == MAX_SAMPLES
    for partitions in (10, 1000, 10_000):
        assert 2 <= budget(partitions) <= MAX_SAMPLES
        assert partitions * budget(partitions) <= max(TOTAL, 2 * partitions)
