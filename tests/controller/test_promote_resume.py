"""Taking up promotes by name: of several that are unfinished only those that nobody runs."""

from __future__ import annotations

from typing import Any

from controller.decisions import Leadership
from controller.manager import LinkController
from controller.promote import PromoteDriver
from controller.state import JobStatus, MirrorTopic
from tests.controller.memory_store import MemoryStore
from wire.types import TopicPartition


async def test_only_the_named_jobs_are_taken_up() -> None:
    controller = await LinkController.open(MemoryStore(), now=lambda: 7)
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
        await controller.establish(
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
