"""Checks before a request reaches a route: token, origin, and the body's size, speed and type.

The checks are plain ASGI, so that an oversized or slow body never reaches the framework.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from pathlib import Path
from typing import TYPE_CHECKING

from admin.base import RETRY_AFTER
from admin.operation import PROBES, Right
from admin.own_token import HEADER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 20
_GONE_WITHIN = 1.0
BODY_TIMEOUT = 10.0
LOCAL_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
#: Values of Sec-Fetch-Site, which only browsers send, for a page of another site, or of another port of this machine.
OTHER_SITES = frozenset({b"cross-site", b"same-site"})


class GuardMiddleware:
    """Checks the token, or without one whether a web page asks; then the body's size, speed and type."""

    def __init__(self, app: ASGIApp, *, token: bytes | None, token_file: Path | None = None) -> None:
        """`token_file`: the file of a token that the sidecar made itself, for an API that is bound to loopback."""
        self._app = app
        self._token = token
        self._token_file = token_file
        self._local = token is None or token_file is not None
        # Orchestrators probe without a token. A scraper needs one only if it is configured: it cannot read the file of a
        # token that the sidecar made.
        open_to = {Right.NONE} if token_file is None else {Right.NONE, Right.CONFIGURED_TOKEN}
        self._open = {probe.path for probe in PROBES if probe.right in open_to}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not scope.get("raw_path", b"/").startswith(b"/"):
            # Such as `%2Fv1%2F@host/`: a request that is passed on is appended to the address of another sidecar.
            await answer(send, 400, "the request's target has to begin with /", unread=_has_body(headers))
            return
        refusal = self._refuse(scope["method"], scope["path"], headers)
        if refusal is not None and _has_body(headers) and await _gone(receive):
            return  # the body was not valid HTTP, and the server has closed the connection
        if refusal is not None:
            hint = str(self._token_file) if refusal[0] == 401 and self._token_file is not None else None
            await answer(send, *refusal, token_file=hint, unread=_has_body(headers))
            return
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                body = await _read_body(receive)
        except TimeoutError:
            await answer(send, 408, f"the body did not arrive within {BODY_TIMEOUT:.0f} s")
            return
        if body is None:
            await answer(send, 413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return
        if body and not _is_json(headers.get(b"content-type", b"")):
            # This also keeps out web pages: a browser asks for permission before it sends JSON to another origin.
            await answer(send, 415, "the body has to be JSON: send it with content-type: application/json")
            return
        if _names_half_a_character(body):
            await answer(
                send,
                400,
                "the body names half of a character (a lone surrogate, \\ud800 to \\udfff)",
                code=40001,
            )
            return
        await self._app(scope, _replay(body, receive), send)

    def _refuse(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
            return 413, f"the body is larger than {MAX_BODY_BYTES} bytes"
        if self._local:
            # Bound to loopback: a page in a browser on this machine can reach us by a name of its own choice
            # (DNS rebinding), but then the Host header is that name.
            if not _is_local(headers.get(b"host", b"")):
                return 421, "the Host header names another machine than this one"
            # A page of any site can send requests without a body to our own name, without the browser asking first.
            if _from_a_page(method, headers):
                return 403, "requests of web pages are refused; use the linker command, or set admin.token"
        if self._token is None or path in self._open:
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token):
            return None
        where = (
            "" if self._token_file is None else f", which is in {self._token_file}, for the user it runs as"
        )
        return 401, f"the admin API asks for its token (Authorization: Bearer ...){where}"


def _from_a_page(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a browser sends this for a page of another site, or of another port of this machine. A browser that sends
    neither Sec-Fetch-Site nor Origin may only read."""
    if headers.get(b"sec-fetch-site", b"").lower() in OTHER_SITES:
        return True
    origin = headers.get(b"origin")
    if origin is not None:
        return origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()
    return method not in ("GET", "HEAD") and (
        b"referer" in headers or headers.get(b"user-agent", b"").startswith(b"Mozilla/")
    )


def _is_local(host: bytes) -> bool:
    """Whether a Host header, with or without a port, names this machine."""
    host = host.lower()
    return host in LOCAL_HOSTS or host.rpartition(b":")[0] in LOCAL_HOSTS


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def _names_half_a_character(body: bytes) -> bool:
    """Whether JSON has an escape for a lone surrogate, which can neither be stored nor be sent in an answer."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return False
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False  # not JSON: its reader says so
    return False


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too large."""
    parts = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(parts)
        parts += message.get("body", b"")
        if len(parts) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message


async def _gone(receive: Receive) -> bool:
    """Whether a peer that is to be refused has gone, or was refused already for an invalid body. Waits for that for up to a
    second."""
    try:
        async with asyncio.timeout(_GONE_WITHIN):
            return bool((await receive())["type"] == "http.disconnect")
    except TimeoutError:
        return False


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def answer(
    send: Send,
    status: int,
    message: str,
    *,
    code: int | None = None,
    token_file: str | None = None,
    unread: bool = False,
) -> None:
    """`unread`: nobody has read the request's body, so its rest must neither be waited for nor be read as a request."""
    body = json.dumps({"error_code": code or status * 100, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if token_file is not None and token_file.isprintable() and token_file.isascii():
        headers.append((HEADER.encode(), token_file.encode()))
    if status == 503:
        headers.append((b"retry-after", str(RETRY_AFTER).encode()))
    if unread or status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
