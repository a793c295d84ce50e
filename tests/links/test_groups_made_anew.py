"""Held groups whose mirrored topic is deleted and made again, and offsets with which members would skip records."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controller.group_phases import GroupPhase
from controller.groups import GateKind
from linker.service.group_status import group_description
from tests.fakes.groups.clients import ConsumerClient
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_promote
from wire.frames.types import TopicPartition


async def rig_of(rig: Rig) -> None:
    """Group `g` reads `orders` and `other`, and is held."""
    for cluster in (rig.source, rig.target):
        cluster.add_topic("other", partitions=1)
        for _ in range(100):
            cluster.add("other", 0)
    await rig.mirror("other", 1)
    rig.commit("g", 10)
    rig.commit("g", 10, topic="other")
    rig.run()
    await rig.synced("g")


async def delete(rig: Rig) -> None:
    """The mirror and its topic; the target's coordinator and its assignments forget the topic's id."""
    await rig.controller.delete_mirror(LINK, "orders")
    rig.target.delete_topic("orders")
    offsets = rig.at_target.offsets
    for of_group in [
        *offsets.committed.values(),
        *(one for each in offsets.pending.values() for one in each.values()),
    ]:
        for key in [key for key in of_group if key[0] == "orders"]:
            del of_group[key]
    for member in rig.at_target.groups["g"].members.values():
        member.assigned = {one for one in member.assigned if one[0] != "orders"}


async def make(rig: Rig) -> None:
    rig.target.add_topic("orders", partitions=2)
    for partition in range(2):
        for _ in range(100):
            rig.target.add("orders", partition)
    await rig.mirror("orders", 2)
    rig.manager.look_now()
    await rig.until("known", lambda: rig.group("g").topics == ("orders", "other"))
    rounds = rig.manager.stats.rounds
    await rig.until("rounds", lambda: rig.manager.stats.rounds > rounds + 20)


@pytest.mark.parametrize("seen", [False, True], ids=["at once", "after a look"])
async def test_the_offsets_of_a_topic_that_is_made_anew_are_brought_over_again(seen: bool) -> None:
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        await rig_of(rig)
        await delete(rig)
        if seen:
            rig.manager.look_now()
            await rig.until("known", lambda: rig.group("g").topics == ("other",))
        await make(rig)
        await rig.manager.release_all()
        assert rig.committed("g")[0].offset == 10


async def test_a_topic_that_came_later_is_known_by_its_id() -> None:
    """The gate was extended to its name before its mirror had one."""
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        await rig_of(rig)
        run = rig.run_of("g")
        del run.topic_ids["orders"]
        run.covered_for = None
        await rig.until("known", lambda: "orders" in run.topic_ids)


async def test_a_topic_that_is_made_anew_is_held_until_the_gate_ends_by_itself() -> None:
    """The sidecar is away by then."""
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        await rig_of(rig)
        await delete(rig)
        await make(rig)
        pending = [
            key for each in rig.at_target.offsets.pending.values() for one in each.values() for key in one
        ]
        assert {("orders", 0), ("orders", 1), ("other", 0)} <= set(pending)
        await rig.end()
        rig.at_target.advance(700)
        client = ConsumerClient(rig.at_target, "g", ("orders", "other"))
        client.step()
        client.step()
        assert client.reads["orders", 0] == 10
        await rig.claim()


async def test_a_promote_tells_of_commits_that_the_source_has_no_more() -> None:
    """Somebody deleted the group there, to read once more: it has not committed all of its partitions again."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("g", 20, partition=1)
        rig.run()
        await rig.synced("g")
        rig.at_source.offsets.committed["g"].clear()
        rig.commit("g", 5)
        await rig.until("back", lambda: rig.committed("g")[0].offset == 5)
        await begin_promote(rig, "g")
        await rig.phase("g", GroupPhase.PROMOTED)
        assert "no commit for orders-1 any more, the target keeps 20" in str(rig.group("g").reason)


@pytest.mark.parametrize("late", [True, False])
async def test_members_that_have_not_come_to_where_a_mirror_begins_are_named(late: bool) -> None:
    """Of a mirror with `--start latest` the source still has these records; where retention took them it has not."""
    async with Rig() as rig:
        rig.commit("g", 10)
        image = rig.controller.image
        state = replace(image.partitions[LINK, TopicPartition("orders", 0)], start_offset=50)
        mirror = replace(image.mirrors[LINK, "orders"], start="latest" if late else "earliest")
        await rig.controller.decide(lambda _: ([state, mirror], None))
        rig.run()
        await rig.synced("g")
        described = group_description(rig.group("g"), rig.manager, None, None)
        [note] = [one.note for one in described.partition_status if one.partition == 0]
        assert note == "the mirror begins at 50: the 40 before that are not at the target"
        await begin_promote(rig, "g")
        await rig.phase("g", GroupPhase.PROMOTED)
        assert ("40 of orders-0 that it has not read" in str(rig.group("g").reason)) is late


async def test_nothing_is_said_where_all_is_as_at_the_source() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await begin_promote(rig, "g")
        await rig.phase("g", GroupPhase.PROMOTED)
        await asyncio.sleep(0.2)
        assert "commit" not in str(rig.group("g").reason)
