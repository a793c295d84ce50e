"""Finds changes that other tools made at the target and that concern mirrors or the link broker.

The metadata log tells all of it, so no broker is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from admin.models import Check, CheckResult
from controller.plan.reassign import unsettled
from controller.plan.replicas import LiveBrokers, led_by_link
from controller.state import MirrorTopic
from wire.frames.types import BROKER_RESOURCE, TOPIC_RESOURCE, TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage
from wire.shown_id import listed

_SIDES: Final = ("leader", "follower")
_PROTOCOLS: Final = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


def other_tools_checks(
    image: ClusterImage,
    mirrors: Sequence[MirrorTopic],
    every: Collection[bytes],
    ours: Collection[int],
    own: int,
) -> list[Check]:
    """`mirrors`: of the link, those that are not over; `every`: topic ids of all links' mirrors; `ours`: all link brokers,
    and `own` this one.
    """
    return [
        *listener_checks(image.brokers, ours, own),
        *throttle_checks(image, [mirror.topic for mirror in mirrors]),
        *stray_checks(image, every, ours),
        *replica_checks(image, mirrors, ours),
    ]


# --- listeners


def listener_checks(brokers: Mapping[int, BrokerImage], ours: Collection[int], own: int) -> list[Check]:
    """A client keeps to the listener that it came in by. Where a leader does not have it, it is told that there is none."""
    me = brokers.get(own)
    if me is None:
        return []
    lacking: dict[str, list[int]] = {}
    other: dict[str, tuple[int, int]] = {}
    for broker in sorted(brokers.values(), key=lambda one: one.id):
        if broker.id in ours:
            continue
        for name, at in broker.endpoints.items():
            mine = me.endpoints.get(name)
            if mine is None:
                lacking.setdefault(name, []).append(broker.id)
            elif mine.security_protocol != at.security_protocol:
                other.setdefault(name, (broker.id, at.security_protocol))
    checks = [
        Check(
            name="listeners",
            result=CheckResult.WARN,
            detail=f"broker {_numbers(ids)} of the target has listener {name}, which link broker {own} does not have: "
            "clients that come in by it find no leader of any mirror (LISTENER_NOT_FOUND)",
            remedy=f"if clients use it, add {name} to the sidecar's listeners and restart it",
        )
        for name, ids in lacking.items()
    ]
    checks += [
        Check(
            name="listeners",
            result=CheckResult.FAIL,
            detail=f"listener {name} is {_PROTOCOLS.get(theirs, theirs)} on broker {broker} of the target, and "
            f"{_PROTOCOLS.get(me.endpoints[name].security_protocol)} on link broker {own}: its clients "
            "cannot talk to one of them",
            remedy="give the sidecar's listener the protocol that the brokers' has, and restart it",
        )
        for name, (broker, theirs) in other.items()
    ]
    return checks


# --- replication throttles


def throttle_of(image: ClusterImage, topic: str) -> str | None:
    """The throttles that hold back the copies of this topic: a tool set them for a reassignment, and nothing takes them
    away by itself while the mirror's own reassignment is open. None: nothing.
    """
    configs = image.configs.get((TOPIC_RESOURCE, topic), {})
    found = []
    for side in _SIDES:
        if not configs.get(f"{side}.replication.throttled.replicas"):
            continue
        rates = _rates(image, side)
        if rates:
            found.append(f"{side}.replication.throttled.rate {rates}")
    return "; ".join(found) or None


def _rates(image: ClusterImage, side: str) -> str:
    name = f"{side}.replication.throttled.rate"
    default = image.configs.get((BROKER_RESOURCE, ""), {}).get(name)
    by_rate: dict[str, list[int]] = {}
    for broker in sorted(image.brokers):
        rate = image.configs.get((BROKER_RESOURCE, str(broker)), {}).get(name, default)
        if rate is not None:
            by_rate.setdefault(rate, []).append(broker)
    return ", ".join(f"{rate} B/s on broker {_numbers(ids)}" for rate, ids in by_rate.items())


def throttle_checks(image: ClusterImage, topics: Iterable[str]) -> list[Check]:
    """One line for all that are held back alike: such a tool sets it on every topic that is being reassigned."""
    alike: dict[str, list[str]] = {}
    for topic in topics:
        how = throttle_of(image, topic)
        if how is not None:
            alike.setdefault(how, []).append(topic)
    return [
        Check(
            name="replication throttle",
            result=CheckResult.WARN,
            detail=f"copies of {listed(names)} are held back by {how}: somebody's kafka-reassign-partitions --throttle, or "
            "a tool like it, left it there",
            remedy="when that tool is done: kafka-configs.sh --bootstrap-server <target> --alter --entity-type topics "
            "--entity-name <topic> --delete-config "
            "leader.replication.throttled.replicas,follower.replication.throttled.replicas",
        )
        for how, names in alike.items()
    ]


# --- partitions that are not ours


def strays(
    image: ClusterImage, mirrors: Collection[bytes], ours: Collection[int]
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """Partitions of other topics that list a link broker: somebody put them there by hand, for placement never does."""
    wanted = frozenset(ours)
    for topic in image.topics_by_id.values():
        if topic.id in mirrors:
            continue
        for partition in topic.partitions.values():
            if not wanted.isdisjoint(partition.replicas):
                yield TopicPartition(topic.name, partition.index), partition


def stray_checks(image: ClusterImage, mirrors: Collection[bytes], ours: Collection[int]) -> list[Check]:
    checks = []
    led: list[str] = []
    not_led: list[str] = []
    for tp, partition in strays(image, mirrors, ours):
        (led if partition.leader in ours else not_led).append(str(tp))
    if led:
        checks.append(
            Check(
                name="placed here",
                result=CheckResult.FAIL,
                detail=f"{listed(led)}: led by a link broker and no mirror, so nobody can write or read it; a tool "
                "put it there by manual assignment (monitors that want a partition on every broker do)",
                remedy="tell that tool to leave the link broker out. Reassign it to the real brokers of its ISR and no "
                "others (kafka-reassign-partitions.sh), and to more once one of them leads. With none there, "
                "delete the topic",
            )
        )
    if not_led:
        checks.append(
            Check(
                name="placed here",
                result=CheckResult.WARN,
                detail=f"{listed(not_led)}: no mirror, and a link broker is to be a replica of it. It never will be in "
                "sync: such a reassignment does not end, and min.insync.replicas counts without it",
                remedy="cancel the reassignment (kafka-reassign-partitions.sh --cancel), or reassign to real brokers only",
            )
        )
    return checks


def replica_checks(image: ClusterImage, mirrors: Sequence[MirrorTopic], ours: Collection[int]) -> list[Check]:
    """A mirror follows a reassignment to other real brokers within a moment; one that is still another has a reason."""
    brokers = LiveBrokers(link=ours, alive=ours, registered=image.brokers.keys())
    moved = []
    for mirror in mirrors:
        for index, wanted in enumerate(mirror.target_replicas):
            partition = image.partition(mirror.topic_id, index)
            if partition is None or not wanted or not led_by_link(partition, ours):
                continue
            if unsettled(partition, wanted, brokers):
                moved.append(
                    f"{mirror.topic}-{index} (replicas {_numbers(partition.replicas)}, to be {_numbers(wanted)})"
                )
    if not moved:
        return []
    return [
        Check(
            name="replicas",
            result=CheckResult.WARN,
            detail=f"the reassignment of {listed(moved)} is not the mirror's: somebody changed it, and it is put back or "
            "followed in a moment",
            remedy="if it stays so: linker mirror reassign ... --afresh, which copies from nothing",
        )
    ]


def _numbers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
