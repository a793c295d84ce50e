"""What other tools did at the target, named by doctor and in a mirror's reason: as the metadata log tells it."""

from __future__ import annotations

import dataclasses

from admin.models import CheckResult
from controller.state import MirrorTopic
from linker.checks.other_tools import other_tools_checks, throttle_of
from wire.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage

ID, OTHER = b"m" * 16, b"o" * 16
OURS = frozenset({900})
MIRROR = MirrorTopic(
    link="east", topic="orders", topic_id=ID, source_topic_id=None, partitions=1, target_replicas=((1, 2),)
)
NAME = "replication.throttled.replicas"
RATE = "replication.throttled.rate"


def partition(replicas: tuple[int, ...], leader: int, adding: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(0, replicas, (leader,), adding, (), leader, 5, 0)


def cluster(*topics: TopicImage) -> ClusterImage:
    image = ClusterImage()
    for broker_id in (1, 2, 3, 900):
        endpoints = {"CLIENTS": Endpoint("h", 9092, 0)}
        image.brokers[broker_id] = BrokerImage(broker_id, 1, bytes(16), None, endpoints, False, False, ())
    mirror = TopicImage(ID, "orders", {0: partition((900, 1, 2), 900, (1, 2))})
    for topic in (mirror, *topics):
        image.topics_by_id[topic.id], image.topics_by_name[topic.name] = topic, topic
    return image


def checks(image: ClusterImage) -> list[tuple[str, CheckResult, str]]:
    found = other_tools_checks(image, [MIRROR], {ID}, OURS, 900)
    assert all(check.remedy for check in found)
    return [(check.name, check.result, check.detail) for check in found]


def test_nothing_to_say() -> None:
    plain = TopicImage(OTHER, "plain", {0: partition((1, 2), 1)})
    assert checks(cluster(plain)) == []


def test_a_listener_that_the_brokers_have_and_we_have_not() -> None:
    image = cluster()
    for broker_id in (2, 3):
        one = image.brokers[broker_id]
        image.brokers[broker_id] = dataclasses.replace(
            one, endpoints={**one.endpoints, "EXTERNAL2": Endpoint("x", 9094, 0)}
        )
    [(name, result, detail)] = checks(image)
    assert (name, result) == ("listeners", CheckResult.WARN)
    assert "broker 2, 3 of the target has listener EXTERNAL2, which link broker 900 does not have" in detail


def test_a_listener_with_another_protocol() -> None:
    image = cluster()
    one = image.brokers[1]
    image.brokers[1] = dataclasses.replace(one, endpoints={"CLIENTS": Endpoint("h", 9092, 3)})
    [(name, result, detail)] = checks(image)
    assert (name, result) == ("listeners", CheckResult.FAIL)
    assert "CLIENTS is SASL_SSL on broker 1 of the target, and PLAINTEXT on link broker 900" in detail


def test_a_throttle_needs_replicas_and_a_rate() -> None:
    image = cluster()
    image.configs[2, "orders"] = {f"leader.{NAME}": "0:900", f"follower.{NAME}": "0:1,0:2"}
    assert throttle_of(image, "orders") is None, "no broker has a rate: nothing is held back"
    image.configs[4, "1"] = {f"follower.{RATE}": "50000"}
    image.configs[4, ""] = {f"follower.{RATE}": "70000"}
    assert throttle_of(image, "orders") == (
        "follower.replication.throttled.rate 50000 B/s on broker 1, 70000 B/s on broker 2, 3, 900"
    )
    assert throttle_of(image, "other") is None
    [(name, result, detail)] = checks(image)
    assert (name, result) == ("replication throttle", CheckResult.WARN)
    assert detail.startswith(
        "copies of orders are held back by follower.replication.throttled.rate 50000 B/s"
    )


def test_a_partition_that_somebody_placed_on_the_link_broker() -> None:
    led = TopicImage(OTHER, "kminion-end-to-end", {0: partition((900, 1), 900)})
    [(name, result, detail)] = checks(cluster(led))
    assert (name, result) == ("placed here", CheckResult.FAIL)
    assert detail.startswith("kminion-end-to-end-0: led by a link broker and no mirror")
    listed = TopicImage(OTHER, "plain", {0: partition((1, 2, 900), 1, (900,))})
    [(name, result, detail)] = checks(cluster(listed))
    assert (name, result) == ("placed here", CheckResult.WARN)
    assert detail.startswith("plain-0: no mirror, and a link broker is to be a replica of it")


def test_a_reassignment_of_a_mirror_that_is_not_followed_yet() -> None:
    image = cluster()
    image.topics_by_id[ID].partitions[0] = partition((900, 1, 2, 3), 900, (1, 2, 3))
    [(name, result, detail)] = checks(image)
    assert (name, result) == ("replicas", CheckResult.WARN)
    assert "orders-0 (replicas 900, 1, 2, 3, to be 1, 2)" in detail
