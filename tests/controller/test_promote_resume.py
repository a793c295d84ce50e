"""Taking up promotes by name: of several that are unfinished only those that nobody runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.state import JobStatus, MirrorTopic
from fleet.stored_controller import StoredController
from linker.promote.driver import PromoteDriver
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from wire.frames.types import TopicPartition


async def test_only_the_named_jobs_are_taken_up() -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    for topic in ("orders", "payments"):
        await controller.create_mirror(
            MirrorTopic(
                link="east",
                topic=topic,
                topic_id=topic.encode().ljust(16),
                source_topic_id=None,
                partitions=1,
            )
        )
        await establish(
            controller,
            "east",
            TopicPartition(topic, 0),
            leadership=Leadership(900, 3, (900,)),
            session_epoch=3,
            start_offset=0,
        )
        await controller.begin_promote("east", [topic])
    nothing_is_held: Any = None
    driver = PromoteDriver(controller, "east", nothing_is_held)
    [outcome] = await driver.resume({1})
    assert outcome.job_id == 1
    statuses = [controller.image.jobs["east", number].status for number in (1, 2)]
    assert statuses == [JobStatus.ABANDONED, JobStatus.RUNNING]
    assert [outcome.job_id for outcome in await driver.resume()] == [2]


async def test_what_a_late_commit_left_without_a_promote_goes_back() -> None:
    """A commit that was given up may be carried out when its job has ended already."""
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    await controller.create_mirror(
        MirrorTopic(link="east", topic="orders", topic_id=b"i" * 16, source_topic_id=None, partitions=1)
    )
    tp = TopicPartition("orders", 0)
    await establish(
        controller, "east", tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
    )
    await controller.advance("east", [tp], Phase.CATCHING_UP)
    opened: list[TopicPartition] = []

    async def unfence(tps: Any, *, timeout: float) -> None:
        opened.extend(tps)

    ports: Any = SimpleNamespace(
        fencer=SimpleNamespace(unfence=unfence), progress=SimpleNamespace(lag=lambda tps: {})
    )
    await PromoteDriver(controller, "east", ports).retreat()
    state = controller.image.partitions["east", tp]
    assert (state.phase, state.reason) == (Phase.ACTIVE, "it was CATCHING_UP without a promote")
    assert opened == [tp]
