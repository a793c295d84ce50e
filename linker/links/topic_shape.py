"""Pure questions about a mirror's topic in the target's metadata, and the plan of a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from controller.decide.mirrors import Leadership
from controller.judge.hand_over import undo_revoke
from controller.phases import ENDED, PROMOTING, SWITCHING
from controller.plan.replicas import led_by_link
from controller.state import MirrorPartition, MirrorTopic
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage


def first_leaders(
    partitions: int, brokers: Sequence[int], led: Mapping[int, int], replicas: int
) -> dict[int, list[int]]:
    """The link brokers of each partition of a new topic, each broker in its turn the leader. `led`: how many partitions
    each leads already; `replicas`: how many a partition is given, if there are as many."""
    leads = {broker: led.get(broker, 0) for broker in brokers}
    chosen: dict[int, list[int]] = {}
    for index in range(partitions):
        order = sorted(brokers, key=lambda b: (leads[b], b))[:replicas]
        leads[order[0]] += 1
        chosen[index] = order
    return chosen


def on_link_brokers_alone(topic: TopicImage, link_brokers: frozenset[int]) -> bool:
    """Whether a topic was never copied: it was made by a run of ours, which may have ended before it could note the id."""
    return all(link_brokers.issuperset(partition.replicas) for partition in topic.partitions.values())


def plain_copies(
    image: ClusterImage, tps: Iterable[TopicPartition], link_brokers: frozenset[int]
) -> dict[TopicPartition, list[int]]:
    """Partitions that link brokers lead and whose copies are plain replicas of them, each with its ISR: all of that, or a
    reassignment to it would not complete at once. Where others are in the ISR somebody forced an election: not undone.
    """
    return {
        tp: [broker for broker in partition.replicas if broker in partition.isr]
        for tp, partition in partitions_of(image, tps)
        if led_by_link(partition, link_brokers) and not link_brokers.issuperset(partition.replicas)
    }


def led_by_others(
    states: Iterable[MirrorPartition], topic: TopicImage, link_brokers: frozenset[int]
) -> Iterator[tuple[MirrorPartition, int]]:
    """Partitions that a real broker leads although nobody promotes or switches them or has promoted them, and that
    broker."""
    for state in states:
        partition = topic.partitions.get(state.partition)
        if (
            state.phase not in PROMOTING | ENDED | SWITCHING
            and partition is not None
            and partition.leader >= 0
            and partition.leader not in link_brokers
        ):
            yield state, partition.leader


def undone_late(
    states: Iterable[MirrorPartition], topic: TopicImage, link_brokers: frozenset[int]
) -> list[TopicPartition]:
    """Promoted partitions that have link brokers again, because a request that was to make a hand-over stale came late."""
    return [
        state.tp
        for state in states
        if state.phase in ENDED
        and (partition := topic.partitions.get(state.partition)) is not None
        and undo_revoke(partition, link_brokers)
    ]


def grown_apart(mirror: MirrorTopic, topic: TopicImage, *, reverse: bool = False) -> str | None:
    """Says so if somebody added partitions to the mirror topic: real brokers lead them, and records that producers write
    there never reach the owner. `reverse`: of a link that runs the other way, whose mirrors lie in the source."""
    if len(topic.partitions) <= mirror.partitions:
        return None
    there, owner = ("source", "target") if reverse else ("target", "source")
    return (
        f"somebody added partitions to the mirror topic at the {there}: it has {len(topic.partitions)}, the {owner} "
        f"topic {mirror.partitions}; writes to the new ones stay at the {there}. Give the {owner} as many (kafka-topics.sh "
        f"--alter --topic {mirror.source_topic} --partitions {len(topic.partitions)}): empty ones are then mirrored; see "
        "docs/following.md for those with records"
    )


def of_its_own(
    mirror: MirrorTopic, topic: TopicImage, link_brokers: frozenset[int]
) -> tuple[TopicPartition, int] | None:
    """A partition of the mirror topic that may have records of its own, and its leader: a real broker leads it."""
    for index, partition in sorted(topic.partitions.items()):
        if index >= mirror.partitions or (partition.leader >= 0 and partition.leader not in link_brokers):
            return TopicPartition(mirror.topic, index), partition.leader
    return None


def kept_for_its_own(tp: TopicPartition, leader: int) -> str:
    """Why a topic that was left is not deleted."""
    return (
        f"{tp} is led by broker {leader} of the source, and may have records that are nowhere else: finish without "
        "--delete-source-topics, save them, and delete the topic then"
    )


def partitions_of(
    image: ClusterImage, tps: Iterable[TopicPartition]
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """Those that are there."""
    for tp in tps:
        topic = image.topics_by_name.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        if partition is not None:
            yield tp, partition


def cancelled(image: ClusterImage, tps: Iterable[TopicPartition]) -> bool | None:
    """None: not yet, for `MetadataLog.wait_for`."""
    return None if any(partition.adding for _, partition in partitions_of(image, tps)) else True


def reduced(image: ClusterImage, wanted: Mapping[TopicPartition, list[int]]) -> bool | None:
    found = partitions_of(image, wanted)
    return True if all(set(partition.replicas) <= set(wanted[tp]) for tp, partition in found) else None


def leadership_of(partition: PartitionImage) -> Leadership:
    return Leadership(partition.leader, partition.leader_epoch, partition.isr)
