"""One authenticated client connection: TCP or TLS, ApiVersions, SASL, then typed calls by the highest common version.

The hot path takes `.channel` and frames its own requests; both share the correlation ids of this connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from wire.client import sasl
from wire.client.channel import DEFAULT_MAX_FRAME, Channel
from wire.client.connecting import connect
from wire.client.security import ClientSecurity
from wire.client.topic_names import TopicNames
from wire.errors import (
    BrokerError,
    ConnectionLost,
    HungUp,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)
from wire.frames.error_codes import UNSUPPORTED_VERSION
from wire.frames.fetch import FetchRequest, FetchResponse, encode_fetch_request, parse_fetch_response
from wire.frames.types import Buffer, format_address
from wire.schema import codec

RENEW_BEFORE = 5.0
"""Seconds by which a connection is replaced before the peer ends its session (connections.max.reauth.ms); half the session
if that is shorter."""
SOFTWARE_NAME = "kafka-linker"
SOFTWARE_VERSION = "0.1.0"

_HUNG_UP = (
    "; nothing had been answered, as by a broker that allows no more connections (max.connections.per.ip, max.connections) "
    "or whose listener has another security.protocol"
)

_API_VERSIONS = 18

MAX_ANSWER = 16 * 1024 * 1024
"""The largest answer that is decoded field by field. Two hundred thousand partitions in one Metadata answer are half of it.
A source may be hostile, and decoding takes twenty times as much memory as the answer."""
_AT_ONCE = 1024 * 1024
"""Larger answers are decoded in a thread. Before the login none is as large."""


class Connection:
    """An open connection to one broker or controller; made by `open`."""

    def __init__(
        self, channel: Channel, address: str, client_id: str, names: TopicNames | None = None
    ) -> None:
        self.channel = channel
        #: None: topics have the names that the peer has for them. Frames that go past `call` and `fetch` have the peer's.
        self.names = names
        #: host:port as it was asked for, the name by which people know the peer.
        self.peer = address
        self.client_id = client_id
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.finalized_features: dict[str, tuple[int, int]] = {}
        #: time.monotonic() by which the peer wants a new authentication; None for never.
        self.expires_at: float | None = None
        self._lifetime = float("inf")
        self._correlation_id = 0
        self._ranges: dict[int, tuple[int, int]] = {}

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        security: ClientSecurity,
        *,
        client_id: str,
        timeout: float,
        max_frame: int = DEFAULT_MAX_FRAME,
        alloc: Callable[[int], bytearray] | None = None,
        names: TopicNames | None = None,
    ) -> Connection:
        """Connect and authenticate within `timeout` seconds.

        ConnectionLost(sent=False) if the peer cannot be reached, HungUp if it hangs up at once, RequestTimedOut when it
        takes too long, AuthenticationFailed when TLS or SASL refuses.
        """
        address = format_address(host, port)
        channel = Channel(max_frame=max_frame, alloc=alloc)
        connection = cls(channel, address, client_id, names)
        try:
            async with asyncio.timeout(timeout):
                await connect(channel, host, port, security.ssl_context())
                await connection._handshake(security)
        except TimeoutError:
            channel.close()
            raise RequestTimedOut(f"no connection within {timeout:g} s", sent=False, peer=address) from None
        except ConnectionLost as error:
            channel.close()
            message = f"cannot connect: {error.message}"
            if isinstance(error, HungUp) or (error.sent and not channel.bytes_received):
                raise HungUp(f"{message}{_HUNG_UP}", sent=False, peer=address) from error
            raise ConnectionLost(message, sent=False, peer=address) from error
        except BaseException:
            channel.close()
            raise
        return connection

    async def _handshake(self, security: ClientSecurity) -> None:
        await self._negotiate()
        if security.sasl is None:
            return
        lifetime_ms = await sasl.authenticate(self._call_unbounded, security.sasl, peer=self.peer)
        if lifetime_ms > 0:
            self._lifetime = lifetime_ms / 1000
            self.expires_at = time.monotonic() + self._lifetime

    @property
    def renew_at(self) -> float | None:
        """time.monotonic() from which another connection should replace this one; None for never.

        The peer answers requests that came before the session's end, and closes at the first one after it (KIP-368).
        """
        if self.expires_at is None:
            return None
        return self.expires_at - min(RENEW_BEFORE, self._lifetime / 2)

    @property
    def ageing(self) -> bool:
        """Whether new requests should go to another connection, if one can be opened."""
        at = self.renew_at
        return at is not None and time.monotonic() >= at

    async def _negotiate(self) -> None:
        """ApiVersions with our newest version; a peer that lacks it answers 35 in version 0."""
        version = codec.max_version("api_versions")
        answer = await self._ask_api_versions(version)
        if int(answer.error_code) == UNSUPPORTED_VERSION and version > 0:
            known = {item.api_key: item for item in answer.api_keys}
            best = min(known[_API_VERSIONS].max_version, version) if _API_VERSIONS in known else 0
            answer = await self._ask_api_versions(best)
        self._note_api_versions(answer)

    async def _ask_api_versions(self, version: int) -> Any:
        frame = await self._exchange("api_versions", version, self._software())
        # error code first in every version: 35 means that the body is a version 0 body
        unsupported = len(frame) >= 6 and int.from_bytes(frame[4:6], "big") == UNSUPPORTED_VERSION
        return codec.decode_response("api_versions", 0 if unsupported else version, frame)

    def _note_api_versions(self, answer: Any) -> None:
        if int(answer.error_code) != 0:
            raise BrokerError(int(answer.error_code), api="api_versions", peer=self.peer)
        self._ranges = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
        self.supported_features = {
            item.name: (item.min_version, item.max_version)
            for item in getattr(answer, "supported_features", ())
        }
        self.finalized_features = {
            item.name: (item.min_version_level, item.max_version_level)
            for item in getattr(answer, "finalized_features", ())
        }

    # --- calls ----------------------------------------------------------------------------------------------

    async def api_versions(self, version: int = 4, *, timeout: float = 30.0) -> Any:
        """Ask again (finalized features change); the answer is kept too."""
        answer = await self.call("api_versions", self._software(), timeout=timeout, max_version=version)
        self._note_api_versions(answer)
        return answer

    def api_range(self, api: str) -> tuple[int, int] | None:
        """The versions the peer offers of an api; None when it has none of it."""
        return self._ranges.get(codec.api_key(api))

    def pick_version(self, api: str, *, version: int | None = None, max_version: int | None = None) -> int:
        """The highest version common to peer, codec and caller; UnsupportedApi if there is none."""
        offered = self.api_range(api)
        if offered is None:
            raise UnsupportedApi("the peer does not offer this api", api=api, version=version, peer=self.peer)
        low = max(offered[0], codec.min_version(api))
        high = min(offered[1], codec.max_version(api))
        if max_version is not None:
            high = min(high, max_version)
        if version is not None:
            low, high = max(low, version), min(high, version)
        if low > high:
            raise UnsupportedApi(
                f"no common version: the peer offers {offered[0]} to {offered[1]}",
                api=api,
                version=version if version is not None else max_version,
                peer=self.peer,
            )
        return high

    async def call(
        self,
        api: str,
        fields: Mapping[str, object],
        *,
        timeout: float,
        version: int | None = None,
        max_version: int | None = None,
    ) -> Any:
        """One request and its decoded answer; the connection is closed if it takes longer than `timeout`."""
        chosen = self.pick_version(api, version=version, max_version=max_version)
        if self.names is not None:
            return self.names.answer(
                api, await self._call(api, chosen, self.names.request(api, fields), timeout)
            )
        return await self._call(api, chosen, fields, timeout)

    async def _call(self, api: str, chosen: int, fields: Mapping[str, object], timeout: float) -> Any:
        most = DEFAULT_MAX_FRAME if api == "fetch" else MAX_ANSWER
        reply = await self._within(timeout, api, chosen, self._exchange(api, chosen, fields, most))
        if len(reply) <= _AT_ONCE:
            return codec.decode_response(api, chosen, reply)
        # This may take seconds; other connections are served meanwhile.
        return await asyncio.to_thread(codec.decode_response, api, chosen, reply)

    async def fetch(self, request: FetchRequest, *, timeout: float) -> tuple[memoryview, FetchResponse]:
        """One Fetch in `request.version`: the answer's frame, and its parsed envelope, which points into the frame."""
        version = self.pick_version("fetch", version=request.version)
        if self.names is not None:
            request = self.names.fetch_request(request)
        correlation_id = self.next_correlation_id()
        frame = encode_fetch_request(version, correlation_id, self.client_id, request)
        reply = await self._within(
            timeout, "fetch", version, self._send("fetch", version, correlation_id, frame)
        )
        response = parse_fetch_response(reply, version)
        return reply, response if self.names is None else self.names.fetch_answer(response)

    async def _within(
        self, timeout: float, api: str, version: int, reply: Awaitable[memoryview]
    ) -> memoryview:
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            late = RequestTimedOut(
                f"no answer within {timeout:g} s", sent=True, api=api, version=version, peer=self.peer
            )
            self.channel.close(late)
            raise late from None

    def next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    async def _call_unbounded(self, api: str, fields: Mapping[str, object], max_version: int) -> Any:
        """Inside `open`, whose deadline covers it."""
        version = self.pick_version(api, max_version=max_version)
        return codec.decode_response(api, version, await self._exchange(api, version, fields))

    async def _exchange(
        self, api: str, version: int, fields: Mapping[str, object], most: int = _AT_ONCE
    ) -> memoryview:
        correlation_id = self.next_correlation_id()
        body = codec.encode_request(
            api, version, fields, correlation_id=correlation_id, client_id=self.client_id
        )
        return await self._send(api, version, correlation_id, len(body).to_bytes(4, "big") + body, most)

    async def _send(
        self,
        api: str,
        version: int,
        correlation_id: int,
        frame: Buffer,
        most: int = DEFAULT_MAX_FRAME,
    ) -> memoryview:
        reply: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

        def on_reply(result: memoryview | WireError) -> None:
            # The place of a cancelled caller stays in the order: its answer is read and dropped.
            if reply.done():
                return
            if isinstance(result, WireError):
                result.api, result.version = api, version
                reply.set_exception(result)
            else:
                reply.set_result(result)

        self.channel.send(correlation_id, [frame], on_reply, most)
        return await reply

    @staticmethod
    def _software() -> dict[str, object]:
        return {"client_software_name": SOFTWARE_NAME, "client_software_version": SOFTWARE_VERSION}

    # --- life -----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.channel.closed

    @property
    def closed_event(self) -> asyncio.Event:
        return self.channel.closed_event

    def close(self) -> None:
        self.channel.close()

    def __repr__(self) -> str:
        return f"<Connection {self.peer} {'closed' if self.closed else 'open'}>"
