"""The client's own connection to a real broker: all requests that the sidecar does not answer itself go there as raw
frames, and their answers come back the same way.

One upstream per client connection, opened with the first frame, to a live real broker's listener of the
same name. It carries the client's own SASL exchange, so the broker knows it as this client and can be
asked what this client may do (``authorize.py``). When it dies the client's connection is closed:
authentication and order die together. But where there is no login, and nothing is unanswered, nothing died: the next
request goes to another broker. So a restart of a broker does not cut off those who only write to mirrors.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from router.leadership import endpoint
from router.ports import RouterLimits, RouterPorts
from router.tasks import TaskKeeper
from wire.errors import (
    ClusterUnreachable,
    ConnectionLost,
    LinkerError,
    MalformedFrame,
    RequestTimedOut,
    WireError,
)
from wire.frames.types import Node
from wire.metadata.image import BrokerImage
from wire.server.listener import Exchange, ServerConnection

OnFrame = Callable[[memoryview], None]

_ATTEMPTS: Final = 3
#: A broker answers these at once, whatever they ask: Metadata, FindCoordinator, Heartbeat, ApiVersions, DescribeCluster,
#: DescribeTopicPartitions. Others wait for something: JoinGroup for minutes, OffsetCommit for replicas.
_AT_ONCE: Final = frozenset({3, 10, 12, 18, 60, 75})
#: Seconds for the answer to one of these once no other is before it. All that the client asks later waits behind it, fetches
#: and writes included, and by itself a client gives up after 30 s (Java) or a minute (librdkafka).
_PATIENCE: Final = 15.0
#: The same where the controller holds the broker for dead.
_OF_A_FENCED: Final = 2.0
_LOOK: Final = 1.0


def _leaving(broker: BrokerImage) -> bool:
    return broker.fenced or broker.in_controlled_shutdown


class Upstream:
    """Pipelined raw frames to one real broker on behalf of one client connection."""

    def __init__(
        self,
        connection: ServerConnection,
        ports: RouterPorts,
        limits: RouterLimits,
        tasks: TaskKeeper,
        tell: Callable[[str], None],
    ) -> None:
        """tell: for the log, which is told of thousands of clients at once when their broker hangs."""
        self._tell = tell
        self._connection = connection
        self._ports = ports
        self._limits = limits
        self._tasks = tasks
        self._channel: Any = None
        self._opening = False
        self._draining = False
        self._waiting: deque[tuple[memoryview, OnFrame]] = (
            deque()
        )  # bounded by the pipelining limit of the client
        self._closed = False
        self._correlation_id = 0
        self._broker_id = -1
        self._sent: deque[int] = (
            deque()
        )  # api keys on the channel, of the client's and of our own, until the answer
        self._first_since = 0.0  # of these, since when it is the first
        self._suspect = False  # that one was overdue at the last look
        self._timer: asyncio.TimerHandle | None = None
        self._replaceable = not connection.listener.security_protocol.startswith("SASL_")
        #: Requests of the client's own that the broker has not answered: some may wait for minutes (JoinGroup), and the
        #: client keeps their time.
        self.owed = 0

    def forward(self, exchange: Exchange) -> None:
        """Pass the request on and its answer back, untouched."""
        self.owed += 1

        def replied(reply: memoryview) -> None:
            self.owed -= 1
            exchange.reply([len(reply).to_bytes(4, "big"), reply])

        self.send(exchange.frame, replied)

    def send(self, frame: memoryview, on_reply: OnFrame) -> None:
        """Send one request (without size prefix). on_reply is not called if the upstream ends first: then
        the client ends too.
        """
        if self._closed:
            return
        if self._channel is None:
            self._waiting.append((frame, on_reply))
            if not self._opening:
                self._opening = True
                self._connection.pause_reading()  # nothing piles up while we connect
                self._tasks.spawn(self._open(), f"open upstream for {self._connection.peer}")
            return
        self._write(frame, on_reply)

    def give_up(self, reason: WireError) -> None:
        """The broker is as good as dead: the client is cut off with it, and comes back to another one."""
        self._end(reason)

    def next_correlation_id(self) -> int:
        """For requests of our own between the client's."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _write(self, frame: memoryview, on_reply: OnFrame) -> None:
        loop = asyncio.get_running_loop()

        def replied(result: memoryview | WireError) -> None:
            if isinstance(result, WireError):
                self._end(result)
                return
            self._sent.popleft()
            self._first_since, self._suspect = loop.time(), False
            try:
                on_reply(result)
            except MalformedFrame as error:
                self._end(error)

        correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        if not self._sent:
            self._first_since, self._suspect = loop.time(), False
        self._sent.append(int.from_bytes(frame[:2], "big"))
        if self._timer is None:
            self._timer = loop.call_later(_LOOK, self._look)
        try:
            self._channel.send(correlation_id, [len(frame).to_bytes(4, "big"), frame], replied)
        except ConnectionLost as error:
            self._end(error)
            return
        if self._channel.write_paused and not self._draining:
            self._draining = True
            self._connection.pause_reading()
            self._tasks.spawn(self._drain(), f"drain upstream of {self._connection.peer}")

    def _look(self) -> None:
        """Does the broker answer at all? Looked at twice: after a stand-still of this process its answers may be there, not
        read yet."""
        self._timer = None
        if self._closed or not self._sent:
            return
        loop = asyncio.get_running_loop()
        waited = loop.time() - self._first_since
        broker = self._ports.image().brokers.get(self._broker_id)
        patience = _OF_A_FENCED if broker is None or broker.fenced else _PATIENCE
        overdue = self._sent[0] in _AT_ONCE and waited >= patience
        if overdue and self._suspect:
            why = f"real broker {self._broker_id} did not answer a request of api key {self._sent[0]} for {waited:.0f} s"
            self._tell(f"the connection of {self._connection.peer} was closed: {why}")
            self.give_up(RequestTimedOut(why, sent=True, peer=self._connection.peer))
            return
        self._suspect = overdue
        self._timer = loop.call_later(_LOOK, self._look)

    async def _drain(self) -> None:
        """The broker takes our bytes slower than the client sends them: the client waits."""
        await self._channel.drain()
        self._draining = False
        if not self._closed:
            self._connection.resume_reading()

    async def _open(self) -> None:
        try:
            await self._connect()
        except Exception as error:
            # A bug, and told as one; but the client is not read from meanwhile, so not even its hang-up would be noticed.
            self._end(error)
            raise

    async def _connect(self) -> None:
        tried: list[str] = []
        for node, protocol in self._candidates()[:_ATTEMPTS]:
            try:
                async with asyncio.timeout(self._limits.connect_timeout):
                    channel = await self._ports.open_upstream(node, protocol)
            except (LinkerError, TimeoutError, OSError) as error:
                tried.append(
                    f"broker {node.id} at {node.host}:{node.port}: {str(error) or type(error).__name__}"
                )
                continue
            if self._closed:
                channel.close()
                return
            self._channel, self._broker_id = channel, node.id
            channel.add_close_callback(self._upstream_closed)
            waiting, self._waiting = self._waiting, deque()
            for frame, on_reply in waiting:
                if not self._closed:
                    self._write(frame, on_reply)
            if not self._closed:
                self._connection.resume_reading()
            return
        name = self._connection.listener.name
        self._end(
            ClusterUnreachable(
                f"no real broker reachable on listener {name}: {'; '.join(tried) or 'none alive'}"
            )
        )

    def _upstream_closed(self) -> None:
        if self._closed:
            return
        if self._replaceable and not self._sent:
            self._channel = None
            self._opening = False
            return
        self._end(self._channel.closed_reason)

    def _candidates(self) -> list[tuple[Node, str]]:
        image = self._ports.image()
        ours = self._ports.link_brokers() | {self._ports.broker_id}
        listener = self._connection.listener.name
        found = []
        for broker_id in image.brokers:
            node = endpoint(image, broker_id, listener) if broker_id not in ours else None
            if node is not None:
                found.append((node, self._connection.listener.security_protocol))
        random.shuffle(found)
        # A broker that is about to stop, or has just started, is the last to be chosen.
        found.sort(key=lambda one: _leaving(image.brokers[one[0].id]))
        return found

    def _end(self, reason: BaseException | None) -> None:
        if self._closed:
            return
        self.close()
        self._connection.abort(reason)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._channel is not None:
            self._channel.close()
