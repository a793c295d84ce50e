"""Copies that alone tell how far the source's log was acknowledged are not moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.image import ControllerImage
from controller.state import Link, MirrorTopic
from linker.links.reassignments import Reassignments
from linker.links.switching import LinkSwitch
from tests.links.link_context import context
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)


@pytest.mark.parametrize("afresh", [True, False])
async def test_no_copy_is_moved_while_no_broker_of_the_source_leads(afresh: bool) -> None:
    """The target and the state are not asked for anything: there are none."""
    parts: Any = SimpleNamespace(partitions={})
    kept = Reassignments(context(without_owner=lambda tp: tp == TP), parts)
    with pytest.raises(LinkerError, match=r"orders-0.*none of the source's own brokers leads it"):
        await kept.move({TP: (1, 2), TopicPartition("orders", 1): (1, 2)}, afresh=afresh)


@pytest.mark.parametrize(
    ("leader", "sync", "alone"), [(1, True, False), (800, True, True), (-1, True, True), (800, False, False)]
)
def test_when_a_partition_has_no_owner(leader: int, sync: bool, alone: bool) -> None:
    image = ControllerImage()
    image.replay([Link(name="east", source_cluster_id="s", properties={})])
    mirror = MirrorTopic(
        link="east", topic="orders", topic_id=b"\x01" * 16, source_topic_id=None, partitions=1, sync=sync
    )
    image.replay([mirror])
    topic = SimpleNamespace(partitions={0: SimpleNamespace(leader=leader)})
    member = SimpleNamespace(
        membership=SimpleNamespace(image=SimpleNamespace(topics_by_name={"orders": topic})),
        link_brokers=lambda: {800, 801},
    )
    switch: Any = SimpleNamespace(
        _link="east", _controller=SimpleNamespace(image=image), _joined=lambda: member
    )
    assert LinkSwitch.without_owner(switch, TP) is alone
    switch._joined = lambda: None
    assert LinkSwitch.without_owner(switch, TP) is False
