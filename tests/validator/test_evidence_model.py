"""The evidence's verdict, its samples, and its way through JSON."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.validator.evidence_examples import OTHER, evidence, finding, partition, replica
from validator.evidence.model import MAX_SAMPLES, Evidence, ReplicaEvidence, Sample
from validator.evidence.samples import TOTAL, budget, thin
from validator.evidence.verdict import Verdict, replica_verdict, verdict_of


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, Verdict.EQUAL, None),
        ({"findings": (finding(),), "findings_count": 1}, Verdict.DIFFERENT, "1 finding, first at offset 7"),
        ({"findings_count": 30}, Verdict.DIFFERENT, "30 findings"),
        ({"digest": OTHER}, Verdict.DIFFERENT, "the digests differ"),
        ({"digest": OTHER, "lawful": {"compacted": 3}}, Verdict.EQUAL, None),
        ({"digest": OTHER, "lawful": {"compacted": 0}}, Verdict.DIFFERENT, "the digests differ"),
        ({"digest": None}, Verdict.NOT_PROVED, "a digest is missing"),
        ({"through": 99}, Verdict.NOT_PROVED, "compared up to 99, the end is 100"),
        ({"through": None}, Verdict.NOT_PROVED, "nothing was compared"),
        ({"through": 0}, Verdict.NOT_PROVED, "compared up to 0, the end is 100"),
        ({"tail_equal": False}, Verdict.DIFFERENT, "the last batch differed inside the fence"),
        ({"tail_equal": True}, Verdict.EQUAL, None),
    ],
)
def test_replica(changes: dict[str, Any], verdict: Verdict, reason: str | None) -> None:
    one = replica(**changes)
    assert replica_verdict(partition(one), one) == (verdict, reason)


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
