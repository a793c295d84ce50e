"""Standing in for a dead source while producers are held: everything at once, and nobody waits for somebody in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.failovers import Chosen
from controller.phases import Phase
from controller.state import Failover, MirrorPartition
from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.link_fetcher import LinkFetcher
from fetcher.spec import MirrorSpec
from linker.promote import replica_as_source
from linker.promote.replica_as_source import ReplicaAsSource, ReplicaResolver
from tests.links.link_context import context
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

MANY = 200
TPS = [TopicPartition("orders", index) for index in range(MANY)]


def target() -> Any:
    cluster = Cluster("target", [], ClientSecurity.plaintext(), "test")
    return SimpleNamespace(cluster=cluster, image=SimpleNamespace(partition=lambda _id, _index: None))


async def test_offsets_are_asked_for_once_per_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def list_at(
        cluster: Cluster, node: int, wanted: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, int]:
        asked.append(node)
        await asyncio.sleep(0.05)
        if node == 3:
            raise LinkerError("away")
        return {tp: 7 for tp in wanted if tp != TPS[1]}

    monkeypatch.setattr(replica_as_source, "list_at", list_at)
    chosen = {tp: Chosen(100 + tp.partition, 1 + tp.partition % 3) for tp in TPS}
    resolver = ReplicaResolver(target(), chosen)
    stranger = TopicPartition("orders", MANY)
    async with asyncio.timeout(30):
        found = await resolver.offsets([*TPS, stranger])
    assert sorted(asked) == [1, 2, 3]
    assert found[TPS[0]] == (7, 100)
    assert found[TPS[3]] == (7, 103)
    assert "broker 2 does not say where its log of orders-1 begins" in found[TPS[1]]
    assert "broker 3 does not say where its logs begin: away" in found[TPS[2]]
    assert "not failed over any more" in found[stranger]


def fenced(tp: TopicPartition) -> MirrorPartition:
    over = Failover(before=Phase.ACTIVE, end=10, replica=1)
    return MirrorPartition(
        link="east", topic=tp.topic, partition=tp.partition, phase=Phase.FENCED, failover=over
    )


def spec(tp: TopicPartition) -> MirrorSpec:
    return MirrorSpec(
        link="east",
        topic=tp.topic,
        partition=tp.partition,
        topic_id=tp.topic.encode().ljust(16, b"."),
        source_topic_id=None,
        session_epoch=3,
        start_offset=0,
        source_epochs=(),
        segment_bytes=1 << 30,
        target_replicas=(1,),
    )


@asynccontextmanager
async def running(specs_of: Any) -> AsyncIterator[ReplicaAsSource]:
    nobody: Any = SimpleNamespace(remove=lambda _tps: None)
    controller: Any = SimpleNamespace(image=SimpleNamespace(link_partitions=lambda _link: []))
    one = ReplicaAsSource(
        context("east", None, target(), controller),
        nobody,
        MemoryBudget(1 << 20),
        MirrorDirectory(),
        specs_of,
        lambda _: None,
    )

    class Still(LinkFetcher):
        async def run(self) -> None:
            await asyncio.Event().wait()

    one.fetcher.__class__ = Still
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def served(one: ReplicaAsSource, tps: Sequence[TopicPartition]) -> None:
    async with asyncio.timeout(30):
        while not set(tps) <= set(one.partitions):
            await asyncio.sleep(0.001)


async def test_all_partitions_are_served_by_one_question() -> None:
    asked: list[int] = []

    async def specs_of(states: Sequence[MirrorPartition]) -> Any:
        asked.append(len(states))
        await asyncio.sleep(0.02)
        return {state.tp: spec(state.tp) for state in states}, {}

    async with running(specs_of) as one:
        one.on_records([fenced(tp) for tp in TPS])
        await served(one, TPS)
    assert asked == [MANY]


async def test_a_topic_in_trouble_is_in_nobody_elses_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_as_source, "_RETRY", 60.0)
    bad, good = TopicPartition("bad", 0), TPS[:3]
    asked: list[set[str]] = []

    async def specs_of(states: Sequence[MirrorPartition]) -> Any:
        asked.append({state.topic for state in states})
        fine = {state.tp: spec(state.tp) for state in states if state.topic != "bad" or len(asked) > 2}
        return fine, {"bad": LinkerError("not known yet")} if len(asked) <= 2 else {}

    async with running(specs_of) as one:
        one.on_records([fenced(bad), *(fenced(tp) for tp in good[:2])])
        await served(one, good[:2])
        monkeypatch.setattr(replica_as_source, "_RETRY", 0.01)
        one.on_records([fenced(good[2])])  # comes while the other one waits to be tried again
        await served(one, good)
        await served(one, [bad])
    assert asked[-1] == {"bad"}


async def test_when_nothing_can_be_asked_all_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_as_source, "_RETRY", 0.01)
    tries = 0

    async def specs_of(states: Sequence[MirrorPartition]) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise LinkerError("the target is away")
        return {state.tp: spec(state.tp) for state in states}, {}

    async with running(specs_of) as one:
        one.on_records([fenced(tp) for tp in TPS[:2]])
        await served(one, TPS[:2])
    assert tries == 3
