"""Who is there, and what must hold at every moment.

a  who acknowledges: a record that a sidecar acknowledged is in the log of whoever owns the partition, at the hand-over
   and afterwards
b  epochs and versions only grow; nothing that a fenced controller or an old decision wrote is visible
c  at the hand-over every target replica equals the source's log, up to an end no reading has shown to be exceeded
d  no real broker in an ISR before the hand-over
e  with the faults over, everything settles
f  nobody acknowledges without a lease that covers the write, or a proof that is younger than it
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass

from controller import keys
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from fleet.stored_controller import StoredController
from tests.controller.kraft_model import Image
from tests.sim.loop import Process, SimLoop
from tests.sim.network import Network
from tests.sim.sidecar import LINK, Sidecar, first_identity
from tests.sim.source import Source
from tests.sim.store import StoreClient, StoreServer
from tests.sim.target import TOPIC_ID, Metadata, Target
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


@dataclass(frozen=True)
class Broken:
    """An invariant that does not hold, since when, and all that was noted until then."""

    what: str
    at: float
    trace: list[str]

    def __str__(self) -> str:
        return f"{self.what} (at {self.at:.3f} s)"


class World:
    def __init__(self, loop: SimLoop, seed: int, *, ignore: str = "") -> None:
        self.loop = loop
        self.ignore = ignore  # invariants that are not judged
        rng = random.Random(seed)
        # One stream for each, so that what one of them draws does not change what another does.
        self.rng_faults, self.rng_store, self.rng_target, self.rng_source, self.rng_clients, net = (
            random.Random(rng.random()) for _ in range(6)
        )
        self.sidecar_ids = (900, 901, 902)
        self.tps = [TopicPartition("t", index) for index in range(rng.choice([1, 1, 2, 3]))]
        self.trace: list[str] = []
        self.failure: Broken | None = None
        self.network = Network(loop, net)
        self.epochs: list[int] = [1]
        self.sidecars: dict[int, Sidecar] = {}
        self.lives: dict[int, list[str]] = {broker: [] for broker in self.sidecar_ids}
        self.everybody: list[Process] = []
        self.lag_until: dict[str, float] = {}
        self.acked: dict[TopicPartition, set[str]] = {tp: set() for tp in self.tps}
        self.owned: dict[TopicPartition, bool] = dict.fromkeys(self.tps, False)
        self.ended_at: dict[TopicPartition, int] = {}
        self.source = Source(self)
        self.target = Target(self)
        self.store = StoreServer(self)
        self.ended = asyncio.Event()
        self.rng_carried = random.Random(rng.random())
        self.acks = 0
        self.carries = 0
        self.last_ack: dict[TopicPartition, float] = dict.fromkeys(self.tps, 0.0)

    # Who is there.

    async def begin(self) -> None:
        self.target.start()
        controller = await StoredController.open(self.store.data, now=lambda: 0)
        await controller.create_link(LINK, "source", {})
        mirror = MirrorTopic(
            link=LINK,
            topic="t",
            topic_id=TOPIC_ID,
            source_topic_id=None,
            partitions=len(self.tps),
            target_replicas=tuple(self.targets(tp) for tp in self.tps),
            restore_configs={"unclean.leader.election.enable": None},
        )
        states = []
        for tp in self.tps:
            partition = self.target.kraft.partitions[tp]
            states.append(
                MirrorPartition(
                    link=LINK,
                    topic="t",
                    partition=tp.partition,
                    phase=Phase.ACTIVE,
                    leader=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    isr=partition.isr,
                    session_epoch=0,
                    start_offset=0,
                )
            )
        await controller.create_mirror(mirror, states)
        for broker in self.sidecar_ids:
            await controller.save_identity(first_identity(broker))
            self.lives[broker].append(f"{broker}.0")
            self.start(broker)

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

    def clients(self) -> list[StoreClient]:
        return [sidecar.store for sidecar in self.sidecars.values()]

    def views(self) -> list[Metadata]:
        return [sidecar.target.metadata for sidecar in self.sidecars.values()]

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

    def acknowledged(
        self, sidecar: Sidecar, tp: TopicPartition, record: str, term: int, arrived: float
    ) -> None:
        """A client is told by a sidecar that its record is there for good. `term`: of the lease, when it was sent."""
        self.acks += 1
        self.last_ack[tp] = self.loop.time()
        if record not in self.source.ids[tp]:
            self.broken(f"a: {record} was acknowledged and is not even at the source")
        if self.owned[tp] and not all(record in log for log in self.target.held(tp).values()):
            self.broken(
                f"a: {sidecar.process.name} acknowledged {record}, which is missing in the log of {tp}'s new owner"
            )
        if not sidecar.watched.allows(term, arrived, sidecar.process.clock()):
            self.broken(f"f: {sidecar.process.name} acknowledged {record} of {tp} without a lease")
        self.acked[tp].add(record)

    def carried(self, sidecar: Sidecar, tp: TopicPartition, record: str) -> None:
        """A client is told by a sidecar what a new leader said."""
        self.carries += 1
        self.last_ack[tp] = self.loop.time()
        if not self.owned[tp] or not all(record in log for log in self.target.held(tp).values()):
            self.broken(
                f"g: {sidecar.process.name} carried {record} of {tp}, and its new owner has not got it"
            )
        self.acked[tp].add(record)

    def target_changed(self, before: Image, now: Image) -> None:
        for tp in self.tps:
            partition = now.topics_by_name["t"].partitions[tp.partition]
            if partition != before.topics_by_name["t"].partitions[tp.partition]:
                self.note(
                    f"kraft: {tp} leader {partition.leader}/{partition.leader_epoch} isr {partition.isr} "
                    f"replicas {partition.replicas} +{partition.adding} -{partition.removing} "
                    f"epoch {partition.partition_epoch}"
                )
            if self.owned[tp]:
                continue
            if not set(partition.replicas) & set(self.sidecar_ids):
                self._handed_over(tp, partition.leader)
            elif any(broker not in self.sidecar_ids for broker in partition.isr):
                self.broken(f"d: {tp} has ISR {partition.isr} before its hand-over")

    def _handed_over(self, tp: TopicPartition, leader: int) -> None:
        self.owned[tp] = True
        source, logs = self.source.logs[tp], self.target.held(tp)
        self.note(
            f"{tp} is handed over at { ({b: len(log) for b, log in logs.items()}) }; source at {len(source)}"
        )
        text, _ = self.store.data.nodes[keys.partition_state(LINK, tp)]
        state = json.loads(text)
        end = state["aligned_end"]
        if state["phase"] != Phase.VALIDATED or end is None:
            self.broken(f"c: {tp} was handed over in {state['phase']}, aligned at {end}")
            return
        for broker, log in logs.items():
            if log != source[: len(log)] or len(log) < end:
                self.broken(f"c: broker {broker} is at {len(log)} of {tp}, which was aligned at {end}")
        if end < self.source.shown[tp]:
            self.broken(f"c: {tp} was aligned at {end}; the source had shown {self.source.shown[tp]}")
        missing = self.acked[tp].difference(logs[leader])
        if missing:
            self.broken(f"a: {tp} was handed over without {sorted(missing)[:3]}, which were acknowledged")
        # What somebody wrote past the fence may have reached one of them: followers do as their leader.
        self.ended_at[tp] = len(logs[leader])
        for broker in logs:
            logs[broker][:] = list(logs[leader])

    def judge_end(self) -> None:
        for tp in self.tps:
            if not self.owned[tp]:
                continue
            for broker, log in self.target.held(tp).items():
                if log[: self.ended_at[tp]] != self.source.logs[tp][: self.ended_at[tp]]:
                    self.broken(f"c: broker {broker} has lost what {tp} was handed over with")
                missing = self.acked[tp].difference(log)
                if missing:
                    self.broken(f"a: {sorted(missing)[:3]} of {tp} were acknowledged and are gone")
