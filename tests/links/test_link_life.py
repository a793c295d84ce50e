"""One link's trouble is its own: the others run on, and it begins again from its durable state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.mirrors import Leadership
from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.mirror_group import GroupProtocol, MirrorGroup
from controller.phases import Phase
from controller.state import Attempt, JobStatus, MirrorTopic
from fetcher.directory import MirrorDirectory
from fleet.fleet_controller import FleetController
from fleet.settings import FleetSettings
from fleet.shared_controller import NotTheController
from fleet.stored_controller import StoredController
from groups import manager as manager_module
from linker.config.file import parse_config
from linker.config.link_secrets import LinkSecrets
from linker.links import running as running_module
from linker.links import source_reach
from linker.links.runtime import LinkRuntime
from linker.links.source import source_side
from linker.promote import jobs as promotes_module
from linker.promote.ports import PromoteSettings
from linker.sidecar import Sidecar
from router.ports import RouterStats
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.fakes.cluster import FakeCluster
from tests.fakes.groups import FakeGroups
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage
from wire.task_group import TaskGroup

T0 = TopicPartition("t", 0)
CONFIG = """
sidecar:
  broker.id: 900
  listeners: ["PLAINTEXT://127.0.0.1:19092"]
target:
  bootstrap.servers: "127.0.0.1:1"
"""


class NoController:
    async def allocate_producer_ids(self, *args: Any, **options: Any) -> None:
        raise LinkerError("the target's controller is away")


@contextlib.asynccontextmanager
async def a_sidecar(files: Path | None = None, **links: dict[str, str]) -> AsyncIterator[Sidecar]:
    """As far as links see it; cluster ids are the links' names. `files`: where those of its links are."""
    text = CONFIG if files is None else CONFIG.replace("target:", f"  links.dir: {files}\ntarget:")
    sidecar = Sidecar(parse_config(text, base=Path("/none"), environ={}))
    store = MemoryStore()
    controller: Any = await StoredController.open(store, now=lambda: 7)
    sidecar.controller = controller
    head = FleetController(
        controller, store, FleetSettings(), time.monotonic, endless_leases=True, cluster_id=lambda: "target"
    )
    fleet: Any = SimpleNamespace(fleet_controller=head)
    sidecar.fleet = fleet
    metadata = SimpleNamespace(subscribe=lambda callback: lambda: None)
    target: Any = SimpleNamespace(
        broker_id=900,
        image=ClusterImage(),
        metadata=metadata,
        operations=NoController(),
        cluster=SimpleNamespace(cluster_id="target"),
    )
    hub = SimpleNamespace(first_fetches=SimpleNamespace(watch=None))
    router: Any = SimpleNamespace(
        hub=hub, stats=RouterStats(), unfence=lambda tps: None, forwarding_changed=lambda: None
    )
    broker: Any = SimpleNamespace(
        membership=target, router=router, copies=MirrorDirectory(), link_brokers=lambda: frozenset({900})
    )
    sidecar.target = broker
    async with TaskGroup() as group:
        sidecar.links.group = group
        for name, properties in links.items():
            await sidecar.controller.create_link(name, name, properties)
            sidecar.links.start(sidecar.controller.image.links[name])
        try:
            yield sidecar
        finally:
            for name in list(links):
                await sidecar.links.stop(name)


async def until_available(sidecar: Sidecar, name: str) -> None:
    async with asyncio.timeout(30):
        while not sidecar.links[name].source_available:
            await asyncio.sleep(0.01)


def properties(source: FakeCluster, **more: str) -> dict[str, str]:
    (host, port), *_ = source.bootstrap
    return {"bootstrap.servers": f"{host}:{port}", **more}


async def test_a_secret_that_is_not_there_stops_only_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_module, "_RESTART", 0.05)
    monkeypatch.setattr(source_reach, "_UNUSABLE_FOR", 0.05)
    async with FakeCluster(1, cluster_id="east") as east, FakeCluster(1, cluster_id="west") as west:
        secret = tmp_path / "password"
        async with a_sidecar(
            tmp_path, east=properties(east, **{"sasl.password": f"${{file:{secret}}}"}), west=properties(west)
        ) as sidecar:
            await until_available(sidecar, "west")
            broken = sidecar.links["east"]
            assert not broken.source_available
            assert not broken.forwards
            assert "cannot read" in str(broken.trouble)
            secret.write_text("p")
            await until_available(sidecar, "east")
            assert sidecar.links["east"].trouble is None


