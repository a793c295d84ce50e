"""How long a producer waits around a promote: the largest gap between two of its acknowledgements.

Idempotent producers of three client libraries, each in a process of its own, write to topics of 1, 100 and 1,000
partitions, bootstrapped at the target, so that every write is forwarded until the promote and goes to the new leaders
after it. Each promote has a topic of its own. All writes are checked against the final logs: a promote that loses a
record is not fast.

Beside it, alternating: the same producers on a topic of the same brokers whose leaderships move at once by a preferred
election. Kafka itself costs a producer as much when leadership moves on this machine: the same
metadata records, the same restart of replica fetchers, the same clients.

A follower that asks its new leader a moment too early waits for `replica.fetch.backoff.ms` (a second as Kafka comes), and
acks=all with it, however leadership moved. The target's brokers have it as docs/operations.md advises; one case more, of a
single partition and without a goal, shows brokers as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from admin.client import AdminError
from admin.models import PromoteJobStatus, PromotePhase, PromoteRequest
from lab.bench.cluster import BenchError
from lab.bench.producer_process import ProducerProcess
from lab.bench.results import CaseResult, Goal, median_of, strip
from lab.bench.settings import Settings
from lab.bench.stage import LINK, Source, Stage, stage
from lab.workload.checker import Verdict, check
from lab.workload.history import History
from lab.workload.inspection import final_logs, placements
from lab.workload.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from lab.workload.source_data import SourceTopic
from wire.together import together

# The goals in ms, by the number of partitions that are promoted at once.
GOALS = {1: 150.0, 100: 300.0, 1000: 1000.0}
SMALL_GOAL = 500.0  # for any other number
# Partitions; more are promoted without an election beside it: making those topics takes minutes.
BESIDE_UP_TO = 100
REPLICATION_FACTOR = 3
READY_TIMEOUT = 180.0
ATTEMPTS = 3
KINDS: tuple[tuple[type[LiveProducer], int], ...] = (
    (AiokafkaProducer, 300),
    (LibrdkafkaProducer, 1000),
    (KafkaPythonProducer, 200),
)
# Above BESIDE_UP_TO partitions each producer writes that much less: messages by themselves to a thousand partitions of
# three replicas are a request each for five processes, and 1,500 of them a second were more than two cores could take in
# three runs of four, before the promote already. A machine that falls behind shows its queue.
MANY_SHARE = 5
ADVISED = {"replica.fetch.backoff.ms": "50"}
# Of the topics on both sides; a link copies it. A broker maps two sparse files of 10 MB for each new segment, and writes the
# first entry when 4 kB of records have come. That page fault reads ahead what the disk's setting says (8 MiB on the machine
# of the recorded runs), which for a hole means zeroes: with five replicas of 100 partitions that are seconds of processor,
# all in the seconds after the load began, when leadership moves. Topics that are moved in earnest are past that.
SMALL_INDEXES = {"segment.index.bytes": "65536"}
AFTERWARDS = 1.5  # seconds of load after the promote: answers to what was held arrive in them


@dataclass(frozen=True, slots=True)
class Moved:
    """One move of all leaderships under load."""

    verdict: Verdict
    job: PromoteJobStatus | None  # None: an election
    attempts: int = 1

    def as_round(self) -> dict[str, Any]:
        return {
            "pause_ms": self.verdict.promote_pause_ms,
            "pause_ms_by_producer": dict(self.verdict.pauses_ms),
            "usual_gap_ms": self.verdict.usual_gap_ms,
            "acked": self.verdict.acked,
            **({} if self.job is None else {"phases_ms": _phases(self.job), "attempts": self.attempts}),
        }


def kinds(partitions: int) -> list[tuple[type[LiveProducer], int]]:
    """The producers and their messages per second."""
    share = 1 if partitions <= BESIDE_UP_TO else MANY_SHARE
    return [(kind, rate // share) for kind, rate in KINDS]


def _phases(job: PromoteJobStatus) -> dict[str, int]:
    return {str(phase): ms for phase, ms in job.phases_ms.items()}


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> list[CaseResult]:
    """One case for each number of partitions up to BESIDE_UP_TO, all on one stage; then brokers as they come."""
    numbers = [n for n in settings.promoted if n <= BESIDE_UP_TO]
    cases = await _all(source, "promote", numbers, settings, say)
    async with stage(source, "promote-plain", REPLICATION_FACTOR) as on:
        return [*cases, await _case(on, "_plain_brokers", min(numbers), settings, say)]


async def run_many(source: Source, settings: Settings, say: Callable[[str], None]) -> list[CaseResult]:
    """The larger ones, by themselves: they take longest, and have most that can go wrong."""
    return await _all(
        source, "promote-many", [n for n in settings.promoted if n > BESIDE_UP_TO], settings, say
    )


async def _all(
    source: Source, name: str, numbers: list[int], settings: Settings, say: Callable[[str], None]
) -> list[CaseResult]:
    if not numbers:
        return []
    async with stage(source, name, REPLICATION_FACTOR, ADVISED) as on:
        return [await _case(on, "", partitions, settings, say) for partitions in numbers]


async def _case(
    on: Stage, plain: str, partitions: int, settings: Settings, say: Callable[[str], None]
) -> CaseResult:
    """`plain`: what the name of the case ends with, where the brokers have no settings that are advised."""
    loads = ", ".join(f"{kind.library} {rate}/s" for kind, rate in kinds(partitions))
    sides = {"link": promote_under_load}
    if partitions <= BESIDE_UP_TO:
        sides["election"] = elect_under_load
    result = CaseResult(
        f"promote_{partitions}{plain}",
        f"promote of {partitions} partitions, RF {REPLICATION_FACTOR}, under idempotent producers at the target "
        f"({loads}); largest gap between two acks of one producer around it; target brokers "
        f"{'as Kafka comes' if plain else 'with ' + ', '.join(f'{k}={v}' for k, v in ADVISED.items())}",
    )
    for side in sides:
        result.rounds |= {side: [], f"{side}_warm_up": []}
    for number in range(-settings.warm_up, settings.promotes):
        label = "warm-up" if number < 0 else f"round {number + 1}"
        for side, move in sides.items():
            topic = f"{side}-{partitions}-{number + settings.warm_up}"
            moved = await move(on, topic, partitions, settings.load_seconds)
            one = moved.as_round()
            if one["pause_ms"] is None:
                raise BenchError("no producer had an acknowledgement before and after leadership moved")
            wrong = [
                f"{side} {label}: {rule}: {len(evidence)}, first {evidence[0]}"
                for rule, evidence in moved.verdict.violations.items()
            ]
            if side == "link":
                result.problems += wrong
            elif wrong:
                # No link is between these producers and their brokers: a yardstick's own trouble, told and not judged.
                one["wrong"] = wrong
                say(f"{partitions} partitions, by Kafka and its clients alone: {'; '.join(wrong)}")
            say(
                f"{partitions} partitions, {label} {side}: pause {one['pause_ms']:.0f} ms {one['pause_ms_by_producer']}"
            )
            result.rounds[side if number >= 0 else f"{side}_warm_up"].append(one)
            await on.discard(topic, mirror=False)
    _judge(result, partitions)
    if plain:
        result.goals, result.ratios = [], {}
    return result


def _judge(result: CaseResult, partitions: int) -> None:
    figures, rounds = result.figures, result.rounds
    for side in ("link", "election"):
        if side in rounds:
            figures[f"{side}_pause_ms_median"] = median_of(rounds[side], "pause_ms")
            figures[f"{side}_pause_ms_max"] = max(one["pause_ms"] for one in rounds[side])
    for kind, _ in KINDS:
        gaps = [{"ms": one["pause_ms_by_producer"].get(kind.library)} for one in rounds["link"]]
        if all(gap["ms"] is not None for gap in gaps):
            figures[f"pause_ms_median_{kind.library}"] = median_of(gaps, "ms")
    figures["given_up"] = sum(one["attempts"] - 1 for one in rounds["link"])
    pause = figures["link_pause_ms_median"]
    if "election" in rounds:
        result.ratios = {
            "election's pause / promote's, short back-off": figures["election_pause_ms_median"] / pause
        }
    result.goals = [
        Goal(
            f"promote pause, {partitions:,} partitions under load",
            pause,
            GOALS.get(partitions, SMALL_GOAL),
            at_least=False,
            unit="ms",
        )
    ]
    result.plots = [strip("Largest gap between two acks", "ms", rounds, "pause_ms")]


async def promote_under_load(on: Stage, topic: str, partitions: int, load_seconds: float) -> Moved:
    """Make a mirror, write to it, promote it, write on, and check."""
    replicas = [[1 + index % 2, 2 - index % 2] for index in range(partitions)]
    await on.source.create_topic(topic, replicas, SMALL_INDEXES)
    await on.create_mirror(topic, REPLICATION_FACTOR)
    await on.wait_all_active([topic], READY_TIMEOUT)
    jobs: list[PromoteJobStatus] = []

    async def promote() -> None:
        """One that gives up has changed nothing and may be asked for again; the pause counts over all of them."""
        while not jobs or (jobs[-1].phase is not PromotePhase.PROMOTED and len(jobs) < ATTEMPTS):
            jobs.append(await asyncio.to_thread(_promote, on, topic))

    verdict = await _under_load(on, topic, partitions, load_seconds, promote)
    job = jobs[-1]
    if job.phase is not PromotePhase.PROMOTED:
        raise BenchError(f"the promote of {topic} ended as {job.phase} {len(jobs)} times: {job.reason}")
    return Moved(verdict, job, len(jobs))


async def elect_under_load(on: Stage, topic: str, partitions: int, load_seconds: float) -> Moved:
    """A topic whose replicas were put into another order, so that the election moves every leadership."""
    target = on.target
    orders = [[1 + (index + turn) % 3 for turn in range(REPLICATION_FACTOR)] for index in range(partitions)]
    await target.create_topic(topic, orders, SMALL_INDEXES)
    preferred = [[*order[1:], order[0]] for order in orders]
    await target.reassign_each(topic, preferred)
    await target.wait_reassigned()

    async def elect() -> None:
        await target.elect_preferred({topic: partitions})

    return Moved(await _under_load(on, topic, partitions, load_seconds, elect), None)


async def _under_load(
    on: Stage, topic: str, partitions: int, load_seconds: float, move: Callable[[], Awaitable[None]]
) -> Verdict:
    history = History()
    directory = on.filler.directory / "producers"
    producers = [
        ProducerProcess(kind.library, topic, partitions, rate, directory) for kind, rate in kinds(partitions)
    ]
    try:
        await together(producer.start(on.target.bootstrap) for producer in producers)
        await asyncio.sleep(load_seconds)
        began = history.mark("leadership begins to move")
        await move()
        await asyncio.sleep(AFTERWARDS)
        ended = history.mark("leadership has moved")
        await asyncio.sleep(AFTERWARDS)
        await together(producer.finish(history) for producer in producers)
    finally:
        for producer in producers:
            await producer.abandon()
    written = [SourceTopic(topic, partitions, lambda _filler, _topic: None)]
    placed = await asyncio.to_thread(placements, on.target.bootstrap, written)
    logs = await asyncio.to_thread(final_logs, on.target, written, placed)
    return check(history, logs, promote=(began, ended))


def _promote(on: Stage, topic: str) -> PromoteJobStatus:
    try:
        with on.sidecar.client() as admin:
            job = admin.promote(LINK, PromoteRequest(topics=[topic]))
            return admin.follow_promote(job.id, lambda _job: None)
    except AdminError as error:
        raise BenchError(f"the promote of {topic} failed: {error}") from error
