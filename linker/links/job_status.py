"""The jobs of a link for status: promotes and failovers, with their topics' phases.

Read only. A number that is not known is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from admin.models import FailoverPartition, OpenTransaction, PromoteJobStatus, PromotePhase, PromoteTopic
from controller.decide.failovers import missing
from controller.image import ControllerImage
from controller.phases import ENDED, PROMOTING, Phase
from controller.state import Failover, JobStatus, MirrorPartition, PromoteJob
from linker.links import proved
from linker.links.runtime import LinkRuntime
from linker.links.status import partition_state
from linker.links.times import moment


def failover_partition(runtime: LinkRuntime, state: MirrorPartition, failover: Failover) -> FailoverPartition:
    return FailoverPartition(
        topic=state.topic,
        partition=state.partition,
        state=partition_state(runtime, state),
        end=failover.end,
        source_end=failover.source_end,
        acked_end=failover.acked_end,
        missing=missing(failover),
        aborted=[
            OpenTransaction(
                producer_id=one.producer_id, producer_epoch=one.producer_epoch, start_offset=one.start_offset
            )
            for one in failover.aborted
        ],
        reason=state.reason,
    )


# The driver times its steps; people know the phase that a step ends in. A switch takes its source over behind the fence.
_TIMED_AS = {
    "catch_up": PromotePhase.CATCHING_UP,
    "prepare_source": PromotePhase.CATCHING_UP,
    "fence": PromotePhase.FENCED,
    "fence_source": PromotePhase.FENCED,
    "align": PromotePhase.ALIGNED,
    "validate": PromotePhase.VALIDATED,
    "hand_over": PromotePhase.HANDED_OVER,
    "finish": PromotePhase.PROMOTED,
}


def job_id(job: PromoteJob) -> str:
    """The id people use: unique over links."""
    return f"{job.link}-{job.id}"


def find_job(image: ControllerImage, text: str) -> PromoteJob | None:
    link, _, number = text.rpartition("-")
    return image.jobs.get((link, int(number))) if number.isascii() and number.isdigit() else None


def promote_job(runtime: LinkRuntime, job: PromoteJob) -> PromoteJobStatus:
    """A job with its topics' phases."""
    image = runtime.controller.image
    progress = runtime.promotes.progress.get(job.id)
    by_topic: dict[str, list[MirrorPartition]] = {}
    for tp in job.partitions:
        found = by_topic.setdefault(tp.topic, [])
        if (known_state := image.partitions.get((job.link, tp))) is not None:
            found.append(known_state)
    topics = []
    for topic, states in by_topic.items():
        lags = [runtime.lag(state.tp) for state in states if state.phase in PROMOTING | {Phase.ACTIVE}]
        known = [lag for lag in lags if lag is not None]
        topics.append(
            PromoteTopic(
                topic=topic,
                partitions=len(states),
                phase=_promote_phase(job, states),
                lag=sum(known) if lags and len(known) == len(lags) else None,
                reason=next((state.reason for state in states if state.reason), None),
            )
        )
    order = list(PromotePhase)
    timed = job.phases_ms if progress is None else progress.phases_ms
    reason = job.reason if progress is None else progress.waiting_for
    return PromoteJobStatus(
        id=job_id(job),
        link=job.link,
        phase=PromotePhase.ABANDONED
        if job.status is JobStatus.ABANDONED
        else (PromotePhase.FAILED_OVER if job.failover else PromotePhase.PROMOTED)
        if job.status is JobStatus.DONE
        else min(
            (topic.phase for topic in topics if not topic.phase.final),
            key=order.index,
            default=PromotePhase.HANDED_OVER,
        ),
        reason=reason,
        topics=topics,
        started_at=moment(job.started_at),
        finished_at=None if job.ended_at is None else moment(job.ended_at),
        validation=proved.promote_validation(runtime, job),
        accept_missing=job.accept_missing,
        requested_by=job.requested_by,
        warnings=list(job.warnings),
        phases_ms=phases_ms_of(timed, failover=job.failover),
        # A switch notes what it takes over in the same place: there the source refuses nothing, and no ACL was made.
        source_fenced=[] if job.switch else list(job.source_fenced),
        failover=[
            failover_partition(runtime, state, state.failover)
            for tp in job.partitions
            if (state := image.partitions.get((job.link, tp))) is not None and state.failover is not None
        ]
        if job.failover
        else None,
    )


def phases_ms_of(timed: Mapping[str, float], *, failover: bool) -> dict[PromotePhase, int]:
    """The times that the driver took of its steps, in ms, under the names of the phases: no step that held writes is
    left out."""
    found: dict[PromotePhase, float] = {}
    for name, phase in _TIMED_AS.items():
        if name in timed:
            shown = PromotePhase.FAILED_OVER if failover and phase is PromotePhase.PROMOTED else phase
            found[shown] = found.get(shown, 0.0) + timed[name]
    return {phase: round(ms) for phase, ms in found.items()}


def _promote_phase(job: PromoteJob, states: list[MirrorPartition]) -> PromotePhase:
    phases = {state.phase for state in states}
    if phases == {Phase.PROMOTED}:
        return PromotePhase.PROMOTED
    if phases and phases <= ENDED:
        return PromotePhase.FAILED_OVER
    if job.status is not JobStatus.RUNNING:
        return PromotePhase.ABANDONED
    open_ = phases - ENDED
    # Beside one that has ended, one that is in no phase of a promote went back, unless the source has just added it.
    if open_ != phases and not open_ & (PROMOTING | {Phase.LINKING}):
        return PromotePhase.ABANDONED
    running = [phase for phase in PromotePhase if Phase.__members__.get(phase.value) in open_]
    return running[0] if running else PromotePhase.FENCED if job.failover else PromotePhase.CATCHING_UP
