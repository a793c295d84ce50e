"""A real broker that does not answer the client's other requests: answers leave in order, so fetches wait behind these."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace

import pytest

from router import passthrough
from tests.router.rig import Rig
from tests.router.test_consumer_fetch import fetch
from wire.client.connection import Connection
from wire.errors import ConnectionLost


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough, "_LOOK", 0.05)
    monkeypatch.setattr(passthrough, "_PATIENCE", 2.0)
    monkeypatch.setattr(passthrough, "_OF_A_FENCED", 0.1)


async def ready(rig: Rig) -> Connection:
    """A client that has read, and has its connection to a real broker."""
    client = await rig.client()
    await fetch(client, rig, {0: 0}, max_wait_ms=10)
    return client


async def ended_after(client: Connection, rig: Rig) -> float:
    """Seconds from a question that is not answered to the end of the connection."""
    began = time.monotonic()
    asking = asyncio.ensure_future(client.call("metadata", {"topics": None}, timeout=30))
    await asyncio.sleep(0.02)
    reading = asyncio.ensure_future(fetch(client, rig, {0: 0}, max_wait_ms=10))
    for waiting in (asking, reading):
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(waiting, 25)
    return time.monotonic() - began


async def test_a_question_that_is_not_answered_ends_the_connection_and_the_next_one_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rig() as rig:
        client = await ready(rig)
        rig.target.inject("metadata", drop=True, times=None)
        assert 1.9 < await ended_after(client, rig) < 15
        assert re.search(r"real broker [12] did not answer a request of api key 3 for", caplog.text)
        rig.target.clear_faults()
        rig.source.add("orders", 0, 1)
        client = await ready(rig)
        assert len((await fetch(client, rig, {0: 0}, max_wait_ms=500)).values(0)) == 1


async def test_of_a_broker_that_the_controller_holds_for_dead_it_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passthrough, "_PATIENCE", 60.0)
    async with Rig() as rig:
        client = await ready(rig)
        rig.target.inject("metadata", drop=True, times=None)
        for broker_id in (1, 2):
            rig.image.brokers[broker_id] = replace(rig.image.brokers[broker_id], fenced=True)
        assert await ended_after(client, rig) < 20


async def test_a_request_that_waits_for_something_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a question behind it has its own time from then on: a broker works on one request of a connection at a time.
    DescribeCluster is the one that waits here: the fake brokers have no groups."""
    monkeypatch.setattr(passthrough, "_AT_ONCE", frozenset({3}))
    async with Rig() as rig:
        client = await ready(rig)
        rig.target.inject("describe_cluster", delay=3.0)
        rig.target.inject("metadata", delay=0.2, times=1)
        asking = asyncio.ensure_future(client.call("describe_cluster", {}, timeout=30))
        await asyncio.sleep(0.02)
        metadata = asyncio.ensure_future(client.call("metadata", {"topics": None}, timeout=30))
        await asyncio.wait_for(asyncio.gather(asking, metadata), 25)
        assert not client.closed


async def test_an_answer_that_has_come_while_the_process_stood_still_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passthrough, "_LOOK", 0.5)
    async with Rig() as rig:
        client = await ready(rig)
        rig.target.inject("metadata", delay_answer=0.02)
        asking = asyncio.ensure_future(client.call("metadata", {"topics": None}, timeout=30))
        await asyncio.sleep(0.01)
        time.sleep(2.5)
        await asyncio.wait_for(asking, 25)
        assert not client.closed
