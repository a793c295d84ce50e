"""States and phases, in Kafka's capitals."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class MirrorState(StrEnum):
    """State of a mirror partition, of a mirror topic (its worst partition), of a link (its worst mirror)."""

    LINKING = "LINKING"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    PROMOTING = "PROMOTING"
    SWITCHING = "SWITCHING"
    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    FAILED = "FAILED"


#: Best first. A state further right hides those to its left.
SEVERITY: tuple[MirrorState, ...] = (
    MirrorState.PROMOTED,
    MirrorState.FAILED_OVER,
    MirrorState.ACTIVE,
    MirrorState.SWITCHING,
    MirrorState.PROMOTING,
    MirrorState.PAUSED,
    MirrorState.LINKING,
    MirrorState.SOURCE_UNAVAILABLE,
    MirrorState.FAILED,
)


def worst_state(states: Iterable[MirrorState], *, default: MirrorState = MirrorState.ACTIVE) -> MirrorState:
    """The worst state wins; `default` is for a link without mirrors or a topic without partitions."""
    return max(states, key=SEVERITY.index, default=default)


class PromotePhase(StrEnum):
    """Phases of a promote, in their order; a failover begins with FENCED and ends in FAILED_OVER. ABANDONED is the back
    edge of all phases before HANDED_OVER."""

    CATCHING_UP = "CATCHING_UP"
    FENCED = "FENCED"
    ALIGNED = "ALIGNED"
    VALIDATED = "VALIDATED"
    HANDED_OVER = "HANDED_OVER"
    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    ABANDONED = "ABANDONED"

    @property
    def final(self) -> bool:
        return self in (PromotePhase.PROMOTED, PromotePhase.FAILED_OVER, PromotePhase.ABANDONED)


class PeriodicState(StrEnum):
    """The state of a periodic task of a sidecar."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"
    FAILING = "FAILING"


class CheckResult(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


# --- requests


class GroupState(StrEnum):
    """Where a mirrored group stands. REFUSED: it cannot be held on the target. FAILED: it was let in by accident.
    EXCLUDED: the link's patterns leave it out, although it reads a mirrored topic."""

    DISCOVERED = "DISCOVERED"
    GATED = "GATED"
    DRAINING = "DRAINING"
    FINAL_SYNC = "FINAL_SYNC"
    OPENING = "OPENING"
    PROMOTED = "PROMOTED"
    DEMOTING = "DEMOTING"
    DEMOTED = "DEMOTED"
    REFUSED = "REFUSED"
    FAILED = "FAILED"
    EXCLUDED = "EXCLUDED"

    @property
    def at_rest(self) -> bool:
        """Nothing is under way: a promote or demote that was asked for has ended."""
        return self in (
            GroupState.GATED,
            GroupState.PROMOTED,
            GroupState.REFUSED,
            GroupState.FAILED,
            GroupState.EXCLUDED,
        )


class SidecarState(StrEnum):
    """State of a sidecar. AWAY: the link controller does not hear of it. FENCED: the target's controller gives it no
    leadership. DRAINING and LEAVING were asked for."""

    RUNNING = "RUNNING"
    STARTING = "STARTING"
    DRAINING = "DRAINING"
    LEAVING = "LEAVING"
    FENCED = "FENCED"
    AWAY = "AWAY"
