"""One connection as a `fleet.channel.MemberChannel`: JSON messages behind a four-byte length, big-endian.

All memory that the other side can make us use is bounded: one frame by its announced length (checked before it is
read), frames not yet received by bytes (reading pauses), unsent frames by bytes (the channel is closed: a peer that
cannot keep up is better told at once than served old news).
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from typing import Any, Final, cast

from fleet.channel import ChannelClosed, Message
from wire.errors import LocalProtocolError
from wire.frames.types import format_address

MAX_FRAME: Final = 64 << 20
MAX_FRAME_OF_STRANGERS: Final = 1 << 20
SEND_BUFFER: Final = MAX_FRAME + 4  # so that the largest message can be sent when nothing else waits
RECEIVE_BUFFER: Final = 4 << 20
#: Seconds after which the kernel gives up on a peer that acknowledges nothing.
USER_TIMEOUT: Final = 5.0

_LENGTH: Final = 4
_OVERHEAD: Final = 64  # of a received frame in memory, beside its bytes
_LINGER: Final = 1.0  # for what was sent before close() to leave


class BadFrame(ChannelClosed):
    """The bytes are not a message; the peer is no sidecar, or a broken one."""


class Wire(asyncio.Protocol):
    """One connection, of a stranger until `trusted` is called. `closed` says why it ended."""

    def __init__(
        self,
        *,
        max_frame: int = MAX_FRAME,
        send_buffer: int = SEND_BUFFER,
        receive_buffer: int = RECEIVE_BUFFER,
    ) -> None:
        self.peer = "?"
        self.closed: ChannelClosed | None = None
        self.ended = asyncio.Event()
        self._largest = min(max_frame, MAX_FRAME_OF_STRANGERS)
        self._max_frame = max_frame
        self._send_buffer = send_buffer
        self._receive_buffer = receive_buffer
        self._transport: asyncio.Transport | None = None
        self._coming = bytearray()
        self._inbox: deque[bytes] = deque()
        self._waiting = 0
        self._reading = True
        self._wake = asyncio.Event()

    def trusted(self) -> None:
        """The peer has proved its identity: its messages may have any size that a sidecar sends."""
        self._largest = self._max_frame

    # --- fleet.channel.MemberChannel ---------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue a message. A value that JSON has no word for is a bug here: LocalProtocolError."""
        if self.closed is not None:
            raise self._again()
        try:
            body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise LocalProtocolError(f"not a control message: {error}", peer=self.peer) from None
        if self._transport is None or self._transport.is_closing():
            self._end(ChannelClosed(f"channel to {self.peer}: the connection is gone"))
            raise self._again()
        if len(body) > self._max_frame:
            self._abort(ChannelClosed(f"channel to {self.peer}: a message of {len(body)} bytes is too large"))
            raise self._again()
        if self._transport.get_write_buffer_size() + len(body) + _LENGTH > self._send_buffer:
            self._abort(ChannelClosed(f"channel to {self.peer}: the receiver does not keep up"))
            raise self._again()
        self._transport.write(len(body).to_bytes(_LENGTH, "big") + body)

    async def receive(self) -> Message:
        """The next message, also of those that came before the end. BadFrame if it is none."""
        while not self._inbox:
            if self.closed is not None:
                raise self._again()
            self._wake.clear()
            await self._wake.wait()
        frame = self._inbox.popleft()
        self._waiting -= len(frame) + _OVERHEAD
        if not self._reading and self._waiting < self._receive_buffer // 2:
            self._reading = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        try:
            return _decode(frame)
        except (ValueError, RecursionError) as error:
            self._inbox.clear()
            self._abort(BadFrame(f"channel to {self.peer}: {_short(error)}"))
            raise self._again() from None

    def close(self, reason: str = "closed") -> None:
        """End it; what was sent before has a moment to leave."""
        if self.closed is not None:
            return
        self._end(ChannelClosed(f"channel to {self.peer}: {reason}"))
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)

    # --- what the event loop calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = format_address(str(name[0]), int(name[1]))
        found: Any = transport.get_extra_info("socket")
        if found is not None:
            tune(found)

    def data_received(self, data: bytes) -> None:
        if self.closed is not None:
            return
        coming = self._coming
        coming += data
        while len(coming) >= _LENGTH:
            size = int.from_bytes(coming[:_LENGTH], "big")
            if not 0 < size <= self._largest:
                self._abort(
                    BadFrame(
                        f"channel to {self.peer}: a message of {size} bytes, 1 to {self._largest} are taken"
                    )
                )
                return
            if len(coming) < _LENGTH + size:
                break
            self._inbox.append(bytes(memoryview(coming)[_LENGTH : _LENGTH + size]))
            del coming[: _LENGTH + size]
            self._waiting += size + _OVERHEAD
        if self._inbox:
            self._wake.set()
        if self._reading and self._waiting >= self._receive_buffer and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        where = " in the middle of a message" if self._coming else ""
        self._end(ChannelClosed(f"channel to {self.peer}: the other side closed it{where}"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(
            ChannelClosed(f"channel to {self.peer}: {_short(exc) if exc else 'the connection is gone'}")
        )
        self._coming = bytearray()
        self._transport = None
        self.ended.set()

    # --- ending -----------------------------------------------------------------------------------------------------

    def abort(self, why: str) -> None:
        """End it without another word."""
        self._abort(ChannelClosed(f"channel to {self.peer}: {why}"))

    def _abort(self, why: ChannelClosed) -> None:
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, why: ChannelClosed) -> None:
        if self.closed is None:
            self.closed = why
            self._wake.set()

    def _again(self) -> ChannelClosed:
        """A fresh one to raise: an exception that is raised twice collects the traces of both."""
        why = self.closed
        return type(why)(str(why)) if why is not None else ChannelClosed(f"channel to {self.peer}: closed")


def _decode(frame: bytes) -> Message:
    message = json.loads(str(frame, "utf-8"), parse_constant=_no_constant)
    if not isinstance(message, dict):
        raise ValueError(f"a message is an object, not a {type(message).__name__}")  # noqa: TRY004 - of what came
    return message


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _short(error: BaseException) -> str:
    """Kind and place of an error, never the received bytes."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.pos}"
    if isinstance(error, RecursionError):
        return "JSON nested too deep"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)[:200]


def tune(sock: Any) -> None:
    """Notice a dead peer within seconds, and send each message at once."""
    options: list[tuple[int, str, int]] = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 2),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(USER_TIMEOUT * 1000)),
    ]
    for level, name, value in options:
        option = getattr(socket, name, None)  # not every system has all
        if option is not None:
            sock.setsockopt(level, option, value)
