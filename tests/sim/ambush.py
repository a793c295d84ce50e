"""Faults that come in the very moment in which a step of a switch is written down, with the brokers asleep that it needs.

At random they meet two steps in a row too seldom. It has its own stream of chance, so that stories without it stay the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from controller import keys
from controller.phases import HELD, LED_ELSEWHERE, SWITCHING, Phase
from tests.sim.cluster import REAL, Cluster
from tests.sim.faults import Faults
from tests.sim.sidecar import BACK, LINK
from tests.sim.store import STORE
from tests.sim.world import World
from wire.frames.types import TopicPartition

_COPIED = 12.0  # seconds within which copies that were lost are there again
_STEPS = HELD | LED_ELSEWHERE - {Phase.PROMOTED}


class Ambush(Faults):
    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world)
        self.rng = random.Random(f"ambush {seed}")
        self._rests_until = 0.0
        self._strikes = [
            (3.0, self.head_dies),
            (2.0, self.lose_seat),
            (1.0, self.crash),
            (1.5, self.head_hears_nothing),
            (1.5, self.store_trouble),
            (1.5, self.controller_trouble),
            (1.0, self.owner_dies),
            (1.0, self.owner_dies_again),
            (1.5, self.leader_dies),
            (1.0, self.copies_are_lost),
            (0.5, self.real_broker),
            (0.5, self.elections),
        ]

    def start(self) -> None:
        self.world.ambushed = True
        self.world.stepped = self.stepped
        self.world.loop.kernel(self.rng.uniform(0.5, 3.0), self._sleeper)

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        """The state of a partition was written, or removed."""
        now = self.world.loop.time()
        if state is not None and Phase(state["phase"]) not in _STEPS:
            return
        sent = state is not None and state["phase"] == Phase.VALIDATED
        if self.over or now < self._rests_until or self.rng.random() < (0.4 if sent else 0.8):
            return
        self._rests_until = now + self.rng.choice([0.05, 0.5, 1.5])
        self.world.note(f"ambush at {'the end of a mirror' if state is None else state['phase']}")
        if sent and self.rng.random() < 0.7:
            self.hand_over_is_late()
            return
        if state is None and self.rng.random() < 0.5:
            self.world.loop.kernel(0.02 * self.rng.random(), self._strike, self.lose_seat)
            return
        weights = [weight for weight, _ in self._strikes]
        strikes = [strike for _, strike in self._strikes]
        for strike in self.rng.choices(strikes, weights, k=self.rng.choice([1, 1, 2, 3])):
            self.world.loop.kernel(
                self.rng.choice([0.0, 0.02, 0.1, 0.5]) * self.rng.random(), self._strike, strike
            )

    def _strike(self, strike: Any) -> None:
        if not self.over:
            strike()

    def _sleeper(self) -> None:
        """A broker that follows no more for a while: it is out of the ISR, or its mirror waits for it."""
        if self.over:
            return
        seconds = self.rng.uniform(1.0, 6.0)
        cluster = self.rng.choice(self.world.clusters)
        cluster.replicas.lazy[self.rng.choice(REAL)] = self.world.loop.time() + seconds
        self.world.loop.kernel(self.rng.uniform(1.0, 5.0), self._sleeper)

    def peace(self) -> None:
        self.over = True

    # One by one.

    def head_dies(self) -> None:
        head = self._head()
        if head is not None:
            self.world.kill(head.broker_id)
            self.world.loop.kernel(self.rng.choice([0.02, 0.3, 2.0]), self._start, head.broker_id)

    def head_hears_nothing(self) -> None:
        """Of one of the clusters, or of the store."""
        head = self._head()
        if head is not None:
            there = self.rng.choice([STORE, *(cluster.name for cluster in self.world.clusters)])
            self._cut(str(head.broker_id), there, self.rng.choice([0.3, 1.0, 2.5]))

    def owner_dies(self) -> None:
        """All of the owner's brokers; none of them loses anything."""
        self._all_die(self.world.owner[self.world.tps[0]], unclean=False)

    def owner_dies_again(self) -> None:
        """A part of its partitions has been given back by then."""
        world = self.world
        self._all_die(world.owner[world.tps[0]], unclean=False, seconds=0.5)
        world.loop.kernel(self.rng.uniform(0.0, 0.8), self._strike, self.link_broker_stops)
        world.loop.kernel(self.rng.uniform(1.0, 4.0), self._strike, self.owner_dies)

    def link_broker_stops(self) -> None:
        """One that leads at the owner."""
        owner = self.world.owner[self.world.tps[0]]
        led = [owner.sidecar_at(owner.kraft.partitions[tp].leader) for tp in self.world.tps]
        there = [sidecar for one in led if (sidecar := self.world.sidecar_of(one)) is not None]
        if there:
            self._stop(self.rng.choice(there))

    def leader_dies(self) -> None:
        """One of the owner's: the next one leads under a new epoch."""
        owner = self.world.owner[self.world.tps[0]]
        leader = owner.kraft.partitions[self.rng.choice(self.world.tps)].leader
        if leader in REAL:
            owner.replicas.stop(leader, self.rng.uniform(0.1, 2.0), unclean=False)

    def hand_over_is_late(self) -> None:
        """What was sent lands when others have given it up."""
        owner = self.world.owner[self.world.tps[0]]
        there = next(cluster for cluster in self.world.clusters if cluster is not owner)
        there.alter_late, there.not_controller = 0.8, self.rng.choice([0.0, 0.4])
        loop = self.world.loop
        loop.kernel(self.rng.uniform(0.2, 3.0), self._controller_well)
        more = self.rng.choice([self.store_trouble, self.head_hears_nothing, self.head_dies, self.lose_seat])
        loop.kernel(self.rng.uniform(0.0, 1.5), self._strike, more)

    def copies_are_lost(self) -> None:
        """The end of every log that follows. It is no business of ours to survive this together with the death of all who
        have the records: so it comes while the owner's brokers are up and its end is written down, and they stay up until
        the copies are there again."""
        world = self.world
        owner = world.owner[world.tps[0]]
        back = BACK if owner is world.source else LINK
        if owner.replicas.down or not all(self._ends(back, tp) for tp in world.tps):
            return
        owner.replicas.spared_until = world.loop.time() + _COPIED
        self._all_die(next(cluster for cluster in world.clusters if cluster is not owner), unclean=True)

    def _ends(self, link: str, tp: TopicPartition) -> bool:
        node = self.world.store.data.nodes.get(keys.partition_state(link, tp))
        state = {} if node is None else json.loads(node[0])
        return state.get("phase") in SWITCHING and state.get("taken") is not None

    def _all_die(self, cluster: Cluster, *, unclean: bool, seconds: float = 4.0) -> None:
        for broker in self.rng.sample(REAL, len(REAL)):
            cluster.replicas.stop(broker, self.rng.uniform(0.1, seconds), unclean=unclean)
