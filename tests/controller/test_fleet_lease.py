"""The arithmetic of leases: the member's ends first, whatever the network, the store and the clocks do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from fleet.lease import DRIFT, Holder, Lease, LeaseTable

HOLDER = Holder(900, "a")
delays = st.floats(0, 30, allow_nan=False)


@dataclass
class Clock:
    offset: float
    rate: float

    def at(self, true: float) -> float:
        return self.offset + true * self.rate

    def true(self, shown: float) -> float:
        return (shown - self.offset) / self.rate


# Two clocks that run apart by at most DRIFT, and begin anywhere.
@st.composite
def clocks(draw: st.DrawFn) -> tuple[Clock, Clock]:
    apart = math.sqrt(DRIFT)
    rates = st.floats(1 / apart, apart)
    offsets = st.floats(-1e5, 1e5)
    return Clock(draw(offsets), draw(rates)), Clock(draw(offsets), draw(rates))


@given(clocks(), st.floats(0.1, 60), st.lists(st.tuples(delays, delays, delays, delays), min_size=1))
def test_the_members_lease_ends_before_the_heads(
    both: tuple[Clock, Clock], duration: float, renewals: list[tuple[float, float, float, float]]
) -> None:
    member_clock, head_clock = both
    lease, table = Lease(), LeaseTable(duration)
    true = 1000.0
    for pause, there, proof, back in renewals:
        sent = true = true + pause
        proven = sent + there + proof
        table.renewed(HOLDER, head_clock.at(proven))
        answered = proven + back
        lease.renewed(member_clock.at(sent), member_clock.at(answered), duration)
        assert member_clock.true(lease.until) <= head_clock.true(table.until(HOLDER)) + 1e-6
        true = answered


@given(clocks(), st.floats(0.1, 60), delays, delays, delays, delays)
def test_a_lease_of_an_older_head_ends_before_the_next_head_forgets_it(
    both: tuple[Clock, Clock], duration: float, there: float, proof: float, claimed: float, load: float
) -> None:
    member_clock, next_clock = both
    sent = 1000.0
    claim = sent + there + proof + claimed  # the proof had succeeded, so no claim was there yet
    table = LeaseTable(duration)
    table.inherit([(HOLDER, 0.0)], next_clock.at(claim))
    lease = Lease()
    answered = sent + there + proof + load  # the old head's answer, whenever it comes
    lease.renewed(member_clock.at(sent), member_clock.at(answered), duration)
    assert member_clock.true(lease.until) <= next_clock.true(table.until(HOLDER)) + 1e-6


def test_an_inherited_lease_does_not_shorten_one_that_was_given_here() -> None:
    table = LeaseTable(10)
    table.renewed(HOLDER, 100.0)
    table.inherit([(HOLDER, 0.0)], 50.0)
    assert table.until(HOLDER) == 100 + 10 * DRIFT
    table.renewed(HOLDER, 90.0)
    assert table.until(HOLDER) == 100 + 10 * DRIFT


def test_a_longer_lease_of_a_head_that_was_configured_otherwise_is_waited_for() -> None:
    for duration, waited in ((30.0, 30.0), (5.0, 10.0)):
        table = LeaseTable(10)
        table.inherit([(HOLDER, duration)], 50.0)
        assert table.until(HOLDER) == 50 + waited * DRIFT


def test_the_table_forgets_what_is_over_and_who_is_gone() -> None:
    table = LeaseTable(10)
    table.renewed(HOLDER, 0.0)
    table.renewed(Holder(900, "b"), 1.0)
    table.renewed(Holder(901, "a"), 2.0)
    assert table.others_of(900, "b", 5.0) == [HOLDER]
    table.gone(900, ["a", "unknown"])
    assert table.may_hold(5.0) == [Holder(900, "b"), Holder(901, "a")]
    assert table.may_hold(1 + 10 * DRIFT) == [Holder(901, "a")]
    assert table.until(Holder(900, "b")) == -math.inf


def test_a_lapse_that_was_healed_is_another_term() -> None:
    lease = Lease()
    assert not lease.valid(0.0)
    lease.renewed(0.0, 0.1, 10.0)
    first = lease.term
    lease.renewed(5.0, 5.1, 10.0)
    assert lease.term == first
    assert lease.covers(first, 14.9)
    assert not lease.covers(first, 15.0)  # it is over at its end, not after it
    lease.renewed(15.0, 15.1, 10.0)
    assert lease.valid(15.2)
    assert not lease.covers(first, 15.2)
    assert lease.covers(lease.term, 15.2)


def test_an_answer_that_comes_too_late_proves_but_gives_no_lease() -> None:
    lease = Lease()
    lease.renewed(0.0, 30.0, 10.0)
    assert not lease.valid(30.0)
    assert lease.proven_since(-0.1)
    assert not lease.proven_since(0.0)  # sent at the very moment: not after it


def test_answers_out_of_order_never_shorten() -> None:
    lease = Lease()
    lease.renewed(5.0, 5.1, 10.0)
    lease.renewed(1.0, 5.2, 10.0)
    assert lease.until == 15.0
    assert lease.proven_since(4.9)


def test_what_was_given_back_is_not_given_again() -> None:
    """An answer that was on its way when the sidecar said good-bye: the head counts it as harmless already."""
    lease = Lease()
    lease.renewed(0.0, 0.1, 10.0)
    lease.given_up()
    lease.renewed(0.5, 0.6, 10.0)
    assert not lease.valid(0.7)
    assert not lease.covers(lease.term, 0.7)
    assert not lease.proven_since(0.4)


def test_an_endless_lease() -> None:
    lease = Lease()
    lease.renewed(1.0, 1.1, math.inf)
    assert lease.covers(lease.term, 1e12)