async def test_what_a_reference_stands_for_is_neither_shown_nor_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a secret, or any file of this machine: where a link is at fault, everybody may read why."""
    monkeypatch.setattr(running_module, "_RESTART", 0.05)
    monkeypatch.setattr(source_reach, "_UNUSABLE_FOR", 0.05)
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    wrong = {"security.protocol": "SASL_SSL", "sasl.mechanism": f"${{file:{secret}}}"}
    async with a_sidecar(tmp_path, east={"bootstrap.servers": "127.0.0.1:1", **wrong}) as sidecar:
        async with asyncio.timeout(30):
            while "link east cannot run" not in caplog.text:
                await asyncio.sleep(0.01)
        link = sidecar.links["east"]
        assert str(link.trouble).startswith("sasl.mechanism is no secret, so no reference is resolved in it")
        assert str(link.unusable) == link.trouble
    assert "sasl.mechanism is no secret" in caplog.text
    assert "hunter2" not in caplog.text.lower()


async def test_nor_does_the_validator_say_it(tmp_path: Path) -> None:
    """It is given values, as they are by then: what it could not use would be in the reason of its run."""
    secret = tmp_path / "secret"
    secret.write_text("PLAIN")
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": f"${{file:{secret}}}",
        "sasl.username": "u",
        "sasl.password": f"${{file:{secret}}}",
    }
    of_link = {"bootstrap.servers": "127.0.0.1:1", **login, "sasl.mechanism": "PLAIN"}
    async with a_sidecar(east=of_link) as sidecar:
        link = sidecar.links["east"].link
        files = LinkSecrets(tmp_path)
        sidecar.config.target.properties.update(login)
        assert source_side(link, files).properties["sasl.password"] == "PLAIN"
        assert sidecar._target_side().properties["sasl.mechanism"] == "PLAIN"
        secret.write_text("hunter2")
        with pytest.raises(LinkerError, match=r"^sasl\.mechanism: the value"):
            sidecar._target_side()
        with pytest.raises(LinkerError, match=r"^sasl\.password: .* is not below /none/links"):
            source_side(link, sidecar.config.link_secrets)


async def test_a_stored_link_with_a_reference_to_elsewhere_is_shown_with_the_reason(tmp_path: Path) -> None:
    """Made by a version that resolved any: the sidecar starts, and the other links go on."""
    (tmp_path / "secret").write_text("hunter2")
    old = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": f"${{file:{tmp_path}/secret}}"}
    async with a_sidecar(east=old, west={"bootstrap.servers": "127.0.0.1:1"}) as sidecar:
        await until(lambda: sidecar.links["east"].trouble is not None)
        told = sidecar.links["east"].trouble
        assert told is not None and "put the file there" in told and "hunter2" not in told
        assert sidecar.links["west"].unusable is None


async def test_a_bug_in_one_link_ends_neither_the_others_nor_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "_RESTART", 0.2)
    run = LinkRuntime.run
    broken: list[LinkRuntime] = []

    async def breaks_once(runtime: LinkRuntime) -> None:
        if runtime.name == "east" and not broken:
            broken.append(runtime)
            raise ZeroDivisionError("a bug")
        await run(runtime)

    monkeypatch.setattr(LinkRuntime, "run", breaks_once)
    async with (
        FakeCluster(1, cluster_id="east") as east,
        FakeCluster(1, cluster_id="west") as west,
        a_sidecar(east=properties(east), west=properties(west)) as sidecar,
    ):
        await until_available(sidecar, "west")
        other = sidecar.links["west"]
        assert not broken[0].source_available
        assert "internal error: ZeroDivisionError('a bug')" in str(broken[0].trouble)
        await until_available(sidecar, "east")
        assert sidecar.links["east"] is not broken[0]
        assert sidecar.links["west"] is other


async def test_a_promote_that_was_written_down_too_late_is_left_to_the_next_link_controller() -> None:
    """Begun here it would outlive the term, and the next term of this sidecar would not begin."""
    async with FakeCluster(1, cluster_id="east") as east, a_sidecar(east=properties(east)) as sidecar:
        await until_available(sidecar, "east")
        link = sidecar.links["east"]
        await link.end_duties()
        job: Any = SimpleNamespace(id=1, topics=[])
        with pytest.raises(NotTheController):
            link.start_promote(job, PromoteSettings())
        assert not link._duties.tasks
        link.begin_duties()
        assert link._duties.tasks


async def test_the_router_is_told_the_source_until_a_stopped_link_is_gone() -> None:
    async with FakeCluster(1, cluster_id="east") as east, a_sidecar(east=properties(east)) as sidecar:
        await until_available(sidecar, "east")
        stopping = asyncio.create_task(sidecar.links.stop("east"))
        await asyncio.sleep(0)
        assert not stopping.done()
        assert sidecar.links.source("east").name == "source east"
        await stopping
        with pytest.raises(LinkerError, match="link east"):
            sidecar.links.source("east")


@pytest.mark.parametrize(
    "nowhere",
    [
        {"bootstrap.servers": "127.0.0.1:1"},
        {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "${file:/none/links/not-there}"},
    ],
)
async def test_what_was_handed_over_is_finished_without_the_source(
    monkeypatch: pytest.MonkeyPatch, nowhere: dict[str, str]
) -> None:
    """The source may have been switched off right after the promote, and the sidecar killed before its end."""
    monkeypatch.setattr(promotes_module, "_SETTLE_TIMEOUT", 0.1)
    async with a_sidecar() as sidecar:
        controller = sidecar.controller
        await controller.create_link("east", "east", nowhere)
        await controller.create_mirror(
            MirrorTopic(link="east", topic="t", topic_id=b"i" * 16, source_topic_id=None, partitions=1)
        )
        await establish(
            controller, "east", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
        job = await controller.begin_promote("east")
        for phase in (Phase.CATCHING_UP, Phase.FENCED):
            await controller.advance("east", [T0], phase)
        await controller.advance("east", [T0], Phase.ALIGNED, aligned_ends={T0: 4})
        attempts = {T0: Attempt(leader_epoch=3, partition_epoch=2)}
        await controller.advance("east", [T0], Phase.VALIDATED, attempts=attempts)
        await controller.advance("east", [T0], Phase.HANDED_OVER)
        sidecar.links.start(controller.image.links["east"])
        try:
            async with asyncio.timeout(30):
                while controller.image.jobs["east", job.id].status is JobStatus.RUNNING:
                    await asyncio.sleep(0.01)
        finally:
            await sidecar.links.stop("east")
        assert controller.image.jobs["east", job.id].status is JobStatus.DONE
        assert controller.image.partitions["east", T0].phase is Phase.PROMOTED


@contextlib.asynccontextmanager
async def a_held_group(sidecar: Sidecar, link: dict[str, str]) -> AsyncIterator[FakeGroups]:
    """A link east that holds the group g, as the state has it, and no gate of it stands. Gives the target's groups."""
    controller = sidecar.controller
    async with FakeCluster(1, cluster_id="target") as fake:
        at_target = FakeGroups(fake)
        fake.add_topic("t", partitions=1)
        cluster = Cluster("target", fake.bootstrap, ClientSecurity.plaintext(), "test")
        await cluster.connect()
        target: Any = sidecar.target.membership
        target.cluster = cluster
        await controller.create_link("east", "east", link)
        await controller.create_mirror(
            MirrorTopic(
                link="east",
                topic="t",
                topic_id=fake.topics["t"].topic_id,
                source_topic_id=None,
                partitions=1,
                target_replicas=((1,),),
            )
        )
        await establish(
            controller, "east", T0, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
        group = MirrorGroup(
            link="east",
            group="g",
            phase=GroupPhase.GATED,
            gate=GateKind.CONSUMER_AND_TRANSACTION,
            topics=("t",),
            protocol=GroupProtocol.CLASSIC,
        )
        await controller.decide(lambda _: ([group], None))
        sidecar.links.start(controller.image.links["east"])
        try:
            yield at_target
        finally:
            await sidecar.links.stop("east")
            await cluster.close()


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(25):
        while not what():
            await asyncio.sleep(0.01)


def in_group(groups: FakeGroups) -> int:
    return len(groups.groups["g"].members) if "g" in groups.groups else 0


@pytest.mark.parametrize(
    "nowhere",
    [
        {"bootstrap.servers": "127.0.0.1:1"},
        {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "${file:/none/links/not-there}"},
    ],
)
async def test_gates_are_looked_after_from_the_start_whatever_has_become_of_the_source(
    monkeypatch: pytest.MonkeyPatch, nowhere: dict[str, str]
) -> None:
    """They would open by themselves within 45 s, and the sidecar may have been away for most of it."""
    monkeypatch.setattr(running_module, "_RESTART", 0.05)
    monkeypatch.setattr(manager_module, "_SOURCE_PATIENCE", 60.0)
    async with a_sidecar() as sidecar, a_held_group(sidecar, nowhere) as at_target:
        await until(lambda: in_group(at_target) == 1)
        runtime = sidecar.links["east"]
        assert not runtime.source_available
        await asyncio.sleep(0.3)
        assert sidecar.links["east"] is runtime, "it does not end while a gate is to be renewed"
        assert runtime.groups.manager is not None


async def test_a_secret_that_comes_begins_the_link_anew_and_the_gate_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_module, "_RESTART", 0.05)
    monkeypatch.setattr(source_reach, "_LOOK_AGAIN", 0.05)
    secret = tmp_path / "password"
    async with FakeCluster(1, cluster_id="east") as east, a_sidecar(tmp_path) as sidecar:
        FakeGroups(east).offsets.commit("g", ("t", 0), 0, "")
        link = properties(east, **{"sasl.password": f"${{file:{secret}}}"})
        async with a_held_group(sidecar, link) as at_target:
            await until(lambda: in_group(at_target) == 1)
            [member] = at_target.groups["g"].members
            secret.write_text("p")
            await until_available(sidecar, "east")
            manager = sidecar.links["east"].groups.manager
            await until(lambda: manager is not None and "g" in manager.runs and manager.runs["g"].gate)
            assert list(at_target.groups["g"].members) == [member]


