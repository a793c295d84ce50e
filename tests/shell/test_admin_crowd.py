"""Who only holds connections of the admin port open keeps nobody out; what is no request is refused in one line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from admin.server import MAX_CONNECTIONS, MAX_REQUESTS, _Turns
from tests.shell.conftest import Running, serve
from tests.shell.memory_service import MemoryService
from wire.server.rate_limited_log import MOST, PER, Sparing
from wire.task_group import TaskGroup


@pytest.fixture
def alone() -> Iterator[Running]:
    running = serve(MemoryService())
    yield running
    running.stop()


def connected(running: Running, say: bytes = b"") -> socket.socket:
    host, _, port = running.url.removeprefix("http://").partition(":")
    one = socket.create_connection((host, int(port)), 5)
    one.sendall(say)
    return one


@pytest.mark.parametrize(
    "say", [b"", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nx: "], ids=["idle", "trickle"]
)
def test_idle_connections_keep_nobody_out(alone: Running, say: bytes) -> None:
    """The attack: more of them than there may be, again and again."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(alone, say)) for _ in range(MAX_CONNECTIONS + 20)]
        for path in ("/healthz", "/readyz", "/metrics", "/v1/status"):
            began = time.monotonic()
            assert httpx.get(alone.url + path, trust_env=False, timeout=30).status_code == 200, path
            assert time.monotonic() - began < 20
        held[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):  # the newest of them are still there
            held[-1].recv(1)


def test_answers_that_nobody_takes_keep_nobody_out(alone: Running) -> None:
    big = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 20):
            with contextlib.suppress(OSError):
                stack.enter_context(connected(alone, big))
        assert asked_again(alone.url + "/readyz") == 200
        assert asked_again(alone.url + "/v1/status") == 200


def asked_again(url: str) -> int:
    """As a prober does: a connection that has just given way to another one is tried once more."""
    for _ in range(9):
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(url, trust_env=False, timeout=20).status_code
        time.sleep(0.2)
    return httpx.get(url, trust_env=False, timeout=20).status_code


async def test_an_answer_that_nobody_takes_keeps_no_turn() -> None:
    taken = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def untaken(_message: Any) -> None:
        await taken.wait()

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    turns, scope = _Turns(app), {"type": "http", "path": "/v1/status", "method": "GET", "headers": []}  # type: ignore[arg-type]
    async with TaskGroup() as group:
        for _ in range(MAX_REQUESTS + 20):
            group.create_task(turns(scope, receive, untaken))
        await asyncio.sleep(0)
        await turns(scope, receive, send)
        taken.set()
    assert [message["status"] for message in said] == [200]


async def test_requests_beyond_a_number_are_refused_and_probes_are_not() -> None:
    going = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/status":
            await going.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    turns = _Turns(app)  # type: ignore[arg-type]

    async def ask(path: str) -> int:
        said: list[Any] = []

        async def send(message: Any) -> None:
            said.append(message)

        async with asyncio.timeout(30):
            await turns({"type": "http", "path": path}, None, send)  # type: ignore[arg-type]
        return int(said[0]["status"])

    slow = [asyncio.create_task(ask("/v1/status")) for _ in range(MAX_REQUESTS)]
    await asyncio.sleep(0)
    assert await ask("/v1/status") == 503
    assert [await ask(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    going.set()
    assert await asyncio.gather(*slow) == [200] * MAX_REQUESTS
    assert await ask("/v1/status") == 200


@pytest.mark.parametrize(
    "target", ["%2Fv1%2F@127.0.0.1:{port}/", "%2fv1%2fstatus", "http://127.0.0.1:{port}/v1/status", "*"]
)
def test_a_target_that_does_not_begin_with_a_slash_is_refused(alone: Running, target: str) -> None:
    """`%2Fv1%2F@host/` was passed on to that host by a sidecar of a fleet."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, connected(alone) as one:
        port = elsewhere.getsockname()[1]
        line = f"GET {target.format(port=port)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        one.sendall(line.encode())
        assert one.recv(4096).startswith(b"HTTP/1.1 400")
        elsewhere.settimeout(0.3)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


@pytest.mark.parametrize(
    "body",
    [
        r'{"name": "\ud800", "properties": {}}',
        r'{"name": "a", "properties": {"bootstrap.servers": "\udfff"}}',
        r'{"name": "a", "properties": {"\ud800": "x"}}',
        r'{"name": "a", "properties": {"bootstrap.servers": "h:1"}, "\ud800": 1}',
        r'{"name": "a", "properties": {"bootstrap.servers": "h:1"}, "options": {"\udc00": "\ud800"}}',
        r'{"name": "a", "properties": {"bootstrap.servers": "h:1"}, "source_cluster_id": "\ud800"}',
        r'{"topics": ["\ud800"]}',
        r'["\ud800"]',
        r'"\ud800"',
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/links", "/v1/links/a/mirrors", "/v1/links/a/mirrors:promote", "/v1/links/a/groups:promote"]
)
def test_half_a_character_is_the_callers_mistake(
    alone: Running, caplog: pytest.LogCaptureFixture, path: str, body: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(alone.url + path, content=body, headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 40001), answer.text
    assert "Traceback" not in caplog.text


def test_what_strangers_cause_is_said_now_and_then() -> None:
    now = 0.0
    sparing = Sparing("closed", clock=lambda: now)
    told = [sparing.spare() for _ in range(5000)]
    assert told == [""] * MOST + [None] * (5000 - MOST)
    now = PER + 1
    assert sparing.spare() == f" ({5000 - MOST} lines like this were left out before it)"
    assert sparing.spare() == ""

    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("x", logging.WARNING, "x", 1, text, (), None)

    assert sum(sparing.filter(record("closed: garbage")) for _ in range(100)) == MOST - 2
    assert all(sparing.filter(record("another line")) for _ in range(100))


def test_who_is_refused_with_a_body_on_the_way_is_not_waited_for() -> None:
    """A stranger without the token announces a body and never sends it: answered, and the connection is closed."""
    running = serve(MemoryService(), token="a-token-of-some-length-0123456789")
    try:
        host, port = running.url.removeprefix("http://").split(":")
        for announced in (b"Transfer-Encoding: chunked", b"Content-Length: 1000"):
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(
                    b"POST /v1/links HTTP/1.1\r\nHost: localhost\r\n" + announced + b"\r\n\r\n"
                )
                told = b""
                while part := connection.recv(4096):
                    told += part
                assert b" 401 " in told.split(b"\r\n")[0]
    finally:
        running.stop()
