"""A cluster: KRaft's rules (tests.controller.kraft_model) and its own brokers' logs. There are two of them, alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from controller.judge.alignment import SourceEnd
from tests.controller.kraft_model import Image, Kraft, Partition
from tests.sim.loop import Process
from tests.sim.replicas import Replicas
from wire.errors import LinkerError
from wire.frames.error_codes import NONE, NOT_LEADER_OR_FOLLOWER
from wire.frames.types import TOPIC_RESOURCE, TopicPartition

if TYPE_CHECKING:
    from tests.sim.world import World

KRAFT, SOURCE = "kraft", "source"
SESSION_TIMEOUT = 1.2
REAL = (1, 2, 3)
MIN_INSYNC = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
_TICK = 0.2


class Cluster:
    """`name`: of its controller in the network. `at`: as `Link.at`. `links`: the broker that each sidecar is in it."""

    def __init__(
        self,
        world: World,
        name: str,
        at: str,
        ids: Mapping[str, bytes],
        links: Mapping[int, int],
        rng: random.Random,
    ) -> None:
        self.world = world
        self.name = name
        self.at = at
        self.topic_ids = ids
        self.links = links
        self.rng = rng
        self.real = REAL
        self.kraft = Kraft(min_isr_of=lambda partition: self.min_isr(self._tp(partition)))
        self.configs: dict[str, dict[str, str]] = {topic: {} for topic in ids}
        self.version = 0
        self.replicas = Replicas(self)
        self.image = self._image()
        self.heard: dict[int, float] = {}
        # Probabilities of what becomes of a request.
        self.alter_late = self.alter_doubled = self.not_controller = 0.0
        #: The highest end that any reading has shown.
        self.shown: dict[TopicPartition, int] = dict.fromkeys(world.tps, 0)
        self.slow_until: dict[str, float] = {}  # by process name: its writes take seconds

    def start(self, assignments: Mapping[TopicPartition, Sequence[int]]) -> None:
        kraft = self.kraft
        for broker in (*self.real, *self.links.values()):
            kraft.register(broker)
        for topic, topic_id in self.topic_ids.items():
            of = {tp.partition: list(replicas) for tp, replicas in assignments.items() if tp.topic == topic}
            kraft.create(topic, topic_id, of)

    def begin(self) -> None:
        """All is as a story begins with."""
        self.image = self._image()
        self.kraft.changed = self._changed
        if self.world.switching:
            self.kraft.unclean = self._elects_unclean
        for tp, partition in self.kraft.partitions.items():
            self.replicas.changed(tp, partition)
        self._tick()
        self.replicas.start()

    def _image(self) -> Image:
        return replace(
            self.kraft.image(),
            configs={(TOPIC_RESOURCE, topic): dict(configs) for topic, configs in self.configs.items()},
            offset=self.version,
            changes=self.version,
        )

    def _changed(self) -> None:
        self.version += 1
        version, image = self.version, self._image()
        before, self.image = self.image, image
        for tp, partition in self.kraft.partitions.items():
            if partition != before.topics_by_name[tp.topic].partitions.get(tp.partition):
                self.replicas.changed(tp, partition)
        self.world.cluster_changed(self, before, image)
        network = self.world.network
        for view in self.world.views(self):
            network.deliver(
                self.name,
                view.process.name,
                lambda view=view: view.process.call(view.saw, version, image),  # type: ignore[misc]
                network.delay() + self.world.metadata_lag(),
            )

    def sidecar_at(self, broker: int) -> int:
        return next((sidecar for sidecar, there in self.links.items() if there == broker), -1)

    def partition(self, tp: TopicPartition) -> Partition:
        return self.kraft.partitions[tp]

    def electable(self, tp: TopicPartition) -> set[int]:
        """Its own brokers that lead or may come to lead."""
        partition = self.kraft.partitions[tp]
        return set(self.real).intersection((*partition.isr, *partition.elr, *partition.last_known_elr))

    def _elects_unclean(self, partition: Partition) -> bool:
        """The default of its brokers. Left out where it owns the partition and nothing is taken over: it loses then what it
        loses without sidecars, too."""
        tp = self._tp(partition)
        if self.electable(tp) or self.configs[tp.topic].get(UNCLEAN) == "false":
            return False
        return self.world.owner[tp] is not self or self.min_isr(tp) == 1

    def _tp(self, partition: Partition) -> TopicPartition:
        return next(tp for tp, one in self.kraft.partitions.items() if one is partition)

    def min_isr(self, tp: TopicPartition) -> int:
        return int(self.configs[tp.topic].get(MIN_INSYNC, "1"))

    def _tick(self) -> None:
        """Heartbeats and sessions of the link brokers."""
        now, network = self.world.loop.time(), self.world.network
        for sidecar, process in self.world.processes().items():
            broker = self.links.get(sidecar)
            if broker is None:
                continue
            if process.runs and network.both(process.name, self.name):
                self.heard[broker] = now
                if self.kraft.brokers[broker].fenced:
                    self.kraft.unfence(broker)
            elif now - self.heard.get(broker, 0.0) > SESSION_TIMEOUT:
                self.kraft.fence(broker)
        self.replicas.look_after_isr()
        self.world.loop.kernel(_TICK, self._tick)

    def alter_isr(self, tp: TopicPartition, isr: tuple[int, ...]) -> None:
        """What a leader of its own asks for."""
        partition = self.kraft.partitions[tp]
        built = self.kraft._build(partition, self.kraft.active, target_isr=isr)
        if built is not None:
            self.kraft._put(tp, built)
            self.kraft.changed()

    def set_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        configs = self.configs[topic]
        for name, value in changes.items():
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = value
        self.kraft.changed()

    # Clients.

    def write(
        self, process: Process, tp: TopicPartition, record: str, answered: Callable[[int | None], None]
    ) -> Callable[[], None]:
        """At whoever leads. Returns what breaks the connection: then answered(None), and the write may land yet."""
        network, loop = self.world.network, self.world.loop
        slow = self.rng.uniform(0, 4.5) if self.slow_until.get(process.name, 0.0) > loop.time() else 0.0
        state = {"over": False, "dropped": False}
        leader = self.image.topics_by_name[tp.topic].partitions[tp.partition].leader

        def settle(code: int | None) -> None:
            if not state["over"]:
                state["over"] = True
                process.call(answered, code)

        def told(code: int) -> None:
            network.deliver(self.name, process.name, lambda: settle(code), network.delay())

        def arrive() -> None:
            if not state["dropped"]:
                self.replicas.produce(tp, leader, record, told)

        def lost() -> None:
            if not state["over"]:
                state["dropped"] = self.rng.random() < 0.4
                settle(None)

        network.deliver(process.name, self.name, arrive, network.delay() + slow)
        loop.kernel(6.0, lost)
        return lost

    def append(self, tp: TopicPartition, record: str) -> None:
        """Of somebody who does not ask what became of it."""
        self.replicas.produce(tp, self.kraft.partitions[tp].leader, record, lambda _code: None)

    async def ends(
        self, process: Process, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        def read() -> dict[TopicPartition, SourceEnd]:
            found = {}
            for tp in tps:
                log = self.replicas.leader_log(tp)
                if log is None:
                    raise LinkerError(f"{tp} has no leader that tells")
                committed = self.replicas.committed[tp]
                found[tp] = SourceEnd(len(log), committed, committed)
            return found

        found = await self.world.network.request(process.name, self.name, read, timeout)
        for tp, end in found.items():
            self.shown[tp] = max(self.shown[tp], end.log_end_offset)
        return found


__all__ = ["KRAFT", "NONE", "NOT_LEADER_OR_FOLLOWER", "REAL", "SOURCE", "Cluster"]
