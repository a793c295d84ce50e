"""Heartbeats of a link: what is written where, who makes the topic, and what becomes of a refusal."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from admin.models import LinkOptions
from controller.phases import Phase
from controller.state import MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from linker.checks.preflight import PreflightError
from linker.links.heartbeats import Heartbeats
from linker.links.new_mirrors import Planned
from tests.controller.memory_store import MemoryStore
from tests.fakes.batches import parse_batches, values_of
from tests.links.link_context import context
from wire.client.topic_names import TopicNames
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

LINK, TOPIC = "east", "linker-heartbeats.source-id"
UNKNOWN, NOT_ALLOWED = 3, 29


class Source:
    """One broker, with topics and what is refused there, by api."""

    cluster_id = "source-id"
    controller_id = 1

    def __init__(self, prefix: str = "") -> None:
        self.topic_names = TopicNames(prefix)
        self.nodes = {1: None}
        self.there: set[str] = set()
        self.topics: dict[str, Any] = {}
        self.refuses: dict[str, int] = {}
        self.asked: list[str] = []
        self.made: list[Any] = []
        self.batches: list[bytes] = []

    def leader(self, tp: TopicPartition) -> Any:
        found = self.topics.get(tp.topic)
        return None if found is None or found.error else SimpleNamespace(id=1)

    async def refresh(self, topics: list[str], *, timeout: float) -> None:
        self.asked.append("metadata")
        for topic in topics:
            known = self.topic_names.there(topic) in self.there
            self.topics[topic] = SimpleNamespace(error=0 if known else UNKNOWN)

    async def call(self, api: str, fields: Any, **_more: Any) -> Any:
        self.asked.append(api)
        code = self.refuses.get(api, 0)
        if api == "create_topics":
            (topic,) = fields["topics"]
            if not code:
                self.there.add(self.topic_names.there(topic["name"]))
                self.made.append(topic)
            return SimpleNamespace(topics=[SimpleNamespace(error_code=code, error_message=None)])
        (topic,) = fields["topic_data"]
        assert self.topic_names.there(topic["name"]) in self.there
        if not code:
            self.batches.append(topic["partition_data"][0]["records"])
        answer = SimpleNamespace(partition_responses=[SimpleNamespace(error_code=code)])
        return SimpleNamespace(responses=[answer])


class NewMirrors:
    """Plans any topic, or refuses it."""

    def __init__(self, controller: LinkController) -> None:
        self._controller = controller
        self.taken: str | None = None
        self.refuses: str | None = None
        self.planned = 0

    def name_taken(self, _topic: str) -> str | None:
        return self.taken

    async def plan(self, topics: list[str], _wanted: Any) -> Planned:
        self.planned += 1
        if self.refuses is not None:
            raise PreflightError(self.refuses)
        return Planned(
            [MirrorTopic(link=LINK, topic=topics[0], topic_id=bytes(16), source_topic_id=None, partitions=1)]
        )

    async def write_down(self, mirrors: list[MirrorTopic]) -> None:
        await self._controller.create_mirrors(mirrors)


class Rig:
    def __init__(self, controller: LinkController, prefix: str = "") -> None:
        self.controller = controller
        self.source = Source(prefix)
        self.new = NewMirrors(controller)
        target = SimpleNamespace(cluster=SimpleNamespace(cluster_id="target-id"))
        self.heartbeats = Heartbeats(
            context(LINK, self.source, target, controller),
            self.new,  # type: ignore[arg-type]
            lambda: 1_795_000_000.5,
        )

    async def options(self, **changes: Any) -> None:
        await self.controller.update_link(LINK, None, LinkOptions(**changes).model_dump())
        self.heartbeats.on_records(())


@pytest.fixture
async def rig() -> Rig:
    return await opened()


async def opened(prefix: str = "") -> Rig:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link(
        LINK, source_cluster_id="source-id", properties={}, options=LinkOptions().model_dump()
    )
    return Rig(controller, prefix)


async def test_without_the_option_nothing_is_asked_of_the_source(rig: Rig) -> None:
    rig.heartbeats.on_records(())
    assert await rig.heartbeats._once() is None
    assert (rig.source.asked, rig.heartbeats.topic) == ([], None)
    assert rig.heartbeats._pause(rig.heartbeats.task) is None  # until the options change


async def test_the_topic_is_made_written_and_mirrored(rig: Rig) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats", heartbeat_retention_ms=600_000)
    assert await rig.heartbeats._once() is None
    (made,) = rig.source.made
    assert (made["name"], made["num_partitions"], made["replication_factor"]) == (TOPIC, 1, -1)
    assert {one["name"]: one["value"] for one in made["configs"]} == {
        "cleanup.policy": "delete",
        "retention.ms": "600000",
        "segment.ms": "150000",
        "message.timestamp.type": "LogAppendTime",
    }
    (batch,) = rig.source.batches
    ((_, value),) = values_of(batch)
    assert json.loads(value or b"") == {
        "link": LINK,
        "source_cluster_id": "source-id",
        "target_cluster_id": "target-id",
        "ts": 1_795_000_000_500,
    }
    assert b"east" in batch
    (header,) = parse_batches(batch)
    assert (header.producer_id, header.is_transactional) == (-1, False)
    assert [mirror.topic for mirror in rig.controller.image.link_mirrors(LINK)] == [TOPIC]
    assert await rig.heartbeats._once() is None
    assert (len(rig.source.batches), len(rig.source.made), rig.new.planned) == (2, 1, 1)
    assert rig.heartbeats._pause(rig.heartbeats.task) == 5.0


async def test_a_prefix_is_of_the_mirror_alone() -> None:
    rig = await opened("eu.")
    await rig.options(heartbeat_topic="hb")
    await rig.heartbeats._write("eu.hb.source-id")
    assert rig.source.there == {"hb.source-id"}
    assert rig.heartbeats.topic == "eu.hb.source-id"


@pytest.mark.parametrize("api", ["create_topics", "produce"])
async def test_a_right_that_is_missing_is_told_and_asked_for_ever_more_seldom(rig: Rig, api: str) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats")
    rig.source.refuses[api] = NOT_ALLOWED
    task = rig.heartbeats.task
    for _ in range(6):
        await task._attempt()
    assert task.reason is not None
    assert "grant the link's principal Create, Describe, Read and Write" in task.reason
    assert rig.heartbeats._pause(task) == 60.0
    assert rig.controller.image.link_mirrors(LINK) == []
    rig.source.refuses.clear()
    await task._attempt()
    assert (task.reason, rig.heartbeats.written) == (None, 1)


async def test_a_topic_that_cannot_be_mirrored_is_written_all_the_same(rig: Rig) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats")
    rig.new.taken = "topic x exists at the target"
    assert "exists at the target" in (await rig.heartbeats._once() or "")
    rig.new.taken, rig.new.refuses = None, "no right"
    assert "no right" in (await rig.heartbeats._once() or "")
    assert rig.heartbeats.written == 2


async def test_the_mirror_of_another_link_will_do(rig: Rig) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats")
    await rig.controller.create_link("west", source_cluster_id="source-id", properties={}, options={})
    other = MirrorTopic(link="west", topic=TOPIC, topic_id=bytes(16), source_topic_id=None, partitions=1)
    await rig.controller.create_mirrors([other])
    assert await rig.heartbeats._once() is None
    assert (rig.heartbeats.written, rig.new.planned) == (1, 0)


@pytest.mark.parametrize("phase", [Phase.PROMOTED, Phase.FAILED_OVER])
async def test_a_topic_that_is_the_targets_own_gets_no_more(rig: Rig, phase: Phase) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats")
    await rig.heartbeats._once()
    image = rig.controller.image
    (state,) = image.topic_partitions(LINK, TOPIC)
    image.replay([replace(state, phase=phase)])
    await rig.heartbeats._once()
    assert rig.heartbeats.written == 1


async def test_the_option_ends_it_at_once(rig: Rig) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats")
    await rig.heartbeats._once()
    await rig.options()
    assert rig.heartbeats.topic is None
    await rig.heartbeats._once()
    assert rig.heartbeats.written == 1


async def test_a_source_that_refuses_is_an_error_of_the_task_alone(rig: Rig) -> None:
    await rig.options(heartbeat_topic="linker-heartbeats")
    rig.source.refuses["produce"] = 6
    with pytest.raises(LinkerError, match="takes no record"):
        await rig.heartbeats._once()


@pytest.mark.parametrize("topic", ["a b", "a/b", "x" * 201])
def test_names_that_no_topic_can_have_are_refused(topic: str) -> None:
    with pytest.raises(ValidationError):
        LinkOptions(heartbeat_topic=topic)
    assert math.isfinite(LinkOptions(heartbeat_topic="").heartbeat_interval_ms)
