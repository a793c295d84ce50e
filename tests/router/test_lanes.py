"""Ordering of forwarded produces: the transition table, single stories, and random ones against a dumb
source.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.fence import FenceState, FenceTable
from router.lanes import (
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REQUEST_TIMED_OUT,
    TRANSITIONS,
    Answer,
    Batch,
    Lane,
    LaneEvent,
    LaneState,
    step,
)
from wire.errors import LocalProtocolError
from wire.types import TopicPartition

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


# Random stories


@dataclass
class Source:
    """A partition at the source: Kafka's sequence check, nothing else."""

    leader: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)

    def append(self, node: int, producer: int, sequence: int) -> int:
        if node != self.leader:
            return NOT_LEADER_OR_FOLLOWER
        if producer in self.last:
            if sequence <= self.last[producer]:
                return 0  # duplicate
            if sequence != self.last[producer] + 1:
                return OUT_OF_ORDER_SEQUENCE_NUMBER
        self.last[producer] = sequence
        self.log.append((producer, sequence))
        return 0


class Link:
    """A source connection: requests and answers, strictly in order."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.alive = True
        self.requests: deque[tuple[Client, Batch[Client]]] = deque()
        self.answers: deque[tuple[Client, Batch[Client], int]] = deque()


class Client:
    """An idempotent producer with up to 5 batches out, which sends failed ones again in order."""

    def __init__(self, producer: int, lane: Lane[Client]) -> None:
        self.producer = producer
        self.lane = lane
        self.links: dict[int, Link] = {}
        self.next_sequence = 0
        self.out: list[Batch[Client]] = []
        self.failed: set[int] = set()
        self.acked: list[int] = []
        self.gone = False

    def send(self, sequence: int) -> None:
        one = Batch(self, 0, memoryview(b"x"), self.producer, 0, sequence)
        self.out.append(one)
        self.lane.offer(one)

    def take_answers(self, answers: Sequence[Answer[Client]]) -> None:
        for one, code in answers:
            assert one in self.out, "answered twice"
            self.out.remove(one)
            if code == 0:
                self.acked.append(one.base_sequence)
            else:
                assert code in (NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, OUT_OF_ORDER_SEQUENCE_NUMBER)
                self.failed.add(one.base_sequence)


class Story(RuleBasedStateMachine):
    GRACE = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.source = Source()
        self.fences: FenceTable[Client] = FenceTable(lambda: self.now, self.GRACE)
        self.known_leader = 0
        self.clients = [Client(n, self.fences.open_lane(TP)) for n in (1, 2)]
        self.dead_clients: list[Client] = []
        self.producers = itertools.count(3)
        self.ghosts: list[tuple[float, deque[tuple[int, Batch[Client]]]]] = []
        self.stands = False  # fence() returned

    # Everybody who still has connections
    def everyone(self) -> list[Client]:
        return self.clients + self.dead_clients

    def links(self) -> list[tuple[Client, Link]]:
        return [(c, link) for c in self.everyone() for link in c.links.values()]

    def pump(self, client: Client) -> None:
        link = client.links.get(self.known_leader)
        if link is None:
            link = client.links[self.known_leader] = Link(self.known_leader)
        while (one := client.lane.take(link)) is not None:
            link.requests.append((client, one))

    @rule(which=st.integers(0, 1), count=st.integers(1, 5))
    def produce(self, which: int, count: int) -> None:
        client = self.clients[which]
        for _ in range(count):
            if client.failed or len(client.out) >= 5:
                break
            client.send(client.next_sequence)
            client.next_sequence += 1
        self.pump(client)

    @rule(which=st.integers(0, 1))
    def retry(self, which: int) -> None:
        client = self.clients[which]
        if client.out or not client.failed:
            return
        for sequence in sorted(client.failed):
            client.send(sequence)
        client.failed.clear()
        self.pump(client)

    @precondition(lambda self: any(link.requests for _, link in self.links()))
    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        _, link = data.draw(st.sampled_from([x for x in self.links() if x[1].requests]))
        client, one = link.requests.popleft()
        link.answers.append((client, one, self.source.append(link.node, *self.of(one))))

    @precondition(lambda self: any(link.answers for _, link in self.links()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        _, link = data.draw(st.sampled_from([x for x in self.links() if x[1].answers]))
        client, one, code = link.answers.popleft()
        client.take_answers(client.lane.answered(one, code))
        self.pump(client)

    @precondition(lambda self: bool(self.links()))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        client, link = data.draw(st.sampled_from(self.links()))
        del client.links[link.node]
        if link.requests:
            self.ghosts.append((self.now, deque((link.node, one) for _, one in link.requests)))
        for one in [x[1] for x in link.answers] + [x[1] for x in link.requests]:
            client.take_answers(client.lane.lost(one))
        self.pump(client)

    @precondition(lambda self: bool(self.ghosts))
    @rule(data=st.data())
    def ghost_lands(self, data: st.DataObject) -> None:
        _, requests = data.draw(st.sampled_from(self.ghosts))
        if requests:
            node, one = requests.popleft()
            self.source.append(node, *self.of(one))

    @rule(leader=st.integers(0, 1))
    def elect(self, leader: int) -> None:
        self.source.leader = leader

    @rule()
    def refresh(self) -> None:
        self.known_leader = self.source.leader
        for client in self.everyone():
            client.lane.wake()
            self.pump(client)

    @rule(which=st.integers(0, 1), data=st.data())
    def expire(self, which: int, data: st.DataObject) -> None:
        client = self.clients[which]
        if client.out:
            client.take_answers(client.lane.expire(data.draw(st.sampled_from(client.out))))
            self.pump(client)

    @rule(which=st.integers(0, 1))
    def vanish(self, which: int) -> None:
        client = self.clients[which]
        client.lane.vanish()
        client.gone = True
        self.dead_clients.append(client)
        self.clients[which] = Client(next(self.producers), self.fences.open_lane(TP))

    @rule(seconds=st.floats(0.1, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        # A broker that lost a connection is done with its requests within the grace.
        self.ghosts = [(at, requests) for at, requests in self.ghosts if at + self.GRACE > self.now]

    @precondition(lambda self: self.fences.state(TP) is None)
    @rule()
    def fence(self) -> None:
        self.fences.fence([TP])

    @precondition(lambda self: self.fences.state(TP) is not None and not self.stands)
    @rule()
    def fence_stands(self) -> None:
        self.stands = not self.fences.pending([TP])
        if self.stands:
            self.aligned_at = list(self.source.log)

    @precondition(lambda self: self.fences.state(TP) is FenceState.FENCED)
    @rule()
    def unfence(self) -> None:
        self.stands = False
        for lane in self.fences.unfence([TP]):
            lane.wake()
        for client in self.everyone():
            self.pump(client)

    @precondition(lambda self: self.stands)
    @rule()
    def hand_over_and_back(self) -> None:
        for one, code in self.fences.hand_over([TP]):
            assert code == NOT_LEADER_OR_FOLLOWER
            one.job.take_answers([(one, code)])
        assert all(not client.out for client in self.clients)
        self.unfence()

    @staticmethod
    def of(one: Batch[Client]) -> tuple[int, int]:
        return one.producer[0], one.base_sequence

    @invariant()
    def order_and_at_most_once(self) -> None:
        for client in self.everyone():
            mine = [sequence for producer, sequence in self.source.log if producer == client.producer]
            assert mine == list(range(len(mine)))
            assert set(client.acked) <= set(mine)
            assert len(set(client.acked)) == len(client.acked)

    @invariant()
    def a_standing_fence_is_quiet(self) -> None:
        if self.stands:
            assert self.source.log == self.aligned_at

    @invariant()
    def order_in_the_lane(self) -> None:
        for client in self.everyone():
            for line in (client.lane.queue, client.lane.in_flight):
                orders = [one.order for one in line]
                assert orders == sorted(orders)

    def teardown(self) -> None:
        """Quiet weather: everything must end acked, in order."""
        if self.fences.state(TP) is not None:
            self.unfence()
        for _ in range(60):
            self.refresh()
            for which in range(2):
                self.retry(which)
            for _, link in self.links():
                while link.requests:
                    client, one = link.requests.popleft()
                    link.answers.append((client, one, self.source.append(link.node, *self.of(one))))
                while link.answers:
                    client, one, code = link.answers.popleft()
                    client.take_answers(client.lane.answered(one, code))
            if not any(c.out or c.failed for c in self.clients):
                break
        for client in self.clients:
            assert client.lane.idle
            assert (
                client.acked and max(client.acked) == client.next_sequence - 1
            ) or client.next_sequence == 0
            assert len(client.acked) == client.next_sequence
        self.order_and_at_most_once()


Story.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestStory = Story.TestCase
