"""Requests of which a part has come: of all connections in one budget, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import re
import struct
from contextlib import AsyncExitStack

import pytest

import wire.server.partial_frames
from tests.wire.test_server import Client, answer, client, listening, request, until
from wire.server.listener import Listener, ListenerInfo, ListenerLimits
from wire.server.rate_limited_log import MOST

MIB = 1 << 20
SASL = ListenerInfo("CLIENTS", "SASL_PLAINTEXT")
LONG, SHORT = ListenerLimits(stranger_timeout=60), ListenerLimits(stranger_timeout=0.2)


def held(listener: Listener) -> int:
    return sum(one._reader.large_size for one in listener.connections)


async def test_half_requests_are_in_one_budget(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire.server.partial_frames, "PATIENCE", 1.0)
    async with listening(lambda e: e.reply(answer(e))) as listener, AsyncExitStack() as stack:
        budget = listener.partial
        budget.limit = 4 * MIB
        half = struct.pack(">i", 16 * MIB) + bytes(6 * MIB)
        clients = [await stack.enter_async_context(client(listener)) for _ in range(20)]
        for one in clients:
            one.writer.write(half)
        await until(lambda: budget.waiting >= 15)
        most = 0
        async with client(listener) as good:
            good.writer.write(request(7, bytes(2 * MIB)))
            reply = asyncio.ensure_future(good.reply())
            while not reply.done():
                most = max(most, held(listener))
                await asyncio.sleep(0.005)
            assert (await reply)[0] == 7
        # The budget, one that is always read from, and where each of them begins. Without a budget it is 320 MiB.
        assert most <= 4 * MIB + 16 * MIB + 21 * (64 << 10)
        assert budget.cut > 0
        told = [one.getMessage() for one in caplog.records if one.name == "wire.server.partial_frames"]
        assert 1 <= len(told) <= MOST
        assert re.match(
            r"the connection of 127\.0\.0\.1:\d+ was closed: a request did not come within 1 s", told[0]
        )
        await until(lambda: not listener.connections or budget.used <= budget.limit + 16 * MIB)
    await until(lambda: budget.used == 0)
    assert budget.waiting == 0


async def test_whoever_sends_all_of_it_is_answered() -> None:
    """Ten clients whose requests together are five times the budget."""
    async with listening(lambda e: e.reply(answer(e))) as listener, AsyncExitStack() as stack:
        listener.partial.limit = 4 * MIB
        clients = [await stack.enter_async_context(client(listener)) for _ in range(10)]

        async def work(one: Client) -> None:
            for number in range(3):
                one.writer.write(request(number, bytes(2 * MIB)))
                assert (await asyncio.wait_for(one.reply(), 30))[0] == number

        await asyncio.gather(*map(work, clients))
        assert listener.partial.used == 0
        assert listener.partial.cut == 0


async def test_a_small_request_does_not_touch_the_budget() -> None:
    async with listening(lambda e: e.reply(answer(e))) as listener, client(listener) as c:
        for number in range(20):
            c.writer.write(request(number, bytes(20_000)))
            await c.reply()
        assert not listener.partial._parts


def its_time_is_over(listener: Listener) -> None:
    """Of the only connection: as its timer would say, which a machine that stands still may not do too early."""
    (connection,) = listener.connections
    connection._patience._check_stranger(connection)


async def test_who_does_not_log_in_is_gone_soon() -> None:
    async with listening(lambda e: e.reply(answer(e)), LONG, info=SASL) as listener:
        async with client(listener) as talking:
            talking.writer.write(request(1))
            await talking.reply()
            its_time_is_over(listener)
            assert await talking.is_closed()
        listener.limits = SHORT
        async with client(listener) as silent:
            assert await silent.is_closed()
        assert listener.refused_connections == 2


async def test_who_has_logged_in_stays() -> None:
    def handler(exchange: object) -> None:
        exchange.connection.logged_in()  # type: ignore[attr-defined]
        exchange.reply(answer(exchange))  # type: ignore[attr-defined, arg-type]

    async with listening(handler, LONG, info=SASL) as listener, client(listener) as c:
        c.writer.write(request(1))
        await c.reply()
        its_time_is_over(listener)
        c.writer.write(request(2))
        assert (await c.reply())[0] == 2
        assert listener.refused_connections == 0


async def test_without_sasl_a_first_request_is_enough() -> None:
    async with listening(lambda e: e.reply(answer(e)), LONG) as listener, client(listener) as talking:
        talking.writer.write(request(1))
        await talking.reply()
        its_time_is_over(listener)
        listener.limits = SHORT
        async with client(listener) as silent:
            assert await silent.is_closed()
        talking.writer.write(request(2))
        assert (await talking.reply())[0] == 2
        assert listener.refused_connections == 1
