"""SASL PLAIN and SCRAM, inside SaslHandshake v1 and SaslAuthenticate."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from wire.client.security import SaslCredentials
from wire.errors import AuthenticationFailed
from wire.frames.error_codes import UNSUPPORTED_SASL_MECHANISM

Call = Callable[[str, Mapping[str, object], int], Awaitable[Any]]

_MIN_ITERATIONS = 4096
# A hostile server could ask for hours of work.
_MAX_ITERATIONS = 2_000_000


async def authenticate(call: Call, credentials: SaslCredentials, *, peer: str) -> int:
    """Authenticate over `call(api, fields, max_version)`. Returns the session's lifetime in ms, 0 for no limit."""
    answer = await call("sasl_handshake", {"mechanism": credentials.mechanism}, 1)
    code = int(answer.error_code)
    if code == UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms)
        raise AuthenticationFailed(
            f"the peer does not offer {credentials.mechanism}, but {offered or 'nothing'}", peer=peer
        )
    if code != 0:
        raise AuthenticationFailed(f"SASL handshake refused: {answer.error_code.name.upper()}", peer=peer)
    if credentials.mechanism == "PLAIN":
        token = f"\0{credentials.username}\0{credentials.password}".encode()
        return _lifetime(await _step(call, token, peer))
    return await _scram(call, credentials, peer)


async def _step(call: Call, token: bytes, peer: str) -> Any:
    answer = await call("sasl_authenticate", {"auth_bytes": token}, 2)
    if int(answer.error_code) != 0:
        reason = answer.error_message or answer.error_code.name.upper()
        raise AuthenticationFailed(f"SASL authentication refused: {reason}", peer=peer)
    return answer


def _lifetime(answer: Any) -> int:
    lifetime = getattr(answer, "session_lifetime", None)
    return int(lifetime.total_seconds() * 1000) if lifetime is not None else 0


async def _scram(call: Call, credentials: SaslCredentials, peer: str) -> int:
    client = ScramClient(credentials)
    answer = await _step(call, client.first(), peer)
    server_first = bytes(answer.auth_bytes)
    try:
        # thousands of hash rounds would delay every other connection of this process
        final = await asyncio.to_thread(client.final, server_first)
        answer = await _step(call, final, peer)
        client.verify(bytes(answer.auth_bytes))
    except ScramError as error:
        raise AuthenticationFailed(str(error), peer=peer) from error
    return _lifetime(answer)


class ScramError(Exception):
    """The server's part of the SCRAM exchange is wrong."""


class ScramClient:
    """RFC 5802 without channel binding: first, final, verify, in that order. Pure but for the nonce."""

    def __init__(self, credentials: SaslCredentials, nonce: str | None = None) -> None:
        self._digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[credentials.mechanism]
        self._password = credentials.password.encode()
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        name = credentials.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        attributes = _attributes(server_first)
        nonce = attributes.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("SCRAM: the server's nonce does not extend ours")
        try:
            salt = base64.b64decode(attributes["s"], validate=True)
            iterations = int(attributes["i"])
        except (KeyError, ValueError, binascii.Error):
            raise ScramError("SCRAM: the server's first message lacks salt or iterations") from None
        if not _MIN_ITERATIONS <= iterations <= _MAX_ITERATIONS:
            raise ScramError(
                f"SCRAM: {iterations} iterations is outside {_MIN_ITERATIONS}..{_MAX_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._first_bare},{server_first.decode()},{without_proof}".encode()
        signature = self._hmac(stored_key, message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Only a server that knows our password can have made this."""
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise ScramError(f"SCRAM: the server refused: {attributes['e']}")
        try:
            signature = base64.b64decode(attributes.get("v", ""), validate=True)
        except (ValueError, binascii.Error):
            signature = b""
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramError("SCRAM: the server could not prove that it knows the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._digest).digest()


def _attributes(message: bytes) -> dict[str, str]:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("SCRAM: the server's message is not text") from None
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
