"""One socket: pipelined requests out, replies in the order of the requests.

The channel knows frames and correlation ids only. Callers keep their own deadlines: after a caller has given up on an answer
the order holds only if the answer is still read, or the channel is closed.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from wire.errors import ConnectionLost, MalformedFrame, WireError, describe
from wire.frames.framing import FrameReader
from wire.frames.pieces import PIECE, in_pieces
from wire.frames.types import Buffer, format_address
from wire.transport.gathering import Writer, gathered_writes
from wire.transport.low_water import LowWater

DEFAULT_MAX_FRAME = 256 * 1024 * 1024
WRITE_HIGH_WATER = 1024 * 1024

OnReply = Callable[[memoryview | WireError], None]

_CORRELATION = struct.Struct(">i")


class Channel(asyncio.BufferedProtocol):
    """Pipelined FIFO request/response on one connection.

    Every on_reply is called exactly once: with its reply, or with ConnectionLost(sent=True) when the
    connection ends first. When a broken stream is the reason, that is the error's __cause__ and
    `closed_reason`.
    """

    def __init__(
        self,
        *,
        max_frame: int = DEFAULT_MAX_FRAME,
        alloc: Callable[[int], bytearray] | None = None,
    ) -> None:
        self._reader = FrameReader(max_frame, min_frame=4, alloc=alloc, limit=self._limit_of)
        self._pending: deque[tuple[int, OnReply, int]] = deque()
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._low_water: LowWater | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_pieces = False  # the read that is under way may bring a piece at most
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._paused_reading = 0
        self._on_closed: list[Callable[[], None]] = []
        self.peer = "?"
        self.write_paused = False
        self.closed = False
        #: Set when the transport is really gone.
        self.closed_event = asyncio.Event()
        self.closed_reason: BaseException | None = None
        self.bytes_received = 0

    # --- what users call ------------------------------------------------------------------------------------

    def send(
        self,
        correlation_id: int,
        buffers: Sequence[Buffer],
        on_reply: OnReply | None,
        max_reply: int = DEFAULT_MAX_FRAME,
    ) -> None:
        """Write one framed request (size prefix included). Raises ConnectionLost(sent=False) on a closed
        channel.

        `on_reply` None: the peer will not answer (acks=0). An answer of more than `max_reply` bytes ends the connection
        before it is received; answers of up to a mebibyte are not checked.
        """
        writer = self._writer
        if self.closed or writer is None:
            raise ConnectionLost("the connection is closed", sent=False, peer=self.peer)
        if on_reply is not None:
            self._pending.append((correlation_id, on_reply, max_reply))
        writer.write(buffers)

    async def drain(self) -> None:
        """Wait until the write buffer is below its high-water mark, or the channel is closed."""
        if not self.write_paused or self.closed:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._drain_waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._drain_waiters:
                self._drain_waiters.remove(waiter)

    def pause_reading(self) -> None:
        """Stop reading until resume_reading was called as often: back-pressure from a memory budget."""
        self._paused_reading += 1
        if self._paused_reading == 1 and self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused_reading == 0:
            return
        self._paused_reading -= 1
        if self._paused_reading == 0 and self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def close(self, reason: BaseException | None = None) -> None:
        """Close at once; pending requests get ConnectionLost(sent=True). Safe to call twice."""
        if self._writer is not None and not self.closed:
            self._writer.flush()
        self._fail(reason)
        if self._transport is not None:
            # abort, not close: a peer that does not read must not keep the socket and its buffers alive.
            self._transport.abort()
        else:
            self.closed_event.set()

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call back once when the channel closes (soon, if it has)."""
        if self.closed:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._on_closed.append(callback)

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    # --- what the event loop calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = Writer(self._transport)
        self._loop = asyncio.get_running_loop()
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = format_address(str(name[0]), int(name[1]))
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        if self.closed:
            transport.abort()  # type: ignore[attr-defined]  # closed while the handshake ran

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._reader.get_buffer()
        loop = self._loop
        self._in_pieces = len(buffer) > PIECE and loop is not None and in_pieces(loop.time())
        return buffer[:PIECE] if self._in_pieces else buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        if self.closed:
            return
        reader = self._reader
        frames = reader.advance(nbytes)
        missing = reader.missing
        if self._in_pieces:
            missing = min(missing, PIECE)
            if nbytes == PIECE and self._loop is not None:
                # There may be more, and the event loop would read all of it before it serves other connections.
                self.pause_reading()
                self._loop.call_soon(self.resume_reading)
        if missing and self._low_water is None and self._transport is not None:
            self._low_water = LowWater(
                self._transport
            )  # only now: thousands of connections never see a large frame
        if self._low_water is not None:
            self._low_water.wait_for(missing)
        if frames:  # most reads bring part of a large frame only
            with gathered_writes():
                for frame in frames:
                    if not self._deliver(frame):
                        return
        if reader.error is not None:
            self.close(reader.error)

    def _limit_of(self, behind: int) -> int:
        """The limit of the answer after `behind` others; 0 if no request waits for it."""
        return self._pending[behind][2] if behind < len(self._pending) else 0

    def _deliver(self, frame: memoryview) -> bool:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        if not self._pending:
            self.close(
                MalformedFrame(f"a reply nobody waits for, correlation id {correlation_id}", peer=self.peer)
            )
            return False
        expected, on_reply, _ = self._pending[0]
        if correlation_id != expected:
            self.close(
                MalformedFrame(f"correlation id {correlation_id} where {expected} is due", peer=self.peer)
            )
            return False
        self._pending.popleft()
        try:
            on_reply(frame)
        except Exception as error:
            self._report("the handler of a reply failed", error)
            self.close(error)
        return not self.closed

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc)
        self._transport = self._writer = None
        self.closed_event.set()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake_drain()

    # --- ending ---------------------------------------------------------------------------------------------

    def _fail(self, reason: BaseException | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.closed_reason = reason
        self._wake_drain()
        pending, self._pending = self._pending, deque()
        text = (
            "the connection was closed" if reason is None else f"the connection was lost: {describe(reason)}"
        )
        for _, on_reply, _ in pending:
            lost = ConnectionLost(text, sent=True, peer=self.peer)
            lost.__cause__ = reason
            try:
                on_reply(lost)
            except Exception as error:
                self._report("the handler of a lost connection failed", error)
        callbacks, self._on_closed = self._on_closed, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                self._report("a close callback failed", error)

    def _wake_drain(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _report(self, message: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{message} (peer {self.peer})", "exception": error, "protocol": self}
        )
