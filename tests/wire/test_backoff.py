"""The waits between tries."""

from __future__ import annotations

from wire.backoff import Backoff


def test_each_wait_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.25, 1.5)
    assert [backoff.next() for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    backoff.reset()
    assert backoff.wait == 0.25
    assert backoff.next() == 0.25
    assert Backoff(1.0, 2.0, factor=1.5).at(1) == 1.5


def test_a_count_of_its_callers_may_have_any_size() -> None:
    assert Backoff(0.1, 2.0).at(10**9) == 2.0
    assert Backoff(0.1, 2.0).at(-1) == 0.1
    assert Backoff(0.1, 2.0, tries=10**9).next() == 2.0


def test_chance_takes_its_share_of_this_wait_only() -> None:
    backoff = Backoff(1.0, 4.0)
    assert [backoff.next(0.5), backoff.next(0.0), backoff.next()] == [0.5, 0.0, 4.0]


def test_it_is_over_when_the_next_wait_ends_behind_the_deadline() -> None:
    backoff = Backoff(1.0, 8.0)
    assert not backoff.over(10.0, 11.5)
    assert backoff.over(10.0, 11.0)
    backoff.next()
    assert backoff.over(10.0, 11.5), "2 s by now"
