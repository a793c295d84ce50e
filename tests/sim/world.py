"""Who is there, and what must hold at every moment.

a  who acknowledges: a record that a sidecar acknowledged is in the log of whoever owns the partition, at the hand-over
   and afterwards
b  epochs and versions only grow; nothing that a fenced controller or an old decision wrote is visible
c  at the hand-over every target replica equals the source's log, up to an end no reading has shown to be exceeded
d  one owner: no broker of the side that does not own a partition leads it, or could be elected
e  with the faults over, everything settles
f  nobody acknowledges without a lease that covers the write, or a proof that is younger than it
g  what a sidecar carries to a new leader is there
h  one history: what was committed once stays, at whichever side, in its order
i  in sync, nothing is acknowledged that a replica of the mirror lacks
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controller import keys
from controller.alter_partition import AlterPartitionItem
from controller.decide.reverse import create_reverse
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from fleet.stored_controller import StoredController
from tests.controller.kraft_model import Image
from tests.sim.cluster import KRAFT, MIN_INSYNC, SOURCE, UNCLEAN, Cluster
from tests.sim.loop import Process, SimLoop
from tests.sim.network import Network
from tests.sim.place import Place
from tests.sim.replicas import common
from tests.sim.seen import Metadata
from tests.sim.sidecar import BACK, LINK, Sidecar, first_identity
from tests.sim.store import StoreClient, StoreServer
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.directed import Fate

#: By topic: its id at the target and at the source.
TOPIC_IDS = {"t": (b"\x07" * 16, b"\x09" * 16), "u": (b"\x08" * 16, b"\x0a" * 16)}
#: As the topic is configured at its source.
CONFIGS = {MIN_INSYNC: "2"}


@dataclass(frozen=True)
class Broken:
    """An invariant that does not hold, since when, and all that was noted until then."""

    what: str
    at: float
    trace: list[str]

    def __str__(self) -> str:
        return f"{self.what} (at {self.at:.3f} s)"


class World:
    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        *,
        ignore: str = "",
        switching: bool = False,
        partitions: int | None = None,
        waves: bool = False,
    ) -> None:
        """`switching`: sidecars join the source, and the topic is switched there and back; else it is promoted.
        `partitions`: of the topic; None: by chance. `waves`: there are two topics, one after the other."""
        self.loop = loop
        self.switching = switching
        self.ignore = ignore  # invariants that are not judged
        rng = random.Random(seed)
        # One stream for each, so that what one of them draws does not change what another does.
        self.rng_faults, self.rng_store, self.rng_target, self.rng_source, self.rng_clients, net = (
            random.Random(rng.random()) for _ in range(6)
        )
        self.sidecar_ids = (900, 901, 902)
        by_chance = rng.choice([1, 1, 2, 3])
        self.rng_waves = random.Random(f"waves {seed}")
        sizes = {"t": partitions or by_chance}
        if waves:
            sizes["u"] = self.rng_waves.choice([1, 1, 2])
        self.topics = tuple(sizes)
        self.tps = [TopicPartition(topic, index) for topic, size in sizes.items() for index in range(size)]
        self.trace: list[str] = []
        self.failure: Broken | None = None
        self.network = Network(loop, net)
        self.epochs: list[int] = [1]
        self.sidecars: dict[int, Sidecar] = {}
        self.lives: dict[int, list[str]] = {broker: [] for broker in self.sidecar_ids}
        self.everybody: list[Process] = []
        self.lag_until: dict[str, float] = {}
        self.acked: dict[TopicPartition, set[str]] = {tp: set() for tp in self.tps}
        #: What was committed, at whoever owned the partition.
        self.truth: dict[TopicPartition, list[str]] = {tp: [] for tp in self.tps}
        #: The log of a partition that was taken over, up to where it ended then.
        self.taken: dict[tuple[TopicPartition, int], list[str]] = {}
        self.hand_overs = 0
        #: The topics that are to be switched.
        self.asked = frozenset(self.topics)
        self.alive_since: dict[tuple[str, int], float] = {}
        there = {sidecar: sidecar - 100 for sidecar in self.sidecar_ids} if switching else {}
        self.source = Cluster(self, SOURCE, LINK, self._ids(1), there, self.rng_source)
        here = {sidecar: sidecar for sidecar in self.sidecar_ids}
        self.target = Cluster(self, KRAFT, "", self._ids(0), here, self.rng_target)
        self.owner: dict[TopicPartition, Cluster] = dict.fromkeys(self.tps, self.source)
        self.store = StoreServer(self)
        self.ended = asyncio.Event()
        self.rng_carried = random.Random(rng.random())
        self.acks = 0
        self.carries = 0
        #: Nobody moves replicas then. Those of the model get records whose leader epoch is not written down, which a sidecar
        #: does not give them; one that finds the end of a log would find it behind such records.
        self.ambushed = False
        #: What becomes of an AlterPartition, where a directed story says it.
        self.fate: Callable[[Cluster, Sequence[AlterPartitionItem]], Fate | None] | None = None
        #: Told of each state of a partition that is written, or None when one is removed.
        #: Of a directed story: for how long the question of where a cluster's metadata log ends is on its way.
        self.held: Callable[[Cluster], float] | None = None
        self.stepped: Callable[[Mapping[str, Any] | None], None] | None = None
        self.last_ack: dict[TopicPartition, float] = dict.fromkeys(self.tps, 0.0)

    # Who is there.

    def _ids(self, at: int) -> dict[str, bytes]:
        return {topic: TOPIC_IDS[topic][at] for topic in self.topics}

    async def begin(self) -> None:
        links = self.sidecar_ids
        self.target.start({tp: [*links[tp.partition :], *links[: tp.partition]] for tp in self.tps})
        for tp in self.tps:
            assert self.target.kraft.reassign(tp, self.targets(tp)) == 0
        self.source.start({tp: self.sources(tp) for tp in self.tps})
        for topic in self.topics:
            self.source.set_configs(topic, CONFIGS)
            self.target.set_configs(topic, {UNCLEAN: "false"})
        for cluster in self.clusters:
            cluster.begin()
        controller = await StoredController.open(self.store.data, now=lambda: 0)
        await controller.create_link(LINK, "source", {})
        if self.switching:
            image = controller.image
            reverse = create_reverse(image, image.links[LINK], "cluster", 0)
            await controller.decide(lambda _: (reverse, None))
        for topic in self.topics:
            tps = [tp for tp in self.tps if tp.topic == topic]
            mirror = MirrorTopic(
                link=LINK,
                topic=topic,
                topic_id=self.target.topic_ids[topic],
                source_topic_id=None,
                partitions=len(tps),
                target_replicas=tuple(self.targets(tp) for tp in tps),
                restore_configs={UNCLEAN: None},
            )
            await controller.create_mirror(mirror, [self._first_state(tp) for tp in tps])
        for broker in self.sidecar_ids:
            await controller.save_identity(first_identity(self, broker))
            self.lives[broker].append(f"{broker}.0")
            self.start(broker)

    def _first_state(self, tp: TopicPartition) -> MirrorPartition:
        partition = self.target.kraft.partitions[tp]
        return MirrorPartition(
            link=LINK,
            topic=tp.topic,
            partition=tp.partition,
            phase=Phase.ACTIVE,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=partition.isr,
            session_epoch=0,
            start_offset=0,
            source_epochs=((0, 0),),
        )

    def start(self, broker: int) -> None:
        lives = self.lives[broker]
        sidecar = Sidecar(self, broker, len(lives), lives)
        lives.append(sidecar.session)
        self.sidecars[broker] = sidecar
        self.everybody.append(sidecar.process)
        self.note(f"{broker}: process {sidecar.session} starts")
        sidecar.start()

    def kill(self, broker: int) -> None:
        sidecar = self.sidecars.get(broker)
        if sidecar is not None:
            self.note(f"{broker}: process {sidecar.session} dies")
            sidecar.process.dead = True
            del self.sidecars[broker]
            self.network.died(sidecar.process)

    def targets(self, tp: TopicPartition) -> tuple[int, ...]:
        return (1, 2) if tp.partition % 2 == 0 else (2, 1)

    def sources(self, tp: TopicPartition) -> tuple[int, ...]:
        return (1, 2, 3) if tp.partition % 2 == 0 else (3, 1, 2)

    @property
    def clusters(self) -> tuple[Cluster, Cluster]:
        return self.target, self.source

    def owned(self, tp: TopicPartition) -> bool:
        """By the target."""
        return self.owner[tp] is self.target

    def may_land(self, tp: TopicPartition) -> bool:
        """A hand-over to the target is written down."""
        node = self.store.data.nodes.get(keys.partition_state(LINK, tp))
        return node is not None and json.loads(node[0])["phase"] == Phase.VALIDATED

    def clients(self) -> list[StoreClient]:
        return [sidecar.store for sidecar in self.sidecars.values()]

    def views(self, cluster: Cluster) -> list[Metadata]:
        places = [place for sidecar in self.sidecars.values() for place in sidecar.places.values()]
        return [place.seen.metadata for place in places if place.cluster is cluster]

    def processes(self) -> Mapping[int, Process]:
        """The newest life of each."""
        return {int(process.name): process for process in self.everybody}

    def sidecar_of(self, broker: int) -> Sidecar | None:
        return self.sidecars.get(broker)

    def listening(self, broker: int) -> Sidecar:
        sidecar = self.sidecars.get(broker)
        if sidecar is None:
            raise LinkerError("connection refused")
        return sidecar

    def metadata_lag(self) -> float:
        return self.rng_target.choice([0.0, 0.0, 0.0, 0.05, 0.4])

    # What is seen.

    def note(self, what: str) -> None:
        self.trace.append(f"{self.loop.time():9.3f} {what}")

    def broken(self, what: str) -> None:
        if self.failure is None and what[0] not in self.ignore:
            self.note(f"BROKEN {what}")
            self.failure = Broken(what, self.loop.time(), self.trace)
            self.ended.set()

    def acknowledged(self, place: Place, tp: TopicPartition, record: str, term: int, arrived: float) -> None:
        """A client is told by a sidecar that its record is there for good. `term`: of the lease, when it was sent."""
        self.acks += 1
        self.last_ack[tp] = self.loop.time()
        name, owner = place.process.name, self.owner[tp]
        if record not in self.truth[tp] and record not in place.owner.replicas.history(tp):
            self.broken(f"a: {record} was acknowledged and is not even at the source")
        if owner is place.cluster and not all(record in log for log in owner.replicas.held(tp).values()):
            self.broken(f"a: {name} acknowledged {record}, which is missing in the log of {tp}'s new owner")
        if not place.sidecar.watched.allows(term, arrived, place.process.clock()):
            self.broken(f"f: {name} acknowledged {record} of {tp} without a lease")
        self.acked[tp].add(record)

    def carried(self, place: Place, tp: TopicPartition, record: str) -> None:
        """A client is told by a sidecar what a new leader said."""
        self.carries += 1
        self.last_ack[tp] = self.loop.time()
        if self.owner[tp] is not place.cluster or record not in self.truth[tp]:
            self.broken(f"g: {place.process.name} carried {record} of {tp}, and its new owner has not got it")
        self.acked[tp].add(record)

    def written(self, tp: TopicPartition, record: str) -> None:
        """A client is told by a broker that leads."""
        self.last_ack[tp] = self.loop.time()
        self.acked[tp].add(record)

    def committed(self, cluster: Cluster, tp: TopicPartition, log: list[str]) -> None:
        if cluster is not self.owner[tp]:
            return
        committed, truth = cluster.replicas.committed[tp], self.truth[tp]
        most = min(committed, len(truth))
        if log[:most] != truth[:most]:
            self.broken(f"h: what was committed in {tp} is another history now")
        truth += log[len(truth) : committed]

    def elected(self, cluster: Cluster, tp: TopicPartition, log: list[str]) -> None:
        """One of the cluster's own brokers leads."""
        if cluster is self.owner[tp] and log[: len(self.truth[tp])] != self.truth[tp]:
            self.broken(f"h: {cluster.name} elects a leader of {tp} without what was committed")

    def truncated(self, cluster: Cluster, tp: TopicPartition, broker: int, log: list[str], keep: int) -> None:
        """A link broker has told one of the cluster's own brokers that its log parts from it there."""
        if cluster is self.owner[tp] and keep < (most := common(log, self.truth[tp])):
            self.broken(
                f"h: broker {broker} truncates {tp} to {keep}, and {most} records of its log are committed"
            )

    def frozen(self, tp: TopicPartition, end: int, log: list[str] | None) -> None:
        """A link broker has followed to the end of what it may lead, and each replica of the mirror has it."""
        if log is not None:
            self.taken[tp, end] = log[:end]

    def told(self, place: Place, tp: TopicPartition, log: list[str]) -> None:
        """A link broker asks the owner's leader for what comes after this."""
        if place.there.broker_id not in place.owner.kraft.partitions[tp].isr:
            return  # no acknowledgement waits for it: one that is cut off goes on telling what it told before
        now, listed = self.loop.time(), place.replicas_of(tp)
        for broker, held in place.cluster.replicas.held(tp).items():
            if broker not in listed:
                continue  # somebody has just added it, and the state does not say so yet
            since = self.alive_since.get((place.cluster.name, broker), 0.0)
            if place.cluster.kraft.active(broker) and now - since > 1.0 and held[: len(log)] != log:
                self.broken(f"i: {place.process.name} tells {len(log)} of {tp}, which broker {broker} lacks")

    def cluster_changed(self, cluster: Cluster, before: Image, now: Image) -> None:
        for broker in cluster.real:
            if now.brokers[broker] != before.brokers.get(broker):
                self.alive_since[cluster.name, broker] = self.loop.time()
        for tp in self.tps:
            partition = now.topics_by_name[tp.topic].partitions[tp.partition]
            if partition != before.topics_by_name[tp.topic].partitions[tp.partition]:
                self.note(
                    f"{cluster.name}: {tp} leader {partition.leader}/{partition.leader_epoch} isr {partition.isr} "
                    f"replicas {partition.replicas} +{partition.adding} -{partition.removing} "
                    f"epoch {partition.partition_epoch} elr {partition.elr}"
                )
            if self.owner[tp] is cluster:
                continue
            if not set(partition.replicas) & set(cluster.links.values()):
                if cluster is self.target or self.switching:
                    self._handed_over(cluster, tp, partition.leader)
            elif cluster.electable(tp):
                self.broken(f"d: {tp} has ISR {partition.isr} at {cluster.name} before its hand-over")

    def _handed_over(self, cluster: Cluster, tp: TopicPartition, leader: int) -> None:
        left, truth, logs = self.owner[tp], self.truth[tp], cluster.replicas.held(tp)
        self.owner[tp] = cluster
        self.hand_overs += 1
        self.note(
            f"{tp} is handed over to {cluster.name} at { ({b: len(log) for b, log in logs.items()}) }; "
            f"committed {len(truth)}"
        )
        if self.switching and (others := left.electable(tp)):
            self.broken(f"d: {tp} has two owners: {others} of {left.name} can be elected")
        link = LINK if cluster is self.target else BACK
        text, _ = self.store.data.nodes[keys.partition_state(link, tp)]
        state = json.loads(text)
        end = state["aligned_end"]
        if state["phase"] != Phase.VALIDATED or end is None:
            self.broken(f"c: {tp} was handed over in {state['phase']}, aligned at {end}")
            return
        if not self.switching:
            # Nobody keeps others from writing to the source after its last reading: they are told of, not moved.
            del truth[end:]
        cluster.replicas.committed[tp] = len(truth)
        for broker, log in logs.items():
            if log[: len(truth)] != truth or len(log) < end:
                self.broken(f"c: broker {broker} is at {len(log)} of {tp}, which was aligned at {end}")
        if not self.switching and end < left.shown[tp]:
            self.broken(f"c: {tp} was aligned at {end}; the source had shown {left.shown[tp]}")
        missing = self.acked[tp].difference(logs[leader])
        if missing:
            self.broken(f"a: {tp} was handed over without {sorted(missing)[:3]}, which were acknowledged")

    def judge_end(self) -> None:
        for tp in self.tps:
            log = self.owner[tp].replicas.leader_log(tp)
            if log is None:
                self.broken(f"e: {tp} has no leader")
                continue
            if log[: len(self.truth[tp])] != self.truth[tp]:
                self.broken(f"h: {tp} has lost what was committed")
            missing = self.acked[tp].difference(log)
            if missing:
                self.broken(f"a: {sorted(missing)[:3]} of {tp} were acknowledged and are gone")
            if len(set(log)) < len(log):
                self.broken(f"a: a record of {tp} is there twice")
