"""`linker topology`: on a screen of 100 columns, as JSON, and joined from links that answer and that do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import MirrorState, MirrorSummary, Topology
from controller.state import Link, MirrorTopic
from linker.cli import output
from linker.cli.topology import topology
from linker.service import topology as served
from linker.service.topology import TopologyView
from tests.shell.memory_service import MemoryService
from wire.errors import LinkerError


async def test_it_fits_a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 100)
    found = await MemoryService().topology()
    text = topology(found)
    assert max(map(len, text.splitlines())) <= 100, text
    for part in (
        "NO ANSWER",
        "source-1.e..ernal:9092,+1",
        "3 -> 1 -> here",
        "? -> 2 -> here",
        "2 ACTIVE",
        "5L6g3nShT-eMCtK--X86sw",
    ):
        assert part in text, text
    assert text.splitlines()[0].split() == ["here:", "T"]


async def test_without_links_it_says_so() -> None:
    empty = (await MemoryService().topology()).model_copy(update={"clusters": [], "ways": []})
    assert "no links" in topology(empty)


class View(TopologyView):
    """Over links of the test's own: a source, or the error with which it answers, and what is mirrored."""

    def __init__(self, sources: dict[str, Any], mirrors: list[MirrorTopic]) -> None:
        self.image = SimpleNamespace(mirrors={(one.link, one.topic): one for one in mirrors})
        links = {}
        for name, source in sources.items():
            link = Link(
                name=name, source_cluster_id=name.upper(), properties={"bootstrap.servers": f"{name}:9092"}
            )
            links[name] = SimpleNamespace(
                name=name, link=link, source=source, new_mirrors=SimpleNamespace(sidecars=Sidecars(source))
            )
        target = SimpleNamespace(cluster=SimpleNamespace(cluster_id="T"))
        self._sidecar: Any = SimpleNamespace(links=links, target=target)

    @property
    def _image(self) -> Any:
        return self.image

    async def _mirrors(self, runtime: Any) -> list[MirrorSummary]:
        return [
            MirrorSummary(
                link=one.link,
                topic=one.topic,
                state=MirrorState.PROMOTED if one.topic == "promoted" else MirrorState.ACTIVE,
                partitions=one.partitions,
                lag=5,
            )
            for one in self.image.mirrors.values()
            if one.link == runtime.name
        ]

    def _summary_fields(self, runtime: Any, mirrors: list[MirrorSummary]) -> dict[str, Any]:
        return {
            "source_cluster_id": runtime.link.source_cluster_id,
            "bootstrap_servers": runtime.link.properties["bootstrap.servers"],
            "state": MirrorState.ACTIVE,
            "reason": None,
        }


class Sidecars:
    def __init__(self, source: Any) -> None:
        self.source = source

    async def origins(self, topics: dict[str, Any]) -> dict[str, Any]:
        return topics


def mirror(link: str, topic: str, *upstream: str) -> MirrorTopic:
    return MirrorTopic(
        link=link, topic=topic, topic_id=bytes(16), source_topic_id=None, partitions=2, upstream=upstream
    )


async def test_clusters_behind_sources_and_topics_that_went_from_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def all_topics(source: Any) -> dict[str, Any]:
        if isinstance(source, LinkerError):
            raise source
        return source

    monkeypatch.setattr(served, "all_topics", all_topics)
    one: dict[str, Any] = {
        "own": (),
        "from-a": ("A",),
        "ours": ("T",),
        "ours-over-c": ("T", "C"),
        "unled": LinkerError("no leader"),
        "old": ("?",),
    }
    mirrors = [
        mirror("one", "own", "ONE"),
        mirror("one", "promoted", "ONE"),
        mirror("one", "far", "B", "A", "ONE"),
        mirror("two", "x", "TWO"),
        mirror("two", "older"),
    ]
    found: Topology = await View({"one": one, "two": LinkerError("two is down")}, mirrors).topology()
    told = {cluster.cluster_id: cluster for cluster in found.clusters}
    assert [(c.cluster_id, c.hops, c.link, c.answers, c.topics, c.back) for c in found.clusters] == [
        ("ONE", 1, "one", True, 2, 2),
        ("TWO", 1, "two", False, 2, None),
        ("A", 2, None, None, 1, None),
        ("B", 3, None, None, 1, None),
    ]
    assert told["TWO"].reason == "two is down"
    assert told["ONE"].lag == 10
    assert [(way.link, way.clusters, way.topics, way.partitions) for way in found.ways] == [
        ("one", ["B", "A", "ONE", "T"], 1, 2),
        ("one", ["ONE", "T"], 1, 2),
        ("two", ["?", "TWO", "T"], 1, 2),
        ("two", ["TWO", "T"], 1, 2),
    ]
