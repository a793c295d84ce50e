"""Where a source's topics come from, as its sidecars tell it; and what is made of those that tell nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from controller.plan.producer_ids import IdsTold
from controller.plan.upstream import UNKNOWN
from linker.checks.preflight import PreflightError
from linker.links import new_mirrors, source_sidecars
from linker.links.new_mirrors import NewMirrors, Wanted
from router.addressed import LOG_DIR
from router.broker_resource import PRODUCER_IDS, UPSTREAM, row
from tests.fakes import FakeCluster
from tests.links.conftest import client
from tests.links.link_context import context
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.metadata.image import ClusterImage

SIDECAR = 2


class Sidecars:
    """Broker 2 of a fake source is a sidecar: it leads `mirror` and tells what the test says."""

    def __init__(self, source: FakeCluster) -> None:
        self.source = source
        self.value: str | None = "A"
        self.ids: str | None = None
        self.log_dir = LOG_DIR
        source.handlers["describe_configs"] = self._configs
        source.handlers["describe_log_dirs"] = self._dirs

    async def _configs(self, broker: Any, request: Any) -> Mapping[str, object]:
        results = []
        for one in request.entity.resources:
            keys = one.configuration_keys or ()
            told = {UPSTREAM: self.value, PRODUCER_IDS: self.ids}
            rows = [row(key, str(told[key])) for key in keys if told.get(key) is not None]
            results.append(
                {
                    "error_code": request.forced_error,
                    "error_message": None,
                    "resource_type": one.resource_type,
                    "resource_name": one.resource_name,
                    "configs": rows if broker.id == SIDECAR and not request.forced_error else [],
                }
            )
        return {"results": results}

    async def _dirs(self, broker: Any, request: Any) -> Mapping[str, object]:
        one = {
            "error_code": 0,
            "log_dir": self.log_dir if broker.id == SIDECAR else "/kafka",
            "topics": [],
        }
        return {"error_code": 0, "results": [one]}


@pytest_asyncio.fixture
async def source() -> AsyncIterator[tuple[Sidecars, Cluster]]:
    async with FakeCluster([1, SIDECAR]) as fake:
        fake.add_topic("own", 1)
        fake.add_topic("mirror", 2)  # led by 1, too
        cluster = client(fake, "source")
        await cluster.connect()
        yield Sidecars(fake), cluster
        await cluster.close()


Source = tuple[Sidecars, Cluster]


async def test_a_sidecar_tells_and_kafkas_brokers_are_left_alone(source: Source) -> None:
    fake, cluster = source
    asked = source_sidecars.SourceSidecars(cluster)
    fake.value = "A,B"
    for _ in range(2):
        assert await asked.origins(["own", "mirror", "nowhere"]) == {"own": (), "mirror": ("A", "B")}
    assert fake.source.counts["describe_log_dirs"] == 1  # of broker 1, once


async def test_a_sidecar_of_an_older_version_is_a_mirror_of_somebody(source: Source) -> None:
    fake, cluster = source
    fake.value = None
    asked = source_sidecars.SourceSidecars(cluster)
    assert await asked.origins(["own", "mirror"]) == {"own": (), "mirror": (UNKNOWN,)}
    fake.value = "A"  # upgraded
    assert await asked.origins(["mirror"]) == {"mirror": ("A",)}


async def test_topics_have_the_names_of_their_mirrors(source: Source) -> None:
    fake, _ = source
    cluster = Cluster(
        "source",
        parse_bootstrap_servers(fake.source.bootstrap_servers),
        ClientSecurity.plaintext(),
        "test",
        topic_prefix="east.",
    )
    await cluster.connect()
    asked = source_sidecars.SourceSidecars(cluster)
    assert await asked.origins(["east.own", "east.mirror"]) == {"east.own": (), "east.mirror": ("A",)}
    await cluster.close()


async def test_a_topic_that_its_leader_does_not_know_yet_is_asked_for_again(source: Source) -> None:
    fake, cluster = source
    fake.source.inject("describe_configs", error=3, times=2, node=SIDECAR)
    assert await source_sidecars.SourceSidecars(cluster).origins(["mirror"]) == {"mirror": ("A",)}


async def test_a_source_of_another_make_may_refuse_the_question(source: Source) -> None:
    """It does not know the config, and has no such api: neither is a reason to mirror nothing."""
    fake, cluster = source
    fake.log_dir = "/kafka"
    fake.source.inject("describe_configs", error=42, times=None)
    asked = source_sidecars.SourceSidecars(cluster)
    assert await asked.origins(["own", "mirror"]) == {"own": (), "mirror": ()}
    assert await asked.links() == []


async def test_what_the_sidecars_of_a_source_say_of_their_links(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, cluster = source
    asked = source_sidecars.SourceSidecars(cluster)
    with pytest.raises(LinkerError, match="broker 2 of the source is a sidecar of an older version"):
        await asked.links()
    fake.ids = "A:5000:1000-4000,B:?:"
    assert await asked.links() == [IdsTold("A", 5000, ((1000, 4000),)), IdsTold("B", None)]
    fake.ids = "A"
    with pytest.raises(LinkerError, match="cannot be"):
        await asked.links()


async def test_a_source_without_sidecars(source: Source) -> None:
    fake, cluster = source
    fake.value, fake.log_dir = None, "/kafka"
    asked = source_sidecars.SourceSidecars(cluster)
    assert await asked.origins(["own", "mirror"]) == {"own": (), "mirror": ()}


@pytest.mark.parametrize("value", ["", "a b", "x" * 300, ",".join("ab" * 40)])
async def test_nonsense_is_an_error_of_that_topic(source: Source, value: str) -> None:
    fake, cluster = source
    fake.value = value
    found = await source_sidecars.SourceSidecars(cluster).origins(["own", "mirror"])
    assert found["own"] == ()
    assert "cannot be" in str(found["mirror"])


async def test_one_broker_that_does_not_answer_holds_up_its_own_topics(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_sidecars, "_TIMEOUT", 0.5)
    fake, cluster = source
    fake.source.inject("describe_configs", drop=True, times=None, node=SIDECAR)
    found = await source_sidecars.SourceSidecars(cluster).origins(["own", "mirror"])
    assert found["own"] == ()
    assert isinstance(found["mirror"], LinkerError)


async def test_a_topic_that_comes_from_the_target_is_refused_and_others_are_planned(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, cluster = source
    target: Any = SimpleNamespace(
        image=ClusterImage(), broker_id=900, cluster=SimpleNamespace(cluster_id="TARGET")
    )
    controller: Any = None
    new = NewMirrors(context("east", cluster, target, controller), lambda _: None, lambda _: None)
    examined: list[str] = []

    async def examine(_plan: Any, topics: list[str], *, each: bool) -> None:
        examined.extend(topics)

    async def nothing(*_: Any, **__: Any) -> dict[str, str]:
        return {}

    monkeypatch.setattr(new, "_examine_together", examine)
    monkeypatch.setattr(new_mirrors, "real_brokers", lambda *_: [])
    monkeypatch.setattr(new_mirrors, "topic_defaults", nothing)
    monkeypatch.setattr(new_mirrors, "target_default", nothing)
    fake.value = "TARGET,B"
    planned = await new.plan(["own", "mirror"], Wanted(), each=True)
    assert examined == ["own"]
    assert f"comes from this cluster (TARGET -> B -> {cluster.cluster_id})" in planned.refused["mirror"]
    with pytest.raises(PreflightError, match="comes from this cluster"):
        await new.plan(["mirror"], Wanted())
    fake.value = "A,B"
    assert (await new.plan(["mirror"], Wanted())).refused == {}
