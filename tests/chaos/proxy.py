"""A TCP address in front of another one, whose connections can be cut, held, half held and slowed down.

Nothing is ever dropped or reordered within a connection: a network that holds bytes back delivers them late, which is
what a stale sidecar's requests and answers look like. Whose a connection is decides who is hit: the process at its
other end is looked up in /proc, so that one address can serve everybody as it does in a real cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from lab.clusters.ports import PortReservation
from tests.chaos.surgeon import Side, Surgeon

CHUNK = 1 << 16
CONNECT_TIMEOUT = 5.0
SETTLED = 0.01  # seconds in which the other side reads what it was sent


class Mode(StrEnum):
    """What a network can do to a connection."""

    CUT = "cut"  # reset, and refused from then on
    BLACKHOLE = "blackhole"  # nothing passes in either direction; comes late
    DEAF = "deaf"  # requests pass, answers do not; they come late
    SLOW = "slow"  # everything takes a while


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault while it lasts. `pids`: whose connections; None is everybody's."""

    mode: Mode
    pids: Callable[[], Collection[int]] | None = None
    delay: float = 0.0  # SLOW: seconds for every piece


class Tap(Protocol):
    """Sees the bytes of connections in order. Must not raise."""

    def asked(self, connection: int, data: bytes, at: float) -> None:
        """From the client, before it is passed on."""
        ...

    def answered(self, connection: int, data: bytes) -> None:
        """To the client."""
        ...

    def closed(self, connection: int) -> None:
        """No more of it."""
        ...


class Proxy:
    """Listens from `start` to `close`; `upstream` may be set at any time before the first connection."""

    def __init__(
        self,
        name: str,
        upstream: tuple[str, int] | None = None,
        tap: Tap | None = None,
        surgeon: Surgeon | None = None,
    ) -> None:
        self.name = name
        self.upstream = upstream
        self.tap = tap
        self.surgeon = surgeon
        self.reservation = PortReservation()
        self._server: asyncio.Server | None = None
        self._troubles: list[Trouble] = []
        self._changed = asyncio.Event()
        self._connections: dict[int, _Connection] = {}
        self._next = 0
        self._closing = False

    @property
    def port(self) -> int:
        return self.reservation.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        self._closing = True
        if self._server is not None:
            self._server.close()
        tasks = [connection.task for connection in self._connections.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(SETTLED)  # what was aborted closes its sockets, what was just accepted is aborted
        if self._server is not None:
            await self._server.wait_closed()
        self.reservation.release()

    @contextlib.contextmanager
    def troubled(self, trouble: Trouble) -> Iterator[None]:
        """The fault, for the length of the block. Several may hold at once."""
        self._troubles.append(trouble)
        self._wake()
        if trouble.mode is Mode.CUT:
            for connection in list(self._connections.values()):
                if connection.hit_by(trouble):
                    connection.task.cancel()
        try:
            yield
        finally:
            self._troubles.remove(trouble)
            self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closing:  # accepted just before, and in nobody's list
            writer.transport.abort()
            return
        self._next += 1
        number = self._next
        connection = _Connection(number, writer.get_extra_info("peername")[1], self.port, task)
        self._connections[number] = connection
        try:
            await self._relay(connection, reader, writer)
        except (asyncio.CancelledError, OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # cut by us, or broken by either side: the other one is told by what follows
        finally:
            del self._connections[number]
            writer.transport.abort()
            if self.tap is not None:
                self.tap.closed(number)
            if self.surgeon is not None:
                self.surgeon.closed(number)

    async def _relay(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if any(one.mode is Mode.CUT and connection.hit_by(one) for one in self._troubles):
            return
        await self._pass(connection, answers=False)
        assert self.upstream is not None
        async with asyncio.timeout(CONNECT_TIMEOUT):
            up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        try:
            pumps = [
                asyncio.create_task(self._pump(connection, reader, up_writer, answers=False)),
                asyncio.create_task(self._pump(connection, up_reader, writer, answers=True)),
            ]
            try:
                # Whichever side ends first ends both: nobody in here half-closes.
                done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in done:
                    pump.result()
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            up_writer.transport.abort()

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        while data := await reader.read(CHUNK):
            if self.tap is not None and not answers:
                self.tap.asked(connection.number, data, time.monotonic())
            await self._pass(connection, answers=answers)
            if self.tap is not None and answers:
                self.tap.answered(connection.number, data)
            if self.surgeon is None:
                writer.write(data)
                await writer.drain()
                continue
            side = Side.ANSWER if answers else Side.REQUEST
            data, cut = self.surgeon.feed(connection.number, side, data)
            if cut is not None:
                writer.transport.set_write_buffer_limits(high=0)  # what may pass is to arrive before the cut
            writer.write(data)
            await writer.drain()
            if cut is not None:
                await asyncio.sleep(cut.stall or SETTLED)
                return

    async def _pass(self, connection: _Connection, *, answers: bool) -> None:
        """Return when the bytes may go on."""
        slowed = False
        while self._troubles:
            changed = self._changed
            hit = [one for one in self._troubles if connection.hit_by(one)]
            if any(one.mode is Mode.BLACKHOLE or (one.mode is Mode.DEAF and answers) for one in hit):
                await changed.wait()
                continue
            delay = max((one.delay for one in hit if one.mode is Mode.SLOW), default=0.0)
            if not delay or slowed:
                return
            slowed = True
            await asyncio.sleep(delay)


@dataclass(slots=True)
class _Connection:
    number: int
    peer_port: int
    port: int
    task: asyncio.Task[None]
    pid: int | None = None

    def hit_by(self, trouble: Trouble) -> bool:
        """A connection whose owner is not known (it ended already) is hit like one of the wanted."""
        if trouble.pids is None:
            return True
        pids = trouble.pids()
        if self.pid is None:
            self.pid = owner(self.peer_port, self.port)
        return self.pid is None or self.pid in pids


def owner(local_port: int, remote_port: int) -> int | None:
    """The process that has a connection from `local_port` to `remote_port` of this machine (Linux)."""
    inode = _inode(local_port, remote_port)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(process / "fd", wanted):
            return int(process.name)
    return None


def _inode(local_port: int, remote_port: int) -> str | None:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # Java's sockets are of the second kind
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            ends = [int(fields[index].rpartition(":")[2], 16) for index in (1, 2)]
            if ends == [local_port, remote_port]:
                return fields[9]
    return None


def _holds(directory: Path, wanted: str) -> bool:
    try:
        names = os.listdir(directory)
    except OSError:
        return False  # it ended, or is not ours to look into
    return any(_target(directory / name) == wanted for name in names)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
