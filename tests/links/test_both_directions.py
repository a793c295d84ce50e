"""Status, doctor, metrics and reports to the link controller show links that run back from a joined source, and the link
broker there, as they show those of the target."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from admin.metrics import Metrics
from admin.models import CheckResult
from controller.phases import Phase
from controller.state import Link, MirrorPartition, MirrorTopic, PromoteJob
from fetcher.directory import MirrorDirectory
from fleet.messages import LinkTraffic, SidecarReport, SourceMember
from linker.checks import preflight
from linker.links.reverse import Reversed
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from linker.service import SidecarService
from linker.sidecar import Sidecar
from linker.snapshot import take_snapshot
from router.fetch.held_readers import HeldReaders
from router.ports import RouterStats
from tests.links.test_link_life import NoController, a_sidecar
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage
from wire.periodic_task import PeriodicTask, TaskState

EAST, BACK = "east", "east.reverse"
NOWHERE = "127.0.0.1:1"
TOPIC_ID = b"s" * 16
T0 = TopicPartition("switched", 0)


def fill(broker: Any, broker_id: int, connections: int) -> None:
    """All that people are shown of a link broker."""
    image = ClusterImage()
    leads = PartitionImage(0, (broker_id,), (broker_id,), (), (), broker_id, 4, 5)
    image.topics_by_id[TOPIC_ID] = TopicImage(TOPIC_ID, "switched", {0: leads})
    there = broker.membership
    there.broker_id, there.image = broker_id, image
    there.registration = SimpleNamespace(
        last_heartbeat=time.monotonic(), fenced=False, rack=None, session_valid=True
    )
    broker.router.hub.loop = SimpleNamespace(time=lambda: 0.0)
    broker.router.hub.held_readers = HeldReaders()
    broker.router.hub.unread = SimpleNamespace(used=0, cut=0)
    broker.router.hub.clients_seen = lambda topics: []
    broker.router.unknown_answers = 0
    listener = SimpleNamespace(connections=[None] * connections, protocol_errors=0, refused_connections=0)
    broker.listeners, broker.advertised = [listener], []
    broker.inter_broker = SimpleNamespace(
        task=PeriodicTask("inter-broker listeners", asyncio.Event().wait, 60.0)
    )


class Scene:
    """A sidecar that has joined the source of the link east. Topic `switched` is owned by the target."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        target: Any = sidecar.target
        fill(target, 900, connections=2)
        membership: Any = SimpleNamespace(
            metadata=SimpleNamespace(subscribe=lambda callback: lambda: None),
            operations=NoController(),
            cluster=SimpleNamespace(cluster_id="east"),
        )
        hub = SimpleNamespace(first_fetches=SimpleNamespace(watch=None))
        self.source: Any = SimpleNamespace(
            membership=membership,
            router=SimpleNamespace(
                hub=hub, stats=RouterStats(), unfence=lambda tps: None, forwarding_changed=lambda: None
            ),
            copies=MirrorDirectory(),
            link_brokers=lambda: frozenset({800}),
        )
        fill(self.source, 800, connections=3)
        self.source.links = RunningLinks(self._reverse, lambda: sidecar.controller, EAST)
        joined: Any = SimpleNamespace(
            broker=self.source,
            evictor=None,
            told=lambda: SourceMember(link=EAST, broker_id=800, state="JOINED"),
        )
        sidecar.joined.sources[EAST] = joined
        fleet: Any = sidecar.fleet
        fleet.alone = True
        fleet.store = SimpleNamespace(latency=None, failures=0)
        controller: Any = sidecar.controller
        controller.is_controller = True
        sidecar._starting = None
        self.running = sidecar._running()
        self.service = SidecarService(self.running)

    def _reverse(self, link: Link) -> LinkRuntime:
        def connect(name: str) -> Cluster:
            return Cluster(
                f"source {name}", parse_bootstrap_servers(NOWHERE), ClientSecurity.plaintext(), "test"
            )

        reverses = Reversed(
            connect=connect, source_side=self.sidecar._target_side, producer_ids_apart=lambda: False
        )
        return self.sidecar._runtime_in(self.source, link, self.sidecar.validator, reverses)

    @property
    def back(self) -> LinkRuntime:
        found: LinkRuntime = self.source.links[BACK]
        return found

    async def start(self) -> None:
        controller = self.sidecar.controller
        await controller.ensure_reverse(EAST, "target")
        mirror = MirrorTopic(
            link=BACK, topic="switched", topic_id=TOPIC_ID, source_topic_id=None, partitions=1
        )
        state = MirrorPartition(link=BACK, topic="switched", partition=0, phase=Phase.FAILED)
        await controller.decide(lambda _: ([mirror, state], None))
        self.source.links.group = self.sidecar.links.group
        self.source.links.start(controller.image.links[BACK])
        self.source.router.stats.links[BACK].bytes = 70
        target: Any = self.sidecar.target
        target.router.stats.links[EAST].bytes = 5

    def page(self) -> str:
        return Metrics(lambda: take_snapshot(self.running)).render().decode()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    async with a_sidecar(east={"bootstrap.servers": NOWHERE}) as sidecar:
        found = Scene(sidecar)
        await found.start()
        try:
            yield found
        finally:
            for name in list(found.source.links):
                await found.source.links.stop(name)


