"""Who has to wait for a batch that went back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.produce.retry_order import PATIENCE, RetryOrder
from wire.frames.types import TopicPartition

TP0, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ONE, OTHER, NEXT_EPOCH = (7, 0), (8, 0), (7, 1)
LAST = (1 << 31) - 1


@pytest.mark.parametrize(("code", "behind"), [(6, 6), (19, 19), (7, 6), (0, None), (10, None), (45, None)])
def test_by_what_it_was_answered(code: int, behind: int | None) -> None:
    back = RetryOrder()
    back.note(TP0, ONE, 5, code, 0.0)
    assert back.code(TP0, ONE, 6, 0.1) == behind
    assert back.code(TP1, ONE, 6, 0.1) is None
    assert back.code(TP0, OTHER, 6, 0.1) is None
    assert back.code(TP0, NEXT_EPOCH, 0, 0.1) is None


def test_it_comes_again_and_all_go_on() -> None:
    back = RetryOrder()
    for sequence in (5, 6, 7):
        back.note(TP0, ONE, sequence, 19, 0.0)
    assert back.code(TP0, ONE, 7, 0.1) == 19
    assert back.code(TP0, ONE, 5, 0.2) is None
    assert back.code(TP0, ONE, 6, 0.2) is None


def test_an_earlier_one_counts() -> None:
    back = RetryOrder()
    back.note(TP0, ONE, 6, 19, 0.0)
    back.note(TP0, ONE, 5, 6, 0.0)
    assert back.code(TP0, ONE, 6, 0.1) == 6
    assert back.code(TP0, ONE, 5, 0.1) is None


def test_only_for_a_while() -> None:
    back = RetryOrder()
    back.note(TP0, ONE, 5, 19, 0.0)
    assert back.code(TP0, ONE, 6, PATIENCE - 0.1) == 19
    assert back.code(TP0, ONE, 6, PATIENCE) is None
    back.note(TP0, ONE, 9, 19, 10.0)
    assert back.code(TP0, ONE, 9, 10.0) is None, "what was noted long ago does not count beside it"


def test_without_a_producer_id_there_is_no_order_to_keep() -> None:
    back = RetryOrder()
    back.note(TP0, (-1, -1), -1, 19, 0.0)
    assert back.code(TP0, (-1, -1), -1, 0.0) is None


@given(st.integers(0, LAST), st.integers(1, 10_000))
def test_sequences_wrap(first: int, ahead: int) -> None:
    back = RetryOrder()
    back.note(TP0, ONE, first, 19, 0.0)
    assert back.code(TP0, ONE, (first + ahead) & LAST, 0.0) == 19
    assert back.code(TP0, ONE, (first - ahead) & LAST, 0.0) is None
    assert back.code(TP0, ONE, (first + ahead) & LAST, 0.0) is None
