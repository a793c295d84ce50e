"""Ordering of forwarded produces: the transition table, single stories, and random ones against a dumb
source.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import pytest

from router.fence import FenceState, FenceTable
from router.produce.batch import Batch
from router.produce.lane_states import (
    ENDINGS,
    TRANSITIONS,
    BatchState,
    Ending,
    ErrorMeaning,
    LaneEvent,
    LaneState,
    step,
)
from router.produce.lanes import Lane
from wire.errors import LocalProtocolError
from wire.frames.error_codes import (
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REQUEST_TIMED_OUT,
)
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)
ROUTE = "connection 1"


def batch(sequence: int = 0, producer_id: int = 7) -> Batch[str]:
    return Batch("job", 0, memoryview(b"records"), producer_id, 0, sequence)


def plain() -> Batch[str]:
    return Batch("job", 0, memoryview(b"records"))


def warmed(*sequences: int) -> tuple[Lane[str], list[Batch[str]]]:
    """A lane whose producer is known to the source, with batches in flight."""
    lane: Lane[str] = Lane(TP)
    first = batch(0)
    lane.offer(first)
    assert lane.take(ROUTE) is first
    assert lane.answered(first, 0) == [(first, 0)]
    batches = [batch(sequence) for sequence in sequences]
    for one in batches:
        lane.offer(one)
        assert lane.take(ROUTE) is one
    return lane, batches


@pytest.mark.parametrize(("state", "event"), list(itertools.product(LaneState, LaneEvent)))
def test_every_pair_is_in_the_table_or_refused(state: LaneState, event: LaneEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(LocalProtocolError, match=state.value):
            step(state, event)


@pytest.mark.parametrize("state", [BatchState.IN_FLIGHT, BatchState.BEHIND, BatchState.TOLD])
def test_whatever_the_source_says_a_batch_in_flight_has_an_end(state: BatchState) -> None:
    endings = {what: ENDINGS[state, what] for what in ErrorMeaning}
    assert (Ending.AGAIN in endings.values()) == (state is BatchState.IN_FLIGHT)
    assert (set(endings.values()) == {Ending.NOTHING}) == (state is BatchState.TOLD)


def test_nothing_else_is_in_flight() -> None:
    assert {state for state, _ in ENDINGS} == set(BatchState) - {BatchState.QUEUED, BatchState.DONE}


def test_leadership_error_requeues_it_and_all_behind_it_in_order() -> None:
    lane, (a, b, c) = warmed(1, 2, 3)
    assert lane.answered(a, NOT_LEADER_OR_FOLLOWER) == ()
    assert lane.state is LaneState.DRAINING
    late = batch(4)
    lane.offer(late)
    assert lane.take(ROUTE) is None
    assert lane.answered(b, OUT_OF_ORDER_SEQUENCE_NUMBER) == ()
    assert lane.answered(c, NOT_LEADER_OR_FOLLOWER) == ()
    assert lane.state is LaneState.WAITING
    assert lane.take("connection 2") is None
    lane.wake()
    assert [lane.take("connection 2") for _ in range(5)] == [a, b, c, late, None]


def test_out_of_order_without_an_earlier_retry_is_the_clients_business() -> None:
    lane, (a,) = warmed(5)
    assert lane.answered(a, OUT_OF_ORDER_SEQUENCE_NUMBER) == [(a, OUT_OF_ORDER_SEQUENCE_NUMBER)]


def test_first_batch_of_a_producer_goes_alone() -> None:
    lane: Lane[str] = Lane(TP)
    a, b = batch(0), batch(1)
    lane.offer(a)
    lane.offer(b)
    assert lane.take(ROUTE) is a
    assert lane.take(ROUTE) is None
    lane.answered(a, 0)
    assert lane.take(ROUTE) is b


def test_first_batch_refused_takes_the_queued_ones_of_that_producer_with_it() -> None:
    lane: Lane[str] = Lane(TP)
    a, b, other = batch(0), batch(1), batch(0, producer_id=8)
    for one in (a, b, other):
        lane.offer(one)
    lane.take(ROUTE)
    assert lane.answered(a, NOT_ENOUGH_REPLICAS) == [(a, NOT_ENOUGH_REPLICAS), (b, NOT_LEADER_OR_FOLLOWER)]
    assert lane.take(ROUTE) is other


def test_moved_leader_waits_for_the_old_connections_answers() -> None:
    lane, (a,) = warmed(1)
    b = batch(2)
    lane.offer(b)
    assert lane.take("connection 2") is None
    lane.answered(a, 0)
    assert lane.take("connection 2") is b


def test_lost_idempotent_batches_are_sent_again() -> None:
    lane, (a, b) = warmed(1, 2)
    assert lane.lost(a) == []
    assert lane.lost(b) == []
    assert a.unsettled
    assert not lane.settled
    lane.wake()
    assert lane.take("connection 2") is a
    lane.answered(a, 0)
    assert not a.unsettled


def test_lost_plain_batch_is_unknown_and_nothing_overtakes_it() -> None:
    lane: Lane[str] = Lane(TP)
    a, b = plain(), plain()
    lane.offer(a)
    lane.take(ROUTE)
    lane.offer(b)
    assert lane.lost(a) == [(a, REQUEST_TIMED_OUT), (b, NOT_LEADER_OR_FOLLOWER)]
    assert lane.idle


def test_expired_batch_in_flight_is_answered_once_and_still_accounted() -> None:
    lane, (a,) = warmed(1)
    behind = batch(2)
    lane.offer(behind)
    assert lane.expire(a) == [(a, REQUEST_TIMED_OUT), (behind, NOT_LEADER_OR_FOLLOWER)]
    assert lane.expire(a) == []
    assert not lane.settled
    assert lane.answered(a, NOT_LEADER_OR_FOLLOWER) == ()
    assert lane.settled
    assert lane.idle


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (NOT_LEADER_OR_FOLLOWER, NOT_LEADER_OR_FOLLOWER),
        (OUT_OF_ORDER_SEQUENCE_NUMBER, NOT_LEADER_OR_FOLLOWER),
        (NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS),
        (0, 0),
    ],
)
def test_what_follows_an_expired_one_is_not_sent_without_it(code: int, told: int) -> None:
    lane, (a, b) = warmed(1, 2)
    lane.expire(a)
    lane.answered(a, NOT_LEADER_OR_FOLLOWER)
    assert lane.answered(b, code) == [(b, told)]
    assert (lane.idle, lane.state) == (True, LaneState.FLOWING)


def test_what_follows_an_expired_one_is_not_sent_again_when_the_connection_ends() -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    a, b = batch(1), batch(2)
    for one in (batch(0), a, b):
        lane.offer(one)
        lane.take(ROUTE)
        if one.base_sequence == 0:
            lane.answered(one, 0)
    lane.expire(a)
    assert lane.lost(a) == []
    assert lane.lost(b) == [(b, REQUEST_TIMED_OUT)]
    assert lane.idle
    fences.fence([TP])
    assert "settles in 3.0 s" in fences.pending([TP])[TP], "it may have been written"


def test_what_follows_one_that_expired_in_the_queue_is_not_told_of_a_gap() -> None:
    lane, (a, b, c) = warmed(1, 2, 3)
    lane.answered(a, NOT_LEADER_OR_FOLLOWER)
    assert lane.expire(a) == [(a, REQUEST_TIMED_OUT)]
    assert lane.answered(b, OUT_OF_ORDER_SEQUENCE_NUMBER) == [(b, NOT_LEADER_OR_FOLLOWER)]
    assert lane.answered(c, NOT_LEADER_OR_FOLLOWER) == [(c, NOT_LEADER_OR_FOLLOWER)]
    assert lane.idle


def test_what_was_sent_again_and_then_left_behind_is_unknown() -> None:
    lane, (a, b) = warmed(1, 2)
    for one in (a, b):
        lane.lost(one)
    lane.wake()
    assert [lane.take("connection 2") for _ in range(2)] == [a, b]
    lane.expire(a)
    assert lane.answered(b, NOT_LEADER_OR_FOLLOWER) == [(b, REQUEST_TIMED_OUT)], (
        "the first copy may have landed"
    )


def test_only_what_follows_it_is_left_behind() -> None:
    """Of its producer, by the sequences: what comes again comes behind what followed it."""
    lane, (a, b) = warmed(1, 2)
    lane.expire(a)
    again, after = batch(1), batch(3)
    for one in (again, after):
        lane.offer(one)
        assert lane.take(ROUTE) is one
    lane.lost(a)
    assert lane.lost(b) == [(b, REQUEST_TIMED_OUT)]
    assert (again.state, after.state) == (BatchState.IN_FLIGHT, BatchState.BEHIND)
    assert lane.lost(again) == []
    assert lane.lost(after) == [(after, REQUEST_TIMED_OUT)]
    assert list(lane.queue) == [again]


def test_another_producer_is_not_left_behind() -> None:
    lane, (a,) = warmed(1)
    other = batch(5, producer_id=8)
    lane._warm = other.producer
    lane.offer(other)
    assert lane.take(ROUTE) is other
    lane.expire(a)
    lane.lost(a)
    assert lane.lost(other) == []
    assert list(lane.queue) == [other]


@pytest.mark.parametrize("code", [NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, 29])
def test_what_the_source_sends_back_takes_along_what_follows(code: int) -> None:
    lane, (a, b) = warmed(1, 2)
    moved = batch(3)
    lane.offer(moved)
    assert lane.take("connection 2") is None
    told = NOT_ENOUGH_REPLICAS if code == 29 else code
    assert lane.answered(a, code) == [(a, told), (moved, NOT_LEADER_OR_FOLLOWER)]
    assert lane.answered(b, OUT_OF_ORDER_SEQUENCE_NUMBER) == [(b, NOT_LEADER_OR_FOLLOWER)]


def test_nothing_is_looked_for_among_what_is_in_flight() -> None:
    """One that is given up costs the same, however many are on the way."""

    class Line(deque[Batch[str]]):
        def __contains__(self, one: object) -> bool:
            raise AssertionError("looked for")

    lane, batches = warmed(*range(1, 5))
    lane.in_flight = Line(lane.in_flight)
    for one in batches:
        assert lane.expire(one) == [(one, REQUEST_TIMED_OUT)]


def test_the_links_own_refusal_never_reaches_the_client_as_fatal() -> None:
    lane, (a,) = warmed(1)
    assert lane.answered(a, 29) == [(a, NOT_ENOUGH_REPLICAS)]


def test_unknown_code_passes() -> None:
    lane, (a,) = warmed(1)
    assert lane.answered(a, 9999) == [(a, 9999)]


def test_answer_for_a_batch_that_is_not_in_flight_is_refused() -> None:
    lane, (a,) = warmed(1)
    lane.answered(a, 0)
    with pytest.raises(LocalProtocolError, match="not in flight"):
        lane.answered(a, 0)


def table(now: list[float]) -> FenceTable[str]:
    return FenceTable(lambda: now[0], settle_grace=3.0)


def test_fence_holds_and_unfence_forwards_in_order() -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    fences.fence([TP])
    a, b = plain(), plain()
    lane.offer(a)
    lane.offer(b)
    assert lane.take(ROUTE) is None
    assert fences.pending([TP]) == {}
    assert fences.unfence([TP]) == [lane]
    lane.wake()
    assert [lane.take(ROUTE), lane.take(ROUTE)] == [a, b]


def test_lane_opened_during_a_fence_is_held() -> None:
    fences = table([0.0])
    fences.fence([TP])
    assert fences.open_lane(TP).state is LaneState.HELD


def test_fence_waits_for_what_is_in_flight_and_sends_unknown_ones_again() -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    a = batch(0)
    lane.offer(a)
    lane.take(ROUTE)
    fences.fence([TP])
    assert "1 writes in flight" in fences.pending([TP])[TP]
    lane.lost(a)
    held = batch(1)
    lane.offer(held)
    assert "1 of unknown outcome" in fences.pending([TP])[TP]
    lane.wake()
    assert lane.take("connection 2") is a
    assert lane.answered(a, 0) == [(a, 0)]
    assert fences.pending([TP]) == {}
    assert lane.take("connection 2") is None
    assert fences.hand_over([TP]) == [(held, NOT_LEADER_OR_FOLLOWER)]


def test_refused_write_is_simply_held_by_a_fence() -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    a = batch(0)
    lane.offer(a)
    lane.take(ROUTE)
    fences.fence([TP])
    assert lane.answered(a, NOT_LEADER_OR_FOLLOWER) == ()
    assert fences.pending([TP]) == {}
    assert lane.take(ROUTE) is None
    assert list(lane.queue) == [a]


def test_fence_waits_for_a_vanished_clients_write_and_for_a_lost_one_to_settle() -> None:
    now = [10.0]
    fences = table(now)
    lane = fences.open_lane(TP)
    a = batch(0)
    lane.offer(a)
    lane.take(ROUTE)
    assert lane.vanish() == []
    assert not fences.discard_lane(lane)
    fences.fence([TP])
    assert TP in fences.pending([TP])
    assert lane.lost(a) == []
    assert fences.discard_lane(lane)
    assert "settles in 3.0 s" in fences.pending([TP])[TP]
    assert fences.next_settling([TP]) == 13.0
    now[0] = 13.0
    assert fences.pending([TP]) == {}


def test_a_handed_over_partition_stays_so_until_it_is_opened_again() -> None:
    fences = table([0.0])
    fences.fence([TP])
    fences.hand_over([TP])
    fences.fence([TP])
    assert fences.state(TP) is FenceState.HANDED_OVER
    fences.unfence([TP])
    assert fences.state(TP) is None


def test_unknown_write_that_is_given_up_is_left_to_the_clock() -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    a = batch(0)
    lane.offer(a)
    lane.take(ROUTE)
    lane.lost(a)
    assert lane.expire(a) == [(a, REQUEST_TIMED_OUT)]
    fences.fence([TP])
    assert "settles in 3.0 s" in fences.pending([TP])[TP]


def test_unknown_write_under_a_fence_is_not_sent_again_before_the_leader_was_asked_for() -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    a = batch(0)
    lane.offer(a)
    lane.take(ROUTE)
    lane.lost(a)
    fences.fence([TP])
    lane.wake()
    assert lane.take("connection 2") is a
    lane.answered(a, NOT_LEADER_OR_FOLLOWER)
    assert lane.take("connection 2") is None
    lane.wake()
    assert lane.take("connection 3") is a


@pytest.mark.parametrize("code", [NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS])
def test_an_error_does_not_prove_that_a_lost_copy_is_gone(code: int) -> None:
    fences = table([0.0])
    lane = fences.open_lane(TP)
    a = batch(0)
    lane.offer(a)
    lane.take(ROUTE)
    lane.lost(a)
    lane.wake()
    lane.take("connection 2")
    lane.expire(a)
    fences.fence([TP])
    lane.answered(a, code)
    assert "settles in 3.0 s" in fences.pending([TP])[TP]


def test_a_source_that_is_given_up_leaves_nothing_but_unknown() -> None:
    """Whatever it still says, nobody is told success; what was never sent is held for the new leader."""
    lane, (second, third) = warmed(1, 2)
    lane.fence()
    held = batch(3)
    lane.offer(held)
    assert lane.cut() == [
        (second, REQUEST_TIMED_OUT),
        (held, NOT_LEADER_OR_FOLLOWER),
        (third, REQUEST_TIMED_OUT),
    ]
    assert lane.answered(second, 0) == ()
    assert lane.lost(third) == []
    retried = batch(1)
    lane.offer(retried)
    assert lane.take(ROUTE) is None
    assert lane.hand_over() == [(retried, NOT_LEADER_OR_FOLLOWER)]


def test_a_write_of_unknown_outcome_is_not_sent_to_a_given_up_source_again() -> None:
    lane, (second,) = warmed(1)
    lane.lost(second)
    lane.fence()
    assert lane.needs_route
    lane.cut()
    assert not lane.needs_route
    assert lane.take("another connection") is None
    assert lane.hand_over() == [(second, NOT_LEADER_OR_FOLLOWER)]


def inside(lane: Lane[str]) -> dict[str, object]:
    """All that a lane knows, batches by their names."""
    batches = {"queue": [repr(b) for b in lane.queue], "in flight": [repr(b) for b in lane.in_flight]}
    rest = ("state", "route", "stale", "vanished", "_warm", "_next_order")
    return batches | {name: getattr(lane, name) for name in rest}


@pytest.mark.parametrize("made", [lambda: batch(1), lambda: batch(0, 8), plain])
@pytest.mark.parametrize("behind", [0, 1])
def test_in_one_piece_it_is_the_same(made: Callable[[], Batch[str]], behind: int) -> None:
    """The first of a producer, known or not, or of none; with another one behind it or without."""
    (steps, _), (fast_path, _) = warmed(), warmed()
    one, same = made(), made()
    steps.offer(one)
    assert steps.take(ROUTE) is one
    assert fast_path.passes(same, ROUTE)
    fast_path.pass_on(same, ROUTE)
    assert inside(steps) == inside(fast_path)
    for lane in (steps, fast_path):
        for _ in range(behind):
            lane.offer(batch(5))
            lane.take(ROUTE)
    assert steps.answered(one, 0) == [(one, 0)]
    assert fast_path.lands(same)
    fast_path.acknowledged(same)
    assert inside(steps) == inside(fast_path)
    assert repr(one) == repr(same)
    assert fast_path.expire(same) == [], "it was told"


def test_in_one_piece_it_is_the_same_behind_one_that_went_back() -> None:
    (steps, (a, b)), (fast_path, (c, d)) = warmed(1, 2), warmed(1, 2)
    for lane, first in ((steps, a), (fast_path, c)):
        lane.expire(first)
        lane.answered(first, 0)
    assert (b.state, d.state) == (BatchState.BEHIND, BatchState.BEHIND)
    assert steps.answered(b, 0) == [(b, 0)]
    assert fast_path.lands(d)
    fast_path.acknowledged(d)
    assert inside(steps) == inside(fast_path)
    assert repr(b) == repr(d)


def test_in_one_piece_only_where_nothing_is_in_the_way() -> None:
    def refused(lane: Lane[str], one: Batch[str], route: str = ROUTE) -> bool:
        before = inside(lane)
        return not lane.passes(one, route) and before == inside(lane) and one.tp is None

    busy, (in_flight, second) = warmed(1, 2)
    assert refused(busy, batch(3), "connection 2")
    assert refused(busy, batch(0, 8)), "unknown to the source, and something is in flight"
    before = inside(busy)
    assert not busy.lands(second), "not the first"
    assert before == inside(busy)
    assert busy.expire(in_flight)[0] == (in_flight, REQUEST_TIMED_OUT)
    assert not busy.lands(in_flight), "it was told already"
    waiting, _ = warmed(1)
    waiting.offer(batch(0, 8))
    assert refused(waiting, batch(2))
    held, (one,) = warmed(1)
    held.fence()
    assert refused(held, batch(2))
    assert not held.lands(one)
    gone, _ = warmed()
    gone.vanish()
    assert refused(gone, batch(1))
    stale, (one,) = warmed(1)
    stale.answered(one, NOT_LEADER_OR_FOLLOWER)
    stale.expire(one)
    assert (stale.state, stale.idle) == (LaneState.FLOWING, True)
    assert refused(stale, batch(2)), "the leader has to be asked for first"
    stale.wake()
    assert stale.passes(batch(2), ROUTE)