async def until(told: Any) -> None:
    async with asyncio.timeout(30):
        while not told():
            await asyncio.sleep(0.001)


def values(page: str, name: str) -> dict[tuple[str | None, str | None], float]:
    """By the labels cluster and link."""
    return {
        (sample.labels.get("cluster"), sample.labels.get("link")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


async def test_metrics_have_the_reverse_link_and_the_link_broker_at_the_source(scene: Scene) -> None:
    page = scene.page()
    assert values(page, "linker_forwarded_bytes_total") == {(None, EAST): 5, (None, BACK): 70}
    assert values(page, "linker_client_connections") == {(None, None): 2, (EAST, None): 3}
    assert values(page, "linker_leading_partitions") == {(None, None): 1, (EAST, None): 1}
    assert values(page, "linker_heartbeat_age_seconds").keys() == {(None, None), (EAST, None)}
    assert values(page, "linker_produce_latency_seconds_count").keys() == {(None, None), (EAST, None)}
    assert (
        'linker_partition_state{link="east.reverse",partition="0",state="FAILED",topic="switched"} 1.0'
        in page
    )


def series(page: str) -> Counter[tuple[str, tuple[tuple[str, str], ...]]]:
    return Counter(
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    )


async def test_no_series_is_there_twice(scene: Scene) -> None:
    assert set(series(scene.page()).values()) == {1}


async def test_nor_where_another_link_takes_the_name_while_the_reverse_link_ends(scene: Scene) -> None:
    other = Link(name=BACK, source_cluster_id="other", properties={"bootstrap.servers": NOWHERE})
    scene.sidecar.links.start(other)
    try:
        assert len(scene.running.all_links()) == 3
        page = scene.page()
    finally:
        await scene.sidecar.links.stop(BACK)
    assert set(series(page).values()) == {1}
    assert values(page, "linker_forwarded_bytes_total") == {(None, EAST): 5, (None, BACK): 0}


async def test_without_a_joined_source_the_page_has_the_target_alone(scene: Scene) -> None:
    joined: Any = scene.sidecar.joined.sources[EAST]
    joined.broker = None
    page = scene.page()
    assert values(page, "linker_client_connections") == {(None, None): 2}
    assert values(page, "linker_forwarded_bytes_total") == {(None, EAST): 5}
    assert BACK not in page


async def test_status_has_the_periodic_tasks_of_either_direction(scene: Scene) -> None:
    rescues = scene.back.switch.rescues.task
    await until(lambda: rescues.state is not TaskState.IDLE)
    status = await scene.service.status()
    assert (rescues.name, BACK) in {(task.name, task.link) for task in status.tasks}
    assert {task.link for task in status.tasks} == {EAST, BACK}


async def test_doctor_warns_of_tasks_and_mirrors_of_the_reverse_link(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks() -> None:
        raise LinkerError("broker 1 of the source does not answer")

    monkeypatch.setattr(preflight, "TIMEOUT", 0.05)
    now = 1000.0
    task = PeriodicTask("restores", breaks, 1.0, clock=lambda: now)
    monkeypatch.setattr(scene.back.switch.restores, "task", task)
    running = asyncio.create_task(task.run())
    try:
        await until(lambda: task.failing_since is not None)
        now += 60.0
        report = await scene.service.doctor(EAST)
    finally:
        running.cancel()
        await asyncio.wait([running])
    told = {check.name: check for check in report.checks}
    failing = told["periodic task"]
    assert failing.result is CheckResult.WARN
    assert failing.detail.startswith(f"restores of link {BACK} fails")
    mirror = told["mirror switched"]
    assert (mirror.result, mirror.detail.partition(":")[0]) == (CheckResult.FAIL, "FAILED")
    assert mirror.remedy is not None and "linker mirror finish switched --link east" in mirror.remedy


async def test_a_running_job_of_the_reverse_link_is_among_the_promotes(scene: Scene) -> None:
    job = PromoteJob(link=BACK, id=1, partitions=(T0,), switch=True)
    scene.sidecar.controller.image.jobs[BACK, 1] = job
    status = await scene.service.status()
    assert [(one.id, one.link) for one in status.promotes] == [(f"{BACK}-1", BACK)]


async def test_readers_that_are_held_at_the_source_are_shown(scene: Scene) -> None:
    target: Any = scene.sidecar.target
    target.router.hub.held_readers.note(EAST, "mirrored", "spark-1", "10.0.0.1", 0.0)
    scene.source.router.hub.held_readers.note(BACK, "switched", "spark-2", "10.0.0.2", 0.0)
    [link] = (await scene.service.status()).links
    assert [(one.topic, one.client_id) for one in link.held_readers] == [
        ("mirrored", "spark-1"),
        ("switched", "spark-2"),
    ]


async def test_traffic_of_a_link_is_that_of_both_directions_in_the_whole_fleet(scene: Scene) -> None:
    said = SidecarReport(
        links=[LinkTraffic(link=EAST, forwarded_bytes=100), LinkTraffic(link=BACK, forwarded_bytes=1000)]
    )
    head: Any = scene.sidecar.fleet.fleet_controller
    head.members[901] = SimpleNamespace(
        local=False, said=said, hello=SimpleNamespace(broker_id=901, version="1")
    )
    [link] = (await scene.service.status()).links
    assert link.traffic.forwarded_bytes == 1175
    del head.members[901]


async def test_a_member_reports_the_traffic_of_either_direction(scene: Scene) -> None:
    fleet: Any = scene.sidecar.fleet
    fleet.fleet_controller, before = None, fleet.fleet_controller
    about = scene.sidecar._about()
    fleet.fleet_controller = before
    assert {one.link: one.forwarded_bytes for one in about.links} == {EAST: 5, BACK: 70}


async def test_a_reverse_link_that_cannot_run_is_the_reason_of_its_link(scene: Scene) -> None:
    scene.sidecar.links[EAST].reach.trouble = None
    scene.back.reach.trouble = "the target's certificate is not trusted"
    [link] = (await scene.service.status()).links
    assert link.reason == f"link {BACK}: the target's certificate is not trusted"


async def test_a_reverse_link_without_the_target_is_not_told_to_have_its_properties_changed(
    scene: Scene,
) -> None:
    """It has none: the configuration says how the target is reached."""
    await until(lambda: "cannot be reached" in str(scene.back.trouble))
    assert "link update" not in str(scene.back.trouble)
    await until(lambda: "linker link update east" in str(scene.sidecar.links[EAST].trouble))
