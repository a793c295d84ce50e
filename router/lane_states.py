"""The tables of the lanes: what an error code of the source means, and the states a lane goes through. Pure
data.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from wire.errors import LocalProtocolError

NONE: Final = 0
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
NOT_ENOUGH_REPLICAS: Final = 19
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46


class Verdict(Enum):
    """What an error code of the source means for a forwarded batch."""

    PASS = "pass"
    """The client gets the code as it is: it is about the client's data, or the client's own retry is the
    right answer.
    """
    RETRY = "retry"
    """Leadership moved: solved here, by sending again in order."""
    OURS = "ours"
    """The link's own principal or setup is refused; never the client's fault, so the client gets a
    retriable code.
    """


# Codes that are not listed pass through: unknown codes must reach the client rather than be guessed at here.
VERDICTS: Final[dict[int, Verdict]] = {
    3: Verdict.RETRY,  # UNKNOWN_TOPIC_OR_PARTITION: the broker has not replayed the metadata yet
    5: Verdict.RETRY,  # LEADER_NOT_AVAILABLE
    6: Verdict.RETRY,  # NOT_LEADER_OR_FOLLOWER
    56: Verdict.RETRY,  # KAFKA_STORAGE_ERROR: the log dir went offline, leadership is about to move
    74: Verdict.RETRY,  # FENCED_LEADER_EPOCH
    75: Verdict.RETRY,  # UNKNOWN_LEADER_EPOCH
    100: Verdict.RETRY,  # UNKNOWN_TOPIC_ID
    103: Verdict.RETRY,  # INCONSISTENT_TOPIC_ID
    29: Verdict.OURS,  # TOPIC_AUTHORIZATION_FAILED of the link's principal
    31: Verdict.OURS,  # CLUSTER_AUTHORIZATION_FAILED: IdempotentWrite on old sources
    35: Verdict.OURS,  # UNSUPPORTED_VERSION: we chose the version
    54: Verdict.OURS,  # SECURITY_DISABLED
    58: Verdict.OURS,  # SASL_AUTHENTICATION_FAILED
}


def verdict(code: int) -> Verdict:
    return VERDICTS.get(code, Verdict.PASS)


class LaneState(Enum):
    FLOWING = "flowing"
    """Batches are sent as they come."""
    DRAINING = "draining"
    """A batch must be sent again; waiting for the answers of those in flight."""
    WAITING = "waiting"
    """Nothing in flight, the first of the queue must be sent again once the source's leader is known."""
    HELD = "held"
    """Fenced. Only batches of unknown outcome are sent, because their fate has to be settled before the
    fence stands.
    """


class LaneEvent(Enum):
    REQUEUED = "requeued"
    DRAINED = "drained"
    WAKE = "wake"
    FENCE = "fence"
    UNFENCE_IDLE = "unfence, nothing in flight"
    UNFENCE_BUSY = "unfence, batches in flight"


_S, _E = LaneState, LaneEvent
# A pair that is missing is a bug of ours: step() refuses it and leaves the state as it was.
TRANSITIONS: Final[dict[tuple[LaneState, LaneEvent], LaneState]] = {
    (_S.FLOWING, _E.REQUEUED): _S.DRAINING,
    (_S.FLOWING, _E.DRAINED): _S.FLOWING,
    (_S.FLOWING, _E.WAKE): _S.FLOWING,
    (_S.FLOWING, _E.FENCE): _S.HELD,
    (_S.DRAINING, _E.REQUEUED): _S.DRAINING,
    (_S.DRAINING, _E.DRAINED): _S.WAITING,
    (_S.DRAINING, _E.WAKE): _S.DRAINING,  # somebody else's refresh: ours starts when the last answer is in
    (_S.DRAINING, _E.FENCE): _S.HELD,
    (_S.WAITING, _E.WAKE): _S.FLOWING,
    (_S.WAITING, _E.FENCE): _S.HELD,
    (_S.HELD, _E.REQUEUED): _S.HELD,
    (_S.HELD, _E.DRAINED): _S.HELD,
    (_S.HELD, _E.WAKE): _S.HELD,
    (_S.HELD, _E.FENCE): _S.HELD,
    (_S.HELD, _E.UNFENCE_IDLE): _S.WAITING,
    (_S.HELD, _E.UNFENCE_BUSY): _S.DRAINING,
}


def step(state: LaneState, event: LaneEvent) -> LaneState:
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"lane: {event.value!r} is not allowed while {state.value}") from None
