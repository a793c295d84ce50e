"""How long a producer waits around a promote: the largest gap between two of its acknowledgements.

Idempotent producers of three client libraries write to 12 partitions, bootstrapped at the target, so that every
write is forwarded until the promote and goes to the new leaders after it. Each promote has a topic of its own.
What was written is checked against the final logs: a promote that loses a record is not fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
class Promoted:
    """One promote under load."""

    verdict: Verdict
    job: PromoteJob

    def as_round(self) -> dict[str, Any]:
        return {
            "pause_ms": self.verdict.promote_pause_ms,
            "pause_ms_by_producer": dict(self.verdict.pauses_ms),
            "usual_gap_ms": self.verdict.usual_gap_ms,
            "phases_ms": {str(phase): ms for phase, ms in self.job.phases_ms.items()},
            "acked": self.verdict.acked,
        }


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    loads = ", ".join(f"{kind.library} {rate}/s" for kind, rate in KINDS)
    result = CaseResult(
        "promote",
        f"promote of {PARTITIONS} partitions, RF {REPLICATION_FACTOR}, under idempotent producers at the target "
        f"({loads}); largest gap between two acks of one producer around it",
        {"link": []},
    )
    async with stage(source, "promote", REPLICATION_FACTOR) as on:
        for number in range(settings.promotes):
            promoted = await promote_under_load(on, f"promoted-{number}", settings.load_seconds)
            one = promoted.as_round()
            if one["pause_ms"] is None:
                raise BenchError("no producer had an acknowledgement before and after the promote")
            for rule, evidence in promoted.verdict.violations.items():
                result.problems.append(f"promote {number + 1}: {rule}: {len(evidence)}, first {evidence[0]}")
            say(f"promote {number + 1}: pause {one['pause_ms']:.0f} ms {one['pause_ms_by_producer']}")
            result.rounds["link"].append(one)
    rounds = result.rounds["link"]
    result.figures["pause_ms_median"] = median_of(rounds, "pause_ms")
    result.figures["pause_ms_max"] = max(one["pause_ms"] for one in rounds)
    for kind, _ in KINDS:
        gaps = [{"ms": one["pause_ms_by_producer"].get(kind.library)} for one in rounds]
        if all(gap["ms"] is not None for gap in gaps):
            result.figures[f"pause_ms_median_{kind.library}"] = median_of(gaps, "ms")
    result.goals = [
        Goal(
            "promote pause, 12 partitions under load, worst",
            result.figures["pause_ms_max"],
            500,
            at_least=False,
            unit="ms",
        )
    ]
    return result


async def promote_under_load(on: Stage, topic: str, load_seconds: float) -> Promoted:
    """Make a mirror, write to it, promote it, write on, and check."""
    await on.source.create_topic(topic, [[1 + index % 2, 2 - index % 2] for index in range(PARTITIONS)])
    await on.create_mirror(topic, REPLICATION_FACTOR)
    await on.wait_active(topic)
    history = History()
    producers = [kind(kind.library, topic, PARTITIONS, rate, history) for kind, rate in KINDS]
    try:
        for producer in producers:
            await producer.start(on.target.bootstrap)
        await asyncio.sleep(load_seconds)
        began = history.mark("promote begins")
        job = await asyncio.to_thread(_promote, on, topic)
        await asyncio.sleep(AFTERWARDS)
        ended = history.mark("promote is over")
        await asyncio.sleep(AFTERWARDS)
    finally:
        for producer in producers:
            await producer.stop()
    if job.phase is not PromotePhase.PROMOTED:
        raise BenchError(f"the promote of {topic} ended as {job.phase}: {job.reason}")
    written = [SourceTopic(topic, PARTITIONS, lambda _filler, _topic: None)]
    placed = await asyncio.to_thread(placements, on.target.bootstrap, written)
    logs = await asyncio.to_thread(final_logs, on.target, written, placed)
    return Promoted(check(history, logs, promote=(began, ended)), job)


def _promote(on: Stage, topic: str) -> PromoteJob:
    try:
        with on.sidecar.client() as admin:
            job = admin.promote(LINK, PromoteRequest(topics=[topic]))
            return admin.follow_promote(job.id, lambda _job: None)
    except AdminError as error:
        raise BenchError(f"the promote of {topic} failed: {error}") from error
