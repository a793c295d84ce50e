"""The gate that holds a consumer group on the target, and the kinds of groups that no gate holds."""

from __future__ import annotations

from dataclasses import dataclass

from controller.groups import GateKind
from controller.mirror_group import GroupProtocol

# Assignors that keep nothing in userData, so a member that sends none changes nothing for them. Kafka's
# RangeAssignor, RoundRobinAssignor, CooperativeStickyAssignor (its generation is optional); "uniform" is the server's.
_PLAIN_ASSIGNORS = frozenset({"range", "roundrobin", "cooperative-sticky", "uniform"})


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group as it was found at the source."""

    group: str
    protocol: GroupProtocol
    topics: frozenset[str]  # committed, subscribed or assigned
    assignors: frozenset[str] = frozenset()  # of its members; none while it is empty
    malformed: bool = False  # a member whose subscription a coordinator of the consumer protocol cannot read
    changed: bool = False  # a streams group with another topology than the one that its gate joined with


def choose_gate(found: FoundGroup, *, consumer_protocol: bool, wanted: GateKind | None = None) -> GateKind:
    """The gate for a group, by the protocols of the target (KIP-848) and the needs of the members.

    Each kind combines two gates, because each of them has clients that it does not hold. A member of the consumer protocol
    is right for a group whose members were seen, if the coordinator can keep all of them in one group. An assignor that
    uses userData (sticky, Streams', custom ones) breaks when a KIP-848 coordinator assigns instead, and a client whose
    subscription that coordinator cannot read gets errors for ever. Clients that were not seen may be of these kinds, so
    such a group gets a classic gate, which does not parse subscriptions.
    """
    if found.protocol is GroupProtocol.STREAMS:
        return GateKind.STREAMS
    if wanted is not None:
        return wanted
    plain = bool(found.assignors) and found.assignors <= _PLAIN_ASSIGNORS and not found.malformed
    if consumer_protocol and (found.protocol is GroupProtocol.CONSUMER or plain):
        return GateKind.CONSUMER_AND_TRANSACTION
    return GateKind.CLASSIC_AND_TRANSACTION


#: Kinds of groups whose members are consumers: one may turn into the other, with what it has.
CONSUMER_GROUPS = frozenset({GroupProtocol.CLASSIC, GroupProtocol.CONSUMER})
_UNHELD = {
    GroupProtocol.STREAMS: "while a streams group (KIP-1071) is not held on the target its application, started there "
    "before the group is promoted, begins at the offsets that were brought over last, with the state of that moment, and "
    "the source may still be read. Stop it at the source, promote the group, and start it on the target after that",
    GroupProtocol.SHARE: "a share group (KIP-932) is not held on the target: its members, started there before the group is "
    "promoted, begin at the start offsets that were brought over last, while the source may still be read; a topic that is "
    "not promoted they cannot read at all. Stop them at the source, promote the group and its topics, and start them on the "
    "target after that",
}


def unheld(protocol: GroupProtocol) -> str | None:
    """How groups of this protocol move where no gate holds them; None if they are always held first."""
    return _UNHELD.get(protocol)


def cannot_be_held(protocol: GroupProtocol) -> str | None:
    """Why no gate holds groups of this protocol, and how they move; None if one does."""
    return None if protocol is GroupProtocol.STREAMS else unheld(protocol)


def made_again(before: GroupProtocol, now: GroupProtocol) -> bool:
    """Whether the group was deleted and made again as one of another kind."""
    return before is not now and not {before, now} <= CONSUMER_GROUPS
