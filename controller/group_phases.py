"""The life of a mirrored consumer group as a table.

    DISCOVERED -> GATED -> DRAINING -> FINAL_SYNC -> OPENING -> PROMOTED -> DEMOTING -> DEMOTED -> DISCOVERED
        ^           ^----------+------------+                       ^----------+
        +--- REFUSED, FAILED (looked at again with each discovery)
                |
                +--- DRAINING -> FINAL_SYNC -> OPENING -> PROMOTED: a group of a kind that no gate holds. It rests REFUSED,
                     and goes back there when its promote is given up

While a group is GATED, DRAINING or in FINAL_SYNC its gate is closed on the target: clients wait there and read nothing, so
each of these phases may go back to GATED. OPENING is written, with the offsets that will be published, before the gate is
touched. From then on only a demote leads back, and a restart opens the gate with those offsets again.
"""

from __future__ import annotations

from enum import StrEnum

from controller.errors import IllegalTransition


class GroupPhase(StrEnum):
    DISCOVERED = "DISCOVERED"  # known; its gate is not closed yet
    GATED = "GATED"
    DRAINING = "DRAINING"  # a promote was asked for; waits until the group is empty at the source
    FINAL_SYNC = "FINAL_SYNC"  # the source's last offsets are brought over and compared
    OPENING = "OPENING"
    PROMOTED = "PROMOTED"  # it runs on the target; nothing here touches it any more
    # Waits until it is empty on the target, gates it, returns its offsets to the source.
    DEMOTING = "DEMOTING"
    DEMOTED = "DEMOTED"  # its offsets are at the source again
    REFUSED = "REFUSED"  # it cannot be gated, with the reason
    FAILED = "FAILED"  # its gate opened by itself and clients are in it


_P = GroupPhase
GROUP_TRANSITIONS: dict[GroupPhase, frozenset[GroupPhase]] = {
    _P.DISCOVERED: frozenset({_P.GATED, _P.REFUSED, _P.FAILED}),
    _P.GATED: frozenset({_P.DISCOVERED, _P.DRAINING, _P.REFUSED, _P.FAILED}),
    _P.DRAINING: frozenset({_P.FINAL_SYNC, _P.GATED, _P.REFUSED, _P.FAILED}),
    _P.FINAL_SYNC: frozenset({_P.OPENING, _P.GATED, _P.REFUSED, _P.FAILED}),
    _P.OPENING: frozenset({_P.PROMOTED}),
    _P.PROMOTED: frozenset({_P.DEMOTING}),
    _P.DEMOTING: frozenset({_P.DEMOTED, _P.PROMOTED}),
    _P.DEMOTED: frozenset({_P.DISCOVERED}),
    _P.REFUSED: frozenset({_P.DISCOVERED, _P.DRAINING, _P.PROMOTED}),
    _P.FAILED: frozenset({_P.DISCOVERED, _P.PROMOTED}),
}

#: The gate is closed, and the offsets on the target follow those of the source.
HELD_GROUPS = frozenset({_P.GATED, _P.DRAINING, _P.FINAL_SYNC})
#: A promote or a demote is under way: a new link controller goes on with it.
UNDER_WAY = frozenset({_P.DRAINING, _P.FINAL_SYNC, _P.OPENING, _P.DEMOTING})


def check_group_transition(subject: str, current: GroupPhase, wanted: GroupPhase) -> None:
    """Raise IllegalTransition unless the table has the step."""
    if wanted not in GROUP_TRANSITIONS[current]:
        raise IllegalTransition(subject, current, wanted)
