"""A process that only passes bytes on, as a yardstick: what one hop more costs on this machine, whoever makes it.

    python -m lab.bench.relay LISTEN_PORT SERVER_PORT

The same event loop as the sidecar's, received into buffers that are used again, written from there. No frame is
looked at, nothing is counted, nothing is checked, so a Router on that loop cannot be cheaper. The client speaks first.

Does not live here: what is sent through it (forward.py).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, cast

import uvloop

from lab.clusters.child_process import ChildProcess
from lab.clusters.ports import PortReservation
from linker.process.children import python_path

START_TIMEOUT = 30.0
HOST = "127.0.0.1"
# As the Router reads a stream of 64 kB requests: several of them at a time.
BUFFER: Final = 256 * 1024


class RelayProcess(ChildProcess):
    """`async with RelayProcess(port, directory) as relay:` a relay to a port of this machine, gone with the block."""

    def __init__(self, server_port: int, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__("relay", directory / "relay.log")
        self._directory = directory
        self._server_port = server_port
        self._reserved = PortReservation()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._reserved.port

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await asyncio.shield(self._close())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    async def _start(self) -> None:
        self._launch(
            [sys.executable, "-m", "lab.bench.relay", str(self.port), str(self._server_port)],
            self._directory,
            python_path(),
        )
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                await self._nap("starting", deadline, START_TIMEOUT)
            else:
                writer.close()
                return

    async def _close(self) -> None:
        if self.running:
            await self.kill()
        self._reserved.release()


class _Side(asyncio.BufferedProtocol):
    """Bytes that arrive on one connection leave on the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._view = memoryview(bytearray(BUFFER))
        self._leaving: list[memoryview] = []
        self._free: list[memoryview] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self.other is None or self.other.transport is None:
            return
        to = self.other.transport
        if not to.get_write_buffer_size():
            self._free += self._leaving
            self._leaving.clear()
        to.write(self._view[:nbytes])
        self._leaving.append(self._view)
        self._view = self._free.pop() if self._free else memoryview(bytearray(BUFFER))

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Client(_Side):
    """The side that somebody opened. Bytes that come before the server is reached wait."""

    def __init__(self, server_port: int) -> None:
        super().__init__()
        self._server_port = server_port
        self._early = bytearray()
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    def buffer_updated(self, nbytes: int) -> None:
        if self.other is None:
            self._early += self._view[:nbytes]
        else:
            super().buffer_updated(nbytes)

    async def _open(self) -> None:
        server = _Side()
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: server, HOST, self._server_port
        )
        if self.transport is None:
            transport.close()
            return
        self.other, server.other = server, self
        if self._early:
            transport.write(self._early)


async def relay(port: int, server_port: int) -> None:
    """Until the process is killed."""
    server = await asyncio.get_running_loop().create_server(lambda: _Client(server_port), HOST, port)
    await server.serve_forever()


def main(arguments: Sequence[str]) -> None:
    port, server_port = arguments
    uvloop.run(relay(int(port), int(server_port)))


if __name__ == "__main__":
    main(sys.argv[1:])
