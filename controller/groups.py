"""The record of the gate that holds a consumer group on the target.

A `GateRecord` has everything that another sidecar needs to take over the gate. It is written to the state store *before* the
step at the coordinator that would be lost without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from controller.json_fields import WRITTEN_IF_SET


class GateKind(StrEnum):
    """How a group is held on the target; `groups.gates` documents the limits of each kind."""

    CONSUMER = "consumer"  # a KIP-848 member that owns everything
    CLASSIC = "classic"  # a classic member that never ends a rebalance
    TRANSACTION = "transaction"  # offsets pending in a transaction
    CONSUMER_AND_TRANSACTION = "consumer+transaction"
    CLASSIC_AND_TRANSACTION = "classic+transaction"
    STREAMS = "streams"  # a KIP-1071 member that owns every task


class GateStage(StrEnum):
    """The progress of a gate. Opening only goes forward, and another sidecar can repeat each stage."""

    PLANNED = "PLANNED"  # names are chosen, nothing is certain at the coordinator
    HELD = "HELD"
    ENDING = "ENDING"  # the member has committed the final offsets; the transaction is aborted, or has been
    PUBLISHING = "PUBLISHING"  # no member: the transaction that has the final offsets commits, or has
    LEAVING = "LEAVING"  # the final offsets are what clients see; the member leaves, or has left
    OPEN = "OPEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """The gate as a member of the consumer protocol (KIP-848), or of the streams protocol (KIP-1071).

    Owned partitions are not kept: the member always claims every partition of its topics.
    """

    member_id: str  # chosen by us: a UUID
    member_epoch: int = 0  # 0: to be joined; the newest one that an answer named, else
    topics: tuple[str, ...] = ()  # subscribed names, sorted
    # Of the streams protocol: the application's topology, as its record in __consumer_offsets has it (base64).
    topology: str | None = field(default=None, metadata=WRITTEN_IF_SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """The gate as a member of the classic protocol."""

    member_id: str = ""  # given by the coordinator before the member joins
    generation: int = -1  # -1: to be joined
    protocols: tuple[str, ...] = ()  # assignors by name, the one that the source group uses first
    protocol: str = ""  # the one that the coordinator chose


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransaction:
    """The gate as a transaction with pending offsets of the group, alternating between two transactional ids."""

    transactional_ids: tuple[str, str]
    current: int = 0  # index of the one that holds
    producer_id: int = -1  # of the current one; -1: to be begun
    producer_epoch: int = -1

    def __post_init__(self) -> None:
        if self.current not in (0, 1):
            raise ValueError(f"current is {self.current}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord:
    """A gate as another sidecar needs it to take over. Parts that its kind lacks are None."""

    group: str
    kind: GateKind
    stage: GateStage = GateStage.PLANNED
    consumer: ConsumerMember | None = None
    classic: ClassicMember | None = None
    transaction: PendingTransaction | None = None
