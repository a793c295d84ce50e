"""A topic that is switched to the target, back, and there again, under clients that are never restarted.

Some of them have moved to the target's bootstrap servers, the others stay at the source's all the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from admin.client import AdminError
from admin.models import Direction, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.demo.progress import Progress
from lab.demo.switch_report import Switch, Unrestarted, judge_unrestarted
from lab.demo.waits import DemoError
from lab.workload.history import History, PartitionLog
from lab.workload.inspection import Placement, compare_clusters, compare_followers, final_logs, placements
from lab.workload.live_consumers import AiokafkaConsumer, LibrdkafkaConsumer, LiveConsumer
from lab.workload.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from lab.workload.log_compare import ReplicaComparison
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceFiller, SourceTopic
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

RETURNS = SourceTopic("returns", 4, SourceFiller.history, live=True)
RATE = 40.0  # of each of its producers
SOURCE_BROKER_ID = 800  # of the sidecar, in the source
FIRST_KRAFT = (3, 9)  # the oldest source without ZooKeeper that can be joined
TIMEOUT = 60.0
MORE_ACKS = 20  # of each producer, before the next switch
_LOOK = 0.1


def can_join(source_version: str) -> bool:
    """Whether a sidecar can be a broker of such a source."""
    return tuple(int(part) for part in source_version.split(".")[:2]) >= FIRST_KRAFT


class Switching:
    """The clients of the topic, and its switches."""

    def __init__(self, link: str, history: History, rate: float) -> None:
        self._link = link
        self._history = history
        wanted = (RETURNS.name, RETURNS.partitions, RATE * rate, history)
        self.stayers: list[LiveProducer] = [
            kind(f"stays-{kind.library}", *wanted)
            for kind in (AiokafkaProducer, LibrdkafkaProducer, KafkaPythonProducer)
        ]
        #: It is restarted with the target's bootstrap servers, before the first switch.
        self.mover = LibrdkafkaProducer("moves-librdkafka", *wanted)
        self.readers: list[LiveConsumer] = [
            kind(f"stays-{kind.library}-reader", [RETURNS.name], history, f"stayers-{kind.library}")
            for kind in (AiokafkaConsumer, LibrdkafkaConsumer)
        ]
        self.switches: list[Switch] = []
        self._comparisons: list[ReplicaComparison] = []

    @property
    def clients(self) -> list[LiveProducer | LiveConsumer]:
        return [*self.stayers, self.mover, *self.readers]

    async def run(
        self, progress: Progress, sidecar: SidecarProcess, source: KafkaCluster, target: KafkaCluster
    ) -> None:
        """There, back, and there for good, once Spark has proved the other topics and leaves the machine to these."""
        with progress.phase("start_stayers", "more clients start at the source, and all but one stay") as now:
            await self._start(source, target)
            now.detail = ", ".join(client.name for client in self.clients)
        ways = (
            ("switch_there", "linker mirror switch: the target owns it", Direction.REVERSED),
            ("switch_back", "linker mirror switch: the source owns it again", Direction.FORWARD),
            ("switch_again", "linker mirror switch: the target owns it", Direction.REVERSED),
        )
        for name, title, owner in ways:
            with progress.phase(name, title) as now:
                now.detail = await self._switch(sidecar, owner)
        with progress.phase("stop_stayers", "clients that were never restarted end") as now:
            now.detail = await self._stop(source, target)
        with progress.phase("finish", "linker mirror finish: the source is left"):
            await sidecar.linker("mirror", "finish", RETURNS.name, "--link", self._link, "--yes")

    async def _start(self, source: KafkaCluster, target: KafkaCluster) -> None:
        async with TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.start(source.bootstrap))
        await self._acked_more()
        await self.mover.move(target.bootstrap)
        await self._acked_more()

    async def _switch(self, sidecar: SidecarProcess, owner: Direction) -> str:
        """Until the other cluster owns the topic, and every producer's writes are acknowledged there."""
        direction = "there" if owner is Direction.REVERSED else "back"
        began = self._history.mark(f"switch {direction}")
        command = ("mirror", "switch", RETURNS.name, "--link", self._link, "--validation=skip", "-o", "json")
        job = (await sidecar.linker(*command)).json()
        if job["phase"] != "PROMOTED":
            raise DemoError(f"the switch was abandoned: {job['reason']}")
        await self._acked_more()
        await self._owned(sidecar, owner)
        phases = {str(name): int(ms) for name, ms in job["phases_ms"].items()}
        self.switches.append(Switch(direction, (began, self._history.mark("switched")), phases))
        return ", ".join(f"{name} {ms} ms" for name, ms in phases.items())

    async def _acked_more(self) -> None:
        names = [one.name for one in (*self.stayers, self.mover)]
        behind, from_ = dict.fromkeys(names, MORE_ACKS), len(self._history.acks)
        deadline = time.monotonic() + TIMEOUT
        while late := [name for name, left in behind.items() if left > 0]:
            if time.monotonic() > deadline:
                raise DemoError(f"{', '.join(late)}: no acknowledgements within {TIMEOUT:.0f} s of a switch")
            await asyncio.sleep(_LOOK)
            new = self._history.acks[from_:]
            from_ += len(new)
            for ack in new:
                if ack.producer in behind:
                    behind[ack.producer] -= 1

    async def _owned(self, sidecar: SidecarProcess, owner: Direction) -> None:
        """Until the cluster that was left follows the owner."""
        deadline = time.monotonic() + TIMEOUT
        with sidecar.client() as client:
            while True:
                try:
                    mirrors = await asyncio.to_thread(client.list_mirrors, self._link)
                except AdminError as error:
                    raise DemoError(f"the sidecar does not answer: {error}") from error
                now = next(one for one in mirrors if one.topic == RETURNS.name)
                if now.direction is owner and now.state is MirrorState.ACTIVE:
                    return
                if time.monotonic() > deadline:
                    raise DemoError(f"{now.topic} is {now.direction} {now.state}: {now.reason}")
                await asyncio.sleep(_LOOK)

    async def _stop(self, source: KafkaCluster, target: KafkaCluster) -> str:
        """Producers end, the groups that stayed read to the end, and all logs are compared with those of the owner."""
        async with TaskGroup() as group:
            for producer in (*self.stayers, self.mover):
                group.create_task(producer.stop())
        placed = _real(await asyncio.to_thread(placements, target.bootstrap, [RETURNS]), target)
        there = _real(await asyncio.to_thread(placements, source.bootstrap, [RETURNS]), source)
        logs = await asyncio.to_thread(final_logs, target, [RETURNS], placed)
        ends = {tp: log.end for tp, log in logs.items()}
        for reader in self.readers:
            await reader.read_up_to(ends, TIMEOUT)  # what is missing then is named by the judge
            await reader.stop()
        await self._followed(source, there, ends)
        # The source's replicas, then the target's own followers, against the leaders.
        compared = await asyncio.to_thread(compare_clusters, target, source, [RETURNS], placed, there)
        compared += await asyncio.to_thread(compare_followers, target, [RETURNS], placed)
        self._comparisons = compared
        same = sum(one.identical for one in compared)
        return f"{same} of {len(compared)} replicas in both clusters are equal to the leader's"

    async def _followed(
        self,
        source: KafkaCluster,
        placed: Mapping[TopicPartition, Placement],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Until each broker of the source has all, or the time is over: a comparison says what is missing."""
        deadline = time.monotonic() + TIMEOUT
        waiting = {(tp, broker) for tp, one in placed.items() for broker in one.replicas}
        while waiting and time.monotonic() < deadline:
            for tp, broker in list(waiting):
                if open_replica(source.log_dir(broker), tp).end() >= ends[tp]:
                    waiting.remove((tp, broker))
            await asyncio.sleep(_LOOK if waiting else 0)

    def judged(self, logs: Mapping[TopicPartition, PartitionLog]) -> Unrestarted:
        """By the final logs."""
        return judge_unrestarted(
            self._history,
            {tp: log for tp, log in logs.items() if tp.topic == RETURNS.name},
            self.switches,
            self._comparisons,
            producers={one.name for one in self.stayers},
            consumers={one.name: one.group for one in self.readers},
        )


def _real(
    placed: Mapping[TopicPartition, Placement], cluster: KafkaCluster
) -> dict[TopicPartition, Placement]:
    """Without the sidecar."""
    ids = {broker.node_id for broker in cluster.brokers}
    return {tp: Placement(one.leader, tuple(sorted(ids & set(one.replicas)))) for tp, one in placed.items()}
