"""Thousands of groups are more than ZooKeeper takes in one transaction: they are written in portions."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import DemoteGroupsRequest, PromoteGroupsRequest
from admin.service import IllegalState
from controller.decide.groups import GroupRules
from controller.group_phases import GroupPhase
from controller.groups import ConsumerMember, GateKind, GateRecord, GateStage, PendingTransaction
from controller.judge.group_gates import FoundGroup
from controller.mirror_group import GroupProtocol
from controller.state import MirrorTopic
from fleet.stored_controller import StoredController
from groups.discovery import Look, discover
from groups.group_book import GroupBook
from groups.settings import GroupSettings
from linker.service.groups import Groups
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


async def gated(book: GroupBook) -> None:
    """Every group is held, by two gates."""
    await discovered(book)
    for start in range(0, len(NAMES), 100):
        some = NAMES[start : start + 100]
        await book.commit(
            lambda image, some=some: [  # type: ignore[misc]
                replace(image.groups[LINK, name], phase=GroupPhase.GATED, gate_state=gate_of(name))
                for name in some
            ]
        )


def gate_of(name: str, epoch: int = 1) -> GateRecord:
    return GateRecord(
        group=name,
        kind=GateKind.CONSUMER_AND_TRANSACTION,
        stage=GateStage.HELD,
        consumer=ConsumerMember(
            member_id="0123456789abcdef012345", member_epoch=epoch, topics=tuple(TOPICS[:3])
        ),
        transaction=PendingTransaction(
            transactional_ids=(f"kafka-linker-gate-{name}-0", f"kafka-linker-gate-{name}-1"),
            producer_id=123456,
            producer_epoch=12,
        ),
    )


async def test_thousands_of_gates_are_saved_together() -> None:
    """As many as fit in one commit, and the others with the next one."""
    book, store = await a_book()
    await gated(book)
    before = store.commits
    async with asyncio.timeout(60):
        await asyncio.gather(*(book.save_gate(gate_of(name, epoch=2)) for name in NAMES))
    assert {one.gate_state for one in book.all()} == {gate_of(name, epoch=2) for name in NAMES}
    assert store.commits - before < 10


def service(book: GroupBook) -> Groups:
    manager = SimpleNamespace(excluded_readers=list, excluded=SimpleNamespace(why=lambda _: None))
    runtime = SimpleNamespace(name=LINK, trouble=None, groups=SimpleNamespace(manager=manager))
    sidecar: Any = SimpleNamespace(
        controller=book.controller, links={LINK: runtime}, not_ready=lambda: None, joined={}
    )
    return Groups(sidecar)


async def test_thousands_of_groups_are_promoted_and_demoted_with_one_command() -> None:
    book, _ = await a_book()
    await gated(book)
    asked = service(book)
    promote = PromoteGroupsRequest(all=True)
    assert len((await asked.promote_groups(LINK, promote, dry_run=True)).actions) == len(NAMES)
    assert {one.phase for one in book.all()} == {GroupPhase.GATED}
    assert len((await asked.promote_groups(LINK, promote, dry_run=False)).actions) == len(NAMES)
    assert {one.phase for one in book.all()} == {GroupPhase.DRAINING}
    for start in range(0, len(NAMES), 100):
        some = NAMES[start : start + 100]
        await book.commit(
            lambda image, some=some: [  # type: ignore[misc]
                replace(image.groups[LINK, name], phase=GroupPhase.PROMOTED, move=None) for name in some
            ]
        )
    await asked.demote_groups(LINK, DemoteGroupsRequest(all=True), dry_run=False)
    assert {one.phase for one in book.all()} == {GroupPhase.DEMOTING}


async def test_one_group_that_cannot_be_promoted_keeps_all_from_it() -> None:
    book, store = await a_book()
    await gated(book)
    await book.step(NAMES[-1], GroupPhase.DISCOVERED)
    before = store.commits
    with pytest.raises(IllegalState, match="it is DISCOVERED"):
        await service(book).promote_groups(LINK, PromoteGroupsRequest(all=True), dry_run=False)
    assert store.commits == before


async def test_a_refusal_after_the_first_portion_says_how_many_have_begun() -> None:
    book, _ = await a_book()
    await gated(book)

    def another(_: object) -> None:
        """Changes when the first portion is written."""
        groups = book.image.groups
        groups[LINK, NAMES[-1]] = replace(groups[LINK, NAMES[-1]], phase=GroupPhase.DISCOVERED)

    book.controller.listeners.add(another)
    with pytest.raises(IllegalState, match=r"\d+ of 3000 groups have begun, then: .* it is DISCOVERED"):
        await service(book).promote_groups(LINK, PromoteGroupsRequest(all=True), dry_run=False)
