"""Which link's mirrors a validation is of, where a part of the topics was switched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from admin.service import IllegalState, MirrorNotFound
from admin.validation_models import StartValidationRequest
from controller.decide.reverse import reverse_name
from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import Link, MirrorPartition, MirrorTopic
from linker.service.validations import Validations

EAST, BACK = "east", reverse_name("east")


def service(**phases: tuple[Phase | None, Phase | None]) -> Validations:
    """Topics with the phase of their mirror in either direction; None: there is none."""
    image = ControllerImage()
    image.replay(
        [
            Link(name=EAST, source_cluster_id="s", properties={}),
            Link(name=BACK, source_cluster_id="t", properties={}, reverse_of=EAST),
        ]
    )
    for topic, both in phases.items():
        for link, phase in zip((EAST, BACK), both, strict=True):
            if phase is not None:
                mirror = MirrorTopic(
                    link=link, topic=topic, topic_id=topic.encode() * 16, source_topic_id=None, partitions=1
                )
                image.replay([mirror, MirrorPartition(link=link, topic=topic, partition=0, phase=phase)])
    sidecar: Any = SimpleNamespace(
        controller=SimpleNamespace(image=image),
        links={EAST: Runtime(EAST)},
        joined={EAST: SimpleNamespace(links={BACK: Runtime(BACK)})},
        not_ready=lambda: None,
    )
    return Validations(sidecar)


class Runtime:
    """As far as it is looked at."""

    def __init__(self, name: str) -> None:
        self.name = name


def chosen(found: Validations, *topics: str) -> dict[str, list[str]]:
    return {runtime.name: names for runtime, names in found._by_direction(EAST, topics).items()}


def test_a_topic_that_was_switched_is_compared_the_other_way() -> None:
    found = service(
        a=(Phase.ACTIVE, None),
        b=(None, Phase.ACTIVE),
        c=(Phase.FENCED, Phase.TAKEN),  # being switched: the target's replicas, as before
        d=(Phase.PROMOTED, Phase.ACTIVE),  # handed over a moment ago
    )
    assert chosen(found) == {EAST: ["a", "c"], BACK: ["d", "b"]}
    assert chosen(found, "b") == {BACK: ["b"]}
    assert chosen(found, "a") == {EAST: ["a"]}
    with pytest.raises(MirrorNotFound):
        chosen(found, "nobody's")


async def test_two_owners_are_two_runs() -> None:
    found = service(a=(Phase.ACTIVE, None), b=(None, Phase.ACTIVE))
    request = StartValidationRequest(topics=[], all=True)
    with pytest.raises(IllegalState, match="the source owns a and the target b, which are two runs"):
        await found.start_validation(EAST, request)
