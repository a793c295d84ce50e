"""Results of a validator, made up."""

from __future__ import annotations

from controller.decide.validations import Advance
from controller.proof import ReplicaValidation, ValidationMismatch
from wire.frames.types import TopicPartition


def a_replica(through: int, *, broker_id: int = 1, start: int = 0) -> ReplicaValidation:
    return ReplicaValidation(
        broker_id=broker_id,
        start=start,
        through=through,
        batches=through - start,
        records=through - start,
        bytes=100 * (through - start),
        digest=f"{through:032x}",
        source_digest=f"{through:032x}",
        at=0,
    )


def a_mismatch(offset: int, *, broker_id: int = 1) -> ValidationMismatch:
    return ValidationMismatch(
        broker_id=broker_id,
        offset=offset,
        kind="differing",
        detail="the CRCs differ",
        source=f"batch at {offset}, crc 1",
        replica=f"batch at {offset}, crc 2",
        at=0,
    )


def an_advance(
    tp: TopicPartition,
    session_epoch: int,
    base: int | None,
    through: int,
    *,
    broker_id: int = 1,
    mismatch: int | None = None,
) -> Advance:
    return Advance(
        tp=tp,
        session_epoch=session_epoch,
        base=base,
        replica=a_replica(through, broker_id=broker_id),
        mismatch=None if mismatch is None else a_mismatch(mismatch, broker_id=broker_id),
    )
