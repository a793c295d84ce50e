"""The gates that hold a consumer group on a stock target cluster until it has left the source.

Lives here: taking, renewing and opening a gate at the group and transaction coordinators. Does not live
here: when to do so (`linker.groups`), and what is kept (`controller.groups`).
"""

from linker.groups.gates.base import (
    NO_OFFSET,
    CommitFailed,
    Gate,
    GateError,
    GateLost,
    GateRefused,
    GroupActive,
    GroupMember,
    LostReason,
    OffsetAndMetadata,
    Save,
)

__all__ = [
    "NO_OFFSET",
    "CommitFailed",
    "Gate",
    "GateError",
    "GateLost",
    "GateRefused",
    "GroupActive",
    "GroupMember",
    "LostReason",
    "OffsetAndMetadata",
    "Save",
]
