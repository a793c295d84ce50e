"""Random stories of a sidecar's lease, the link controller's fences, producers and a source. No fork, ever.

``World`` has a head that fences, aligns and hands over by the rules of ``fleet.lease`` - it waits for the
fence or for the end of the lease as it sees it - with a message channel that delays and breaks, and the router's own
lanes, fences and lease gate under a clock that may run slower than the head's. It is checked from outside, without
the gate's arithmetic, that whatever a client was told to be written is in the log that is handed over.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleet.lease import DRIFT, Lease
from router.fence import FenceState, FenceTable
from router.produce.batch import Answer, Batch
from router.produce.lanes import Lane
from router.produce.lease_gate import LeaseGate, Told
from tests.router.test_lanes_random import Source
from wire.frames.error_codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)
GRACE = 3.0
DURATION = 10.0
TIMEOUT = 40.0
PLAIN = -1
Choose = Callable[[Sequence[Any]], Any]


class Port:
    """router.ports.LeasePort over a member's lease."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.lease = Lease()
        self.now = clock

    @property
    def term(self) -> int:
        return self.lease.term

    def valid(self) -> bool:
        return self.lease.valid(self.now())

    def covers(self, term: int) -> bool:
        return self.lease.covers(term, self.now())

    def proven_since(self, moment: float) -> bool:
        return self.lease.proven_since(moment)


class Client:
    """A producer on one connection to the source."""

    def __init__(self, producer: int, lane: Lane[Client]) -> None:
        self.producer = producer
        self.lane = lane
        self.next_sequence = 0
        self.out: dict[Batch[Client], float] = {}  # not answered: when it has to be
        self.requests: deque[tuple[Batch[Client], int]] = deque()  # on the way to the source: term at sending
        self.answers: deque[tuple[Batch[Client], int, int]] = deque()  # on the way back: term, code
        self.failed: set[int] = set()


