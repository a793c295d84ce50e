"""One accepted connection of a listener: cuts requests, and sends answers in request order.

This module owns order, flow control, the limits of one connection and its end. The listener's handler decides what a request
means and how it is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from wire.errors import LocalProtocolError, MalformedFrame, WireError, describe
from wire.frames.framing import FrameReader
from wire.frames.pieces import client_asked
from wire.frames.request_header import RequestHeader, parse_request_header
from wire.frames.types import Buffer, format_address
from wire.server.limits import ListenerInfo, ListenerLimits
from wire.server.partial_frames import PartialFrames
from wire.server.patience import Patience
from wire.transport.gathering import Writer, gathered_writes

# The least request: api key, version, correlation id, client id length.
_MIN_REQUEST: Final = 10
# The most memory that a connection gets by announcing a size, before it has sent that much.
_COMMIT_MAX: Final = 64 * 1024
_FETCH: Final = 1
# Answers of no more than this may wait for the peer to read and still count as taken.
_LITTLE: Final = 64 * 1024
_NO_FRAME: Final = memoryview(b"")
_NO_HEADER: Final = RequestHeader(-1, -1, -1, None)


class Owner(Protocol):
    """The listener that a connection belongs to; listener.Listener documents the methods."""

    info: ListenerInfo
    limits: ListenerLimits
    handler: Callable[[Exchange], None]
    alloc: Callable[[int], bytearray] | None
    partial: PartialFrames

    def refuse(self, address: str, why: str) -> None: ...
    def garbled(self, peer: str, error: MalformedFrame) -> None: ...
    def know_broker(self, address: str) -> None: ...
    def arrived(self, connection: ServerConnection) -> WireError | None: ...
    def forget(self, connection: ServerConnection) -> None: ...
    def note_progress(self) -> None: ...


class Exchange:
    """One request and its answer. Exactly one of reply, no_reply and fail ends it."""

    __slots__ = ("_answer", "body_offset", "connection", "done", "frame", "header")

    def __init__(
        self, connection: ServerConnection, header: RequestHeader, frame: memoryview, body_offset: int
    ) -> None:
        self.connection = connection
        self.header = header
        #: The whole request without its size prefix. Valid while it is referenced; dropped when the request is answered.
        self.frame = frame
        self.body_offset = body_offset
        self._answer: Sequence[Buffer] = ()
        #: Answered, or its connection was given up for it. Set in this module only.
        self.done = False

    def reply(self, buffers: Sequence[Buffer]) -> None:
        """Answer with a framed response, size prefix included. It is sent after all earlier answers."""
        self._finish(buffers)

    def no_reply(self) -> None:
        """End an exchange whose client expects no answer (acks=0)."""
        self._finish(())

    def fail(self, error: WireError) -> None:
        """Close the connection, because no correct answer can be given."""
        if not self.done:
            self.done = True
            self.connection.abort(error)

    def _finish(self, buffers: Sequence[Buffer]) -> None:
        if self.done:
            if self.connection.closed:
                return
            raise LocalProtocolError(
                f"a request with api key {self.header.api_key} was answered twice", peer=self.connection.peer
            )
        self.done = True
        # The answer may wait behind earlier ones, and no budget counts the bytes of this request any more.
        self.frame = _NO_FRAME
        self._answer = buffers
        self.connection._flush()  # noqa: SLF001 - the two classes are one mechanism


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection.

    Invariants: `_open` holds the dispatched exchanges in request order, at most max_pipelined; frames that
    came with them wait in `_backlog` (bounded by one scratch buffer) and nothing is read while that or a
    pause stands.
    """

    def __init__(self, listener: Owner) -> None:
        self._owner = listener
        self._limits = listener.limits
        limit = self._limits.max_frame
        sasl = listener.info.security_protocol.startswith("SASL_")
        if sasl:
            limit = min(limit, self._limits.max_frame_before_login)
        self._patience = Patience(self._limits, listener.refuse, known=not sasl)
        self._reader = FrameReader(
            limit, min_frame=_MIN_REQUEST, alloc=listener.alloc, commit_max=_COMMIT_MAX, stream=True
        )
        self._open: deque[Exchange] = deque()
        self._backlog: deque[memoryview] = deque()
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._paused_by_handlers = 0
        #: So many answers wait for the peer to read that no request is looked at.
        self.write_paused = False
        self._reading_paused = False
        self._dispatching = False
        self._in_parts = False  # part of a large request has arrived
        self._on_close: list[Callable[[], None]] = []
        self._on_taken: list[Callable[[], None]] = []
        # Bound once: finding the running loop asks the kernel for the process id, for every request.
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._bare: Callable[[Exchange], None] | None = None
        self.listener: ListenerInfo = listener.info
        self.peer = "?"
        #: Its host, without the port.
        self.address = "?"
        self.closed = False
        self.closed_reason: BaseException | None = None
        #: For handlers, to keep what they know about this connection.
        self.local: dict[str, Any] = {}

    # --- for handlers ---

    def logged_in(self) -> None:
        """The peer has authenticated: it may send frames of any size that the listener takes."""
        self._patience.known = True
        self._reader.set_max_frame(self._limits.max_frame)

    def is_broker(self) -> None:
        """The peer is one of the target's brokers: connections from its address are accepted even when there are too
        many."""
        self._owner.know_broker(self.address)

    def take_bare(self, handler: Callable[[Exchange], None] | None) -> None:
        """Pass the following frames to this handler without looking for a request header; None ends that."""
        self._bare = handler
        self._reader.set_min_frame(_MIN_REQUEST if handler is None else 0)

    def pause_reading(self) -> None:
        """Take no further requests until resume_reading was called as often."""
        self._paused_by_handlers += 1
        self._update_reading()

    def resume_reading(self) -> None:
        if self._paused_by_handlers == 0:
            raise LocalProtocolError("resume_reading without pause_reading", peer=self.peer)
        self._paused_by_handlers -= 1
        self._dispatch()

    def garbled(self, error: MalformedFrame) -> None:
        """Close because a request that was dispatched before turned out to be malformed."""
        if not self.closed:
            self._protocol_error(error)

    def limit_unsent(self, high: int) -> None:
        """Dispatch no request while more than `high` bytes of answers wait for the peer to read."""
        if self._transport is not None and not self.closed:
            self._transport.set_write_buffer_limits(high=high)

    @property
    def unsent(self) -> int:
        """Bytes of answers that the network has not taken."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return waiting if self._writer is None else waiting + self._writer.pending

    def offer_answers(self) -> bool:
        """Send what the network takes now. True if it has taken every answer so far, except for a little.

        False while an answer waits behind an earlier request.
        """
        for exchange in self._open:
            if exchange.done:
                return False
        writer = self._writer
        if writer is not None and writer.pending > _LITTLE:
            writer.send_gathered()
            return not self.write_paused and writer.pending <= _LITTLE
        return not self.write_paused

    def when_taken(self, callback: Callable[[], None]) -> None:
        """Call back once when offer_answers becomes true; never if the connection ends first."""
        self._on_taken.append(callback)

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call back once when the connection is gone (soon, if it is)."""
        if self.closed:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._on_close.append(callback)

    def abort(self, reason: BaseException | None = None) -> None:
        """Close at once; open exchanges can no longer be answered."""
        if self._writer is not None and not self.closed:
            self._writer.flush()  # answers given so far are still sent
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Close after all answers so far have been sent."""
        if self._transport is not None and self._writer is not None:
            self._writer.flush()
            self._transport.close()

    @property
    def at_rest(self) -> bool:
        """No request is open or waits to be dispatched."""
        return not self._open and not self._backlog

    @property
    def open_exchanges(self) -> int:
        return len(self._open)

    # --- what the event loop calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = Writer(self._transport)
        self._writer.drained = self._look_for_taken
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.address = str(name[0])
            self.peer = format_address(self.address, int(name[1]))
        self._transport.set_write_buffer_limits(high=self._limits.write_high_water)
        self._patience.start(self, self._transport)
        refusal = self._owner.arrived(self)
        if refusal is not None:
            self.abort(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        reader = self._reader
        frames = reader.advance(nbytes)
        if reader.missing:
            self._in_parts = True
            self._owner.partial.note(self, reader.large_size, reader.large_needs)
        elif self._in_parts:
            self._in_parts = False
            self._owner.partial.forget(self)
        if not frames and reader.error is None:
            return  # part of a large frame
        self._backlog.extend(frames)
        with gathered_writes():
            self._dispatch()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._transport = self._writer = None

    def pause_writing(self) -> None:
        self.write_paused = True
        self._patience.last_read = self._now()
        self._update_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        with gathered_writes():
            self._look_for_taken()
            self._dispatch()

    # --- requests -------------------------------------------------------------------------------------------

    @property
    def _may_dispatch(self) -> bool:
        return (
            not self.closed
            and not self._paused_by_handlers
            and not self.write_paused
            and len(self._open) < self._limits.max_pipelined
        )

    def _dispatch(self) -> None:
        # A handler that answers at once comes back here through _flush: the loop below goes on without recursion.
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._backlog and self._may_dispatch:
                self._handle(self._backlog.popleft())
        finally:
            self._dispatching = False
        if self.closed:
            return
        if self._reader.error is not None and not self._backlog:
            self._protocol_error(self._reader.error)
            return
        self._update_reading()

    def _handle(self, frame: memoryview) -> None:
        patience = self._patience
        now = patience.last_request = self._now()
        patience.asked = True
        if self._bare is not None:
            self._serve(self._bare, Exchange(self, _NO_HEADER, frame, 0))
            return
        try:
            header, body_offset = parse_request_header(frame)
        except MalformedFrame as error:
            self._protocol_error(error)
            return
        if header.api_key != _FETCH:  # followers send Fetch all the time
            client_asked(now)
        self._serve(self._owner.handler, Exchange(self, header, frame, body_offset))

    def _serve(self, handler: Callable[[Exchange], None], exchange: Exchange) -> None:
        self._open.append(exchange)
        try:
            handler(exchange)
        except MalformedFrame as error:
            self._protocol_error(error)
        except Exception as error:
            header = exchange.header
            what = f"the handler of api key {header.api_key} v{header.api_version} failed"
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{what} (peer {self.peer}): {describe(error)}", "exception": error}
            )
            self.abort(error)

    def _flush(self) -> None:
        ready: list[Buffer] = []
        while self._open and self._open[0].done:
            ready.extend(self._open.popleft()._answer)  # noqa: SLF001 - the two classes are one mechanism
        if ready and not self.closed and self._writer is not None:
            self._writer.write(ready)
        self._owner.note_progress()
        if self._on_taken:
            self._look_for_taken()
        if self._reading_paused:  # otherwise everything received is dispatched already
            self._dispatch()

    def _look_for_taken(self) -> None:
        if self._on_taken and not self.closed and self.offer_answers():
            callbacks, self._on_taken = self._on_taken, []
            for callback in callbacks:
                callback()

    def _protocol_error(self, error: MalformedFrame) -> None:
        self._owner.garbled(self.peer, error)
        self.abort(error)

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        pause = bool(self._backlog) or not self._may_dispatch or self._reader.error is not None
        if pause != self._reading_paused:
            self._reading_paused = pause
            (transport.pause_reading if pause else transport.resume_reading)()

    # --- ending ---------------------------------------------------------------------------------------------

    def _end(self, reason: BaseException | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.closed_reason = reason
        self._patience.stop()
        if self._in_parts:
            self._owner.partial.forget(self)
        self._owner.forget(self)
        for exchange in self._open:
            exchange.done = True  # a late answer is dropped, not an error
        self._open.clear()
        self._backlog.clear()
        self._on_taken.clear()
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a close callback failed (peer {self.peer})", "exception": error}
                )
