"""Finds out what there is to compare: ends and starts of the source and of every replica, asked of each itself.

The order of the questions matters. Replicas' log starts are asked before the source's: a replica drops what the source
has dropped, never the other way round, so a start that moves meanwhile cannot look like a late one. The source's end is
asked before the replicas are waited for, so running producers never make a replica look short.

Lives here: the questions and the waiting. Conclusions from the answers are ranges.py's and tally.py's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from validator.compare.facts import FindingKind
from validator.messages import PartitionPlan, ReplicaPlan
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.fetching import FETCH_VERSION, fetch_once, fetch_request
from validator.read.ranges import PartitionBounds, ReplicaBounds
from validator.read.spans import estimate_bytes
from wire.client.cluster import Cluster
from wire.client.cluster_metadata import TopicMetadata
from wire.client.retry import NodeKind, passing
from wire.errors import BrokerError, WireError
from wire.frames.error_codes import OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.fetch import FetchedPartition
from wire.frames.list_offsets import EARLIEST, LATEST, list_at
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

CALL_TIMEOUT = 30.0
SAMPLE_BYTES = 16 << 10
POLL_SECONDS = 0.2
ASK_AT_ONCE = 500  # partitions per request
ASK_AGAIN_SECONDS = 20.0  # for a topic: a cluster has another broker asked after 15


class Wrong(NamedTuple):
    """A replica that is not proved, as is known without reading it. The ends are as found, if they were asked for."""

    plan: PartitionPlan
    replica: ReplicaPlan
    kind: FindingKind
    detail: str
    source_end: int | None = None
    replica_end: int | None = None


@dataclass(slots=True)
class Survey:
    """The findings. `failures`: logs that could not be asked, or not be compared; the rest goes on without them."""

    bounds: dict[TopicPartition, PartitionBounds] = field(default_factory=dict)
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)  # of the source
    wrong: list[Wrong] = field(default_factory=list)
    failures: list[SideFailed] = field(default_factory=list)


@dataclass(slots=True)
class _ReplicaState:
    log_start: int
    high_watermark: int


async def survey(
    source: ClusterEndpoint, target: ClusterEndpoint, plans: Sequence[PartitionPlan], *, wait_s: float
) -> Survey:
    """Ask both clusters about these partitions; replicas get `wait_s` seconds to reach the end they must have.

    Raises SideFailed if a cluster cannot be asked at all; single brokers of the target are in `failures`.
    """
    async with source.cluster() as from_, target.cluster() as to:
        return await _Surveyor(source, target, from_, to, plans, wait_s).run()


class _Surveyor:
    def __init__(
        self,
        source: ClusterEndpoint,
        target: ClusterEndpoint,
        from_: Cluster,
        to: Cluster,
        plans: Sequence[PartitionPlan],
        wait_s: float,
    ) -> None:
        self._source = source
        self._from, self._to = from_, to
        self._sides = ((source, from_), (target, to))
        self._plans = plans
        self._wait_s = wait_s
        self._found = Survey()

    async def run(self) -> Survey:
        found = self._found
        plans = await self._known_topics()
        ends = await self._source_offsets(plans, LATEST)
        needed = {tp: ends[tp] if plan.end is None else plan.end for tp, plan in plans.items() if tp in ends}
        for tp in [tp for tp, end in needed.items() if end > ends[tp]]:
            found.failures.append(
                SideFailed(
                    "source",
                    None,
                    f"{tp.topic}-{tp.partition} ends at offset {ends[tp]},"
                    f" below the end {needed.pop(tp)} that its replicas have to reach",
                )
            )
        asked: dict[int, dict[TopicPartition, int]] = {}
        for tp, end in needed.items():
            for replica in plans[tp].replicas:
                asked.setdefault(replica.broker_id, {})[tp] = end
        states: dict[int, dict[TopicPartition, _ReplicaState]] = {}

        async def ask(broker_id: int, ends_of: Mapping[TopicPartition, int]) -> None:
            try:
                states[broker_id] = await self._replica_states(broker_id, ends_of)
            except WireError as error:
                node = self._to.nodes.get(broker_id)
                address = f"{node.host}:{node.port}" if node is not None else None
                found.failures.append(
                    SideFailed("target", error.peer or address, f"broker {broker_id}: {error}")
                )

        async with TaskGroup() as group:
            for broker_id, ends_of in asked.items():
                group.create_task(ask(broker_id, ends_of))
        starts = await self._source_offsets({tp: plans[tp] for tp in needed}, EARLIEST)
        density = await self._density({tp: (starts[tp], needed[tp]) for tp in starts})
        for tp, log_start in starts.items():
            plan = plans[tp]
            replicas = []
            for slot, replica in enumerate(plan.replicas, 1):
                state = states.get(replica.broker_id, {}).get(tp)
                if state is not None:
                    expected = max(plan.start, log_start)
                    begin = max(expected, replica.through or 0)
                    known = replica.missing
                    missing_to = min(state.log_start, needed[tp])
                    counted = known is not None and (known.start, known.end) == (expected, missing_to)
                    one = ReplicaBounds(
                        slot,
                        replica.broker_id,
                        begin,
                        state.log_start,
                        state.high_watermark,
                        expected,
                        counted,
                    )
                    if one.ends_before_begin(needed[tp]):
                        # Told as a result too: the evidence names its end, or its watermark alone would make it equal.
                        wrong = _ends_before_begin(plan, replica, one, needed[tp])
                        found.wrong.append(wrong)
                        found.failures.append(SideFailed("target", None, wrong.detail))
                    else:
                        replicas.append(one)
            if replicas:
                found.bounds[tp] = PartitionBounds(
                    tp.topic,
                    tp.partition,
                    log_start,
                    needed[tp],
                    tuple(replicas),
                    density.get(tp, 1024.0),
                    plan.compacted,
                )
        return found

    # --- topics ---------------------------------------------------------------------------------------------

    async def _known_topics(self) -> dict[TopicPartition, PartitionPlan]:
        """The plans whose topics are what they have to be on both sides."""
        await self._ask_for_topics()
        refused = self._refused_topics()
        self._found.failures += refused.values()
        good: dict[TopicPartition, PartitionPlan] = {}
        for plan in self._plans:
            if any((endpoint.side, plan.topic) in refused for endpoint, _ in self._sides):
                continue
            problem = self._topic_problem(plan)
            if problem is None:
                good[TopicPartition(plan.topic, plan.partition)] = plan
            else:
                self._found.wrong += [Wrong(plan, replica, *problem) for replica in plan.replicas]
        for tp in good:
            leader = self._from.leader(tp)
            if leader is not None:
                self._found.leaders[tp.topic, tp.partition] = leader.id
        return good

    async def _ask_for_topics(self) -> None:
        """Both clusters' metadata of the topics. A topic that is not there, or is another one, may be so for a single broker
        alone that is behind: it is asked for again, long enough for another broker's answer."""
        names = {plan.topic for plan in self._plans}
        deadline = time.monotonic() + ASK_AGAIN_SECONDS
        while names:
            for endpoint, cluster in self._sides:
                try:
                    await cluster.refresh(names)
                except WireError as error:
                    raise endpoint.failed(error) from error
            names = {plan.topic for plan in self._plans if self._may_be_behind(plan)}
            if time.monotonic() >= deadline:
                return
            if names:
                await asyncio.sleep(POLL_SECONDS)

    def _may_be_behind(self, plan: PartitionPlan) -> bool:
        codes = [topic_code(cluster.topics.get(plan.topic)) for _, cluster in self._sides]
        if any(codes):
            return any(passing(NodeKind.LEADER, code) for code in codes)
        problem = self._topic_problem(plan)
        return problem is not None and problem[0] is FindingKind.RECREATED

    def _refused_topics(self) -> dict[tuple[str, str], SideFailed]:
        """The topics that a side tells nothing of, by side and name. No finding: nothing is known of their records."""
        return {
            (endpoint.side, name): endpoint.failed(BrokerError(code, f"topic {name}", api="metadata"))
            for endpoint, cluster in self._sides
            for name in dict.fromkeys(plan.topic for plan in self._plans)
            if (code := topic_code(cluster.topics.get(name)))
        }

    def _topic_problem(self, plan: PartitionPlan) -> tuple[FindingKind, str] | None:
        source, target = self._from.topics[plan.topic], self._to.topics[plan.topic]
        return _topic_problem("source", source, plan.source_topic_id, plan) or _topic_problem(
            "target", target, plan.target_topic_id, plan
        )

    # --- the source -----------------------------------------------------------------------------------------

    async def _source_offsets(
        self, tps: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(tps, timestamp)
        if not wanted:
            return {}
        try:
            answers = await self._from.list_offsets(wanted, timeout=CALL_TIMEOUT)
        except WireError as error:
            raise self._source.failed(error) from error
        offsets = {}
        for tp, answer in answers.items():
            if answer.error:
                refusal = BrokerError(answer.error, api="list_offsets", topic_partition=tp)
                self._found.failures.append(self._source.failed(refusal))
            else:
                offsets[tp] = answer.offset
        return offsets

    async def _density(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, float]:
        """Bytes per offset of the source, from a look at the beginning and the middle of each partition."""
        density: dict[TopicPartition, list[float]] = {}
        for part in (0.0, 0.5, 0.9):
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for tp, (start, end) in bounds.items():
                leader = self._from.leader(tp)
                if leader is not None and end - start > 1000:
                    by_leader.setdefault(leader.id, {})[tp] = start + int((end - start) * part)
            for node, wanted in by_leader.items():
                try:
                    async for tp, frame, data in fetch_each(self._from, node, wanted, SAMPLE_BYTES):
                        estimate = estimate_bytes(frame, data.records_start, data.records_end)
                        if estimate is not None:
                            density.setdefault(tp, []).append(estimate)
                except WireError:
                    # an estimate only: reading it will say what is wrong, with its side and address
                    continue
        return {tp: sum(seen) / len(seen) for tp, seen in density.items()}

    # --- replicas -------------------------------------------------------------------------------------------

    async def _replica_states(
        self, broker_id: int, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, _ReplicaState]:
        """Log start and high watermark of each partition on this broker, once it is there or the time is over."""
        deadline = time.monotonic() + self._wait_s
        states: dict[TopicPartition, _ReplicaState] = {}
        left = dict(ends)
        error: BrokerError | None = None
        while left:
            starts = await self._local_offsets(broker_id, left, EARLIEST)
            lasts = await self._local_offsets(broker_id, left, LATEST)
            at = {
                tp: max(starts[tp], min(end, lasts[tp]))
                for tp, end in left.items()
                if tp in starts and tp in lasts
            }
            async for tp, _, data in fetch_each(self._to, broker_id, at, 1):
                code = data.error
                if passing(NodeKind.LEADER, code) or code == OFFSET_OUT_OF_RANGE:
                    error = BrokerError(
                        code, api="fetch", version=FETCH_VERSION, topic_partition=tp, offset=at[tp]
                    )
                    continue
                if code:
                    raise BrokerError(
                        code, api="fetch", version=FETCH_VERSION, topic_partition=tp, offset=at[tp]
                    )
                states[tp] = _ReplicaState(data.log_start_offset, data.high_watermark)
                if data.high_watermark >= left[tp]:
                    del left[tp]
            if not left:
                break
            if time.monotonic() >= deadline:
                unknown = [tp for tp in left if tp not in states]
                if unknown:
                    raise error or BrokerError(3, api="fetch", topic_partition=unknown[0])
                break
            await asyncio.sleep(POLL_SECONDS)
        return states

    async def _local_offsets(
        self, broker_id: int, tps: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Offsets of the broker's own log, leader or not. Partitions that it does not have (yet) are left out."""
        answers = await list_at(
            self._to, broker_id, dict.fromkeys(tps, timestamp), timeout=CALL_TIMEOUT, purpose="validate"
        )
        for tp, answer in answers.items():
            if answer.error and not passing(NodeKind.LEADER, answer.error):
                raise BrokerError(answer.error, api="list_offsets", topic_partition=tp)
        return {
            tp: answer.offset for tp, answer in answers.items() if not answer.error and answer.offset >= 0
        }


def _ends_before_begin(plan: PartitionPlan, replica: ReplicaPlan, found: ReplicaBounds, end: int) -> Wrong:
    detail = (
        f"broker {found.broker_id}'s replica of {plan.topic}-{plan.partition} ends at offset {found.high_watermark},"
        f" below offset {found.begin}, from where on it has to be compared"
    )
    return Wrong(plan, replica, FindingKind.SHORT, detail, end, found.high_watermark)


def topic_code(topic: TopicMetadata | None) -> int:
    """The error code that a cluster has for a topic, 0 if it told of its partitions. None of these codes says that the topic
    is another one: a missing right, an election, and a broker that is behind look alike from here."""
    if topic is None or not (topic.error or topic.partitions):
        return UNKNOWN_TOPIC_OR_PARTITION
    return topic.error


def _topic_problem(
    side: str, topic: TopicMetadata, expected_id: str | None, plan: PartitionPlan
) -> tuple[FindingKind, str] | None:
    if expected_id is not None and topic.topic_id is not None and topic.topic_id.hex() != expected_id:
        ids = f"it has id {topic.topic_id.hex()}, the mirror was made with {expected_id}"
        return (
            FindingKind.RECREATED,
            f"the {side}'s topic {plan.topic} was deleted and created again: {ids}",
        )
    if plan.source_partitions is not None and len(topic.partitions) != plan.source_partitions:
        return (
            FindingKind.PARTITION_COUNT,
            f"the {side}'s topic {plan.topic} has {len(topic.partitions)} partitions, expected {plan.source_partitions}",
        )
    return None


async def fetch_each(
    cluster: Cluster, node_id: int, offsets: Mapping[TopicPartition, int], max_bytes: int
) -> AsyncIterator[tuple[TopicPartition, memoryview, FetchedPartition]]:
    """A broker's answer for each partition at an offset, with a few bytes of its records: they are in the frame."""
    tps = list(offsets)
    for first in range(0, len(tps), ASK_AT_ONCE):
        part = tps[first : first + ASK_AT_ONCE]
        frame, answers = await fetch_once(
            cluster,
            node_id,
            fetch_request({tp: offsets[tp] for tp in part}, max_bytes * len(part), max_bytes),
            timeout=CALL_TIMEOUT,
            purpose="validate",
        )
        for tp, data in answers:
            yield tp, frame, data
