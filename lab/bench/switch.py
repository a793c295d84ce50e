"""How long a producer waits when the owner of its topics is switched, there and back, at either cluster's bootstrap.

And what being in sync adds to acks=all.

Idempotent producers of librdkafka, one at each cluster, each in a process of its own, write to 1 and 100 partitions of a
topic and to 1,000 of ten topics, and are never restarted. The figure is the longest gap between two acknowledgements of
one producer around a switch. Beside it, in turn: the same producers at topics whose leaderships move by Kafka's own
preferred election. All writes are checked against the final logs. Both clusters have the back-off of followers that
docs/operations.md advises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from admin.client import AdminError
from admin.models import PromoteJobStatus, PromotePhase, PromoteRequest
from lab.bench.cluster import BenchCluster, BenchError
from lab.bench.latency import Sender
from lab.bench.producer_process import ProducerProcess
from lab.bench.promote import (
    ADVISED,
    AFTERWARDS,
    BESIDE_UP_TO,
    READY_TIMEOUT,
    SMALL_GOAL,
    SMALL_INDEXES,
)
from lab.bench.results import CaseResult, Goal, median_of, percentile, strip
from lab.bench.settings import FULL, Settings
from lab.bench.stage import LINK, Source, Stage, stage
from lab.workload.checker import Verdict, check
from lab.workload.history import History
from lab.workload.inspection import final_logs, placements, truncations
from lab.workload.live_producers import LibrdkafkaProducer
from lab.workload.source_data import SourceTopic
from wire.together import together

GOALS = {1: 200.0, 100: 400.0, 1000: 1000.0}  # ms, by the number of partitions
SYNC_GOAL = 1.5  # ms that being in sync adds to the median
BROKERS = 2  # at each side, all of them replicas
JOINED = 800
RATE = 1000
#: With hundreds of partitions. librdkafka sends one partition's records at a time and has five requests on the way to a
#: broker: on a machine that both clusters share more would queue up, and what it waits there says nothing of a switch.
MANY_RATE = 50
#: While brokers have just started: with a thousand partitions they acknowledge five records a second then, the queue grows,
#: and what waits in it for its 120 s is given up.
COLD_SHARE = 10
#: Of one topic, which is switched as a whole: more are those of several topics.
LARGEST_TOPIC = 100
OTHER, OTHER_RATE = "other", 100.0
SYNC_PARTITIONS = 4
SYNC_WARM_TURNS = 8  # at most
WAYS = ("there", "back")

Move = Callable[[], Awaitable[PromoteJobStatus | None]]


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> list[CaseResult]:
    async with joined_stage(source, "switch", settings) as on, _in_use(on):
        return [await _switch(on, count, settings, say) for count in settings.promoted]


async def run_sync(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    async with joined_stage(source, "sync", settings) as on:
        return await _sync(on, settings, say)


@asynccontextmanager
async def joined_stage(source: Source, name: str, settings: Settings) -> AsyncIterator[Stage]:
    async with (
        Source(
            source.directory,
            name=f"source-{name}",
            brokers=BROKERS,
            quick_start=settings.quick_start,
            properties=ADVISED,
        ) as own,
        stage(own, name, BROKERS, ADVISED, joined=JOINED) as on,
    ):
        yield on


@asynccontextmanager
async def _in_use(on: Stage) -> AsyncIterator[None]:
    """Another topic of each cluster is written to, as in any cluster that is in use. A broker asks another one for all that
    it follows there in one request, which waits for records for up to replica.fetch.wait.max.ms (500). Partitions
    that are new wait for the next one, and so does the first acknowledgement of their new leader."""
    producers = []
    for cluster in (on.source, on.target):
        await cluster.create_topic(OTHER, orders_of(BROKERS), SMALL_INDEXES)
        name = f"{OTHER}-{cluster.spec.name}"
        directory = on.filler.directory / "producers"
        producers.append(
            ProducerProcess(LibrdkafkaProducer.library, OTHER, BROKERS, OTHER_RATE, directory, name=name)
        )
    try:
        await together(
            producer.start(cluster.bootstrap)
            for producer, cluster in zip(producers, (on.source, on.target), strict=True)
        )
        yield
    finally:
        for producer in producers:
            await producer.abandon()


# --- the pause


@dataclass(frozen=True, slots=True)
class _Topics:
    """Those whose leaderships move in every round. Each round has writers of its own, and its records stay."""

    names: tuple[str, ...]
    partitions: int  # of each
    writers: Mapping[str, BenchCluster]  # where each is bootstrapped
    owner: BenchCluster  # has the log at a round's end
    history: History = field(default_factory=History)

    @property
    def written(self) -> list[SourceTopic]:
        return [SourceTopic(name, self.partitions, lambda _filler, _topic: None) for name in self.names]


async def _switch(on: Stage, partitions: int, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    count = -(-partitions // (LARGEST_TOPIC if settings.largest_topic is None else settings.largest_topic))
    each, rest = divmod(partitions, count)
    if rest:
        raise BenchError(f"{partitions} partitions cannot be those of {count} topics with as many each")
    rate = RATE if partitions <= BESIDE_UP_TO else MANY_RATE
    result = CaseResult(
        f"switch_{partitions}",
        f"switch of {partitions} partitions, {each} of a topic, there and back, RF {BROKERS}, under an "
        f"idempotent librdkafka of {rate}/s at each cluster; largest gap between two acks of one producer around it; a "
        f"preferred election of as many in turn; another topic of each cluster gets {OTHER_RATE:g} records a second",
        {side: [] for side in (*WAYS, "election")},
    )
    at_each = {"source": on.source, "target": on.target}
    moving = _Topics(_names(f"switch-{partitions}", count), each, at_each, on.source)
    at_one = {"one": on.target, "other": on.target}
    elected = _Topics(_names(f"elect-{partitions}", count), each, at_one, on.target)
    for topics in (moving, elected):
        for name in topics.names:
            await topics.owner.create_topic(name, orders_of(each), SMALL_INDEXES)
    await on.create_mirrors(moving.names, BROKERS)
    await on.wait_all_active(moving.names, READY_TIMEOUT)
    for number in range(-settings.warm_up, settings.promotes):
        load = rate if number >= 0 or partitions <= BESIDE_UP_TO else rate / COLD_SHARE
        found = await _under_load(on, moving, load, settings, dict.fromkeys(WAYS, _owner_moves))
        found |= await _under_load(on, elected, load, settings, {"election": _election})
        for side, one in found.items():
            label = f"{side} {'warm-up' if number < 0 else f'round {number + 1}'}"
            wrong = one.pop("wrong")
            # No link is between the elected topic's producers and their brokers.
            result.problems += [f"{label}: {problem}" for problem in wrong if side in WAYS]
            say(f"{partitions} partitions, {label}: {one}")
            if number >= 0:
                result.rounds[side].append(one)
    nodes = [*on.source.nodes.values(), *on.target.nodes.values()]
    result.problems += await asyncio.to_thread(truncations, nodes, moving.written)
    _judge(result, partitions)
    return result


def _judge(result: CaseResult, partitions: int) -> None:
    figures = result.figures
    pauses = [one for way in WAYS for one in result.rounds[way]]
    for side, of in (*result.rounds.items(), ("both", pauses)):
        figures[f"{side}_pause_ms_median"] = median_of(of, "pause_ms")
        figures[f"{side}_pause_ms_max"] = max(one["pause_ms"] for one in of)
    pause, bound = figures["both_pause_ms_median"], GOALS.get(partitions, SMALL_GOAL)
    result.goals = [
        Goal(f"pause of a switch, {partitions:,} partitions", pause, bound, at_least=False, unit="ms")
    ]
    result.ratios = {"election's pause / switch's": figures["election_pause_ms_median"] / pause}
    result.plots = [strip("Largest gap between two acks", "ms", result.rounds, "pause_ms")]


def _names(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}-{number}" for number in range(count))


def orders_of(partitions: int) -> list[list[int]]:
    return [[1 + (index + turn) % BROKERS for turn in range(BROKERS)] for index in range(partitions)]


async def _owner_moves(on: Stage, topics: _Topics) -> Move:
    """Ready to be switched the way that they can go."""
    for name in topics.names:
        await on.sync(name)

    async def switch() -> PromoteJobStatus:
        job = await asyncio.to_thread(switched, on, topics.names)
        if job.phase is not PromotePhase.PROMOTED:
            raise BenchError(f"the switch of {topics.names[0]} ended as {job.phase}: {job.reason}")
        return job

    return switch


async def _election(on: Stage, topics: _Topics) -> Move:
    """The replicas are put into another order, so that the election moves every leadership."""
    placed = await asyncio.to_thread(placements, topics.owner.bootstrap, topics.written)
    for one in topics.written:
        orders = [placed[tp].replicas[::-1] for tp in one.topic_partitions()]
        await topics.owner.reassign_each(one.name, orders)
    for one in topics.written:
        await topics.owner.wait_reassigned(one.name)

    async def elect() -> None:
        await topics.owner.elect_preferred({one.name: one.partitions for one in topics.written})

    return elect


async def _under_load(
    on: Stage,
    topics: _Topics,
    rate: float,
    settings: Settings,
    moves: Mapping[str, Callable[[Stage, _Topics], Awaitable[Move]]],
) -> dict[str, dict[str, Any]]:
    """The cost of each move to the writers."""
    history = topics.history
    producers = {
        side: ProducerProcess(
            LibrdkafkaProducer.library,
            ",".join(topics.names),
            topics.partitions,
            rate,
            on.filler.directory / "producers",
            name=f"{side}-{len(history.marks)}",
        )
        for side in topics.writers
    }
    jobs: dict[str, PromoteJobStatus | None] = {}
    windows: dict[str, tuple[float, float]] = {}
    try:
        await together(producers[side].start(where.bootstrap) for side, where in topics.writers.items())
        await asyncio.sleep(settings.load_seconds)
        for name, prepare in moves.items():
            move = await prepare(on, topics)
            await asyncio.sleep(AFTERWARDS)
            began = history.mark(f"{name} begins")
            jobs[name] = await move()
            await asyncio.sleep(AFTERWARDS)
            windows[name] = began, history.mark(f"{name} is over")
        await asyncio.sleep(AFTERWARDS)
        await together(producer.finish(history) for producer in producers.values())
    finally:
        for producer in producers.values():
            await producer.abandon()
    placed = await asyncio.to_thread(placements, topics.owner.bootstrap, topics.written)
    logs = await asyncio.to_thread(final_logs, topics.owner, topics.written, placed)
    return {name: _round(check(history, logs, promote=windows[name]), jobs[name]) for name in moves}


def _round(verdict: Verdict, job: PromoteJobStatus | None) -> dict[str, Any]:
    if verdict.promote_pause_ms is None:
        raise BenchError("no producer had an acknowledgement before and after leadership moved")
    return {
        "pause_ms": verdict.promote_pause_ms,
        "pause_ms_by_producer": {name.partition("-")[0]: ms for name, ms in verdict.pauses_ms.items()},
        "usual_gap_ms": verdict.usual_gap_ms,
        "acked": verdict.acked,
        "wrong": [f"{rule}: {len(seen)}, first {seen[0]}" for rule, seen in verdict.violations.items()],
        **({} if job is None else {"phases_ms": {str(phase): ms for phase, ms in job.phases_ms.items()}}),
    }


def switched(on: Stage, topics: Sequence[str]) -> PromoteJobStatus:
    try:
        with on.sidecar.client() as admin:
            job = admin.switch_mirrors(LINK, PromoteRequest(topics=list(topics)))
            return admin.follow_promote(job.id, lambda _job: None)
    except AdminError as error:
        raise BenchError(f"the switch of {topics[0]} failed: {error}") from error


# --- what being in sync adds


async def _sync(on: Stage, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "sync_latency",
        f"librdkafka at {RATE:,}/s, idempotent, acks=all, linger 0, {SYNC_PARTITIONS} partitions, RF {BROKERS}, in turn to "
        "a topic that is mirrored and to one that is in sync as well; produce() to delivery report",
    )
    topics = {"mirrored": "sync-off", "in_sync": "sync-on"}
    for topic in topics.values():
        await on.source.create_topic(topic, orders_of(SYNC_PARTITIONS), SMALL_INDEXES)
    await on.create_mirrors(list(topics.values()), BROKERS)
    await on.wait_all_active(list(topics.values()))
    await on.sync(topics["in_sync"])
    senders = {side: Sender(side, on.source.bootstrap, topic) for side, topic in topics.items()}
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in topics}
    try:
        result.rounds["warm_up"] = [{"p50_ms": p50} for p50 in await _warm(senders, settings)]
        for number in range(settings.rounds):
            for side, sender in senders.items():
                cpu = on.sidecar.cpu_seconds()
                latencies = await asyncio.to_thread(sender.window, RATE, settings.window_seconds)
                one = latencies_of(latencies, on.sidecar.cpu_seconds() - cpu)
                say(f"round {number + 1} {side}: {one}")
                rounds[side].append(one)
    finally:
        for sender in senders.values():
            sender.close()
    result.rounds |= {side: list(of) for side, of in rounds.items()}
    for side, of in rounds.items():
        result.figures |= {f"{side}_{key}": median_of(of, key) for key in of[0]}
    result.figures["added_p50_ms"] = added = _median_added(rounds["mirrored"], rounds["in_sync"], "p50_ms")
    result.figures["added_p99_ms"] = _median_added(rounds["mirrored"], rounds["in_sync"], "p99_ms")
    result.goals = [
        Goal(f"added p50 of acks=all, {RATE:,} messages/s", added, SYNC_GOAL, at_least=False, unit="ms")
    ]
    result.plots = [strip(f"p50 at {RATE:,} messages/s", "ms", result.rounds, "p50_ms")]
    return result


async def _warm(senders: Mapping[str, Sender], settings: Settings) -> list[float]:
    """Until the topic that is only mirrored is not a tenth quicker than in the turn before: brokers gain for a minute and
    more, and both sides are at tens of milliseconds before. Returns its medians."""
    medians: list[float] = []
    for _ in range(1 + int(SYNC_WARM_TURNS * settings.warm_seconds / FULL.warm_seconds)):
        for side, sender in senders.items():
            latencies = await asyncio.to_thread(sender.window, RATE, 2 * settings.window_seconds)
            if side == "mirrored":
                medians.append(percentile(latencies, 0.5))
        if len(medians) > 1 and medians[-1] > 0.9 * medians[-2]:
            break
    return medians


def latencies_of(latencies: Sequence[float], cpu: float) -> dict[str, float]:
    shares = {"p1": 0.01, "p10": 0.1, "p50": 0.5, "p99": 0.99}
    return {
        **{f"{name}_ms": percentile(latencies, share) for name, share in shares.items()},
        "sidecar_cpu_us_per_message": 1e6 * cpu / len(latencies),
    }


def _median_added(
    without: Sequence[Mapping[str, float]], with_: Sequence[Mapping[str, float]], key: str
) -> float:
    """Of neighbouring windows: the machine's own moods are in both."""
    return median_of([{key: b[key] - a[key]} for a, b in zip(without, with_, strict=True)], key)
