"""One batch on its way through a lane: what the lane knows of it. Pure.

Not here: what happens to it (``lanes.py``), its states (``lane_states.py``).
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from router.produce.lane_states import BatchState
from router.produce.retry_order import later
from wire.frames.error_codes import NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

JobT = TypeVar("JobT")

# By their names alone: a member of an Enum costs a look-up, and this is for each batch.
_QUEUED, _TOLD, _DONE = BatchState.QUEUED, BatchState.TOLD, BatchState.DONE


class Deferred(NamedTuple):
    """A success of the source that waits for the lease."""

    result: ProduceResult
    arrived: float  # on the lease's clock, not before the answer was read


class Batch(Generic[JobT]):
    """One partition's records of one produce request."""

    __slots__ = (
        "base_sequence",
        "deferred",
        "job",
        "order",
        "producer",
        "records",
        "sent",
        "size",
        "slot",
        "state",
        "tp",
        "unsettled",
    )

    def __init__(
        self,
        job: JobT,
        slot: int,
        records: memoryview,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> None:
        self.job = job
        self.tp: TopicPartition | None = None  # given by offer()
        self.slot = slot  # position of its answer in the client's request
        self.records = records
        self.size = len(records)
        self.producer = (producer_id, producer_epoch)
        self.base_sequence = base_sequence
        self.order = -1  # position in the lane; given by offer()
        # True once it ever was sent: the client is then told REQUEST_TIMED_OUT, not NOT_LEADER.
        self.sent = False
        self.state = _QUEUED
        self.unsettled = False  # an earlier attempt's outcome is unknown: a copy may still land
        # The source acknowledged it, but the client may not be told yet; still in flight (lease_gate.py).
        self.deferred: Deferred | None = None

    @property
    def closed(self) -> bool:
        """The client has its answer or is gone: never sent again, never answered again."""
        return self.state is _TOLD or self.state is _DONE

    @property
    def idempotent(self) -> bool:
        return self.producer[0] >= 0

    def give_up_code(self) -> int:
        """The honest retriable code for a batch we stop working on."""
        return REQUEST_TIMED_OUT if self.sent else NOT_LEADER_OR_FOLLOWER

    def __repr__(self) -> str:
        flags = "".join(f" {f}" for f in ("sent", "unsettled") if getattr(self, f))
        return f"<Batch {self.order} producer {self.producer} seq {self.base_sequence} {self.state.value}{flags}>"


Answer = tuple[Batch[JobT], int]


def follows(batch: Batch[JobT], other: Batch[JobT]) -> bool:
    """By the sequences, not by the order here: what a client sends again comes behind what followed it at first."""
    return batch.producer == other.producer and later(batch.base_sequence, other.base_sequence)
