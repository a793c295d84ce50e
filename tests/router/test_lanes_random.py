"""Random stories of producers, answers, cut connections, leader changes and fences against a dumb source.

``World`` is the story; hypothesis drives it to find a shortest failing one, and a seeded driver runs many
long ones.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.fence import FenceState, FenceTable
from router.produce.batch import Answer, Batch
from router.produce.lane_states import BatchState
from router.produce.lanes import Lane
from wire.frames.error_codes import (
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REQUEST_TIMED_OUT,
)
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)
GRACE = 3.0
PLAIN = -1
Choose = Callable[[Sequence[Any]], Any]
BRINGS_BACK = {NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS}
IN_FLIGHT = {BatchState.IN_FLIGHT, BatchState.BEHIND, BatchState.TOLD}


@dataclass
class Source:
    """A partition at the source: leadership and Kafka's sequence check, nothing else."""

    leader: int = 0
    short: bool = False  # of replicas in sync
    log: list[tuple[int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)

    def append(self, node: int, producer: int, sequence: int) -> int:
        if node != self.leader:
            return NOT_LEADER_OR_FOLLOWER
        if self.short:
            return NOT_ENOUGH_REPLICAS
        if producer != PLAIN and producer in self.last:
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
        self.requests: deque[Batch[Client]] = deque()
        self.answers: deque[tuple[Batch[Client], int]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self.requests or self.answers)


class Client:
    """A producer with up to 5 batches out. An idempotent one sends failed ones again, in order; a plain one
    drops them.
    """

    def __init__(self, producer: int, lane: Lane[Client]) -> None:
        self.producer = producer
        self.lane = lane
        self.links: dict[int, Link] = {}
        self.next_sequence = 0
        self.out: list[Batch[Client]] = []
        self.failed: set[int] = set()
        self.acked: list[int] = []

    def send(self, sequence: int, link: Link | None = None) -> None:
        """On that link at once, if there is one and nothing waits before it."""
        one = Batch(self, 0, memoryview(b"x"), self.producer, 0, sequence)
        self.out.append(one)
        if link is None or not self.lane.passes(one, link):
            self.lane.offer(one)
        else:
            self.lane.pass_on(one, link)
            others = [other for other in self.links.values() if other is not link and other.busy]
            assert not others, "in flight on two connections: the order is anybody's guess"
            link.requests.append(one)

    def take_answers(self, answers: Sequence[Answer[Client]]) -> None:
        for one, code in answers:
            assert one in self.out, "answered twice"
            self.out.remove(one)
            if code == 0:
                self.acked.append(one.base_sequence)
            else:
                assert code in BRINGS_BACK, "not the client's doing"
                if self.producer != PLAIN:
                    self.failed.add(one.base_sequence)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.source = Source()
        self.fences: FenceTable[Client] = FenceTable(lambda: self.now, GRACE)
        self.known_leader = 0
        self.clients = [Client(producer, self.fences.open_lane(TP)) for producer in (1, 2, PLAIN)]
        self.vanished: list[Client] = []
        self.producers = itertools.count(3)
        self.ghosts: list[
            tuple[float, int, deque[Batch[Client]]]
        ] = []  # in the queue of a broker, connection dead
        self.stands = False
        self.aligned_at: list[tuple[int, int]] = []
        #: Brokers that may lead: those of the source, then those of the target, whose log goes on where that one ended.
        self.nodes = [0, 1]

    def everyone(self) -> list[Client]:
        return self.clients + self.vanished

    def links(self) -> list[tuple[Client, Link]]:
        return [(client, link) for client in self.everyone() for link in client.links.values()]

    def pump(self, client: Client) -> None:
        link = client.links.setdefault(self.known_leader, Link(self.known_leader))
        while (one := client.lane.take(link)) is not None:
            others = [other for other in client.links.values() if other is not link and other.busy]
            assert not others, "in flight on two connections: the order is anybody's guess"
            link.requests.append(one)

    # What can happen; each takes what it needs from choose(), and does nothing where it does not apply.

    def produce(self, choose: Choose) -> None:
        client = choose(self.clients)
        for _ in range(choose([1, 2, 5])):
            if client.failed or len(client.out) >= 5:
                break
            at_once = choose([True, False])
            link = client.links.setdefault(self.known_leader, Link(self.known_leader))
            client.send(client.next_sequence, link if at_once else None)
            client.next_sequence += 1
        self.pump(client)

    def retry(self, choose: Choose) -> None:
        """In their order; one that has not been told of yet holds up those behind it."""
        client = choose(self.clients)
        for sequence in sorted(client.failed):
            if any(one.base_sequence < sequence for one in client.out):
                break
            client.send(sequence)
            client.failed.discard(sequence)
        self.pump(client)

    def process(self, choose: Choose) -> None:
        busy = [link for _, link in self.links() if link.requests]
        if busy:
            link = choose(busy)
            one = link.requests.popleft()
            link.answers.append((one, self.source.append(link.node, one.producer[0], one.base_sequence)))

    def deliver(self, choose: Choose) -> None:
        busy = [(client, link) for client, link in self.links() if link.answers]
        if busy:
            client, link = choose(busy)
            one, code = link.answers.popleft()
            if code == 0 and choose([True, False]) and client.lane.lands(one):
                client.lane.acknowledged(one)
                client.take_answers([(one, code)])
            else:
                client.take_answers(client.lane.answered(one, code))
            self.pump(client)

    def cut(self, choose: Choose) -> None:
        alive = [(client, link) for client, link in self.links() if link.busy]
        if not alive:
            return
        client, link = choose(alive)
        del client.links[link.node]
        if link.requests:
            self.ghosts.append((self.now, link.node, deque(link.requests)))
        for one in [one for one, _ in link.answers] + list(link.requests):
            client.take_answers(client.lane.lost(one))
        self.pump(client)

    def ghost_lands(self, choose: Choose) -> None:
        waiting = [ghost for ghost in self.ghosts if ghost[2]]
        if waiting:
            _, node, requests = choose(waiting)
            one = requests.popleft()
            self.source.append(node, one.producer[0], one.base_sequence)

    def elect(self, choose: Choose) -> None:
        self.source.leader = choose(self.nodes)

    def replicas(self, choose: Choose) -> None:
        self.source.short = choose([True, False, False])

    def refresh(self, choose: Choose) -> None:
        self.known_leader = self.source.leader
        for client in self.everyone():
            client.lane.wake()
            self.pump(client)

    def expire(self, choose: Choose) -> None:
        client = choose(self.clients)
        if client.out:
            client.take_answers(client.lane.expire(choose(client.out)))
            self.pump(client)

    def vanish(self, choose: Choose) -> None:
        client = choose(self.clients)
        client.lane.vanish()
        self.vanished.append(client)
        again = PLAIN if client.producer == PLAIN else next(self.producers)
        self.clients[self.clients.index(client)] = Client(again, self.fences.open_lane(TP))

    def time_passes(self, choose: Choose) -> None:
        self.now += choose([0.1, 1.0, 2.0])
        # A broker that lost a connection is done with its requests within the grace.
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] + GRACE > self.now]

    def fence(self, choose: Choose) -> None:
        if self.fences.state(TP) is None:
            self.fences.fence([TP])

    def fence_stands(self, choose: Choose) -> None:
        if self.fences.state(TP) is FenceState.FENCED and not self.stands and not self.fences.pending([TP]):
            self.stands = True
            self.aligned_at = list(self.source.log)

    def give_up_source(self, choose: Choose) -> None:
        """A failover has begun; it is abandoned by `unfence`. Nobody is told success by what was in flight."""
        if self.fences.state(TP) is not FenceState.FENCED:
            return
        for one, code in self.fences.cut([TP]):
            assert code in (NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT)
            if one.job not in self.vanished:
                one.job.take_answers([(one, code)])

    def unfence(self, choose: Choose) -> None:
        self.stands = False
        for lane in self.fences.unfence([TP]):
            lane.wake()
        for client in self.everyone():
            self.pump(client)

    def hand_over_and_back(self, choose: Choose) -> None:
        if not self.stands:
            return
        for one, code in self.fences.hand_over([TP]):
            assert code == NOT_LEADER_OR_FOLLOWER
            one.job.take_answers([(one, code)])
        assert all(not client.out for client in self.clients)
        self.unfence(choose)

    def carry(self, choose: Choose) -> None:
        """Real brokers lead, and what was held goes on to them. Late requests of dead connections are the old nodes'."""
        if not self.stands:
            return
        assert self.fences.carry([TP]) == [TP]
        self.stands = False
        self.nodes = [node + 2 for node in self.nodes]
        self.source.leader = self.known_leader = self.nodes[0]
        for client in self.everyone():
            client.lane.wake()
            self.pump(client)

    def carried_enough(self, choose: Choose) -> None:
        """Clients are sent away; as producers of a mirror that is made anew they come back with what went wrong."""
        if self.fences.state(TP) is not FenceState.CARRIED:
            return
        assert self.fences.hand_over([TP]) == []
        for client in self.clients:
            if choose([True, False]):  # it has to be sent again, or nobody can be reached
                client.take_answers(client.lane.refuse(NOT_LEADER_OR_FOLLOWER))
        self.unfence(choose)

    # What must hold after each of them

    def check(self) -> None:
        if self.stands:
            assert self.source.log == self.aligned_at, "a write landed behind a standing fence"
        for client in self.everyone():
            for line, states in (
                (client.lane.queue, {BatchState.QUEUED}),
                (client.lane.in_flight, IN_FLIGHT),
            ):
                orders = [one.order for one in line]
                assert orders == sorted(orders)
                assert {one.state for one in line} <= states
            if client.producer != PLAIN:
                mine = [sequence for producer, sequence in self.source.log if producer == client.producer]
                assert mine == list(range(len(mine))), "out of order, or twice"
                assert set(client.acked) <= set(mine), "acknowledged and lost"
                assert len(set(client.acked)) == len(client.acked)

    def calm_down(self) -> None:
        """Quiet weather: everything must end acknowledged."""
        first: Choose = lambda options: options[0]  # noqa: E731
        self.source.short = False
        if self.fences.state(TP) is not None:
            self.unfence(first)
        for _ in range(60):
            self.refresh(first)
            for client in self.clients:
                self.retry(lambda _, client=client: client)  # type: ignore[misc]
            while any(link.busy for _, link in self.links()):
                self.process(first)
                self.deliver(first)
            if not any(client.out or client.failed for client in self.clients):
                break
        for client in self.everyone():
            assert client.lane.idle
        for client in self.clients:
            if client.producer != PLAIN:
                assert len(client.acked) == client.next_sequence
        self.check()


EVENTS: dict[str, int] = {
    "produce": 20,
    "retry": 8,
    "process": 20,
    "deliver": 20,
    "cut": 4,
    "ghost_lands": 5,
    "elect": 3,
    "replicas": 4,
    "refresh": 8,
    "expire": 2,
    "vanish": 2,
    "time_passes": 3,
    "fence": 3,
    "fence_stands": 6,
    "give_up_source": 1,
    "unfence": 1,
    "hand_over_and_back": 1,
    "carry": 4,
    "carried_enough": 3,
}


def run(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    world = World()
    for name in rng.choices(list(EVENTS), list(EVENTS.values()), k=steps):
        getattr(world, name)(rng.choice)
        world.check()
    world.calm_down()


@pytest.mark.parametrize("block", range(4))
def test_many_long_stories(block: int) -> None:
    for seed in range(block * 150, (block + 1) * 150):
        try:
            run(seed, 200)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


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


Story.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestStory = Story.TestCase
