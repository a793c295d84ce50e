"""The life of a mirror partition as a table.

    LINKING -> ACTIVE -> CATCHING_UP -> FENCED -> ALIGNED -> VALIDATED -> HANDED_OVER -> PROMOTED
                 ^------------+-----------+----------+-----------+   (back edges: the promote is abandoned)

A failover takes the same phases without CATCHING_UP, since there is nothing to catch up with, and ends in FAILED_OVER.
The phases mean the same, with the longest replica in place of the source (`decide/failovers`).

VALIDATED is written before the first AlterPartition may be sent, so in any earlier phase the hand-over certainly was
not sent, and a restart simply returns to ACTIVE. The edge VALIDATED -> ACTIVE is taken only on proof from the
target's metadata log that no AlterPartition was, or can still be, carried out (`judge/hand_over.settle`). From
HANDED_OVER on there is no way back: the target's replicas are the log.
"""

from __future__ import annotations

from enum import StrEnum

from controller.errors import IllegalTransition


class Phase(StrEnum):
    LINKING = "LINKING"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    CATCHING_UP = "CATCHING_UP"
    FENCED = "FENCED"
    ALIGNED = "ALIGNED"
    VALIDATED = "VALIDATED"
    HANDED_OVER = "HANDED_OVER"
    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    FAILED = "FAILED"


_P = Phase
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    _P.LINKING: frozenset({_P.ACTIVE, _P.PAUSED, _P.FAILED}),
    _P.ACTIVE: frozenset({_P.CATCHING_UP, _P.PAUSED, _P.FAILED, _P.FENCED}),
    _P.PAUSED: frozenset({_P.ACTIVE, _P.LINKING, _P.FAILED, _P.FENCED}),
    _P.CATCHING_UP: frozenset({_P.FENCED, _P.ACTIVE}),
    _P.FENCED: frozenset({_P.ALIGNED, _P.ACTIVE}),
    _P.ALIGNED: frozenset({_P.VALIDATED, _P.ACTIVE}),
    _P.VALIDATED: frozenset({_P.HANDED_OVER, _P.ACTIVE}),
    _P.HANDED_OVER: frozenset({_P.PROMOTED, _P.FAILED_OVER}),
    _P.PROMOTED: frozenset(),
    _P.FAILED: frozenset({_P.LINKING, _P.FENCED}),
    _P.FAILED_OVER: frozenset(),
}

# A promote owns the partition: only the promote driver changes its phase.
PROMOTING = frozenset({_P.CATCHING_UP, _P.FENCED, _P.ALIGNED, _P.VALIDATED, _P.HANDED_OVER})
# The hand-over was certainly not sent.
BEFORE_HAND_OVER = frozenset({_P.CATCHING_UP, _P.FENCED, _P.ALIGNED})
# The link has nothing to do with the partition any more.
ENDED = frozenset({_P.PROMOTED, _P.FAILED_OVER})
# No sidecar forwards a new Produce for the partition: it holds the request.
HELD = frozenset({_P.FENCED, _P.ALIGNED, _P.VALIDATED})
# Sidecars answer that another broker leads the partition.
LED_ELSEWHERE = frozenset({_P.HANDED_OVER}) | ENDED


def check_transition(subject: str, current: Phase, wanted: Phase) -> None:
    """Raise IllegalTransition unless the table has the step."""
    if wanted not in TRANSITIONS[current]:
        raise IllegalTransition(subject, current, wanted)


class ShownState(StrEnum):
    """The state of a topic or partition as it is shown to people."""

    LINKING = "LINKING"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    PROMOTING = "PROMOTING"
    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    FAILED = "FAILED"


# Worst first: a topic shows the first of these that any partition has.
_WORST_FIRST = (
    ShownState.FAILED,
    ShownState.SOURCE_UNAVAILABLE,
    ShownState.PROMOTING,
    ShownState.LINKING,
    ShownState.PAUSED,
    ShownState.ACTIVE,
    ShownState.FAILED_OVER,
    ShownState.PROMOTED,
)


def shown_state(phase: Phase, *, source_available: bool = True) -> ShownState:
    """A partition's state as it is shown. `source_available` is known at run time only and never stored."""
    if phase in PROMOTING:
        return ShownState.PROMOTING
    if not source_available and phase in (Phase.LINKING, Phase.ACTIVE):
        return ShownState.SOURCE_UNAVAILABLE
    return ShownState(phase.value)


def worst(states: list[ShownState]) -> ShownState:
    """The topic's state from those of its partitions."""
    for state in _WORST_FIRST:
        if state in states:
            return state
    return ShownState.LINKING
