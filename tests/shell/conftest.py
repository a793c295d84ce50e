"""The admin API on a real loopback socket, in a thread of its own: the blocking CLI can talk to it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from admin.api import create_app
from admin.metrics import Metrics
from admin.samples import Snapshot
from admin.server import AdminServer
from linker.cli import main
from tests.shell.memory_service import MemoryService


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_is_heard() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: the CLI would not hear Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Running(NamedTuple):
    url: str
    service: MemoryService
    stop: Callable[[], None]


class Result(NamedTuple):
    code: int
    out: str
    err: str


def serve(service: MemoryService, *, token: str | None = None, token_file: Path | None = None) -> Running:
    started = threading.Event()
    address: list[int] = []
    problems: list[BaseException] = []
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def run() -> None:
        page = Metrics(lambda: Snapshot(version="9.9"))
        app = create_app(service, page, version="9.9", token=token, token_file=token_file)
        server = AdminServer(app, "127.0.0.1", 0)
        await server.start()
        address.append(server.port)
        started.set()
        await ending.wait()
        await server.close(grace=0.5)

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(run())
        except BaseException as error:
            problems.append(error)
        finally:
            started.set()

    worker = threading.Thread(target=thread, daemon=True)
    worker.start()
    assert started.wait(15)
    assert not problems, problems

    def stop() -> None:
        if worker.is_alive():
            loop.call_soon_threadsafe(ending.set)
            worker.join(15)
        assert not worker.is_alive()
        assert not problems, problems

    return Running(f"http://127.0.0.1:{address[0]}", service, stop)


@pytest.fixture(scope="session")
def _server() -> Iterator[Running]:
    running = serve(MemoryService())
    yield running
    running.stop()


@pytest.fixture
def api(_server: Running) -> Running:
    """One server for all tests, because starting one takes longer than most tests; its service is empty."""
    vars(_server.service).clear()
    _server.service.__init__()  # type: ignore[misc]
    return _server


@pytest.fixture(scope="session")
def guarded() -> Iterator[Running]:
    running = serve(MemoryService(), token="a-long-token")
    yield running
    running.stop()


@pytest.fixture
def http(api: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.url, trust_env=False, timeout=20, verify=False) as client:
        yield client


Cli = Callable[..., Result]


@pytest.fixture
def cli(
    api: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Run the console script's function; `url=` for another address than the fixture's."""
    monkeypatch.delenv("LINKER_ADMIN_TOKEN", raising=False)
    monkeypatch.delenv("LINKER_ADMIN_TOKEN_FILE", raising=False)
    monkeypatch.delenv("LINKER_DEBUG", raising=False)

    def run(*arguments: str, url: str = api.url) -> Result:
        monkeypatch.setenv("LINKER_ADMIN_URL", url)
        monkeypatch.setattr("sys.argv", ["linker", *arguments])
        try:
            main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1 if error.code else 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
