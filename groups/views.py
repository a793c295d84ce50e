"""Groups as the brokers describe them, built from the answers that `group_reader` fetches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupProtocol
from groups.gates.base import GroupMember
from groups.gates.requests import assigned_partitions, partitions_of_tasks, topics_of_tasks
from groups.gates.topology import Described, described
from groups.members import coordinator_can_read, subscribed_topics
from wire.frames.types import TopicPartition

# A group that has commits but never had members has no protocol type; Connect's workers are "connect".
CONSUMERS = frozenset({"consumer", ""})
_EMPTY_STATES = frozenset({"Empty", "Dead", ""})


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as ListGroups shows it. State and protocol are None where the broker is too old to tell."""

    group: str
    protocol_type: str
    state: str | None
    protocol: GroupProtocol | None  # None: a kind that is not known here


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its coordinator describes it."""

    group: str
    state: str = "Dead"
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    members: tuple[GroupMember, ...] = ()
    topics: frozenset[str] = frozenset()  # subscribed or assigned
    assignors: frozenset[str] = frozenset()
    #: A member whose subscription a coordinator of the consumer protocol cannot read.
    malformed: bool = False
    topology: Described = ()  # of a streams group

    @property
    def empty(self) -> bool:
        return not self.members and self.state in _EMPTY_STATES


@dataclass(slots=True)
class Offsets:
    """Committed offsets by group, and errors by group."""

    found: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)  # a transaction of its members is not over
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Listing:
    """All groups of the cluster, as far as its brokers answered."""

    groups: dict[str, ListedGroup] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)  # broker -> why its groups are not known


def classic_view(one: Any) -> GroupView:
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host.removeprefix("/"),
            getattr(member, "group_instance_id", None),
            assigned_partitions(bytes(member.member_assignment)),
        )
        for member in one.members
    )
    topics = {tp.topic for member in members for tp in member.partitions}
    if one.protocol_type == "consumer":
        topics.update(*(subscribed_topics(bytes(member.member_metadata)) for member in one.members))
    assignors = frozenset({one.protocol_data}) if members and one.protocol_data else frozenset()
    # While a rebalance goes on, members are described without their subscriptions and the group without an assignor.
    malformed = bool(assignors) and not all(
        coordinator_can_read(bytes(member.member_metadata)) for member in one.members
    )
    return GroupView(
        one.group_id, one.group_state, GroupProtocol.CLASSIC, members, frozenset(topics), assignors, malformed
    )


def consumer_view(one: Any) -> GroupView:
    members, topics = _subscribers(one)
    assignors = frozenset({one.assignor_name}) if members and one.assignor_name else frozenset()
    return GroupView(one.group_id, one.group_state, GroupProtocol.CONSUMER, members, topics, assignors)


def share_view(one: Any) -> GroupView:
    members, topics = _subscribers(one)
    return GroupView(one.group_id, one.group_state, GroupProtocol.SHARE, members, topics)


def _subscribers(one: Any) -> tuple[tuple[GroupMember, ...], frozenset[str]]:
    """Members that subscribe by topic name, and all topics that they read."""
    members = tuple(
        _member(
            member,
            (
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for member in one.members
    )
    topics = {tp.topic for member in members for tp in member.partitions}
    topics.update(name for member in one.members for name in member.subscribed_topic_names)
    return members, frozenset(topics)


def streams_view(one: Any) -> GroupView:
    """Its topics are those of its topology, internal ones included: its state is in the changelogs."""
    topology = getattr(one, "topology", None)
    read = topics_of_tasks(one)
    topics = {topic for some in read.values() for topic in some}
    for part in () if topology is None else topology.subtopologies or ():
        topics.update(topic.name for topic in part.state_changelog_topics)
    members = tuple(
        _member(member, partitions_of_tasks(member.assignment.active_tasks, read)) for member in one.members
    )
    return GroupView(
        one.group_id,
        one.group_state,
        GroupProtocol.STREAMS,
        members,
        frozenset(topics),
        topology=described(topology),
    )


def _member(member: Any, partitions: Iterable[TopicPartition]) -> GroupMember:
    return GroupMember(
        member.member_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        getattr(member, "instance_id", None),
        tuple(partitions),
    )


def protocol_of(group_type: str | None) -> GroupProtocol | None:
    """KIP-848's group types and those that came after it; brokers before it know classic groups only."""
    try:
        return GroupProtocol((group_type or "classic").lower())
    except ValueError:
        return None
