"""Clients that log in as before SaslAuthenticate: a handshake of version 0, and tokens without a header."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.router.rig import Rig
from wire.schema import codec

PLAIN = b"\0alice\0secret"


class OldClient:
    """Bytes on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0

    @classmethod
    async def connect(cls, rig: Rig) -> OldClient:
        return await cls.at("127.0.0.1", rig.listener.port)

    @classmethod
    async def at(cls, host: str, port: int) -> OldClient:
        return cls(*await asyncio.open_connection(host, port))

    async def log_in(self, api: str, fields: Mapping[str, object], _newest: int) -> Any:
        """For wire.client.sasl.authenticate: its tokens go as they are."""
        if api == "sasl_handshake":
            return await self.call(api, 0, fields)
        token = fields["auth_bytes"]
        assert isinstance(token, bytes)
        return SimpleNamespace(error_code=0, auth_bytes=await self.bare(token))

    async def bare(self, token: bytes) -> bytes:
        self._writer.write(struct.pack(">i", len(token)) + token)
        async with asyncio.timeout(25):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def call(self, api: str, version: int, fields: Mapping[str, object]) -> Any:
        self._number += 1
        frame = codec.encode_request(api, version, fields, correlation_id=self._number, client_id="kaf")
        return codec.decode_response(api, version, memoryview(await self.bare(bytes(frame))))

    def close(self) -> None:
        self._writer.close()


def rig() -> Rig:
    return Rig(protocol="SASL_PLAINTEXT", sasl_users={"alice": "secret"})


async def test_an_old_login_is_one() -> None:
    async with rig() as one:
        client = await OldClient.connect(one)
        answer = await client.call("sasl_handshake", 0, {"mechanism": "PLAIN"})
        assert int(answer.error_code) == 0
        assert await client.bare(PLAIN) == b""
        metadata = await client.call("metadata", 5, {"topics": [{"name": "orders"}]})
        assert [topic.name for topic in metadata.topics] == ["orders"]
        assert one.target.counts["sasl_authenticate"] >= 1
        client.close()


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0bob\0secret"])
async def test_a_refused_one_ends_the_connection(token: bytes) -> None:
    async with rig() as one:
        client = await OldClient.connect(one)
        await client.call("sasl_handshake", 0, {"mechanism": "PLAIN"})
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.bare(token)
        client.close()


async def test_a_short_token_is_a_token_and_a_short_request_is_none() -> None:
    async with rig() as one:
        client = await OldClient.connect(one)
        await client.call("sasl_handshake", 0, {"mechanism": "OAUTHBEARER"})
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.bare(b"\x01")  # the broker looks at it, and says no
        client.close()
        client = await OldClient.connect(one)
        await client.call("sasl_handshake", 0, {"mechanism": "PLAIN"})
        assert await client.bare(PLAIN) == b""
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.bare(b"\x01")
        client.close()


async def test_a_mechanism_whose_end_is_not_known_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async with rig() as one:
        client = await OldClient.connect(one)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.call("sasl_handshake", 0, {"mechanism": "GSSAPI"})
        assert "SaslHandshake v0 is not served for GSSAPI" in caplog.text
        client.close()