class World:
    def __init__(self, slow: bool = False) -> None:
        self.now = 0.0
        self.rate = 1 / (DRIFT - 0.001) if slow else 1.0
        self.source = Source()
        self.fences: FenceTable[Client] = FenceTable(lambda: self.now, GRACE)
        self.port = Port(lambda: 50 + self.now * self.rate)
        self.gate: LeaseGate[Client] = LeaseGate(self.port, self.fences)
        self.clients = [Client(producer, self.fences.open_lane(TP)) for producer in (1, 2, PLAIN)]
        self.lost: list[tuple[float, Batch[Client]]] = []  # in the queue of a broker, connection dead
        self.told: list[tuple[int, int]] = []  # every success
        # The channel. Head to member: the fence's number, or None; member to head: a renewal's send time, or None.
        self.connected = False
        self.to_head: deque[tuple[str, float]] = deque()
        self.to_member: deque[tuple[str, float]] = deque()
        self.welcomed = False
        self.owes_fence: float | None = None
        # The head.
        self.phase = "open"
        self.fence_number = 0
        self.fence_acknowledged = False
        self.head_until = float("-inf")
        self.aligned: list[tuple[int, int]] | None = None
        # What the gate should know, kept apart from it.
        self.held: list[tuple[float, float]] = []  # the member's leases: unbroken intervals
        self.proofs: list[float] = []
        self.closings = 0
        self.sent_at: dict[Batch[Client], float] = {}
        self.arrived: dict[Batch[Client], tuple[float, int]] = {}
        self.counts = {"covered": 0, "proven": 0, "unknown": 0, "refused": 0, "handed over": 0, "harmless": 0}

    @property
    def mine(self) -> float:
        return self.port.now()

    # The clients' side

    def take_answers(self, answers: Sequence[Answer[Client]]) -> None:
        for one, code in answers:
            client = one.job
            assert one in client.out, "answered twice"
            del client.out[one]
            if code == 0:
                self.may_be_told(one)
                self.told.append((client.producer, one.base_sequence))
                continue
            assert code in (NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS), code
            client.failed.add(one.base_sequence)

    def may_be_told(self, one: Batch[Client]) -> None:
        sent, (arrived, closings) = self.sent_at[one], self.arrived[one]
        if any(start <= sent and arrived < until for start, until in self.held):
            assert self.fences.state(TP) is not FenceState.HANDED_OVER
            self.counts["covered"] += 1
            return
        assert any(proof > arrived for proof in self.proofs), "told without a proof"
        assert closings == self.closings, "told although it was closed meanwhile"
        assert self.fences.state(TP) is None, "told while it was closed"
        self.counts["proven"] += 1

    def conclude(self, told: Sequence[Told[Client]]) -> None:
        for _, one, answers in told:
            self.counts["unknown"] += answers[:1] == [(one, REQUEST_TIMED_OUT)]
            self.take_answers(answers)
            self.pump(one.job)

    def pump(self, client: Client) -> None:
        if not client.lane.needs_route:
            return
        if not self.gate.may_send(TP):
            self.take_answers(client.lane.refuse(NOT_ENOUGH_REPLICAS))
            return
        client.lane.wake()
        while (one := client.lane.take(client)) is not None:
            self.sent_at[one] = self.mine
            client.requests.append((one, self.port.term))

    # What can happen

    def produce(self, choose: Choose) -> None:
        client = choose(self.clients)
        for _ in range(choose([1, 2, 5])):
            if client.failed or len(client.out) >= 5 or self.fences.state(TP) is FenceState.HANDED_OVER:
                break
            if not self.port.valid():
                self.counts["refused"] += 1
                break
            self.offer(client, client.next_sequence)
            client.next_sequence += 1
        self.pump(client)

    def offer(self, client: Client, sequence: int) -> None:
        one = Batch(client, 0, memoryview(b"x"), client.producer, 0, sequence)
        client.out[one] = self.now + TIMEOUT
        client.lane.offer(one)

    def retry(self, choose: Choose) -> None:
        client = choose(self.clients)
        if client.out or not self.port.valid() or self.fences.state(TP) is FenceState.HANDED_OVER:
            return
        if client.producer != PLAIN:
            for sequence in sorted(client.failed):
                self.offer(client, sequence)
        client.failed.clear()
        self.pump(client)

    def process(self, choose: Choose) -> None:
        busy = [client for client in self.clients if client.requests]
        if busy:
            client = choose(busy)
            one, term = client.requests.popleft()
            code = self.source.append(self.source.leader, one.producer[0], one.base_sequence)
            client.answers.append((one, term, code))

    def deliver(self, choose: Choose) -> None:
        busy = [client for client in self.clients if client.answers]
        if busy:
            client = choose(busy)
            one, term, code = client.answers.popleft()
            self.arrived[one] = (self.mine, self.closings)
            result = ProduceResult(0, code)
            covered = self.port.covers(term)
            usual = code == 0 and covered and self.fences.state(TP) is None
            if (
                usual and choose([True, False]) and client.lane.lands(one)
            ):  # as router/produce/fast_path.py does
                client.lane.acknowledged(one)
                answers: Sequence[Answer[Client]] = [(one, code)]
            else:
                answers = self.gate.answered(client.lane, one, result, covered=covered)
            self.counts["unknown"] += list(answers[:1]) == [(one, REQUEST_TIMED_OUT)]
            self.take_answers(answers)
            self.pump(client)

    def connection_lost(self, choose: Choose) -> None:
        client = choose(self.clients)
        # Some of its requests are read by the broker, and land later.
        self.lost += [(self.now, one) for one, _ in client.requests]
        lost = [one for one, _, _ in client.answers] + [one for one, _ in client.requests]
        client.answers.clear()
        client.requests.clear()
        for one in lost:
            self.take_answers(client.lane.lost(one))
        self.pump(client)

    def lost_one_lands(self, choose: Choose) -> None:
        if self.lost:
            _, one = self.lost.pop(0)
            self.source.append(self.source.leader, one.producer[0], one.base_sequence)

    def time_passes(self, choose: Choose) -> None:
        self.now += choose([0.1, 0.3, 1.0, 1.0, 9.0])
        self.lost = [(since, one) for since, one in self.lost if since + GRACE > self.now]
        for client in self.clients:
            for one in [one for one, deadline in client.out.items() if deadline <= self.now]:
                if one in client.out:  # else: another one's end was its end too
                    waits = one.deferred is not None and not one.closed
                    self.take_answers(self.gate.give_up(one) if waits else client.lane.expire(one))
            self.pump(client)

    # The channel and the member

    def connect(self, choose: Choose) -> None:
        if not self.connected:
            self.connected = True
            self.say("welcome")
            if self.phase == "fenced":
                self.say("fence")
            elif self.phase == "handed over":
                self.say("handed over")
            else:
                self.say("unfence")
            self.say("go")

    def cut(self, choose: Choose) -> None:
        self.connected = self.welcomed = False
        self.owes_fence = None
        self.to_head.clear()
        self.to_member.clear()

    def say(self, what: str) -> None:
        if self.connected:
            self.to_member.append((what, self.fence_number))

    def renew(self, choose: Choose) -> None:
        if self.connected and self.welcomed:
            self.to_head.append(("renew", self.mine))

    def member_reads(self, choose: Choose) -> None:
        if not self.to_member:
            return
        what, value = self.to_member.popleft()
        if what == "go":
            self.welcomed = True
        elif what == "renewed":
            start = self.mine
            if self.held and self.mine < self.held[-1][1]:
                start = self.held.pop()[0]
            self.held.append((start, max(value + DURATION, self.port.lease.until)))
            self.proofs.append(value)
            self.port.lease.renewed(value, self.mine, DURATION)
            self.conclude(self.gate.renewed())
        elif what == "fence":
            self.fences.fence([TP])
            self.closings += 1
            self.conclude(self.gate.closed([TP]))
            self.owes_fence = value
        elif what == "unfence":
            self.owes_fence = None
            lanes = self.fences.unfence([TP])
            self.gate.opened([TP])
            for lane in lanes:
                self.pump(lane.queue[0].job)
        elif what == "handed over":
            self.owes_fence = None
            self.take_answers(self.fences.hand_over([TP]))
            self.closings += 1
            self.conclude(self.gate.closed([TP]))

    def member_acknowledges(self, choose: Choose) -> None:
        if self.connected and self.owes_fence is not None and not self.fences.pending([TP]):
            self.to_head.append(("fenced", self.owes_fence))
            self.owes_fence = None

    # The head

    def head_reads(self, choose: Choose) -> None:
        if not self.to_head:
            return
        what, value = self.to_head.popleft()
        if what == "renew":
            self.head_until = self.now + DURATION * DRIFT
            self.to_member.append(("renewed", value))
        elif value == self.fence_number:
            self.fence_acknowledged = True

    def head_fences(self, choose: Choose) -> None:
        if self.phase == "open":
            self.phase = "fenced"
            self.fence_number += 1
            self.fence_acknowledged = False
            self.say("fence")

    def head_aligns(self, choose: Choose) -> None:
        harmless = self.now >= self.head_until
        if self.phase == "fenced" and self.aligned is None and (self.fence_acknowledged or harmless):
            self.counts["harmless"] += not self.fence_acknowledged
            self.aligned = list(self.source.log)

    def head_hands_over(self, choose: Choose) -> None:
        if self.phase == "fenced" and self.aligned is not None:
            self.phase = "handed over"
            self.counts["handed over"] += 1
            self.say("handed over")

    def head_gives_up(self, choose: Choose) -> None:
        if self.phase == "fenced":
            self.phase, self.aligned = "open", None
            self.say("unfence")

    # What must hold after each of them

    def check(self) -> None:
        written = self.source.log if self.aligned is None else self.aligned
        assert set(self.told) <= set(written), "told to be written, and not in the log that is handed over"
        for client in self.clients:
            assert all(deadline > self.now for deadline in client.out.values()), "not answered in time"
            orders = [one.order for one in client.lane.in_flight]
            assert orders == sorted(orders)
            if client.producer != PLAIN:
                mine = [sequence for producer, sequence in self.source.log if producer == client.producer]
                assert mine == list(range(len(mine))), "out of order, or twice"

    def calm_down(self) -> None:
        """The source answers, time passes, the lease never comes back: a fence stands, nobody waits."""
        first: Choose = lambda options: options[0]  # noqa: E731
        self.cut(first)
        self.fences.fence([TP])
        self.closings += 1
        self.conclude(self.gate.closed([TP]))
        for _ in range(5):
            while any(client.requests or client.answers for client in self.clients):
                self.process(first)
                self.deliver(first)
            self.time_passes(lambda _: TIMEOUT)
            self.check()
        assert self.fences.pending([TP]) == {}
        assert len(self.gate) == 0
        for client in self.clients:
            assert not client.out
            assert client.lane.idle


