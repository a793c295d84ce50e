"""PromoteDriver runs a promote job batch by batch through its phases, and resumes after a crash.

A batch is undone as a whole while nothing was sent. After that the metadata log alone settles each partition. A
cancelled driver (the sidecar stops) undoes nothing: fenced partitions stay fenced until the process ends, and resume()
decides at the next start. `checks` has the steps before the hand-over, `hand_over` the hand-over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.errors import PromoteAbandoned, PromoteStuck
from controller.phases import BEFORE_HAND_OVER, ENDED, PROMOTING, Phase
from controller.state import Attempt, JobStatus, PromoteJob
from fleet.link_controller import LinkController
from linker.promote.at_source import look_back
from linker.promote.checks import Checks, Verified
from linker.promote.context import PromoteBatch, describe, full_reason
from linker.promote.failover import FailoverBatch, FailoverChecks, FailoverPorts
from linker.promote.growth import check_growth, take_growth
from linker.promote.hand_over import HandOverRun
from linker.promote.ports import PromotePorts, PromoteSettings, Report
from linker.promote.source_fencing import prepare_source
from wire.errors import LinkerError
from wire.frames.types import TopicPartition, per_topic

logger = logging.getLogger(__name__)
_MOST_WARNINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteOutcome:
    """How a job ended. `abandoned` partitions are ACTIVE again, each with its reason."""

    job_id: int
    promoted: tuple[TopicPartition, ...]
    abandoned: Mapping[TopicPartition, str]
    phases_ms: Mapping[str, float]  # summed over batches; fenced_total is the longest of any batch

    @property
    def reason(self) -> str | None:
        reasons = list(dict.fromkeys(self.abandoned.values()))
        return "; ".join(reasons[:3]) or None


class PromoteDriver:
    """One per link. Jobs of a link run one after the other."""

    def __init__(
        self,
        controller: LinkController,
        link: str,
        ports: PromotePorts,
        settings: PromoteSettings | None = None,
        report: Report | None = None,
        failover_ports: FailoverPorts | None = None,
    ) -> None:
        """`failover_ports`: what failovers need beside `ports`; without it there are none."""
        self._controller = controller
        self._link = link
        self._ports = ports
        self._settings = settings or PromoteSettings()
        self._report = report
        self._failover_ports = failover_ports
        self._turn = asyncio.Lock()

    async def run(self, job: PromoteJob) -> PromoteOutcome:
        """A job of LinkController.begin_promote, to its end. After the first abandoned batch no other is
        begun.

        PromoteStuck, a store error or a cancel leave the job RUNNING: call resume().
        """
        async with self._turn:
            contexts: list[PromoteBatch] = []
            waiting = cut(job.partitions, self._settings, job)
            while waiting := waiting or self._added(job, contexts):
                tps = waiting.pop(0)
                if contexts and not job.failover:
                    await contexts[-1].breathe()
                context = self._context(job.id, tps, failover=job.failover)
                context.missing_before = sum(sum(one.missing.values()) for one in contexts)
                contexts.append(context)
                if isinstance(context, FailoverBatch):
                    await self._fail_over_batch(context)
                else:
                    await self._run_batch(context)
                if context.abandoned:
                    break
            return await self._end(job, contexts)

    async def resume(
        self, only: Collection[int] | None = None, *, why: str = "not begun before the sidecar restarted"
    ) -> list[PromoteOutcome]:
        """Call once when this sidecar has become the link controller, and again after PromoteStuck, then
        with the ids of the jobs that nobody runs. `why` is said of what was not begun.

        Handed-over partitions are finished, VALIDATED ones settled and gone on with behind their fence, everything
        earlier returns to ACTIVE. Partitions of a job that had not begun stay ACTIVE.

        A restart does not end a failover that has given up its source: it goes on. One that had not got so far ends,
        because nobody knows whether the source is still dead, and only a new command may give it up.
        """
        async with self._turn:
            outcomes: list[PromoteOutcome] = []
            # The commit that ended the last run may have been carried out although it raised.
            await self._controller.refresh()
            for job in self._controller.image.running_jobs(self._link):
                if only is not None and job.id not in only:
                    continue
                if job.failover:
                    outcomes.append(await self._resume_failover(job, why))
                    continue
                held = [tp for tp in job.partitions if self._phase(tp) in PROMOTING]
                context = self._context(job.id, held)
                if held:
                    await self._resume_batch(context)
                rest = {
                    tp: self._ended_by(job, tp) or why
                    for tp in job.partitions
                    if tp not in held and self._phase(tp) not in ENDED
                }
                context.abandoned = {**rest, **context.abandoned}
                outcomes.append(await self._end(job, [context]))
            return outcomes

    async def retreat(self) -> None:
        """The part of resume() that can be done at once: partitions whose hand-over was certainly not sent go back, so
        that their producers need not wait until the rest is settled."""
        async with self._turn:
            await self._controller.refresh()
            jobs = self._controller.image.running_jobs(self._link)
            for job in jobs:
                if job.failover:
                    continue
                early = {
                    tp: f"the link controller restarted while it was {phase}"
                    for tp in job.partitions
                    if (phase := self._phase(tp)) in BEFORE_HAND_OVER
                }
                if early:
                    await self._context(job.id, list(early)).go_back(early)
            owned = {tp for job in jobs for tp in job.partitions}
            orphans = {
                state.tp: f"it was {state.phase} without a promote"
                for state in self._controller.image.link_partitions(self._link)
                if state.phase in BEFORE_HAND_OVER and state.tp not in owned
            }
            if orphans:
                await self._context(0, list(orphans)).go_back(orphans)

    def _phase(self, tp: TopicPartition) -> Phase | None:
        state = self._controller.image.partitions.get((self._link, tp))
        return None if state is None else state.phase

    def _ended_by(self, job: PromoteJob, tp: TopicPartition) -> str | None:
        """Why a partition that the job has let go of is in its phase. A reason from before the job says nothing about
        it."""
        state = self._controller.image.partitions[self._link, tp]
        return state.reason if state.since >= job.started_at else None

    def _context(
        self, job_id: int, tps: Collection[TopicPartition], *, failover: bool = False
    ) -> PromoteBatch:
        if failover:
            if self._failover_ports is None:
                raise PromoteStuck(f"failover {job_id} of link {self._link} cannot be run here")
            return FailoverBatch(
                self._controller, self._link, job_id, tps, self._settings, self._report, self._failover_ports
            )
        return PromoteBatch(
            self._controller, self._link, job_id, tps, self._ports, self._settings, self._report
        )

    async def _run_batch(self, context: PromoteBatch) -> None:
        checks = Checks(context)
        try:
            await checks.catch_up()
            while await take_growth(context):  # it may have waited for long, behind another job too
                await checks.catch_up()
            await prepare_source(context)
            await checks.take_fence()
            verified = await self._validated(context, checks)
        except Exception as error:
            # Nothing was sent. No failure, a bug included, may leave producers held.
            if not isinstance(error, LinkerError | TimeoutError):
                logger.exception(
                    "a batch of promote %d of link %s hit a bug before anything was sent; it is abandoned, its writes go on",
                    context.job_id,
                    context.link,
                )
            await context.go_back(dict.fromkeys(context.tps, full_reason(error)))
            return
        await HandOverRun(context, checks, verified, {}).run(context.tps)
        await context.finish()

    def _added(self, job: PromoteJob, contexts: Iterable[PromoteBatch]) -> list[list[TopicPartition]]:
        """Partitions that became part of the job when no batch could take them any more."""
        taken = {tp for context in contexts for tp in context.tps}
        now = self._controller.image.jobs.get((self._link, job.id), job)
        return cut([tp for tp in now.partitions if tp not in taken], self._settings, job)

    async def _fail_over_batch(self, context: FailoverBatch) -> None:
        """From wherever the batch stands to its end."""
        checks = FailoverChecks(context)
        phases = {context.phase_of(tp) for tp in context.tps}
        if not phases & {Phase.VALIDATED, Phase.HANDED_OVER, Phase.FAILED_OVER}:
            try:
                await checks.ready()
                await checks.take_fence()
                await checks.choose_end()
                verified = await self._validated(context, checks)
            except Exception as error:
                if not isinstance(error, LinkerError | TimeoutError):
                    logger.exception(
                        "a batch of failover %d of link %s hit a bug before anything was sent; it is abandoned",
                        context.job_id,
                        context.link,
                    )
                await context.go_back(dict.fromkeys(context.tps, full_reason(error)))
                return
            await HandOverRun(context, checks, verified, {}).run(context.tps)
        else:
            handed_over = [tp for tp in context.tps if context.phase_of(tp) is Phase.HANDED_OVER]
            if handed_over:
                await context.release(handed_over)
            validated = [tp for tp in context.tps if context.phase_of(tp) is Phase.VALIDATED]
            if validated:
                await self._resume_validated(context, validated, checks)
        await context.finish()

    async def _resume_failover(self, job: PromoteJob, why: str) -> PromoteOutcome:
        """Go on with the partitions that have given up their source already. For the others the source was dead when
        the failover was asked for, which says nothing of now: it may be alive, with records that are nowhere else."""
        contexts: list[PromoteBatch] = []
        for tps in cut(job.partitions, self._settings, job):
            states = self._controller.image.partitions
            begun = [tp for tp in tps if states[self._link, tp].failover is not None]
            if not begun:
                continue
            context = self._context(job.id, begun, failover=True)
            contexts.append(context)
            if isinstance(context, FailoverBatch):
                await self._fail_over_batch(context)
            if context.abandoned:
                break
        left = self._context(job.id, [], failover=True)
        left.abandoned = {
            tp: self._ended_by(job, tp) or f"{why}: fail over again if its source is still dead"
            for tp in job.partitions
            if self._phase(tp) not in ENDED
        }
        return await self._end(job, [left, *contexts])

    async def _validated(self, context: PromoteBatch, checks: Checks) -> Verified:
        """ALIGNED -> VALIDATED, with the epochs of the hand-over that is about to be sent."""
        while True:
            verified = await checks.verify(context.tps)
            await check_growth(context)
            plan = context.plan(context.tps)
            if plan.obstacles or not verified.holds_for(plan):
                context.waiting = {tp: found.reason for tp, found in plan.obstacles.items()}
                context.fence_left()
                continue
            attempts = {tp: plan.items[tp].attempt for tp in context.tps}
            await context.written(
                context.controller.advance(context.link, context.tps, Phase.VALIDATED, attempts=attempts)
            )
            context.tell()
            return verified

    async def _resume_batch(self, context: PromoteBatch) -> None:
        by_phase = {phase: [tp for tp in context.tps if context.phase_of(tp) is phase] for phase in PROMOTING}
        early = {
            tp: f"the sidecar restarted while it was {phase}"
            for phase in BEFORE_HAND_OVER
            for tp in by_phase[phase]
        }
        if early:
            await context.go_back(early)
        handed_over = by_phase[Phase.HANDED_OVER]
        if handed_over:
            await context.release(handed_over)
        validated = by_phase[Phase.VALIDATED]
        if validated:
            await self._resume_validated(context, validated)
        await context.finish()

    async def _resume_validated(
        self, context: PromoteBatch, tps: list[TopicPartition], checks: Checks | None = None
    ) -> None:
        ends: dict[TopicPartition, int] = {}
        unknown: dict[TopicPartition, Attempt] = {}
        for tp in tps:
            state = context.controller.image.partitions[context.link, tp]
            if state.aligned_end is None or state.attempt is None:
                raise PromoteStuck(f"{tp} is {state.phase} without the end and the epochs it was sent with")
            ends[tp] = state.aligned_end
            unknown[tp] = state.attempt
        fencer, hand_over = context.ports.fencer, context.ports.hand_over
        await context.insist(lambda timeout: fencer.fence(tps, timeout=timeout), "taking the fence again")
        await context.insist(
            lambda timeout: hand_over.caught_up(timeout=timeout), "reading the target's metadata log"
        )
        context.start_fence()
        checks = checks or Checks(context)
        checks.expect_ends(ends)
        await HandOverRun(context, checks, None, unknown).run(tps)

    async def _end(self, job: PromoteJob, contexts: list[PromoteBatch]) -> PromoteOutcome:
        job = self._controller.image.jobs.get((self._link, job.id), job)  # partitions may have been added
        phases_ms: dict[str, float] = {}
        for context in contexts:
            for name, value in context.phases_ms.items():
                before = phases_ms.get(name, 0.0)
                phases_ms[name] = max(before, value) if name == "fenced_total" else before + value
        abandoned: dict[TopicPartition, str] = {}
        for context in contexts:
            abandoned |= context.abandoned
        outcome = PromoteOutcome(
            job_id=job.id,
            promoted=tuple(tp for tp in job.partitions if self._phase(tp) in ENDED),
            abandoned=abandoned,
            phases_ms=phases_ms,
        )
        done = len(outcome.promoted) == len(job.partitions)
        reason = None if done else outcome.reason or describe(abandoned)
        if outcome.promoted and not done:
            # ABANDONED says else that nothing was changed.
            what, again = ("failed over", "fail over") if job.failover else ("promoted", "promote")
            reason = (
                f"{reason}; {len(outcome.promoted)} of {len(job.partitions)} partitions ARE {what} and stay so: leave "
                f"clients where they are, and {again} again for the rest"
            )
        warnings = [warning for context in contexts for warning in context.warnings]
        if (
            outcome.promoted and not job.failover and not job.switch
        ):  # what comes after a switch comes from the target
            warnings = await look_back(contexts[-1], outcome.promoted) + warnings
        await self._controller.end_promote(
            job,
            JobStatus.DONE if done else JobStatus.ABANDONED,
            reason,
            phases_ms,
            warnings[:_MOST_WARNINGS],
        )
        return outcome


def cut(
    tps: Collection[TopicPartition], settings: PromoteSettings, job: PromoteJob | None = None
) -> list[list[TopicPartition]]:
    """The batches of a promote, in their order. A switch takes topics over as a whole: none of them is cut."""
    if job is not None and job.switch:
        return batches(tps, settings.switch_partitions, whole=True)
    most, first = settings.at_a_time(len(tps), whole=job is not None and job.failover)
    return batches(tps, most, first)


def batches(
    tps: Collection[TopicPartition], most: int, first: int | None = None, *, whole: bool = False
) -> list[list[TopicPartition]]:
    """Whole topics together as long as they fit; a topic with more partitions is cut, or with `whole` a batch of its own.
    The first batch has `first` partitions at most, if that is given, and each one after it twice as many as the one before
    may have, up to `most`."""
    result: list[list[TopicPartition]] = []
    room = most if first is None else min(first, most)
    current: list[TopicPartition] = []
    for partitions in per_topic(tps).values():
        if current and len(current) + len(partitions) > room:
            result.append(current)
            current = []
            room = min(2 * room, most)
        current = current + partitions
        while len(current) > room and not whole:
            result.append(current[:room])
            current = current[room:]
            room = min(2 * room, most)
    if current:
        result.append(current)
    return result


__all__ = ["PromoteAbandoned", "PromoteDriver", "PromoteOutcome", "PromoteStuck", "batches", "cut"]
