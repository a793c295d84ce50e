"""Listens and connects for sidecars; a peer that does not know the secret is refused.

Strangers are cheap: at most MAX_STRANGERS at a time (one more ends the one that dawdles longest), each for
HANDSHAKE_TIMEOUT at most, TLS included, with small messages. Bad input costs one log line and their connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fleet.channel import ChannelClosed, MemberChannel
from fleet.transport import handshake
from fleet.transport.framing import MAX_FRAME, RECEIVE_BUFFER, SEND_BUFFER, BadFrame, Wire
from wire.client.properties import PropertyError, parse_address
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.errors import LinkerError
from wire.frames.types import format_address
from wire.server.accept_loop import AcceptLoop
from wire.server.rate_limited_log import Sparing

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT: Final = 5.0
MAX_STRANGERS: Final = 64
_CLOSING: Final = 2.0
_BACKLOG: Final = 128

OnChannel = Callable[[MemberChannel], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of a control connection; bytes and seconds."""

    max_frame: int = MAX_FRAME
    send_buffer: int = SEND_BUFFER
    receive_buffer: int = RECEIVE_BUFFER
    handshake_timeout: float = HANDSHAKE_TIMEOUT
    max_strangers: int = MAX_STRANGERS

    def wire(self) -> Wire:
        return Wire(
            max_frame=self.max_frame, send_buffer=self.send_buffer, receive_buffer=self.receive_buffer
        )


class ControlServer:
    """Where other sidecars connect; made by `start`."""

    def __init__(
        self,
        sock: socket.socket,
        secret: str,
        on_channel: OnChannel,
        tls: ListenerSecurity | None,
        limits: TransportLimits,
    ) -> None:
        self._secret = secret.encode()
        self._on_channel = on_channel
        self._context = tls.ssl_context() if tls is not None else None
        self._limits = limits
        self._sparing = Sparing()
        self._strangers: dict[asyncio.Task[None], None] = {}  # in the order of arrival
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = AcceptLoop([sock], accepted=self._accepted, trouble=self._trouble)

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        secret: str,
        on_channel: OnChannel,
        *,
        tls: ListenerSecurity | None = None,
        limits: TransportLimits | None = None,
    ) -> ControlServer:
        """Listen on host:port (0: any). `on_channel` is awaited for each connection that proved the secret; the channel is
        closed when it returns. OSError if the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
        return cls(sock, secret, on_channel, tls, limits or TransportLimits())

    @property
    def port(self) -> int:
        return self._accepting.port

    @property
    def strangers(self) -> int:
        """Connections that have not proved the secret yet."""
        return len(self._strangers)

    async def close(self) -> None:
        """Accept nothing more and end every connection."""
        self._accepting.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING)

    def _trouble(self, error: OSError) -> None:
        log.warning("control listener: cannot accept a connection: %s", error.strerror or error)

    def _accepted(self, sock: socket.socket, host: str) -> None:
        if len(self._strangers) >= self._limits.max_strangers:
            # A sidecar proves itself within milliseconds, so it is rarely the oldest.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel("too many connections at once that have not proved the shared secret")
        task = asyncio.get_running_loop().create_task(self._serve(sock), name="control connection")
        self._strangers[task] = None
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        wire = self._limits.wire()
        peer = _peer(sock)
        try:
            try:
                async with asyncio.timeout(self._limits.handshake_timeout):
                    try:
                        await loop.connect_accepted_socket(lambda: wire, sock, ssl=self._context)
                    except BaseException:
                        sock.close()
                        raise
                    await handshake.accepting(wire, self._secret)
            except TimeoutError:
                wire.abort("the time is over")
                self._refused(peer, f"not authenticated within {self._limits.handshake_timeout:g} s")
                return
            except (ChannelClosed, OSError) as error:
                self._refused(peer, _reason(error))
                return
            except asyncio.CancelledError as error:
                if error.args:
                    self._refused(peer, str(error.args[0]))
                raise
            task = asyncio.current_task()
            if task is not None:
                self._strangers.pop(task, None)
            wire.trusted()
            await self._talk(wire)
        finally:
            wire.close("the sidecar ended it")

    def _refused(self, peer: str, why: str) -> None:
        more = self._sparing.spare()
        if more is not None:
            log.warning("control connection of %s closed: %s%s", peer, why, more)

    async def _talk(self, wire: Wire) -> None:
        try:
            await self._on_channel(wire)
        except LinkerError as error:
            log.warning("control connection of %s ended: %s", wire.peer, error)
            return
        except Exception:
            log.exception("control connection of %s ended by a bug", wire.peer)
            return
        if isinstance(wire.closed, BadFrame):
            log.warning("control connection of %s ended: %s", wire.peer, wire.closed)


async def connect(
    address: str | tuple[str, int],
    secret: str,
    timeout: float,
    *,
    tls: ClientSecurity | None = None,
    limits: TransportLimits | None = None,
) -> MemberChannel:
    """Open a channel to another sidecar and prove the secret both ways, all within `timeout` seconds.

    address: host:port, or the two apart. NotTrusted if the secrets differ; ChannelClosed with the reason for everything
    else.
    """
    try:
        host, port = parse_address(address) if isinstance(address, str) else address
    except PropertyError as error:
        # The holder of the seat need not be a sidecar: `linker store copy` listens nowhere.
        raise ChannelClosed(f"cannot connect: {error}") from None
    where = format_address(host, port)
    bounds = limits or TransportLimits()
    wire = bounds.wire()
    context = tls.ssl_context() if tls is not None else None
    name = host if context is not None and context.check_hostname else None
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_connection(
                lambda: wire, host, port, ssl=context, server_hostname=_server_name(name, context is not None)
            )
            async with asyncio.timeout(bounds.handshake_timeout):
                await handshake.connecting(wire, secret.encode())
    except TimeoutError:
        wire.abort("the time is over")
        raise ChannelClosed(f"{where} did not answer in time") from None
    except ChannelClosed:
        wire.abort("not trusted")
        raise
    except (OSError, UnicodeError, OverflowError) as error:  # the two of an address that nobody can look up
        raise ChannelClosed(f"cannot connect to {where}: {_reason(error)}") from None
    except asyncio.CancelledError:
        wire.abort("cancelled")
        raise
    wire.trusted()
    return wire


def _server_name(name: str | None, tls: bool) -> str | None:
    # asyncio wants to be told that the name is not to be checked, by an empty one.
    return name if name is not None or not tls else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, ChannelClosed):
        return str(error)
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _peer(sock: socket.socket) -> str:
    with contextlib.suppress(OSError):
        name = sock.getpeername()
        return format_address(str(name[0]), int(name[1]))
    return "?"
