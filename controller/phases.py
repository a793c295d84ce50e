"""The life of a mirror partition as a table.

    LINKING -> ACTIVE -> CATCHING_UP -> FENCED -> ALIGNED -> VALIDATED -> HANDED_OVER -> PROMOTED
                 ^------------+-----------+----------+-----------+   (back edges: the promote is abandoned)

A failover takes the same phases without CATCHING_UP, since there is nothing to catch up with, and ends in FAILED_OVER.
The phases mean the same, with the longest replica in place of the source (`decide/failovers`).

A switch makes a mirror of a topic that its cluster's own brokers led until then, in the cluster that is left:

    TAKING <-> TAKEN -> ACTIVE       (given back: TAKING again, until the mirror is removed)

TAKING is written before the first request that may make a link broker the leader, TAKEN when the metadata log shows that
it leads and that no real broker is in the ISR or may be elected. Both hold writes. ACTIVE follows when the other cluster's
brokers lead. Giving back begins with TAKING, before anything is sent: only a TAKEN partition may be handed over there
(`decide/take_overs`).

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
    TAKING = "TAKING"
    TAKEN = "TAKEN"
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
    _P.TAKING: frozenset({_P.TAKEN}),
    _P.TAKEN: frozenset({_P.ACTIVE, _P.TAKING}),
    # TAKING: only in the cluster that a switch has left, when that switch is finished (decide/give_backs.finish)
    _P.ACTIVE: frozenset({_P.CATCHING_UP, _P.PAUSED, _P.FAILED, _P.FENCED, _P.TAKING}),
    _P.PAUSED: frozenset({_P.ACTIVE, _P.LINKING, _P.FAILED, _P.FENCED}),
    _P.CATCHING_UP: frozenset({_P.FENCED, _P.ACTIVE}),
    _P.FENCED: frozenset({_P.ALIGNED, _P.ACTIVE}),
    _P.ALIGNED: frozenset({_P.VALIDATED, _P.ACTIVE}),
    _P.VALIDATED: frozenset({_P.HANDED_OVER, _P.ACTIVE}),
    _P.HANDED_OVER: frozenset({_P.PROMOTED, _P.FAILED_OVER}),
    _P.PROMOTED: frozenset(),
    _P.FAILED: frozenset({_P.LINKING, _P.FENCED, _P.TAKING}),
    _P.FAILED_OVER: frozenset(),
}

# A promote owns the partition: only the promote driver changes its phase.
PROMOTING = frozenset({_P.CATCHING_UP, _P.FENCED, _P.ALIGNED, _P.VALIDATED, _P.HANDED_OVER})
# The hand-over was certainly not sent.
BEFORE_HAND_OVER = frozenset({_P.CATCHING_UP, _P.FENCED, _P.ALIGNED})
# The link has nothing to do with the partition any more.
ENDED = frozenset({_P.PROMOTED, _P.FAILED_OVER})
# A switch owns the partition: only the switch changes its phase, or removes it.
SWITCHING = frozenset({_P.TAKING, _P.TAKEN})
# No sidecar forwards a new Produce for the partition: it holds the request.
HELD = frozenset({_P.FENCED, _P.ALIGNED, _P.VALIDATED}) | SWITCHING
# Sidecars answer that another broker leads the partition.
LED_ELSEWHERE = frozenset({_P.HANDED_OVER}) | ENDED


def check_transition(subject: str, current: Phase, wanted: Phase) -> None:
    """Raise IllegalTransition unless the table has the step."""
    if wanted not in TRANSITIONS[current]:
        raise IllegalTransition(subject, current, wanted)
