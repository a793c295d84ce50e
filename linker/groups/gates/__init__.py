"""The gates that hold a consumer group on a stock target cluster until it has left the source.

Lives here: taking, renewing and opening a gate at the group and transaction coordinators. Does not live
here: when to do so (`linker.groups`), and what is kept (`controller.groups`).

File map: `base` what every gate can do and its errors; `consumer`, `classic`, `transaction` the three gates, each with
what it holds and what not (the last one's in `transaction_hold`); `member` what the two have in common that are members;
`pair` a member and a transaction together; `factory` new gates and gates out of records; `coordinators` who coordinates
what, and requests to it; `requests` exchanges that all need, `pieces` how large a commit may be; `codes` error
codes and missing rights; `ledger` records made durable; `settings` how long and how often.
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
from linker.groups.gates.codes import MissingGroupRight
from linker.groups.gates.coordinators import Coordinators
from linker.groups.gates.factory import make_gate, plan_gate
from linker.groups.gates.settings import GateSettings

__all__ = [
    "NO_OFFSET",
    "CommitFailed",
    "Coordinators",
    "Gate",
    "GateError",
    "GateLost",
    "GateRefused",
    "GateSettings",
    "GroupActive",
    "GroupMember",
    "LostReason",
    "MissingGroupRight",
    "OffsetAndMetadata",
    "Save",
    "make_gate",
    "plan_gate",
]
