"""Promotes and their steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.decide.links import link_of
from controller.decide.mirrors import change, mirror_of, partition_of
from controller.decide.take_overs import link_against, refuse_unless_taken
from controller.errors import NotFound, Refused
from controller.image import ControllerImage
from controller.phases import ENDED, PROMOTING, Phase
from controller.proof import PromoteEvidence, ValidationPolicy
from controller.state import Attempt, JobStatus, PromoteJob, Record
from wire.frames.types import TopicPartition
from wire.shown_id import listed


def begin_promote(
    image: ControllerImage,
    link: str,
    topics: Sequence[str] | None,
    now: int,
    validation: ValidationPolicy = ValidationPolicy.SKIP,
    accept_missing: int = 0,
    requested_by: str | None = None,
    warnings: Sequence[str] = (),
    switch: bool = False,
) -> tuple[list[Record], PromoteJob]:
    """A job for whole topics (None: all of the link that are not promoted yet)."""
    link_of(image, link)
    names = [m.topic for m in image.link_mirrors(link)] if topics is None else list(dict.fromkeys(topics))
    tps: list[TopicPartition] = []
    wrong: list[str] = []
    for topic in names:
        mirror = mirror_of(image, link, topic)
        if mirror.ending is not None:
            raise Refused(
                f"the switch of topic {topic!r} is being finished: it cannot be switched back any more"
            )
        for state in image.topic_partitions(link, topic):
            linking = state.phase is Phase.LINKING and mirror.added(state.partition)
            if state.phase is Phase.ACTIVE or linking:  # what the source has just added is waited for
                tps.append(state.tp)
            elif state.phase not in ENDED:
                wrong.append(f"{state.tp} is {state.phase}" + (f" ({state.reason})" if state.reason else ""))
    if wrong:
        raise Refused(f"only ACTIVE mirrors can be promoted: {listed(wrong)}")
    if not tps:
        what = f"link {link!r}" if topics is None else listed(names)
        raise Refused(f"nothing to promote: {what} has no mirror that is ACTIVE")
    busy = {tp for job in image.running_jobs(link) for tp in job.partitions}
    if busy.intersection(tps):
        raise Refused(f"a promote of {min(busy.intersection(tps))} is running already")
    refuse_in_waves(image, link, {tp.topic for tp in tps})
    job = PromoteJob(
        id=next_job(image, link),
        link=link,
        partitions=tuple(tps),
        started_at=now,
        validation=validation,
        accept_missing=accept_missing,
        requested_by=requested_by,
        warnings=tuple(warnings),
        switch=switch,
    )
    return [job], job


def refuse_in_waves(image: ControllerImage, link: str, topics: Collection[str]) -> None:
    """Refused while the switch that brought a topic here goes on with others: the mirror that it came from ends with that,
    and no take-over begins before."""
    try:
        against = link_against(image, link).name
    except NotFound:
        return
    for job in image.running_jobs(against):
        if found := sorted(set(topics).intersection(job.topics)):
            raise Refused(
                f"{listed(found)}: still part of switch {against}-{job.id}, which goes on with other topics. Wait until it "
                f"has ended (linker mirror promote --attach {against}-{job.id})"
            )


def next_job(image: ControllerImage, link: str) -> int:
    """The id of the next promote or failover of this link."""
    return max((job_id for name, job_id in image.jobs if name == link), default=0) + 1


def note_source_fence(
    image: ControllerImage, link: str, job_id: int, closed: Collection[str], opened: Collection[str]
) -> list[Record]:
    """Note topics that the job closes at the source, or has opened again."""
    job = image.jobs.get((link, job_id))
    if job is None:
        raise NotFound(f"link {link!r} has no promote {job_id}")
    fenced = tuple(sorted((set(job.source_fenced) | set(closed)) - set(opened)))
    if fenced == job.source_fenced:
        return []
    kept = tuple(topic for topic in job.closed_for_good if topic in fenced)
    return [replace(job, source_fenced=fenced, closed_for_good=kept)]


def end_promote(
    image: ControllerImage,
    link: str,
    job_id: int,
    status: JobStatus,
    reason: str | None,
    phases_ms: Mapping[str, float],
    now: int,
    warnings: Sequence[str] = (),
) -> list[Record]:
    """End the job. The promoted partitions are still to be validated in full, unless validation is skipped."""
    job = image.jobs.get((link, job_id))
    if job is None:
        raise NotFound(f"link {link!r} has no promote {job_id}")
    if job.status is not JobStatus.RUNNING:
        raise Refused(f"promote {job_id} of link {link!r} is {job.status} already")
    held = [tp for tp in job.partitions if partition_of(image, link, tp).phase in PROMOTING]
    if held:
        raise Refused(f"promote {job_id} of link {link!r} still holds {listed([str(tp) for tp in held])}")
    promoted = any(partition_of(image, link, tp).phase is Phase.PROMOTED for tp in job.partitions)
    proving = promoted and job.validation is not ValidationPolicy.SKIP
    return [
        replace(
            job,
            status=status,
            reason=reason,
            phases_ms=dict(phases_ms),
            ended_at=now,
            warnings=(*job.warnings, *warnings),
            evidence=PromoteEvidence() if proving else None,
        )
    ]


def advance(
    image: ControllerImage,
    link: str,
    tps: Iterable[TopicPartition],
    phase: Phase,
    now: int,
    *,
    reasons: Mapping[TopicPartition, str] | None = None,
    aligned_ends: Mapping[TopicPartition, int] | None = None,
    attempts: Mapping[TopicPartition, Attempt] | None = None,
) -> list[Record]:
    """One step of the promote driver for a batch, in one commit."""
    if phase is Phase.VALIDATED:
        tps = list(tps)
        refuse_unless_taken(image, link, tps)
    records: list[Record] = []
    for tp in tps:
        fields: dict[str, Any] = {"reason": None if reasons is None else reasons.get(tp)}
        if aligned_ends is not None:
            fields["aligned_end"] = aligned_ends[tp]
        if attempts is not None:
            fields["attempt"] = attempts[tp]
        records += change(image, link, [tp], phase, now, **fields)
    return records


def note_attempts(
    image: ControllerImage,
    link: str,
    attempts: Mapping[TopicPartition, Attempt],
    aligned_ends: Mapping[TopicPartition, int] | None = None,
) -> list[Record]:
    """Note the epochs of the next AlterPartition before it is sent. `aligned_ends`: ends that differ from the noted ones."""
    refuse_unless_taken(image, link, attempts)
    records: list[Record] = []
    for tp, attempt in attempts.items():
        state = partition_of(image, link, tp)
        if state.phase is not Phase.VALIDATED:
            raise Refused(f"{tp} is {state.phase}: a hand-over is sent in {Phase.VALIDATED} only")
        end = (aligned_ends or {}).get(tp, state.aligned_end)
        records.append(replace(state, attempt=attempt, aligned_end=end))
    return records
