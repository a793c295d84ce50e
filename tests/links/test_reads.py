"""Which client ids may read a mirror before its promote."""

from __future__ import annotations

import pytest

from admin.models import LinkOptions
from linker.links.reads import ReadPolicy


@pytest.mark.parametrize(
    ("client", "held"),
    [
        ("app", False),
        ("", False),
        (None, False),
        # Java: consumer-<group>-<n>; Spark's groups begin with spark-kafka-source- or spark-kafka-relation-
        ("consumer-spark-kafka-source-0a1b-driver-0-1", True),
        ("consumer-spark-kafka-relation-0a1b-executor-3", True),
        # No group: AKHQ, consoles, a Connect worker that reads its topics; to them a held topic is an empty one.
        ("consumer-null-1", False),
        ("consumer-null-connect-1-configs", False),
        ("consumer-orders-1", False),
        ("my-consumer-null-1", False),
    ],
)
def test_what_is_held_by_default(client: str | None, held: bool) -> None:
    assert ReadPolicy(LinkOptions()).holds(client) is held


def test_the_exceptions_win_in_both_directions() -> None:
    hold = ReadPolicy(LinkOptions(unpromoted_reads="hold", unpromoted_reads_allow="check-.*, app"))
    assert [hold.holds(name) for name in ("x", "check-1", "app", "application")] == [True, False, False, True]
    both = ReadPolicy(LinkOptions(unpromoted_reads_hold="a.*", unpromoted_reads_allow="ab"))
    assert [both.holds(name) for name in ("a", "ab", "abc", "b")] == [True, False, True, False]


def test_many_client_ids_cost_no_memory() -> None:
    policy = ReadPolicy(LinkOptions(unpromoted_reads="hold"))
    assert all(policy.holds(f"c{n}") for n in range(25_000))
    assert len(policy._known) <= 10_000


def test_patterns_stand_for_themselves() -> None:
    """With flags or a named group, each is valid; joined into one they are not."""
    text = "(?i)spark.*, (?P<app>a+), (?P<app>b+)"
    policy = ReadPolicy(LinkOptions(unpromoted_reads_hold=text))
    assert [policy.holds(name) for name in ("SPARK-1", "aa", "b", "AA", "x")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_any_client_id_matches_a_dot_and_a_star() -> None:
    policy = ReadPolicy(LinkOptions(unpromoted_reads_hold=".*"))
    assert policy.holds("app\n1") and policy.holds("\n")
    assert not ReadPolicy(LinkOptions(unpromoted_reads="hold", unpromoted_reads_allow="app.*")).holds(
        "app\n1"
    )
