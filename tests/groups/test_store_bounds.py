"""Thousands of groups are more than ZooKeeper takes in one transaction: they are written in portions."""

from __future__ import annotations

import re

from controller.decide.groups import GroupRules
from controller.judge.group_gates import FoundGroup
from controller.mirror_group import GroupProtocol
from controller.state import MirrorTopic
from fleet.stored_controller import StoredController
from groups.discovery import Look, discover
from groups.group_book import GroupBook
from groups.settings import GroupSettings
from tests.controller.bounded_store import BoundedStore

LINK = "east"
TOPICS = [f"orders.events.team-{number:04d}" for number in range(200)]
NAMES = [f"service-{number:05d}-consumer" for number in range(3000)]
EVERY = GroupSettings(GroupRules((re.compile(".*"),), ()), 1.0)


def read_by(number: int) -> frozenset[str]:
    return frozenset(TOPICS[(number + more) % len(TOPICS)] for more in range(3))


async def a_book() -> tuple[GroupBook, BoundedStore]:
    """Of a link with mirrors that groups read."""
    store = BoundedStore()
    controller = await StoredController.open(store)
    await controller.create_link(LINK, "source", {})
    await controller.create_mirrors(
        [
            MirrorTopic(
                link=LINK,
                topic=topic,
                topic_id=number.to_bytes(16, "big"),
                source_topic_id=number.to_bytes(16, "big"),
                partitions=1,
                target_replicas=((1,),),
            )
            for number, topic in enumerate(TOPICS, 1)
        ]
    )
    return GroupBook(LINK, controller), store


async def discovered(book: GroupBook) -> Look:
    seen = Look()
    seen.found = {
        name: FoundGroup(name, GroupProtocol.CLASSIC, read_by(number)) for number, name in enumerate(NAMES)
    }
    await discover(book, seen, EVERY, consumer_protocol=True)
    return seen


async def test_thousands_of_groups_are_written_down() -> None:
    book, store = await a_book()
    seen = await discovered(book)
    assert [one.group for one in book.all()] == NAMES
    before = store.commits
    assert (await discover(book, seen, EVERY, consumer_protocol=True)).records == []
    assert store.commits == before
