"""What any broker can answer is not lost with one that hangs, nor with one that has not heard of it yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from linker.checks import preflight
from tests.fakes import FakeCluster
from tests.links.conftest import client
from wire.client.cluster import Cluster
from wire.errors import ConnectionLost


@contextlib.asynccontextmanager
async def connected(source: FakeCluster) -> AsyncIterator[Cluster]:
    cluster = client(source, "source")
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()


async def test_a_broker_that_hangs_is_given_up_for_another(
    source: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_ANSWER_TIMEOUT", 0.2)
    async with connected(source) as cluster:
        source.inject("metadata", drop=True, process=False, times=1)
        topics, missing, findings = await preflight.read_source_topics(cluster, ["orders"])
    assert (set(topics), missing) == ({"orders"}, [])
    assert len(source.received("metadata")) >= 3, "connect, the one that hung, the one that answered"
    assert not [finding for finding in findings if finding.fatal]


async def test_when_all_hang_it_is_said_in_time(source: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_ANSWER_TIMEOUT", 0.1)
    monkeypatch.setattr(preflight, "TIMEOUT", 3.0)
    async with connected(source) as cluster:
        target: Any = SimpleNamespace(cluster=cluster)
        source.inject("describe_cluster", drop=True, process=False, times=100)
        with pytest.raises(ConnectionLost, match="no answer within"):
            await preflight.check_target_rights(target)


async def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_about_again(
    source: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_NEWS_TIMEOUT", 20.0)
    async with connected(source) as cluster:
        before = len(source.received("metadata"))
        asking = asyncio.create_task(preflight.read_new_topics(cluster, ["just-made"]))
        async with asyncio.timeout(30):
            while len(source.received("metadata")) < before + 2:  # it has been told once that there is none
                await asyncio.sleep(0.01)
        source.add_topic("just-made", 2)
        topics, missing, _ = await asking
    assert (set(topics), missing) == ({"just-made"}, [])


async def test_a_topic_that_nobody_knows_is_missing_in_the_end(
    source: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_NEWS_TIMEOUT", 0.3)
    async with connected(source) as cluster:
        topics, missing, _ = await preflight.read_new_topics(cluster, ["orders", "no-such"])
    assert (topics, missing) == ({}, ["no-such"])
