"""The connections of one client to source nodes, when a login ends and no new one is taken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from router.ports import RouterLimits
from router.produce.source_route import RoutePool
from router.tasks import TaskKeeper
from wire.errors import AuthenticationFailed, LinkerError
from wire.frames.types import Node

NODE = Node(1, "127.0.0.1", 9092)


class Source:
    """Takes one login, which is at its end, or about to be; refuses all others, when it may."""

    def __init__(self, renew_at: float, expires_at: float) -> None:
        self.times = {"renew_at": renew_at, "expires_at": expires_at}
        self.logins = 0
        self.refuses = asyncio.Event()
        self.told: list[LinkerError | None] = []

    async def open_connection(self, node: Node) -> Any:
        self.logins += 1
        if self.logins > 1:
            await self.refuses.wait()
            raise AuthenticationFailed("not now")
        connection = SimpleNamespace(closed=False, **self.times)
        connection.channel = SimpleNamespace(add_close_callback=lambda _: None)
        connection.close = lambda: setattr(connection, "closed", True)
        return connection


@asynccontextmanager
async def routes(source: Source) -> AsyncIterator[RoutePool]:
    tasks = TaskKeeper()
    table = RoutePool(
        lambda _: source,  # type: ignore[arg-type,return-value]
        tasks,
        RouterLimits(),
        lambda _, error: source.told.append(error),
    )
    try:
        assert table.get("east", NODE) is None
        await turns()
        assert source.told == [None]
        yield table
    finally:
        table.close()
        await tasks.close()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_whoever_waits_hears_that_there_is_none_although_the_old_one_is_gone() -> None:
    now = time.monotonic()
    source = Source(now - 5, now)
    async with routes(source) as table:
        assert table.get("east", NODE) is None  # its time is over, another one is being opened
        table.sweep(asyncio.get_running_loop().time() + 60)  # nobody has used it for long
        assert not len(table)
        source.refuses.set()
        await turns()
        assert [type(error) for error in source.told] == [type(None), AuthenticationFailed]


async def test_a_source_that_refuses_is_not_asked_with_every_write() -> None:
    now = time.monotonic()
    source = Source(now, now + 60)
    source.refuses.set()
    async with routes(source) as table:
        for _ in range(50):
            assert table.get("east", NODE) is not None
            table.sweep(asyncio.get_running_loop().time())
            await turns()
        assert source.logins == 2
        route = table.get("east", NODE)
        assert route is not None
        route.renew_from = 0.0  # a while later
        table.get("east", NODE)
        await turns()
        assert source.logins == 3
        assert source.told == [None]
