"""Forks are asked for side by side, so many at a time, and nobody waits for the answers who need not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from linker.links import fork_watch, forks
from linker.links.bring_up import BringUp
from tests.links.link_context import context
from wire.errors import ConnectionLost


async def test_a_bounded_number_of_partitions_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_AT_ONCE", 5)
    running, most = 0, 0

    async def call(*_: Any, **__: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        raise ConnectionLost("away", sent=True)

    cluster: Any = SimpleNamespace(call=call)
    partitions = {at: SimpleNamespace(leader=1) for at in range(20)}
    image: Any = SimpleNamespace(topics_by_name={"t": SimpleNamespace(partitions=partitions)})
    states = [
        MirrorPartition(
            link="l", topic="t", partition=at, phase=Phase.ACTIVE, session_epoch=1, start_offset=0
        )
        for at in partitions
    ]
    found = await forks.look(cluster, image, states)
    assert [(one.tp.partition, one.records) for one in found] == [(at, None) for at in partitions]
    assert most == 5


async def test_other_mirrors_do_not_wait_for_the_brokers_that_lead_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def look(*_: Any) -> list[forks.Fork]:
        asked.set()
        await answered.wait()
        return []

    state = MirrorPartition(
        link="l", topic="t", partition=0, phase=Phase.ACTIVE, session_epoch=1, start_offset=0
    )
    image: Any = SimpleNamespace(
        mirrors={
            ("l", "t"): MirrorTopic(link="l", topic="t", topic_id=b"i", source_topic_id=None, partitions=1)
        },
        topic_partitions=lambda *_: [state],
    )
    target: Any = SimpleNamespace(
        broker_id=900, cluster=None, image=SimpleNamespace(topics_by_id={b"i": object()})
    )
    removed: list[Any] = []
    fetcher: Any = SimpleNamespace(partitions={}, remove=removed.extend)
    controller: Any = SimpleNamespace(image=image)
    monkeypatch.setattr(forks, "look", look)
    monkeypatch.setattr(fork_watch, "led_by_others", lambda *_: iter([(state, 1)]))
    source: Any = None
    bring = BringUp(context("l", source, target, controller), fetcher)
    task = asyncio.create_task(bring.complete("t"))
    await asyncio.wait_for(asked.wait(), 30)
    assert removed == [state.tp], "it is not served any more"
    async with asyncio.timeout(10):
        await bring._turn.acquire()
    task.cancel()
    answered.set()
