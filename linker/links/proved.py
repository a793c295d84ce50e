"""The proof of a link, for status: watermarks with their age, runs, evidence. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from admin.validation_models import (
    LinkValidation,
    LinkValidationDescription,
    Policy,
    PromoteValidation,
    ValidationFinding,
    ValidationProgress,
    ValidationRun,
    ValidationState,
    ValidatorStatus,
)
from controller.decide import validations
from controller.image import ControllerImage
from controller.phases import ENDED, Phase
from controller.proof import ValidationPolicy
from controller.state import MirrorPartition, PromoteJob
from fleet.link_controller import wall_clock_ms
from linker.links.runtime import LinkRuntime
from linker.links.times import moment
from linker.validation.planner import replicas_of
from linker.validation.runs import RunStatus, batch_text
from validator import messages as m

_OPEN = frozenset(
    {Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP, Phase.FENCED, Phase.ALIGNED, Phase.VALIDATED}
)
_MOST_MISMATCHES = 20


def watermark(
    image: ControllerImage, state: MirrorPartition, broker_id: int, end: int | None
) -> tuple[int | None, int | None]:
    """The watermark of a replica: everything below it is proved. With its age in ms, which is 0 while the source has
    nothing newer."""
    known = image.validations.get((state.link, state.tp))
    replica = None if known is None else known.of(broker_id)
    if replica is None:
        return None, None
    if state.aligned_end is not None and state.phase in ENDED:
        end = state.aligned_end
    if end is not None and replica.through >= end:
        return replica.through, 0
    return replica.through, max(0, wall_clock_ms() - replica.at)


def proved_from(runtime: LinkRuntime, state: MirrorPartition, broker_id: int) -> int | None:
    """The first offset of a replica that is proved and still there."""
    known = runtime.controller.image.validations.get((state.link, state.tp))
    replica = None if known is None else known.of(broker_id)
    if replica is None:
        return None
    late = [one.log_start for one in runtime.starts.of(state.tp) if one.broker_id == broker_id]
    counted = [] if replica.missing is None else [replica.missing.end]
    return max([replica.start, *late, *counted])


def mismatch(image: ControllerImage, state: MirrorPartition) -> str | None:
    known = image.validations.get((state.link, state.tp))
    return None if known is None or known.mismatch is None else validations.mismatch_text(known.mismatch)


def link_validation(runtime: LinkRuntime, back: LinkRuntime | None = None) -> LinkValidation:
    """Over all replicas of the link's open mirrors. `back`: the link that runs the other way, with the topics that were
    switched."""
    image = runtime.controller.image
    replicas = proved = 0
    behind: int | None = 0
    oldest: int | None = None
    both = [runtime] if back is None else [runtime, back]
    states = [(one, state) for one in both for state in image.link_partitions(one.name)]
    for one, state in states:
        mirror = image.mirrors.get((one.name, state.topic))
        if state.phase not in _OPEN or mirror is None:
            continue
        copy = one.copies.get(state.tp)
        end = copy.high_watermark if copy is not None and copy.loaded else None
        start = max(state.start_offset or 0, 0 if copy is None else copy.log_start_offset)
        for broker in replicas_of(one.target.image, mirror, state.tp, one.validation.link_brokers()):
            replicas += 1
            through, age = watermark(image, state, broker, end)
            if end is not None and (end <= start or (through is not None and through >= end)):
                proved += 1
                continue
            if through is None or end is None:
                behind = None
            elif behind is not None:
                behind = max(behind, end - max(through, start))
            if age is not None:
                oldest = max(oldest or 0, age)
    interval = runtime.validation.interval
    wrong = [text for _, state in states if (text := _named_mismatch(image, state))]
    late = [
        f"{state.tp}: {start}"
        for one, state in states
        if state.phase in _OPEN
        for start in one.starts.of(state.tp)
    ]
    return LinkValidation(
        link=runtime.name,
        continuous=interval is not None,
        interval_ms=None if interval is None else round(interval * 1000),
        trouble=next((one.validation.trouble for one in both if one.validation.trouble is not None), None),
        replicas=replicas,
        proved=proved,
        unproved_offsets=behind,
        age_ms=oldest if oldest is not None else 0 if replicas and proved == replicas else None,
        mismatches=wrong[:_MOST_MISMATCHES],
        late_starts=late[:_MOST_MISMATCHES],
    )


def _named_mismatch(image: ControllerImage, state: MirrorPartition) -> str | None:
    text = mismatch(image, state)
    return None if text is None else f"{state.tp}: {text}"


def link_description(runtime: LinkRuntime, back: LinkRuntime | None = None) -> LinkValidationDescription:
    validator = runtime.validation.validator
    process = validator.process
    ready = process.ready
    runs = [*reversed(runtime.validation.runs), *(() if back is None else reversed(back.validation.runs))]
    return LinkValidationDescription(
        **link_validation(runtime, back).model_dump(),
        validator=ValidatorStatus(
            state=process.state,
            spark=None if ready is None else ready.spark,
            master=validator.config.spark_master if ready is None else ready.master,
            ui=None if ready is None else ready.ui,
            trouble=process.trouble,
            log=str(process.log_file),
        ),
        runs=[run(runtime.name, one) for one in sorted(runs, key=lambda one: one.started_at, reverse=True)],
    )


def run(link: str, one: RunStatus) -> ValidationRun:
    return ValidationRun(
        id=one.id,
        link=link,
        kind=one.kind,  # type: ignore[arg-type]  # the names of Urgency
        mode=one.mode.value,
        state=one.state,
        reason=one.reason,
        topics=list(one.topics),
        started_at=moment(one.started_at),
        finished_at=None if one.ended_at is None else moment(one.ended_at),
        progress=progress(one.progress),
        partitions=one.partitions,
        replicas=one.replicas,
        batches=one.batches,
        records=one.records,
        bytes=one.bytes,
        mismatches=one.mismatches,
        findings=[
            ValidationFinding(
                topic=found.tp.topic,
                partition=found.tp.partition,
                broker=found.broker_id,
                offset=found.finding.offset,
                kind=found.finding.kind.value,
                detail=found.finding.detail,
                source=batch_text(found.finding.source),
                replica=batch_text(found.finding.replica),
            )
            for found in one.findings
        ],
        left_out=[f"{tp}: {why}" for tp, why in sorted(one.left_out.items())],
    )


def progress(event: m.Progress | None) -> ValidationProgress | None:
    return None if event is None else ValidationProgress.model_validate(event, from_attributes=True)


def promote_validation(runtime: LinkRuntime, job: PromoteJob) -> PromoteValidation | None:
    """None if it was skipped."""
    if job.validation is ValidationPolicy.SKIP:
        return None
    evidence = job.evidence
    back = runtime.against() if job.switch and evidence is not None else None
    runs = runtime.validation.runs if back is None else back.validation.runs
    now = _current(runs, "promote" if evidence is None else "evidence", job)
    return PromoteValidation(
        policy=cast("Policy", job.validation.value),
        state=None if evidence is None else evidence.status.value,
        reason=(now.reason if now is not None else None) if evidence is None else evidence.trouble,
        replicas=0 if evidence is None else evidence.replicas,
        batches=0 if evidence is None else evidence.batches,
        records=0 if evidence is None else evidence.records,
        bytes=0 if evidence is None else evidence.bytes,
        mismatches=0 if evidence is None else evidence.mismatches,
        missing_records=0 if evidence is None else evidence.missing_records,
        html=None if evidence is None else evidence.html,
        json_path=None if evidence is None else evidence.json,
        parquet=None if evidence is None else evidence.parquet,
        proved_by=[] if evidence is None else list(evidence.proved_by),
        progress=None if now is None or now.state is not ValidationState.RUNNING else progress(now.progress),
        waiting_for=waiting_for(now, runtime.validation.validator.process.state),
    )


def waiting_for(run: RunStatus | None, process: str) -> str | None:
    """Why a run that a promote needs tells nothing yet; None without one, and once it tells."""
    if run is None or run.state.final or run.progress is not None:
        return None
    if process == "starting":
        return "Spark starts"
    if run.state is ValidationState.QUEUED:
        return "another validation comes first"
    return "Spark starts" if process == "off" else "Spark takes up the work"


def _current(runs: Sequence[RunStatus], kind: str, job: PromoteJob) -> RunStatus | None:
    topics = set(job.topics)
    return next((one for one in reversed(runs) if one.kind == kind and topics.intersection(one.topics)), None)
