"""The ports of the promote driver (linker.promote.ports), built on router, fetcher, source and target.

A port decides nothing: it asks or tells one thing, within its deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from controller.alter_partition import AlterPartitionItem
from controller.cluster_view import ImageView
from controller.judge.alignment import SourceEnd
from controller.judge.hand_over import find, listed_targets, revoke_assignments, undo_revoke
from controller.plan.replicas import CancelReassignment, LiveBrokers, Reassign, Step, open_step
from fleet.fleet_controller import FleetController
from fleet.progress import FleetProgress
from linker.membership import TargetCluster
from linker.promote.new_leaders import open_connections
from linker.promote.ports import Tps
from linker.promote.taken_source import TakenSource
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.list_offsets import DEBUGGING_REPLICA_ID, LATEST
from wire.frames.types import Node, TopicPartition
from wire.together import together

_POLL = 0.003
_CONNECT_TIMEOUT = 1.0
_READ_COMMITTED = 1
_METADATA_VERSION = 12
_ASK_LEADERS = 0.5
_UNREACHABLE_FOR = 15.0


class FleetFence:
    """linker.promote.ports.Fencer: the routers of all sidecars."""

    def __init__(
        self,
        link: str,
        fleet_controller: FleetController,
        source: Cluster | None,
        target: TargetCluster,
        link_brokers: Callable[[], frozenset[int]],
    ) -> None:
        """Without a source nothing behind the fence will ask it."""
        self._link = link
        self._fleet_controller = fleet_controller
        self._source = source
        self._target = target
        self._link_brokers = link_brokers

    def absent(self) -> str | None:
        return self._fleet_controller.absent()

    async def prepare(self, tps: Tps, *, timeout: float) -> None:
        real = self._target.image.live_brokers(self._link_brokers())
        nodes = [(self._target.cluster, broker.id) for broker in real]
        if self._source is not None:
            leaders = {leader.id for tp in tps if (leader := self._source.leader(tp)) is not None}
            nodes += [(self._source, node) for node in leaders]
        await open_connections(nodes, timeout=min(_CONNECT_TIMEOUT, timeout))

    async def fence(self, tps: Tps, *, timeout: float) -> None:
        await self._fleet_controller.commands.fence(self._link, tps, timeout=timeout)

    async def unfence(self, tps: Tps, *, timeout: float) -> None:
        await self._fleet_controller.commands.tell("unfence", self._link, tps, timeout=timeout)

    async def handed_over(self, tps: Tps, *, timeout: float) -> None:
        await self._fleet_controller.commands.tell("handed_over", self._link, tps, timeout=timeout)

    async def answered(self, tps: Tps, *, timeout: float) -> None:
        await self._fleet_controller.commands.tell("answered", self._link, tps, timeout=timeout)


class ListedSourceEnds:
    """linker.promote.ports.SourceEnds and SourceTopics.

    A source broker that was deposed, and is cut off from its own cluster but not from us, would tell an end at
    which it stood still, while another sidecar forwards to the new leader already. So every source broker that can be
    reached is asked who leads, beside the reading; news of a newer leader make the reading void. The same answers tell how
    many partitions the topics have.
    """

    def __init__(self, source: Cluster, taken: TakenSource | None = None) -> None:
        self._source = source
        self._taken = taken
        self._unreachable: dict[int, float] = {}  # node -> not asked again before
        # By topic, the most that any broker told beside the last reading: one that is behind tells fewer.
        self._partitions: dict[str, int] = {}

    async def ends(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, SourceEnd]:
        taken = {} if self._taken is None else self._taken.ends(tps)
        if self._taken is None or not taken:
            return await self._listed(tps, timeout)
        rest = [tp for tp in tps if tp not in taken]
        found = await self._taken.source_ends(taken, timeout=timeout)
        return {**found, **(await self._listed(rest, timeout) if rest else {})}

    async def _listed(self, tps: Tps, timeout: float) -> Mapping[TopicPartition, SourceEnd]:
        latest = dict.fromkeys(tps, LATEST)
        deadline = time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            looking = asyncio.ensure_future(self._newer_leaders(tps, left))
            try:
                answers = await together(
                    (
                        self._source.list_offsets(latest, replica_id=DEBUGGING_REPLICA_ID, timeout=left),
                        self._source.list_offsets(latest, timeout=left),
                        self._source.list_offsets(latest, isolation_level=_READ_COMMITTED, timeout=left),
                    )
                )
                news = await looking
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            if not news:
                return self._found(tps, answers)

    async def _newer_leaders(self, tps: Tps, timeout: float) -> bool:
        """Whether some broker names a leader of a newer epoch than we knew; it is taken over."""
        now = time.monotonic()
        nodes = [node for node in self._source.nodes if self._unreachable.get(node, 0.0) <= now]
        topics = dict.fromkeys(tp.topic for tp in tps)
        for topic in topics:
            self._partitions.pop(topic, None)
        if len(self._source.nodes) < 2:
            return False
        wanted = frozenset(tps)

        async def ask(node: int) -> bool:
            try:
                async with asyncio.timeout(min(timeout, _ASK_LEADERS)):
                    answer = await self._metadata(node, topics, _ASK_LEADERS)
            except (LinkerError, TimeoutError):
                # The broker is down or away and is asked again later. The others, the leader among them, tell enough.
                self._unreachable[node] = time.monotonic() + _UNREACHABLE_FOR
                return False
            self._note_partitions(answer)
            brokers = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
            news = False
            for topic in answer.topics:
                for item in topic.partitions:
                    tp, epoch = (
                        TopicPartition(topic.name, item.partition_index),
                        getattr(item, "leader_epoch", -1),
                    )
                    if tp in wanted:
                        news |= self._source.learn_leader(
                            tp, item.leader_id, epoch, brokers.get(item.leader_id)
                        )
            return news

        return any(await together(ask(node) for node in nodes))

    async def partitions(self, topics: Collection[str], *, timeout: float) -> Mapping[str, int]:
        # Each answer is used once: numbers from before a wait must not count after it.
        found = {topic: self._partitions.pop(topic) for topic in topics if topic in self._partitions}
        if unknown := [topic for topic in topics if topic not in found]:
            # One broker alone is not asked beside the ends, and the others may not have answered.
            async with asyncio.timeout(timeout):
                self._note_partitions(await self._metadata(None, unknown, timeout))
            found |= {topic: self._partitions.pop(topic) for topic in unknown if topic in self._partitions}
        return found

    async def _metadata(self, node: int | None, topics: Collection[str], timeout: float) -> Any:
        connection = await self._source.connection(node)
        return await connection.call(
            "metadata",
            {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False},
            timeout=timeout,
            max_version=_METADATA_VERSION,
        )

    def _note_partitions(self, answer: Any) -> None:
        for topic in answer.topics:
            if topic.partitions:  # none: it is not there, or that broker has not heard of it
                self._partitions[topic.name] = max(self._partitions.get(topic.name, 0), len(topic.partitions))

    def _found(
        self, tps: Tps, answers: Sequence[Mapping[TopicPartition, Any]]
    ) -> Mapping[TopicPartition, SourceEnd]:
        found: dict[TopicPartition, SourceEnd] = {}
        for tp in tps:
            offsets = []
            for answer in answers:
                result = answer[tp]
                if result.error:
                    raise BrokerError(
                        result.error,
                        message=f"{self._source.name} does not tell where its log ends",
                        api="list_offsets",
                        topic_partition=tp,
                    )
                offsets.append(result.offset)
            found[tp] = SourceEnd(*offsets)
        return found


class TargetHandOver:
    """linker.promote.ports.HandOver."""

    def __init__(self, target: TargetCluster, link_brokers: Callable[[], frozenset[int]]) -> None:
        self._target = target
        self._link_brokers = link_brokers

    def link_brokers(self) -> Collection[int]:
        return self._link_brokers()

    def image(self) -> ImageView:
        return self._target.image

    async def caught_up(self, *, timeout: float) -> None:
        await self._target.metadata.caught_up(timeout)

    async def wait_until(self, predicate: Callable[[ImageView], bool], *, timeout: float) -> bool:
        return await self._target.metadata.becomes(predicate, timeout)

    async def alter_partition(
        self, items: Sequence[AlterPartitionItem], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self._target.operations.alter_partition(items, timeout=timeout)

    async def open(self, targets: Mapping[TopicPartition, Sequence[int]], *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while steps := self._open_steps(targets):
            before = {tp: self._partition_epoch(tp) for tp in steps}
            await self._target.operations.reassign(
                {tp: step.replicas if isinstance(step, Reassign) else None for tp, step in steps.items()},
                timeout=max(0.001, deadline - time.monotonic()),
            )
            # Each step is judged on what the one before it has made, as the log shows it.
            await self._target.metadata.wait_for(
                lambda _, before=before: (  # type: ignore[misc]
                    True if all(self._partition_epoch(tp) != epoch for tp, epoch in before.items()) else None
                ),
                max(0.001, deadline - time.monotonic()),
            )

    def _open_steps(
        self, targets: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, Reassign | CancelReassignment]:
        image, link = self._target.image, self._link_brokers()
        brokers = LiveBrokers(
            link=link,
            alive={b for b in link if b in image.brokers and not image.brokers[b].fenced},
            registered=image.brokers.keys(),
        )
        steps: dict[TopicPartition, Reassign | CancelReassignment] = {}
        for tp, replicas in targets.items():
            partition = find(image, tp)
            step: Step | None = None if partition is None else open_step(partition, replicas, brokers)
            if isinstance(step, Reassign | CancelReassignment):
                steps[tp] = step
        return steps

    def _partition_epoch(self, tp: TopicPartition) -> int | None:
        partition = find(self._target.image, tp)
        return None if partition is None else partition.partition_epoch

    async def revoke(self, tps: Tps, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        first: dict[TopicPartition, list[int]] = {}
        second: dict[TopicPartition, list[int] | None] = {}
        for tp in tps:
            partition = find(self._target.image, tp)
            if partition is None:
                continue
            link, registered = self._link_brokers(), self._target.image.brokers
            listed = [
                b for b in partition.replicas if b in link and b in registered and b != partition.leader
            ]
            if partition.leader in link:
                listed.insert(0, partition.leader)
            first[tp], second[tp] = revoke_assignments(listed, listed_targets(partition, link))
        if not first:
            return
        await self._target.operations.reassign(first, timeout=timeout)
        # The hand-over that this is to make stale may have been carried out before.
        await self._target.metadata.caught_up(max(0.001, deadline - time.monotonic()))
        for tp in second:
            partition = find(self._target.image, tp)
            if partition is not None and undo_revoke(partition, self._link_brokers()):
                second[tp] = None
        await self._target.operations.reassign(second, timeout=max(0.001, deadline - time.monotonic()))


class FleetConfigs:
    """linker.promote.ports.Configs."""

    def __init__(self, target: TargetCluster) -> None:
        self._target = target

    async def restore(self, topic: str, configs: Mapping[str, str | None], *, timeout: float) -> None:
        await self._target.operations.set_configs_of_topics({topic: configs}, timeout=timeout)


def fleet_progress(
    link: str,
    fleet_controller: FleetController,
    target: TargetCluster,
    sidecar_of: Callable[[int], int] = lambda broker: broker,
) -> tuple[FleetProgress, Callable[[TopicPartition], Sequence[int]]]:
    """The copies of a link as their leaders report them, and the real brokers that are to hold each partition."""

    def targets(tp: TopicPartition) -> Sequence[int]:
        mirror = fleet_controller.controller.image.mirrors.get((link, tp.topic))
        return () if mirror is None else mirror.replicas_of(tp.partition)

    return FleetProgress(
        link,
        fleet_controller.book,
        fleet_controller.commands.ask_progress,
        lambda: target.image,
        targets,
        poll=_POLL,
        sidecar_of=sidecar_of,
    ), targets
