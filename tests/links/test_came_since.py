"""A promote of all says which mirrors came by pattern since somebody planned it, and what is no mirror yet."""

from __future__ import annotations

from dataclasses import replace

from linker.links.came_since import CameSince
from tests.links.link_context import context
from tests.links.test_topic_follower import Rig
from tests.links.test_topic_follower import rig as rig  # the fixture

HOUR = 3_600_000
NOW = 100 * HOUR


def made(rig: Rig, topic: str, at: int) -> None:
    mirrors = rig.controller.image.mirrors
    mirrors["east", topic] = replace(mirrors["east", topic], created_at=at)


async def test_what_came_since_the_plan_is_named_and_what_is_not_mirrored(rig: Rig) -> None:
    came = CameSince(context("east", controller=rig.controller), rig.follower)
    await rig.options(topics_include="orders.*")
    for number, topic in enumerate(("orders-1", "orders-2", "orders-3"), start=1):
        rig.source.make(topic, number)
    await rig.follower.look()
    made(rig, "orders-1", NOW - 2 * HOUR)
    made(rig, "orders-2", NOW - HOUR // 2)
    made(rig, "orders-3", NOW - 40_000)
    every = rig.mirrors
    assert came.by_pattern(every) == {
        "orders-1": NOW - 2 * HOUR,
        "orders-2": NOW - HOUR // 2,
        "orders-3": NOW - 40_000,
    }
    [line] = await came.lines(every, NOW)
    assert "within the last hour" in line
    assert "orders-2 (1800 s ago), orders-3 (40 s ago)" in line
    assert "orders-1" not in line
    came.looked(NOW - 60_000)
    [line] = await came.lines(every, NOW)
    assert "since a promote of all was planned last" in line
    assert "orders-3 (40 s ago)" in line
    assert "orders-2" not in line
    came.looked(NOW)
    assert await came.lines(every, NOW + 1) == []
    rig.source.make("orders-4", 4)
    rig.source.make("quotes", 5)
    rig.refusing["orders-4"] = "a right is missing"
    [line] = await came.lines(every, NOW + 1)
    assert line.startswith("not promoted, since they are not mirrored (yet)")
    assert line.endswith(": orders-4")
    rig.source.down = {1, 2}
    [line] = await came.lines(every, NOW + 1)
    assert "is not known" in line


async def test_without_patterns_nothing_came_by_itself(rig: Rig) -> None:
    came = CameSince(context("east", controller=rig.controller), rig.follower)
    rig.source.make("orders", 1)
    await rig.options(topics_include="orders")
    await rig.follower.look()
    await rig.options(topics_include="")
    made(rig, "orders", NOW)
    assert came.by_pattern(["orders"]) == {}
    assert await came.lines(["orders"], NOW) == []