EVENTS: dict[str, int] = {
    "produce": 20,
    "retry": 8,
    "process": 20,
    "deliver": 20,
    "connection_lost": 3,
    "lost_one_lands": 4,
    "time_passes": 6,
    "connect": 6,
    "cut": 2,
    "renew": 15,
    "head_reads": 16,
    "member_reads": 16,
    "member_acknowledges": 6,
    "head_fences": 1,
    "head_aligns": 4,
    "head_gives_up": 3,
    "head_hands_over": 2,
}


def run(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    world = World(slow=seed % 2 == 1)
    for name in rng.choices(list(EVENTS), list(EVENTS.values()), k=steps):
        getattr(world, name)(rng.choice)
        world.check()
    world.calm_down()
    return world


@pytest.mark.parametrize("block", range(4))
def test_many_long_stories(block: int) -> None:
    total: dict[str, int] = {}
    for seed in range(block * 250, (block + 1) * 250):
        try:
            world = run(seed, 600)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for what, count in world.counts.items():
            total[what] = total.get(what, 0) + count
    assert min(total.values()) > 10, f"the stories are too tame: {total}"


class Story(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(name=st.sampled_from(list(EVENTS)), data=st.data())
    def event(self, name: str, data: st.DataObject) -> None:
        getattr(self.world, name)(lambda options: data.draw(st.sampled_from(options)))

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.calm_down()


Story.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestStory = Story.TestCase
