"""Gates: members and transactions of ours in a target group, which keep its consumers waiting.

- `base`: what every gate can do, and how it says that it cannot
- `classic`: A gate that is a member of the classic protocol: it leads the group and never joins a second rebalance
- `codes`: what error codes of the coordinators mean: which may be tried again, and which right a refused request
  lacks
- `consumer`: A gate that is a member of the consumer protocol (KIP-848): it owns every partition and never gives one
  back
- `coordinators`: who coordinates what on the target, and requests to it: one pipelined connection per coordinator for
  all groups
- `factory`: new gates, and gates out of the records that another sidecar left
- `gate`: two gates as one: a member that keeps clients from partitions, and a transaction that keeps them from
  offsets
- `ledger`: the gate's record, made durable before the step that needs it
- `member_part`: what the two gates that are members of the group have in common: the member (`MemberHold`) and the
  gate around it
- `pieces`: commits of very many partitions, cut so that the records of each piece fit into one batch of
  __consumer_offsets
- `requests`: the exchanges that every kind of gate needs: describing a group, committing, reading committed offsets
- `settings`: how long and how often
- `transaction`: A gate that is a transaction and nothing else: its stages
- `transaction_part`: what a transaction holds: the group's offsets are pending in it, and whoever wants stable
  offsets has to wait
"""

from groups.gates.base import (
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
from groups.gates.codes import MissingGroupRight
from groups.gates.coordinators import Coordinators
from groups.gates.factory import make_gate, plan_gate
from groups.gates.settings import GateSettings

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
