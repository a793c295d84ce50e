"""SaslHandshake and SaslAuthenticate: the server side of PLAIN, SCRAM, OAUTHBEARER, and of any other mechanism that a test
names: that one takes b"first", then b"last".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request

UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
SASL_AUTHENTICATION_FAILED = 58

_ITERATIONS = 4096


async def handshake(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    mechanism = request.entity.mechanism
    known = mechanism in broker.cluster.sasl_mechanisms
    request.client.mechanism = mechanism if known else None
    error = request.forced_error or (0 if known else UNSUPPORTED_SASL_MECHANISM)
    return {"error_code": error, "mechanisms": broker.cluster.sasl_mechanisms}


async def authenticate(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    client = request.client
    if request.forced_error:
        return _refuse(request.forced_error, "forced")
    if client.mechanism is None:
        return _refuse(ILLEGAL_SASL_STATE, "no handshake")
    token = bytes(request.entity.auth_bytes)
    users = broker.cluster.sasl_users or {}
    if client.mechanism == "PLAIN":
        _, name, password = token.decode().split("\0")
        if users.get(name) != password:
            return _refuse(SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password")
        client.authenticated = name
        return _accept(broker, b"")
    if client.mechanism == "OAUTHBEARER":
        return _oauthbearer(broker, client, users, token)
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}.get(client.mechanism)
    if digest is None:
        return _unheard_of(broker, client, token)
    if "first" not in client.local:
        return _scram_first(broker, client, users, token)
    return _scram_final(broker, client, digest, token)


def _oauthbearer(
    broker: FakeBroker, client: Any, users: Mapping[str, str], token: bytes
) -> Mapping[str, object]:
    """As Kafka's OAuthBearerSaslServer: the token is a user's password here."""
    if token == b"\x01":
        return _refuse(SASL_AUTHENTICATION_FAILED, "invalid_token")
    for name, password in users.items():
        if token == f"n,,auth=Bearer {password}".encode():
            client.authenticated = name
            return _accept(broker, b"")
    return _accept(broker, b'{"status":"invalid_token"}')


def _unheard_of(broker: FakeBroker, client: Any, token: bytes) -> Mapping[str, object]:
    if token == b"first" and not client.local.get("second"):
        client.local["second"] = True
        return _accept(broker, b"")
    if token == b"last" and client.local.get("second"):
        client.authenticated = "somebody"
        return _accept(broker, b"welcome")
    return _refuse(SASL_AUTHENTICATION_FAILED, "Authentication failed")


def _scram_first(
    broker: FakeBroker, client: Any, users: Mapping[str, str], token: bytes
) -> Mapping[str, object]:
    bare = token.decode().removeprefix("n,,")
    fields = dict(part.split("=", 1) for part in bare.split(","))
    name = fields["n"].replace("=2C", ",").replace("=3D", "=")
    if name not in users:
        return _refuse(SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid user credentials")
    salt = secrets.token_bytes(16)
    nonce = fields["r"] + secrets.token_urlsafe(8)
    first = f"r={nonce},s={base64.b64encode(salt).decode()},i={_ITERATIONS}"
    client.local.update(first=first, bare=bare, salt=salt, name=name, password=users[name])
    return _accept(broker, first.encode())


def _scram_final(broker: FakeBroker, client: Any, digest: str, token: bytes) -> Mapping[str, object]:
    local = client.local
    text = token.decode()
    without_proof, _, proof = text.rpartition(",p=")
    message = f"{local['bare']},{local.pop('first')},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(digest, local["password"].encode(), local["salt"], _ITERATIONS)
    client_key = hmac.new(salted, b"Client Key", digest).digest()
    stored = hashlib.new(digest, client_key).digest()
    signature = hmac.new(stored, message, digest).digest()
    if bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) != client_key:
        return _refuse(SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid user credentials")
    client.authenticated = local["name"]
    server_key = hmac.new(salted, b"Server Key", digest).digest()
    return _accept(broker, b"v=" + base64.b64encode(hmac.new(server_key, message, digest).digest()))


def _accept(broker: FakeBroker, token: bytes) -> Mapping[str, object]:
    return {
        "error_code": 0,
        "error_message": None,
        "auth_bytes": token,
        "session_lifetime_ms": broker.cluster.session_lifetime_ms,
    }


def _refuse(code: int, message: str) -> Mapping[str, object]:
    return {"error_code": code, "error_message": message, "auth_bytes": b""}
