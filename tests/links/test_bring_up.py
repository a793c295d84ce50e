"""What somebody did to a mirror's topic at the target is seen, and said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.state import MirrorTopic
from fleet.stored_controller import StoredController
from linker.links.bring_up import BringUp
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage

T0 = TopicPartition("orders", 0)
TOPIC_ID = b"m" * 16


class _Silent:
    """A target whose brokers do not answer."""

    async def call(self, *_: Any, **__: Any) -> Any:
        raise LinkerError("silent")


@pytest.mark.parametrize(
    ("leader", "phase", "after"),
    [
        (900, Phase.ACTIVE, Phase.ACTIVE),
        (-1, Phase.ACTIVE, Phase.ACTIVE),
        (1, Phase.ACTIVE, Phase.FAILED),
        (1, Phase.CATCHING_UP, Phase.CATCHING_UP),
    ],
)
async def test_a_mirror_that_a_real_broker_leads_without_a_promote_has_failed(
    leader: int, phase: Phase, after: Phase
) -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    mirror = MirrorTopic(
        link="east",
        topic="orders",
        topic_id=TOPIC_ID,
        source_topic_id=None,
        partitions=1,
        target_replicas=((1, 2),),
    )
    await controller.create_mirror(mirror)
    await establish(
        controller, "east", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
    )
    if phase is not Phase.ACTIVE:
        await controller.advance("east", [T0], phase)
    image = ClusterImage()
    isr = (leader,) if leader == 1 else (900,)
    partition = PartitionImage(0, (1, 2, 900), isr, (1, 2), (900,), leader, 4, 9)
    image.topics_by_name["orders"] = image.topics_by_id[TOPIC_ID] = TopicImage(
        TOPIC_ID, "orders", {0: partition}
    )
    removed: list[TopicPartition] = []
    target: Any = SimpleNamespace(broker_id=900, image=image, cluster=_Silent())
    copy = SimpleNamespace(
        spec=SimpleNamespace(session_epoch=3, start_offset=0, target_replicas=(1, 2), taken=None, held=False),
        paused=False,
    )
    partitions = {T0: copy}

    def remove(tps: list[TopicPartition]) -> None:
        removed.extend(tp for tp in tps if partitions.pop(tp, None) is not None)

    fetcher: Any = SimpleNamespace(partitions=partitions, remove=remove)
    source: Any = None
    await BringUp(context("east", source, target, controller), fetcher).complete("orders")
    state = controller.image.partitions["east", T0]
    assert state.phase is after
    assert removed == ([T0] if after is Phase.FAILED else [])
    if after is Phase.FAILED:
        assert "broker 1 of the target was elected" in str(state.reason)
