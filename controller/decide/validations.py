"""Results of the validator.

A watermark says of one replica that everything below it equals the source. It holds for the copy that was read, so it is
forgotten when that copy ends: the mirror begins again, the replica is removed, or it truncates because the source lost data.
A result about a copy that was forgotten meanwhile is dropped; `Advance.base` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.errors import NotFound, Refused
from controller.image import ControllerImage
from controller.phases import ENDED, PROMOTING, Phase, check_transition
from controller.proof import (
    EvidenceStatus,
    PartitionValidation,
    PromoteEvidence,
    ReplicaValidation,
    ValidationMismatch,
    ValidationPolicy,
)
from controller.state import MirrorPartition, Record
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One replica after a run. Counts and digests cover all of [start, through)."""

    tp: TopicPartition
    session_epoch: int  # of the mirror when the run was planned
    base: int | None = None  # the watermark that the run began with; None: nothing was known
    replica: ReplicaValidation | None = None  # `at` is overwritten; None: this comparison moves no watermark
    mismatch: ValidationMismatch | None = None


def watermark(image: ControllerImage, link: str, tp: TopicPartition, broker_id: int) -> int | None:
    """The offset below which everything is proved; None if nothing is."""
    known = image.validations.get((link, tp))
    replica = None if known is None else known.of(broker_id)
    return None if replica is None else replica.through


def unproved(
    image: ControllerImage,
    link: str,
    tp: TopicPartition,
    brokers: Collection[int],
    start: int,
    end: int,
    distance: int,
) -> str | None:
    """Why a partition whose source ends at `end` is not proved to within `distance` offsets; None if it is."""
    known = image.validations.get((link, tp))
    if known is not None and known.mismatch is not None:
        return mismatch_text(known.mismatch)
    late = {
        broker: max(0, end - max(start, watermark(image, link, tp, broker) or 0))
        for broker in sorted(brokers)
    }
    unread = [broker for broker in late if watermark(image, link, tp, broker) is None]
    if unread and end > start:
        return f"nothing of broker {unread[0]}'s replica is validated yet"
    behind = {broker: left for broker, left in late.items() if left > distance}
    if not behind:
        return None
    broker = max(behind, key=lambda one: (behind[one], -one))
    return f"broker {broker}'s replica is validated to {behind[broker]} offsets before the end, {distance} are allowed"


def mismatch_text(mismatch: ValidationMismatch) -> str:
    """One line for people: the place, the kind, and both sides."""
    return (
        f"broker {mismatch.broker_id}'s replica differs from the source at offset {mismatch.offset}: {mismatch.kind}"
        f" ({mismatch.detail}); source {mismatch.source or 'has no batch there'}, "
        f"replica {mismatch.replica or 'has no batch there'}"
    )


def advance(image: ControllerImage, link: str, advances: Sequence[Advance], now: int) -> list[Record]:
    """Move watermarks; a mismatch stops its partition's mirror.

    A partition in a promote with --validation warn goes on, with the mismatch noted. After the hand-over it cannot fail.
    """
    states: dict[TopicPartition, MirrorPartition] = {}
    proved: dict[TopicPartition, PartitionValidation] = {}
    for one in advances:
        state = image.partitions.get((link, one.tp))
        if state is None or state.session_epoch != one.session_epoch:
            continue
        known = (
            proved.get(one.tp)
            or image.validations.get((link, one.tp))
            or PartitionValidation(link=link, topic=one.tp.topic, partition=one.tp.partition)
        )
        replicas = known.replicas
        if one.replica is not None:
            before = known.of(one.replica.broker_id)
            if (None if before is None else before.through) != one.base:
                continue
            if before is not None and one.replica.through < before.through and one.mismatch is None:
                raise Refused(
                    f"{one.tp}: the watermark of broker {before.broker_id} does not go back by itself"
                )
            others = [r for r in replicas if r.broker_id != one.replica.broker_id]
            replicas = tuple(sorted([*others, replace(one.replica, at=now)], key=lambda r: r.broker_id))
        mismatch = known.mismatch
        if one.mismatch is not None and (mismatch is None or one.mismatch.offset < mismatch.offset):
            mismatch = replace(one.mismatch, at=now)
        proved[one.tp] = replace(known, replicas=replicas, mismatch=mismatch)
        if mismatch is not None:
            failed = _failed(image, link, state, mismatch_text(mismatch), now)
            if failed is not None:
                states[one.tp] = failed
    changed = [new for tp, new in proved.items() if new != image.validations.get((link, tp))]
    return [*changed, *states.values()]


def _failed(
    image: ControllerImage, link: str, state: MirrorPartition, reason: str, now: int
) -> MirrorPartition | None:
    if state.phase in ENDED or state.phase in (Phase.HANDED_OVER, Phase.FAILED):
        return None
    if state.phase in PROMOTING:
        warned = any(
            job.validation is ValidationPolicy.WARN and state.tp in job.partitions
            for job in image.running_jobs(link)
        )
        return None if warned or state.failure is not None else replace(state, failure=reason)
    check_transition(f"partition {state.tp} of link {link!r}", state.phase, Phase.FAILED)
    return replace(state, phase=Phase.FAILED, reason=reason, since=now)


def forget(
    image: ControllerImage,
    link: str,
    tps: Iterable[TopicPartition],
    brokers: Collection[int] | None = None,
) -> list[Record]:
    """Forget the results for these brokers (None: all): their copies are no longer those that were compared."""
    records: list[Record] = []
    for tp in tps:
        known = image.validations.get((link, tp))
        if known is None:
            continue
        kept = tuple(r for r in known.replicas if brokers is not None and r.broker_id not in brokers)
        mismatch = known.mismatch
        if mismatch is not None and (brokers is None or mismatch.broker_id in brokers):
            mismatch = None
        wanted = replace(known, replicas=kept, mismatch=mismatch)
        if wanted != known:
            records.append(wanted)
    return records


def forget_truncated(
    image: ControllerImage, link: str, tp: TopicPartition, untruncated: Mapping[int, int]
) -> list[Record]:
    """The source lost the records from these offsets on (broker id -> offset).

    A replica that is proved beyond is read again from the start, since a digest cannot be reduced in part.
    """
    known = image.validations.get((link, tp))
    if known is None:
        return []
    beyond = {
        replica.broker_id
        for replica in known.replicas
        if replica.through > untruncated.get(replica.broker_id, replica.through)
    }
    return forget(image, link, [tp], beyond) if beyond else []


def close_evidence(image: ControllerImage, link: str, job_id: int, evidence: PromoteEvidence) -> list[Record]:
    """The last run after a promote has ended: store its evidence."""
    job = image.jobs.get((link, job_id))
    if job is None:
        raise NotFound(f"link {link!r} has no promote {job_id}")
    if job.evidence is None or job.evidence.status is not EvidenceStatus.PENDING:
        raise Refused(f"promote {job_id} of link {link!r} waits for no evidence")
    if evidence.status is EvidenceStatus.PENDING:
        raise Refused(f"promote {job_id} of link {link!r}: evidence that is pending closes nothing")
    return [replace(job, evidence=evidence)]
