"""The tables of the lanes: what an error code of the source means, and the states a lane goes through. Pure
data.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from wire.errors import LocalProtocolError
from wire.frames import error_codes


class ErrorMeaning(Enum):
    """The meaning of a source's error code for a forwarded batch."""

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
    GAP = "gap"
    """A batch before it is missing: one that waits here to be sent again, one that went back to the client, or one
    that the client knows of.
    """
    LOST = "lost"
    """No code: the connection ended. Of a producer without an id nothing may be sent again, so this is not asked."""


# Codes that are not listed pass through: unknown codes must reach the client rather than be guessed at here.
VERDICTS: Final[dict[int, ErrorMeaning]] = {
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: ErrorMeaning.RETRY,  # the broker has not replayed the metadata yet
    error_codes.LEADER_NOT_AVAILABLE: ErrorMeaning.RETRY,
    error_codes.NOT_LEADER_OR_FOLLOWER: ErrorMeaning.RETRY,
    error_codes.KAFKA_STORAGE_ERROR: ErrorMeaning.RETRY,  # the log dir went offline, leadership is about to move
    error_codes.FENCED_LEADER_EPOCH: ErrorMeaning.RETRY,
    error_codes.UNKNOWN_LEADER_EPOCH: ErrorMeaning.RETRY,
    error_codes.UNKNOWN_TOPIC_ID: ErrorMeaning.RETRY,
    error_codes.INCONSISTENT_TOPIC_ID: ErrorMeaning.RETRY,
    error_codes.TOPIC_AUTHORIZATION_FAILED: ErrorMeaning.OURS,  # of the link's principal
    error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorMeaning.GAP,
    error_codes.CLUSTER_AUTHORIZATION_FAILED: ErrorMeaning.OURS,  # IdempotentWrite on old sources
    error_codes.UNSUPPORTED_VERSION: ErrorMeaning.OURS,  # we chose the version
    error_codes.SECURITY_DISABLED: ErrorMeaning.OURS,
    error_codes.SASL_AUTHENTICATION_FAILED: ErrorMeaning.OURS,
}


def verdict(code: int) -> ErrorMeaning:
    return VERDICTS.get(code, ErrorMeaning.PASS)


class BatchState(Enum):
    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    BEHIND = "behind"
    """In flight, and a batch before it, of the same producer, went back to the client. If the source takes it, well;
    but it is not sent again, for that would be without the one before it: it follows that one back.
    """
    TOLD = "told"
    """In flight, and the client has its answer or is gone: the source's answer only settles it."""
    DONE = "done"
    """Neither queued nor in flight any more; the client has its answer or is gone."""


class Ending(Enum):
    """The end of a batch in flight: the source has answered it, or the connection has ended."""

    TELL = "tell"
    """The client gets the source's answer; a retriable one if that is our own fault."""
    AGAIN = "again"
    """Back to its place in the queue."""
    BACK = "back"
    """The client is to send it again, in its turn."""
    NOTHING = "nothing"


_B, _V = BatchState, ErrorMeaning
ENDINGS: Final[dict[tuple[BatchState, ErrorMeaning], Ending]] = {
    (_B.IN_FLIGHT, _V.PASS): Ending.TELL,
    (_B.IN_FLIGHT, _V.RETRY): Ending.AGAIN,
    (_B.IN_FLIGHT, _V.OURS): Ending.TELL,
    (_B.IN_FLIGHT, _V.GAP): Ending.TELL,  # unless the one that is missing waits to be sent again: RETRY then
    (_B.IN_FLIGHT, _V.LOST): Ending.AGAIN,
    (_B.BEHIND, _V.PASS): Ending.TELL,
    (_B.BEHIND, _V.RETRY): Ending.BACK,
    (_B.BEHIND, _V.OURS): Ending.TELL,
    (_B.BEHIND, _V.GAP): Ending.BACK,
    (_B.BEHIND, _V.LOST): Ending.BACK,
    (_B.TOLD, _V.PASS): Ending.NOTHING,
    (_B.TOLD, _V.RETRY): Ending.NOTHING,
    (_B.TOLD, _V.OURS): Ending.NOTHING,
    (_B.TOLD, _V.GAP): Ending.NOTHING,
    (_B.TOLD, _V.LOST): Ending.NOTHING,
}


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
