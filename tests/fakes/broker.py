"""One node's socket: reads requests, lets the api's module answer, applies faults. One request at a time per
connection, as Kafka does it."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.clusters.ports import PortReservation
from wire.errors import MalformedFrame
from wire.schema import codec
from wire.schema.codec import RequestHeader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.cluster import FakeCluster

ILLEGAL_SASL_STATE = 34
# Of the event loop: from an accepted socket to its handler, which hangs up, and to the socket's end; some to spare.
_TURNS = 10
_BEFORE_AUTHENTICATION = ("api_versions", "sasl_handshake", "sasl_authenticate")


@dataclass
class ClientState:
    """What a node remembers of one connection."""

    authenticated: str | None = None
    mechanism: str | None = None
    asked: set[str] = field(default_factory=set)
    local: dict[str, Any] = field(default_factory=dict)


@dataclass
class Request:
    """A decoded request; `forced_error` is what a fault wants in the answer."""

    header: RequestHeader
    api: str
    entity: Any
    client: ClientState
    forced_error: int = 0

    @property
    def version(self) -> int:
        return self.header.api_version


class NoAnswer(Exception):
    """Raised by a handler whose request expects no answer."""


class FakeBroker:
    """A node of a FakeCluster; may be stopped and started again on the same port."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.id = node_id
        self.host = "127.0.0.1"
        self.port = 0
        # Nobody else takes the port while the broker is away.
        self._reservation: PortReservation | None = None
        self.state: dict[str, Any] = {}
        self.errors: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._states: dict[asyncio.Task[None], ClientState] = {}

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def connections(self) -> int:
        return len(self._clients)

    def connections_that_asked(self, api: str) -> int:
        return sum(api in one.asked for one in self._states.values())

    async def start(self) -> None:
        if self._reservation is None:
            self._reservation = PortReservation()
            self.port = self._reservation.port
        self._server = await asyncio.start_server(
            self._serve, self.host, self.port, ssl=self.cluster.ssl_context, limit=2**20
        )

    async def close(self) -> None:
        """Stop for good."""
        await self.stop()
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    async def stop(self) -> None:
        """Close the listener and every connection, as a crash does."""
        if self._server is None:
            return
        server, self._server = self._server, None
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening)
        await self.disconnect_all()
        # A connection that asyncio has accepted, and not attached when its server closes, is never closed.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        server.close()
        await server.wait_closed()
        self.state.clear()

    async def disconnect_all(self) -> None:
        """Cut every connection; the listener stays."""
        tasks = list(self._clients)
        for task in tasks:
            self._clients[task].transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection outside a task")
        if self._server is None:  # accepted in the moment in which the broker died
            writer.transport.abort()
            return
        self._clients[task] = writer
        client = self._states[task] = ClientState()
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                frame = await reader.readexactly(size)
                if not await self._answer(frame, client, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # a cancel is ours (stop, disconnect_all); asyncio.streams would report a cancelled handler as an
            # error
            pass
        except Exception as error:
            self.errors.append(error)
            raise
        finally:
            self._clients.pop(task, None)
            self._states.pop(task, None)
            writer.transport.abort()

    async def _answer(self, frame: bytes, client: ClientState, writer: asyncio.StreamWriter) -> bool:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        api = codec.api_name(key)
        offered = self.cluster.api_range(api)
        if offered is None or not offered[0] <= version <= offered[1]:
            if api != "api_versions":
                return False  # Kafka closes the connection
            low, high = offered or (0, 0)
            keys = [{"api_key": key, "min_version": low, "max_version": high}]
            body = codec.encode_response(api, 0, correlation_id, {"error_code": 35, "api_keys": keys})
            return await self._send(writer, body, None)
        try:
            header, entity = codec.decode_request(frame)
        except MalformedFrame as error:
            self.errors.append(error)
            return False
        client.asked.add(api)
        self._note(api, header, entity)
        if self.cluster.sasl_users is not None and client.authenticated is None:
            if client.mechanism is not None and api != "sasl_authenticate":
                # In the middle of an exchange Kafka takes nothing but tokens: it says so, and closes the connection.
                if api in ("api_versions", "describe_cluster"):
                    refusal = {"error_code": ILLEGAL_SASL_STATE}
                    body = codec.encode_response(api, version, correlation_id, refusal)
                    await self._send(writer, body, None)
                return False
            if api not in _BEFORE_AUTHENTICATION:
                return False
        if client.authenticated is not None and (lifetime := self.cluster.session_lifetime_ms):
            # connections.max.reauth.ms: what comes behind the end is not answered (KIP-368).
            end = client.local.setdefault("session ends", time.monotonic() + lifetime / 1000)
            if time.monotonic() > end and api not in _BEFORE_AUTHENTICATION:
                self.cluster.expired += 1
                return False
        fault = self.cluster.take_fault(api, self.id, entity)
        request = Request(header, api, entity, client)
        fields: Mapping[str, object] | None = None
        if fault is not None:
            if fault.delay:
                await asyncio.sleep(fault.delay)
            request.forced_error = fault.error
        if fault is None or fault.process:
            try:
                if fault is not None and fault.error and fault.apply:
                    request.forced_error = 0
                    await self.cluster.handlers[api](self, request)
                    request.forced_error = fault.error
                fields = await self.cluster.handlers[api](self, request)
            except NoAnswer:
                return fault is None or fault.close_after is None
        if fault is not None and fault.delay_answer:
            await asyncio.sleep(fault.delay_answer)
        if fault is not None and fault.drop:
            return True
        body = b"" if fields is None else codec.encode_response(api, version, correlation_id, fields)
        return await self._send(writer, body, fault)

    async def _send(self, writer: asyncio.StreamWriter, body: bytes, fault: Any) -> bool:
        data = struct.pack(">i", len(body)) + body
        if fault is not None and fault.raw is not None:
            data = fault.raw
        elif fault is not None and not fault.process and fault.close_after is None:
            return True
        if fault is not None and fault.close_after is not None:
            if fault.close_after and body:
                writer.write(data[: fault.close_after])
                await writer.drain()
                writer.close()
            return False
        writer.write(data)
        await writer.drain()
        return True

    def _note(self, api: str, header: RequestHeader, entity: Any) -> None:
        from tests.fakes.cluster import Received

        self.cluster.counts[api] += 1
        self.cluster.requests.append(Received(self.id, api, header.api_version, header.client_id, entity))