async def test_another_cluster_at_the_sources_address_is_not_asked_for_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its group of that name is another one, and so are its offsets."""
    monkeypatch.setattr(manager_module, "_SOURCE_PATIENCE", 0.05)
    async with FakeCluster(1, cluster_id="west") as west, a_sidecar() as sidecar:
        FakeGroups(west).offsets.commit("g", ("t", 0), 99, "")
        async with a_held_group(sidecar, properties(west)) as at_target:
            await until(lambda: in_group(at_target) == 1)
            manager = sidecar.links["east"].groups.manager
            assert manager is not None
            await until(lambda: manager.trouble is not None and manager.stats.rounds > 1)
            assert "answers for cluster west, expected east" in (manager.trouble or "")
            assert "answers for cluster west, expected east" in (manager.runs["g"].any_trouble or "")
            assert not at_target.offsets.committed.get("g")
        asked = {"list_groups", "describe_groups", "consumer_group_describe", "offset_fetch"}
        assert not {api for api in asked if west.counts[api]}


async def test_options_of_groups_are_followed_while_the_link_runs() -> None:
    async with FakeCluster(1, cluster_id="east") as east, a_sidecar(east=properties(east)) as sidecar:
        await until_available(sidecar, "east")
        runtime = sidecar.links["east"]
        manager = runtime.groups.manager
        assert manager is not None
        assert manager.settings.rules.takes("g")
        options = {"groups_include": "x", "groups_sync_interval_ms": 500}
        await sidecar.controller.update_link("east", None, options)
        assert runtime.groups.manager is manager
        assert not manager.settings.rules.takes("g")
        assert manager.settings.sync_interval == 0.5
        # What came while this sidecar was not the link controller counts too.
        await runtime.end_duties()
        await sidecar.controller.update_link("east", None, {"groups_include": "y"})
        runtime.begin_duties()
        await until(lambda: runtime.groups.manager is not None)
        manager = runtime.groups.manager
        assert manager is not None
        assert manager.settings.rules.takes("y")


async def test_since_when_a_source_is_away_is_known_also_when_it_was_there_before() -> None:
    async with FakeCluster(1, cluster_id="east") as east, a_sidecar(east=properties(east)) as sidecar:
        runtime = sidecar.links["east"]
        assert runtime.unavailable_since is not None
        await until_available(sidecar, "east")
        assert runtime.unavailable_since is None
        runtime.events.source_unavailable(T0, 5.0)
        assert not runtime.source_available
        assert runtime.unavailable_since == 5.0
