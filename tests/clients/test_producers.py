"""Which rows of the producers' report are good ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.catalog import KAFKA_GO, LIBRDKAFKA, PRODUCERS, SARAMA
from tests.clients.producers import idempotent, sound

NEVER: frozenset[str] = frozenset()
KILL = frozenset({"kill"})
GOOD: dict[str, Any] = dict.fromkeys(
    ("lost", "otherwise_wrong", "errors", "unknown", "duplicated", "reordered"), 0
) | {"errors_at": {}, "kill_gap_ms": 1800.0}
AT_KILL = GOOD | {"errors": 3, "unknown": 3, "errors_at": {"kill": 3}}


def test_nothing_wrong() -> None:
    assert sound(GOOD, NEVER)


@pytest.mark.parametrize("what", ["lost", "otherwise_wrong"])
def test_never(what: str) -> None:
    assert not sound(GOOD | {what: 1}, KILL, again=True)


def test_errors_only_where_stock_brokers_give_them() -> None:
    assert sound(AT_KILL, KILL)
    assert not sound(AT_KILL, NEVER)
    assert not sound(AT_KILL | {"errors_at": {"kill": 2, "roll": 1}}, KILL)


@pytest.mark.parametrize("what", ["unknown", "errors"])
def test_a_record_without_an_answer_needs_an_event_that_explains_it(what: str) -> None:
    assert not sound(GOOD | {what: 1}, KILL)


@pytest.mark.parametrize("what", ["duplicated", "reordered"])
def test_doubled_only_by_a_client_that_writes_again_and_only_where_the_leader_is_killed(what: str) -> None:
    assert not sound(GOOD | {what: 1}, NEVER)
    assert sound(GOOD | {what: 1}, NEVER, again=True)
    undisturbed = {key: value for key, value in GOOD.items() if key != "kill_gap_ms"}
    assert not sound(undisturbed | {what: 1}, NEVER, again=True)


def test_who_is_idempotent() -> None:
    kinds = {case.name: idempotent(case) for case in PRODUCERS}
    assert (kinds["sarama-sync"], kinds["sarama-idempotent"]) == (False, True)
    assert (kinds[KAFKA_GO.name], kinds[LIBRDKAFKA.name]) == (False, True)
    assert SARAMA.name not in kinds
