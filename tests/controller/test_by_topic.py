"""A command for thousands of topics is committed in portions, or refused as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from controller.decide.reverse import set_sync
from controller.errors import NotFound
from controller.state import MirrorTopic
from fleet.by_topic import decide_by_topic
from fleet.stored_controller import StoredController
from linker.links.reassignments import Reassignments
from tests.controller.bounded_store import BoundedStore
from tests.links.link_context import context
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

LINK = "east"
NAMES = [f"orders.events.team-{number:04d}" for number in range(2500)]


async def mirrored() -> tuple[StoredController, BoundedStore]:
    store = BoundedStore()
    controller = await StoredController.open(store)
    await controller.create_link(LINK, "source", {})
    for first in range(0, len(NAMES), 300):
        await controller.create_mirrors(
            [
                MirrorTopic(
                    link=LINK,
                    topic=name,
                    topic_id=number.to_bytes(16, "big"),
                    source_topic_id=number.to_bytes(16, "big"),
                    partitions=2,
                    copied_configs={"cleanup.policy": "delete", "retention.ms": "604800000"},
                    target_replicas=((1, 2, 3),) * 2,
                )
                for number, name in enumerate(NAMES[first : first + 300], first + 1)
            ]
        )
    return controller, store


async def test_thousands_of_topics_are_synced_with_one_command() -> None:
    controller, store = await mirrored()
    before = store.commits
    await decide_by_topic(
        controller, NAMES, lambda image, some: set_sync(image, LINK, some, True), dry_run=True
    )
    assert store.commits == before
    await decide_by_topic(controller, NAMES, lambda image, some: set_sync(image, LINK, some, True))
    assert all(one.sync for one in controller.image.link_mirrors(LINK))
    assert 2 <= store.commits - before < 10


async def test_one_topic_that_is_refused_keeps_all_from_it() -> None:
    controller, store = await mirrored()
    before = store.commits
    with pytest.raises(NotFound, match="no mirror of topic 'another'"):
        await decide_by_topic(
            controller, [*NAMES, "another"], lambda image, some: set_sync(image, LINK, some, True)
        )
    assert store.commits == before


async def test_replicas_of_thousands_of_mirrors_move_with_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller, store = await mirrored()
    moves = {TopicPartition(name, index): (4, 5, 6) for name in NAMES for index in range(2)}
    fetcher: Any = None
    part = Reassignments(context(LINK, controller=controller), fetcher)

    async def taken(*_: object) -> dict[str, LinkerError]:
        return {}

    monkeypatch.setattr(part, "_keep_what_was_told", lambda _: None)
    monkeypatch.setattr(part, "_take_steps", taken)
    monkeypatch.setattr(part, "_may_move", lambda _: False)
    before = store.commits
    await part.move(moves)
    assert {one.target_replicas for one in controller.image.link_mirrors(LINK)} == {((4, 5, 6), (4, 5, 6))}
    assert 2 <= store.commits - before < 50
