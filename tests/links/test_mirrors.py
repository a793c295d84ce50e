"""What the router sees of the mirrors is what the store has, whatever became of a commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from controller.decide.mirrors import Leadership
from controller.operations import Operation
from controller.phases import Phase
from controller.state import UNBOUND, MirrorTopic
from fetcher.directory import MirrorDirectory
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.links.mirrors import Mirrors, ServedPartition
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.controller.validation_kit import an_advance
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage

T0 = TopicPartition("t", 0)
TOPIC_ID = b"i" * 16


def partition_of(mirrors: Mirrors) -> ServedPartition:
    mirror = mirrors.by_name("t")
    assert mirror is not None
    partition = mirror.partition(0)
    assert partition is not None
    return partition


class LosesAnswers(MemoryStore):
    """Commits are carried out, but whoever asked is told otherwise."""

    losing = False

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        await super().commit(operations, controller_epoch=controller_epoch)
        if self.losing:
            raise StoreError("disk is slow")


async def test_a_commit_that_was_carried_out_although_it_raised_reaches_the_router() -> None:
    store = LosesAnswers()
    controller = await StoredController.open(store, now=lambda: 7)
    mirrors = Mirrors(lambda: controller.image, ClusterImage(), MirrorDirectory(), lambda link: True, 900)
    controller.listeners.add(mirrors.on_records)
    await controller.create_link("l", "cluster", {})
    await controller.create_mirror(
        MirrorTopic(link="l", topic="t", topic_id=UNBOUND, source_topic_id=None, partitions=1)
    )
    store.losing = True
    with pytest.raises(StoreError):
        await controller.bind_mirrors("l", {"t": TOPIC_ID})
    store.losing = False
    await controller.bind_mirrors("l", {"t": TOPIC_ID})  # again: it is there already
    assert mirrors.by_id(TOPIC_ID) is not None
    assert mirrors.by_name("t") is not None

    await establish(
        controller, "l", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
    )
    served = partition_of(mirrors)
    assert served.forwarding
    store.losing = True
    with pytest.raises(StoreError):
        await controller.fail_partition("l", T0, "retention outran it")
    store.losing = False
    await controller.fail_partition("l", T0, "retention outran it")
    served = partition_of(mirrors)
    assert not served.forwarding


async def test_a_mirror_that_fails_its_validation_is_not_served_as_if_nothing_were() -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    mirrors = Mirrors(lambda: controller.image, ClusterImage(), MirrorDirectory(), lambda link: True, 900)
    controller.listeners.add(mirrors.on_records)
    await controller.create_link("l", "cluster", {})
    await controller.create_mirror(
        MirrorTopic(link="l", topic="t", topic_id=TOPIC_ID, source_topic_id=None, partitions=1)
    )
    await establish(
        controller, "l", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
    )
    await controller.advance_validation("l", [an_advance(T0, 3, None, 5, mismatch=5)])
    served = partition_of(mirrors)
    assert not served.forwarding


async def test_a_mirror_that_somebody_still_holds_says_what_is_true_now() -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    forwards = {"l"}
    image = ClusterImage()
    mirrors = Mirrors(lambda: controller.image, image, MirrorDirectory(), forwards.__contains__, 900)
    controller.listeners.add(mirrors.on_records)
    await controller.create_link("l", "cluster", {})
    await controller.create_mirror(
        MirrorTopic(link="l", topic="t", topic_id=TOPIC_ID, source_topic_id=None, partitions=1)
    )
    held = mirrors.by_name("t")
    assert held is not None
    await establish(
        controller, "l", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
    )
    await controller.create_mirror(
        MirrorTopic(link="l", topic="u", topic_id=b"u" * 16, source_topic_id=None, partitions=1)
    )
    assert mirrors.by_name("t") is held  # another mirror changes nothing of it
    mirrors.rebuild()
    assert mirrors.by_name("t") is not held
    partition = held.partition(0)
    assert partition is not None
    assert partition.forwarding
    forwards.clear()
    assert not partition.forwarding

    assert not partition.leading  # the target does not know the topic yet
    led = PartitionImage(0, (900, 1), (900,), (1,), (900,), 900, 3, 0)
    image.topics_by_name["t"] = TopicImage(TOPIC_ID, "t", {0: led})
    assert partition.leading
    image.topics_by_name["t"].partitions[0] = dataclasses.replace(led, leader=1)
    assert not partition.leading
    image.topics_by_name["t"].partitions[0] = led
    mirrors.on_records([dataclasses.replace(controller.image.partitions["l", T0], leader=901)])
    assert partition.leading, "of another state than this one"
    other = held.partition(0)
    assert other is not None
    assert not other.leading, "the link state says another sidecar"
    taking = dataclasses.replace(controller.image.partitions["l", T0], leader=1, phase=Phase.TAKING)
    mirrors.on_records([taking])
    other = held.partition(0)
    assert other is not None
    assert other.leading, (
        "clients that come while the state names the broker that led before it was taken over wait"
    )
    del image.topics_by_name["t"].partitions[0]
    assert not partition.leading
    assert not other.leading

    await controller.delete_mirror("l", "t", force=True)
    assert mirrors.by_name("t") is None
    assert mirrors.by_id(TOPIC_ID) is None
    assert held.partition(0) is None


async def test_a_link_that_does_not_forward_is_read_only_as_soon_as_that_is_written() -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    mirrors = Mirrors(lambda: controller.image, ClusterImage(), MirrorDirectory(), lambda link: True, 900)
    controller.listeners.add(mirrors.on_records)
    await controller.create_link("l", "cluster", {})
    await controller.create_mirror(
        MirrorTopic(link="l", topic="t", topic_id=TOPIC_ID, source_topic_id=None, partitions=1)
    )
    served = partition_of(mirrors)
    assert (served.read_only, served.refusing) == (None, None)
    await controller.update_link("l", None, {"forwarding": "off"})
    assert "write to the source cluster" in (served.read_only or "")
    assert served.refusing == served.read_only
    await controller.update_link("l", None, {"forwarding": "on"})
    assert served.read_only is None
