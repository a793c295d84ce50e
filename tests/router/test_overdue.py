"""A fetch that a bug leaves unanswered ends with its connection, not with the patience of its client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from router.fetch import overdue
from router.fetch.overdue import AnswerDeadline
from router.fetch.session import FetchSession
from tests.router.rig import Rig, eventually
from tests.router.test_consumer_fetch import fetch
from wire.errors import ConnectionLost, WireError


@pytest.fixture
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "PATIENCE", 0.2)
    monkeypatch.setattr(overdue, "_CHANCE", 0.05)


little_patience = pytest.mark.usefixtures("_little_patience")


async def test_a_look_that_fails_is_told_of_and_the_client_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        client = await rig.client()
        await fetch(client, rig, {0: 0}, max_wait_ms=10)
        look = FetchSession._look

        def broken(session: FetchSession) -> None:
            look(session)
            if session._fetch is not None:  # and nothing will look again
                session._stop_waiting(session._fetch)
                session._source.answered()

        with monkeypatch.context() as bug:
            bug.setattr(FetchSession, "_look", broken)
            bug.setattr(overdue, "PATIENCE", 0.2)
            bug.setattr(overdue, "_CHANCE", 0.05)
            with pytest.raises(ConnectionLost):
                await asyncio.wait_for(fetch(client, rig, {0: 0}, max_wait_ms=100), 25)
        assert "orders-0@0 from the source" in rig.loop_errors.pop()["message"]
        client = await rig.client()
        rig.source.add("orders", 0, 1)
        assert len((await fetch(client, rig, {0: 0}, max_wait_ms=500)).values(0)) == 1


async def test_fetches_that_wait_their_time_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer for all of them, and it is none of a fetch that was answered."""
    monkeypatch.setattr(overdue, "PATIENCE", 1.5)
    async with Rig() as rig:
        client = await rig.client()
        for wait in (10, 600, 10, 600):
            assert (await fetch(client, rig, {0: 0}, max_wait_ms=wait)).values(0) == []
        await asyncio.sleep(1.5)
        assert (await fetch(client, rig, {0: 0}, max_wait_ms=10)).values(0) == []


class Broken:
    """An exchange that nobody answers, and its connection."""

    def __init__(self) -> None:
        self.header: Any = type("Header", (), {"api_version": 13})
        self.connection = self
        self.peer = "10.0.0.1:1"
        self.failed: WireError | None = None

    def abort(self, error: WireError) -> None:
        self.failed = error


class Answering:
    def __init__(self) -> None:
        self.behind = False

    def waits_for_client(self) -> bool:
        return self.behind

    def state(self) -> str:
        return "orders-0@7"


@little_patience
async def test_it_names_the_fetch() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    exchange: Any = Broken()
    AnswerDeadline(loop, Answering()).expect(exchange, 0.0)
    await eventually(lambda: exchange.failed is not None)
    assert told == [str(exchange.failed)]
    assert "orders-0@7 (fetch v13, peer 10.0.0.1:1)" in told[0]


@little_patience
async def test_a_step_further_has_a_time_of_its_own() -> None:
    loop = asyncio.get_running_loop()
    exchange: Any = Broken()
    deadline = AnswerDeadline(loop, Answering())
    began = loop.time()
    deadline.expect(exchange, 30.0)
    deadline.expect(exchange, 0.0)
    await eventually(lambda: exchange.failed is not None)
    assert loop.time() - began < 5


@little_patience
async def test_behind_the_clients_own_requests_it_may_wait() -> None:
    loop = asyncio.get_running_loop()
    exchange: Any = Broken()
    answering = Answering()
    answering.behind = True
    AnswerDeadline(loop, answering).expect(exchange, 0.0)
    await asyncio.sleep(0.8)
    assert exchange.failed is None
    answering.behind = False
    await eventually(lambda: exchange.failed is not None)


@little_patience
async def test_after_a_stand_still_the_answer_has_a_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "_CHANCE", 5.0)
    loop = asyncio.get_running_loop()
    exchange: Any = Broken()
    deadline = AnswerDeadline(loop, Answering())
    deadline.expect(exchange, 0.0)
    time.sleep(0.4)  # as a stopped process does
    loop.call_later(0.2, deadline.answered)
    await asyncio.sleep(1.0)
    assert exchange.failed is None


@little_patience
async def test_a_closed_connection_leaves_no_timer() -> None:
    loop = asyncio.get_running_loop()
    exchange: Any = Broken()
    deadline = AnswerDeadline(loop, Answering())
    deadline.expect(exchange, 0.0)
    deadline.close()
    await asyncio.sleep(0.5)
    assert exchange.failed is None
