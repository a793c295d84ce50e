"""How long a producer waits around a promote: the largest gap between two of its acknowledgements.

Idempotent producers of three client libraries write to 12 partitions, bootstrapped at the target, so that every
write is forwarded until the promote and goes to the new leaders after it. Each promote has a topic of its own.
What was written is checked against the final logs: a promote that loses a record is not fast.

Beside it, alternating: the same producers on a topic of the same brokers whose 12 leaderships move at once by a
preferred election. That is what Kafka itself costs a producer when leadership moves on this machine: the same
metadata records, the same restart of replica fetchers, the same clients. The worst of either side is kept too:
a follower that asks its new leader a moment too early waits for `replica.fetch.backoff.ms` (a second), and
acks=all with it, however leadership moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.results import CaseResult, Goal, median_of
from bench.settings import Settings
from bench.stage import LINK, BenchError, Source, Stage, stage
from linker.admin.client import AdminError
from linker.admin.models import PromoteJob, PromotePhase, PromoteRequest
from linker.demo.checker import Verdict, check
from linker.demo.history import History
from linker.demo.inspection import final_logs, placements
from linker.demo.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from linker.demo.source_data import SourceTopic

PARTITIONS = 12
REPLICATION_FACTOR = 3
KINDS: tuple[tuple[type[LiveProducer], int], ...] = (
    (AiokafkaProducer, 300),
    (LibrdkafkaProducer, 1000),
    (KafkaPythonProducer, 200),
)
AFTERWARDS = 1.5  # seconds of load after the promote: answers to what was held arrive in them


@dataclass(frozen=True, slots=True)
class Moved:
    """One move of all leaderships under load."""

    verdict: Verdict
    job: PromoteJob | None  # None: an election

    def as_round(self) -> dict[str, Any]:
        return {
            "pause_ms": self.verdict.promote_pause_ms,
            "pause_ms_by_producer": dict(self.verdict.pauses_ms),
            "usual_gap_ms": self.verdict.usual_gap_ms,
            "acked": self.verdict.acked,
            **({} if self.job is None else {"phases_ms": _phases(self.job)}),
        }


def _phases(job: PromoteJob) -> dict[str, int]:
    return {str(phase): ms for phase, ms in job.phases_ms.items()}


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    loads = ", ".join(f"{kind.library} {rate}/s" for kind, rate in KINDS)
    result = CaseResult(
        "promote",
        f"promote of {PARTITIONS} partitions, RF {REPLICATION_FACTOR}, under idempotent producers at the target "
        f"({loads}); largest gap between two acks of one producer around it",
        {"link": [], "election": [], "link_warm_up": [], "election_warm_up": []},
    )
    async with stage(source, "promote", REPLICATION_FACTOR) as on:
        for number in range(-settings.warm_up, settings.promotes):
            label = "warm-up" if number < 0 else f"round {number + 1}"
            for side, move in (("link", promote_under_load), ("election", elect_under_load)):
                moved = await move(on, f"{side}-{number + settings.warm_up}", settings.load_seconds)
                one = moved.as_round()
                if one["pause_ms"] is None:
                    raise BenchError("no producer had an acknowledgement before and after leadership moved")
                for rule, evidence in moved.verdict.violations.items():
                    result.problems.append(f"{side} {label}: {rule}: {len(evidence)}, first {evidence[0]}")
                say(f"{label} {side}: pause {one['pause_ms']:.0f} ms {one['pause_ms_by_producer']}")
                result.rounds[side if number >= 0 else f"{side}_warm_up"].append(one)
    rounds = result.rounds["link"]
    result.figures["election_pause_ms_median"] = median_of(result.rounds["election"], "pause_ms")
    result.figures["election_pause_ms_max"] = max(one["pause_ms"] for one in result.rounds["election"])
    result.figures["pause_ms_median"] = median_of(rounds, "pause_ms")
    result.figures["pause_ms_max"] = max(one["pause_ms"] for one in rounds)
    for kind, _ in KINDS:
        gaps = [{"ms": one["pause_ms_by_producer"].get(kind.library)} for one in rounds]
        if all(gap["ms"] is not None for gap in gaps):
            result.figures[f"pause_ms_median_{kind.library}"] = median_of(gaps, "ms")
    result.goals = [
        Goal(
            "promote pause, 12 partitions under load",
            result.figures["pause_ms_median"],
            500,
            at_least=False,
            unit="ms",
        )
    ]
    return result


async def promote_under_load(on: Stage, topic: str, load_seconds: float) -> Moved:
    """Make a mirror, write to it, promote it, write on, and check."""
    await on.source.create_topic(topic, [[1 + index % 2, 2 - index % 2] for index in range(PARTITIONS)])
    await on.create_mirror(topic, REPLICATION_FACTOR)
    await on.wait_active(topic)
    jobs: list[PromoteJob] = []

    async def promote() -> None:
        jobs.append(await asyncio.to_thread(_promote, on, topic))

    verdict = await _under_load(on, topic, load_seconds, promote)
    job = jobs[0]
    if job.phase is not PromotePhase.PROMOTED:
        raise BenchError(f"the promote of {topic} ended as {job.phase}: {job.reason}")
    return Moved(verdict, job)


async def elect_under_load(on: Stage, topic: str, load_seconds: float) -> Moved:
    """A topic whose replicas were put into another order, so that the election moves every leadership."""
    target = on.target
    orders = [[1 + (index + turn) % 3 for turn in range(REPLICATION_FACTOR)] for index in range(PARTITIONS)]
    await target.create_topic(topic, orders)
    preferred = [[*order[1:], order[0]] for order in orders]
    await target.reassign_each(topic, preferred)
    await target.wait_reassigned()

    async def elect() -> None:
        await target.elect_preferred(topic, PARTITIONS)

    return Moved(await _under_load(on, topic, load_seconds, elect), None)


async def _under_load(
    on: Stage, topic: str, load_seconds: float, move: Callable[[], Awaitable[None]]
) -> Verdict:
    history = History()
    producers = [kind(kind.library, topic, PARTITIONS, rate, history) for kind, rate in KINDS]
    try:
        for producer in producers:
            await producer.start(on.target.bootstrap)
        await asyncio.sleep(load_seconds)
        began = history.mark("leadership begins to move")
        await move()
        await asyncio.sleep(AFTERWARDS)
        ended = history.mark("leadership has moved")
        await asyncio.sleep(AFTERWARDS)
    finally:
        for producer in producers:
            await producer.stop()
    written = [SourceTopic(topic, PARTITIONS, lambda _filler, _topic: None)]
    placed = await asyncio.to_thread(placements, on.target.bootstrap, written)
    logs = await asyncio.to_thread(final_logs, on.target, written, placed)
    return check(history, logs, promote=(began, ended))


def _promote(on: Stage, topic: str) -> PromoteJob:
    try:
        with on.sidecar.client() as admin:
            job = admin.promote(LINK, PromoteRequest(topics=[topic]))
            return admin.follow_promote(job.id, lambda _job: None)
    except AdminError as error:
        raise BenchError(f"the promote of {topic} failed: {error}") from error
