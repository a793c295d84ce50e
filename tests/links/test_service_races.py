"""Operator commands that meet: what was looked at before a wait must still hold when something is done."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import CreateMirrorsRequest, PromoteRequest
from admin.service import IllegalState, OutcomeUnknown
from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.plan.topic_configs import ConfigPlan
from controller.state import Attempt, JobStatus, MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import ControllerFenced, StoreError
from linker.checks import preflight
from linker.config.check import ValidationConfig
from linker.links import new_mirrors
from linker.links.bring_up import BringUp
from linker.links.configs import TopicConfigs
from linker.links.new_mirrors import NewMirrors
from linker.links.source_sidecars import SourceSidecars
from linker.service import SidecarService
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from wire.client.topic_names import TopicNames
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, TopicImage

TOPIC_ID, OTHER_ID = b"m" * 16, b"o" * 16
T0 = TopicPartition("orders", 0)


class Operations:
    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def set_configs_of_topics(self, configs: Any, *, timeout: float, validate_only: bool) -> None:
        assert validate_only

    async def create_mirror_topics(self, *_: Any, validate_only: bool) -> Any:
        """Only asked whether they could be."""
        return {}, {}

    async def delete_topic(self, name: str, topic_id: bytes | None, *, timeout: float) -> None:
        self.deleted.append(name)


class Asked:
    """The target as a client: allows everything."""

    cluster_id = "target"

    async def connection(self, node_id: int | None) -> Any:
        return SimpleNamespace(pick_version=lambda api, max_version: max_version)

    async def call(
        self, api: str, fields: Any, *, timeout: float, version: int | None = None, node_id: int | None = None
    ) -> Any:
        return SimpleNamespace(topics=[], results=[])


class Runtime:
    """As much of a LinkRuntime as the service asks."""

    source_available = True
    settling = False
    trouble = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.started: list[Any] = []
        self.promotes = SimpleNamespace(progress={})
        self.paused: list[TopicPartition] = []
        self.fetcher = SimpleNamespace(
            remove=lambda tps: None, partitions={}, pause=self.paused.extend, resume=lambda tps: None
        )
        self.watch = SimpleNamespace(look=self._look, grown={})
        self.heartbeats = SimpleNamespace(topic=None)
        self.configs = SimpleNamespace(follow=self._follow, put_back={})
        self.starts = SimpleNamespace(of=lambda tp: [], late=self._late)
        self.reached = asyncio.Event()
        self.link_brokers = lambda: frozenset({900})
        self.go_on = asyncio.Event()

    async def _follow(self, topics: Any) -> None:
        pass

    async def _look(self) -> None:
        self.reached.set()
        await self.go_on.wait()

    async def _late(self, tps: Any, *, timeout: float, every: bool = True) -> dict[Any, Any]:
        return {}

    async def begin_promote(self, begin: Any, settings: Any) -> Any:
        job = await begin()
        self.started.append(job)
        return job

    def lag(self, tp: TopicPartition) -> int | None:
        return 0


class Rig:
    def __init__(self, controller: LinkController) -> None:
        self.controller = controller
        self.runtime = Runtime("east")
        self.runtime.controller = controller  # type: ignore[attr-defined]
        self.operations = Operations()
        self.image = ClusterImage()
        self.set_topic(TOPIC_ID)
        self.links = {"east": self.runtime}
        target: Any = SimpleNamespace(
            image=self.image, operations=self.operations, broker_id=900, cluster=Asked()
        )
        fetcher: Any = self.runtime.fetcher
        source: Any = None
        self.target = target
        self.bring_up = BringUp(context("east", source, target, controller), fetcher)
        self.runtime.bring_up = self.bring_up  # type: ignore[attr-defined]
        self.runtime.source = source  # type: ignore[attr-defined]
        self.runtime.target = target  # type: ignore[attr-defined]
        sidecar: Any = SimpleNamespace(
            controller=controller,
            links=self.links,
            joined={},
            target=target,
            broker=SimpleNamespace(router=SimpleNamespace(unfence=lambda tps: None)),
            not_ready=lambda: None,
            config=SimpleNamespace(validation=ValidationConfig(policy="skip")),
            link_brokers=lambda: frozenset({900}),
        )
        self.service = SidecarService(sidecar)

    def set_topic(self, topic_id: bytes) -> None:
        topic = TopicImage(topic_id, "orders", {})
        self.image.topics_by_name["orders"] = topic
        self.image.topics_by_id[topic_id] = topic

    @classmethod
    async def make(cls) -> Rig:
        controller = await StoredController.open(MemoryStore(), now=lambda: 7)
        await controller.create_link("east", "cluster", {})
        await controller.create_mirror(
            MirrorTopic(link="east", topic="orders", topic_id=TOPIC_ID, source_topic_id=None, partitions=1)
        )
        await establish(
            controller, "east", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
        return cls(controller)

    async def delete(self) -> None:
        await self.service.delete_mirror("east", "orders", keep_data=False, dry_run=False)


async def test_a_promote_that_began_while_a_delete_waited_keeps_its_topic() -> None:
    rig = await Rig.make()
    promote = asyncio.create_task(rig.service.promote("east", PromoteRequest(topics=["orders"])))
    await rig.runtime.reached.wait()
    delete = asyncio.create_task(rig.delete())
    await asyncio.sleep(0)
    rig.runtime.go_on.set()
    await promote
    with pytest.raises(IllegalState, match="promote 1, which is running"):
        await delete
    assert rig.operations.deleted == []
    assert ("east", "orders") in rig.controller.image.mirrors


async def test_a_delete_that_waited_while_the_topic_was_promoted_leaves_it_at_the_target() -> None:
    rig = await Rig.make()
    async with rig.service._changing:
        delete = asyncio.create_task(rig.delete())
        await asyncio.sleep(0)
        job = await rig.controller.begin_promote("east", ["orders"])
        state = rig.controller.image.partitions["east", T0]
        for phase in (Phase.CATCHING_UP, Phase.FENCED):
            await rig.controller.advance("east", [T0], phase)
        await rig.controller.advance("east", [T0], Phase.ALIGNED, aligned_ends={T0: 0})
        attempts = {T0: Attempt(leader_epoch=3, partition_epoch=1)}
        await rig.controller.advance("east", [T0], Phase.VALIDATED, attempts=attempts)
        for phase in (Phase.HANDED_OVER, Phase.PROMOTED):
            await rig.controller.advance("east", [T0], phase)
        await rig.controller.end_promote(job, JobStatus.DONE, None, {})
        assert state.phase is Phase.ACTIVE  # as the delete would have seen it
    await delete
    assert rig.operations.deleted == []
    assert ("east", "orders") not in rig.controller.image.mirrors


async def test_a_promote_runs_on_the_runtime_that_there_is() -> None:
    rig = await Rig.make()
    async with rig.service._changing:
        promote = asyncio.create_task(rig.service.promote("east", PromoteRequest(topics=["orders"])))
        await asyncio.sleep(0)
        fresh = Runtime("east")
        fresh.controller = rig.controller  # type: ignore[attr-defined]
        fresh.target = rig.target  # type: ignore[attr-defined]
        fresh.go_on.set()
        rig.links["east"] = fresh  # a link update starts the link again
        rig.runtime.go_on.set()
    await promote
    assert rig.runtime.started == []
    assert len(fresh.started) == 1


async def test_somebody_elses_topic_of_the_same_name_is_not_deleted() -> None:
    rig = await Rig.make()
    rig.set_topic(OTHER_ID)
    await rig.delete()
    assert rig.operations.deleted == []
    assert ("east", "orders") not in rig.controller.image.mirrors


async def planned_nothing(*_: Any) -> list[Any]:
    return []


async def test_a_mirror_is_brought_up_although_the_next_one_could_not_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await Rig.make()
    rig.image.brokers[1] = BrokerImage(1, 1, bytes(16), None, {}, False, False, ())
    monkeypatch.setattr(SidecarService, "_refuse_existing", lambda *_: None)
    monkeypatch.setattr(NewMirrors, "collisions", lambda *_: [])
    plan = ConfigPlan(copied={}, create={}, restore={}, skipped={}, adjusted={})

    async def read(source: Any, names: list[str]) -> Any:
        configs = TopicConfigs({}, {})
        return {name: preflight.SourceTopic(name, None, 1, 1, configs, plan) for name in names}, [], []

    async def defaults(*_: Any, **__: Any) -> dict[str, str]:
        return {}

    async def origins(_self: Any, topics: list[str]) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(topics, ())

    monkeypatch.setattr(SourceSidecars, "origins", origins)
    monkeypatch.setattr(preflight, "read_new_topics", read)
    monkeypatch.setattr(preflight, "plan_with", lambda _defaults, topics, *_: topics)
    monkeypatch.setattr(new_mirrors, "topic_defaults", defaults)
    monkeypatch.setattr(new_mirrors, "formats_or_not_told", planned_nothing)
    monkeypatch.setattr(new_mirrors, "_COMMITTED", 1)
    before = rig.runtime
    async with rig.service._changing:
        request = CreateMirrorsRequest(topics=["payments", "orders"])
        create = asyncio.create_task(rig.service.create_mirrors("east", request, dry_run=False))
        await asyncio.sleep(0)
        fresh = Runtime("east")  # a link update begins the link anew
        fresh.bring_up, fresh.source = (
            rig.bring_up,
            SimpleNamespace(topic_names=TopicNames(), cluster_id="source"),
        )  # type: ignore[attr-defined]
        fresh.new_mirrors = NewMirrors(  # type: ignore[attr-defined]
            context("east", fresh.source, rig.target, rig.controller),
            lambda _tps: None,
            rig.bring_up.ask,
        )
        rig.links["east"] = fresh
        del before.bring_up  # type: ignore[attr-defined]
    with pytest.raises(LinkerError, match="'orders' is a mirror of link 'east' already"):
        await create
    assert ("east", "payments") in rig.controller.image.mirrors
    assert rig.bring_up._due.asked == {"payments"}


# A mirror that a promote has not come to yet.


@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_is_to_be_promoted_is_not_paused(dry_run: bool) -> None:
    """Its phase does not show it before its batch begins; all of that batch would be abandoned for it."""
    rig = await Rig.make()
    await rig.controller.begin_promote("east", ["orders"])
    for change in (
        rig.service.pause_mirror("east", "orders", dry_run=dry_run),
        rig.service.resume_mirror("east", "orders", restart=False, dry_run=dry_run),
    ):
        with pytest.raises(IllegalState, match="is part of promote 1, which is running"):
            await change
    assert rig.runtime.paused == []
    assert rig.controller.image.partitions["east", T0].phase is Phase.ACTIVE
    assert not rig.controller.image.mirrors["east", "orders"].paused


async def test_a_pause_waits_for_a_promote_that_is_being_begun() -> None:
    rig = await Rig.make()
    promote = asyncio.create_task(rig.service.promote("east", PromoteRequest(topics=["orders"])))
    await rig.runtime.reached.wait()
    pause = asyncio.create_task(rig.service.pause_mirror("east", "orders", dry_run=False))
    await asyncio.sleep(0)
    rig.runtime.go_on.set()
    await promote
    with pytest.raises(IllegalState, match="is part of promote 1, which is running"):
        await pause
    assert rig.controller.image.partitions["east", T0].phase is Phase.ACTIVE


async def test_a_dry_run_of_a_pause_changes_nothing_and_a_pause_does() -> None:
    rig = await Rig.make()
    await rig.service.pause_mirror("east", "orders", dry_run=True)
    assert (rig.runtime.paused, rig.controller.image.partitions["east", T0].phase) == ([], Phase.ACTIVE)
    await rig.service.pause_mirror("east", "orders", dry_run=False)
    assert (rig.runtime.paused, rig.controller.image.partitions["east", T0].phase) == ([T0], Phase.PAUSED)
    await rig.service.resume_mirror("east", "orders", restart=False, dry_run=False)
    assert rig.controller.image.partitions["east", T0].phase is Phase.ACTIVE
    assert rig.bring_up._due.asked == {"orders"}


@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_is_to_be_failed_over_is_not_begun_again(dry_run: bool) -> None:
    rig = await Rig.make()
    await rig.controller.fail_partition("east", T0, "retention outran it")
    await rig.controller.begin_failover("east", ["orders"])
    with pytest.raises(IllegalState, match="is part of failover 1, which is running"):
        await rig.service.resume_mirror("east", "orders", restart=True, dry_run=dry_run)
    assert rig.controller.image.partitions["east", T0].phase is Phase.FAILED


# A store that does not say whether it took the promote.


async def begun(rig: Rig, error: BaseException) -> None:
    async def begin(begin: Any, settings: Any) -> Any:
        raise error

    rig.runtime.begin_promote = begin  # type: ignore[method-assign]
    rig.runtime.go_on.set()
    await rig.service.promote("east", PromoteRequest(topics=["orders"]))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (StoreError("the connection was lost"), "the connection was lost"),
        (TimeoutError(), "the state store did not answer within 30 s"),
    ],
)
async def test_what_is_not_known_is_said_and_where_to_look(error: Exception, why: str) -> None:
    with pytest.raises(OutcomeUnknown) as raised:
        await begun(await Rig.make(), error)
    assert str(raised.value) == (
        f"whether east-1 was begun is not known: {why}; if it was written down it ends ABANDONED by itself, and nothing "
        "of it happens: linker mirror promote --attach east-1 shows it, then ask again"
    )


async def test_what_was_certainly_not_written_is_not_called_unknown() -> None:
    with pytest.raises(ControllerFenced):
        await begun(await Rig.make(), ControllerFenced(3, 4))


async def test_a_store_that_does_not_answer_is_not_waited_for_until_the_request_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("linker.service.base._WRITE_DOWN", 0.01)
    rig = await Rig.make()
    rig.runtime.go_on.set()
    rig.controller.begin_promote = lambda *_, **__: asyncio.Event().wait()  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(OutcomeUnknown, match="did not answer within"):
        await rig.service.promote("east", PromoteRequest(topics=["orders"]))
