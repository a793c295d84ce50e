"""What an abandoned promote could not open at the source is opened as soon as it can be, and not promoted before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.models import PromoteRequest
from admin.service import IllegalState, PreflightFailed
from controller.decide.mirrors import Leadership
from controller.decide.source_fence import debts
from controller.state import JobStatus, MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from linker.promote import source_fence_debts
from linker.promote.source_fence import AclSourceFence
from linker.promote.source_fence_debts import SourceFenceDebts
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.links.test_service_races import Rig
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


class Fence:
    """The source as a fence of ours sees it."""

    def __init__(self, failing_until: float = 0.0) -> None:
        self.opened: list[tuple[str, ...]] = []
        self.failing_until = failing_until

    async def open(self, topics: Collection[str], *, timeout: float) -> None:
        self.opened.append(tuple(topics))
        if len(self.opened) > 1 and asyncio.get_running_loop().time() < self.failing_until:
            raise LinkerError("no answer")


async def indebted(*topics: str) -> LinkController:
    """A link on which a promote of these topics was abandoned while the source was away."""
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    for topic in (*topics, "other"):
        mirror = MirrorTopic(
            link="east", topic=topic, topic_id=topic.encode().ljust(16), source_topic_id=None, partitions=1
        )
        await controller.create_mirror(mirror)
        leads = Leadership(900, 3, (900,))
        await establish(
            controller, "east", TopicPartition(topic, 0), leadership=leads, session_epoch=3, start_offset=0
        )
    job = await controller.begin_promote("east", topics)
    await controller.note_source_fence("east", job.id, closed=topics)
    await controller.end_promote(job, JobStatus.ABANDONED, "the source was away", {})
    return controller


async def pay(controller: LinkController, monkeypatch: pytest.MonkeyPatch, late: float = 0.0) -> Fence:
    """A few rounds of what pays them."""
    monkeypatch.setattr(source_fence_debts, "_EVERY", 0.001)
    monkeypatch.setattr(source_fence_debts, "_LATE", late)
    fence = Fence()
    paying = asyncio.create_task(
        SourceFenceDebts("east", controller, cast("AclSourceFence", fence), lambda: True).task.run()
    )
    await asyncio.sleep(0.05)
    paying.cancel()
    await asyncio.gather(paying, return_exceptions=True)
    return fence


async def test_a_job_of_another_topic_does_not_keep_a_source_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await indebted("a")
    await controller.begin_promote("east", ["other"])
    assert (await pay(controller, monkeypatch)).opened == [("a",)]
    assert debts(controller.image, "east") == {}


async def test_what_may_be_closed_late_is_opened_until_nothing_can_close_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = await indebted("a")
    fence = await pay(controller, monkeypatch, late=10.0)
    assert len(fence.opened) > 2
    assert set(fence.opened) == {("a",)}
    assert debts(controller.image, "east") == {1: ["a"]}
    monkeypatch.setattr(source_fence_debts, "_LATE", 0.2)
    began = asyncio.get_running_loop().time()
    fence = Fence(failing_until=began + 0.2)
    paying = asyncio.create_task(
        SourceFenceDebts("east", controller, cast("AclSourceFence", fence), lambda: True).task.run()
    )
    while debts(controller.image, "east"):
        await asyncio.sleep(0.001)
    paying.cancel()
    await asyncio.gather(paying, return_exceptions=True)
    # From the last request of unknown outcome on: an opening may come late, too.
    assert asyncio.get_running_loop().time() - began >= 0.4
    assert fence.opened


async def test_a_topic_of_a_running_job_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await indebted("a", "b")
    await controller.begin_promote("east", ["b"])
    assert (await pay(controller, monkeypatch)).opened == [("a",)]
    assert debts(controller.image, "east") == {1: ["b"]}


@pytest.mark.parametrize("fence_source", [False, True])
async def test_a_topic_that_the_source_still_refuses_is_not_promoted(
    fence_source: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fine(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr("linker.service.promote_plans.check_source_fence", fine)
    rig = await Rig.make()
    rig.runtime.go_on.set()
    job = await rig.controller.begin_promote("east", ["orders"])
    await rig.controller.note_source_fence("east", job.id, closed=["orders"])
    await rig.controller.end_promote(job, JobStatus.ABANDONED, "the source was away", {})
    request = PromoteRequest.model_validate({"topics": ["orders"], "options": {"fence_source": fence_source}})
    with pytest.raises(
        PreflightFailed, match=r"topic orders: .*refuse writes because promote 1 was abandoned"
    ):
        await rig.service.promote("east", request)
    assert rig.runtime.started == []
    await rig.controller.note_source_fence("east", job.id, opened=["orders"])
    await rig.service.promote("east", request)
    assert len(rig.runtime.started) == 1


async def test_a_source_is_opened_although_its_mirror_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await indebted("a")
    await controller.delete_mirror("east", "a", force=True)
    assert (await pay(controller, monkeypatch)).opened == [("a",)]
    assert debts(controller.image, "east") == {}


UNDO = "kafka-acls.sh --remove --deny-principal 'User:*' --operation Write --topic orders"


class Links(dict[str, Any]):
    """The sidecar's links, of which one ends."""

    async def stop(self, link: str) -> None:
        del self[link]


async def test_what_would_make_a_debt_be_forgotten_is_refused_and_says_what_to_do() -> None:
    rig = await Rig.make()
    released = SimpleNamespace(release_all=lambda: asyncio.sleep(0))
    rig.runtime.groups = released  # type: ignore[attr-defined]
    rig.service._sidecar.links = cast("Any", Links(rig.links))
    job = await rig.controller.begin_promote("east", ["orders"])
    await rig.controller.note_source_fence("east", job.id, closed=["orders"])
    await rig.controller.end_promote(job, JobStatus.ABANDONED, "the source was away", {})

    for dry_run in (True, False):
        with pytest.raises(IllegalState, match=r"refuse writes to orders.*--force") as refused:
            await rig.service.delete_mirror("east", "orders", keep_data=False, dry_run=dry_run)
        assert UNDO in str(refused.value)
    assert rig.operations.deleted == []

    done = await rig.service.delete_mirror("east", "orders", keep_data=False, force=True, dry_run=False)
    assert rig.operations.deleted == ["orders"]
    assert ("east", "orders") not in rig.controller.image.mirrors
    assert [UNDO in warning for warning in done.warnings] == [True]
    assert debts(rig.controller.image, "east") == {1: ["orders"]}

    with pytest.raises(IllegalState, match=r"refuse writes to orders.*--force") as refused:
        await rig.service.delete_link("east", dry_run=False)
    assert UNDO in str(refused.value)
    done = await rig.service.delete_link("east", force=True, dry_run=False)
    assert [UNDO in warning for warning in done.warnings] == [True]
    assert rig.controller.image.links == {}


async def test_a_delete_that_owes_nothing_warns_of_nothing() -> None:
    rig = await Rig.make()
    done = await rig.service.delete_mirror("east", "orders", keep_data=False, force=True, dry_run=False)
    assert done.warnings == []
