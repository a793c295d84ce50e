"""Decisions that many topics are asked for with, and that are right for each of them alone: committed in portions, because
all of a link's topics may be more than a store takes in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.image import ControllerImage
from controller.portions import packed, weight
from controller.state import Entity, Record
from fleet.link_controller import LinkController

DecideTopics = Callable[[ControllerImage, Sequence[str]], Sequence[Record]]


async def decide_by_topic(
    controller: LinkController, topics: Sequence[str], decide: DecideTopics, *, dry_run: bool = False
) -> None:
    """Refused, with nothing written, if one of them is refused now."""

    def portions(image: ControllerImage) -> list[list[str]]:
        decide(image, topics)
        return packed(
            topics,
            lambda topic: sum(weight(one) for one in decide(image, [topic]) if isinstance(one, Entity)),
        )

    for some in await controller.decide(lambda image: ((), portions(image))):
        if not dry_run:
            await controller.decide(lambda image, some=some: (decide(image, some), None))  # type: ignore[misc]
