"""Gate records: planned, written, read back, and refused when they are something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.codec import decode_gate, encode_gate
from controller.groups import (
    ClassicMember,
    ConsumerMember,
    GateKind,
    GateRecord,
    GateStage,
    PendingTransaction,
)
from groups.gates.factory import plan_gate, transactional_ids
from groups.gates.settings import DEFAULT_PROTOCOLS

TEXT = st.text(max_size=20)
NAMES = st.lists(TEXT, max_size=4).map(tuple)
RECORDS = st.builds(
    GateRecord,
    group=TEXT,
    kind=st.sampled_from(GateKind),
    stage=st.sampled_from(GateStage),
    consumer=st.none()
    | st.builds(ConsumerMember, member_id=TEXT, member_epoch=st.integers(0, 99), topics=NAMES),
    classic=st.none()
    | st.builds(
        ClassicMember, member_id=TEXT, generation=st.integers(-1, 99), protocols=NAMES, protocol=TEXT
    ),
    transaction=st.none()
    | st.builds(
        PendingTransaction,
        transactional_ids=st.tuples(TEXT, TEXT),
        current=st.integers(0, 1),
        producer_id=st.integers(-1, 2**62),
        producer_epoch=st.integers(-1, 2**15 - 1),
    ),
)


@given(record=RECORDS)
def test_a_record_survives_being_written(record: GateRecord) -> None:
    assert decode_gate(record.group, json.loads(json.dumps(encode_gate(record)))) == record


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        (None, "kind", "no such gate"),
        (None, "stage", 3),
        ("transaction", "current", 2),
        ("transaction", "transactional_ids", ["one"]),
        ("transaction", "producer_id", "7"),
        ("consumer", "member_epoch", True),
        ("consumer", "topics", "orders"),
    ],
)
def test_a_value_of_another_shape_is_refused(part: str | None, field: str, value: Any) -> None:
    stored: Any = json.loads(json.dumps(encode_gate(plan_gate("l", "g", GateKind.CONSUMER_AND_TRANSACTION))))
    (stored if part is None else stored[part])[field] = value
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode_gate("g", stored)


def test_a_planned_gate_has_the_parts_of_its_kind() -> None:
    for kind in GateKind:
        record = plan_gate("l", "g", kind)
        parts = {
            name
            for name, part in (
                ("consumer", record.consumer),
                ("classic", record.classic),
                ("transaction", record.transaction),
            )
            if part is not None
        }
        assert parts == ({"consumer"} if kind is GateKind.STREAMS else set(kind.value.split("+")))


def test_the_assignor_of_the_source_comes_first() -> None:
    record = plan_gate("l", "g", GateKind.CLASSIC, protocols=["sticky", "mine"])
    assert record.classic is not None
    assert record.classic.protocols[:2] == ("sticky", "mine")
    assert set(record.classic.protocols) == {"mine", *DEFAULT_PROTOCOLS}
    assert len(record.classic.protocols) == len(DEFAULT_PROTOCOLS) + 1


def test_transactional_ids_are_apart_and_short() -> None:
    assert transactional_ids("a", "b-c") != transactional_ids("a-b", "c")
    assert len(set(transactional_ids("a", "b"))) == 2
    assert all(len(name) < 250 for name in transactional_ids("l" * 500, "g" * 500))
