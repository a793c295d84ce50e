"""Each sidecar of a fleet answers the admin API, by passing requests on to that of the link controller.

Probes and metrics belong to one process and are answered where they arrive. A request is passed on only once: a sidecar that
gets a passed-on request, and is not the link controller either, refuses it, so that no request goes in circles.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx

from admin.base import RETRY_AFTER
from admin.operation import PREFIX
from admin.service import ControllerAway, NoLinkController
from fleet.route import Destination, NoController

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

#: Carries the broker id of the sidecar that passed the request on.
FORWARDED_BY = "x-linker-forwarded-by"
CONNECT_TIMEOUT = 3.0
ANSWER_TIMEOUT = 65.0  # longer than the time after which the other side gives up by itself
MAX_ANSWER_BYTES = 256 << 20

_PASSED_ON = ("accept", "authorization", "content-type")
_PASSED_BACK = ("content-type", "location", "retry-after")


class Forwarder:
    """Finds the sidecar that answers, and asks it. `close` it when the admin API has ended.

    `route` answers None while this sidecar is the one to answer; it raises NoController if nobody is.
    """

    def __init__(
        self,
        broker_id: int,
        route: Callable[[], Destination | None],
    ) -> None:
        self.broker_id = broker_id
        self.route = route
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
            trust_env=False,  # a proxy of the environment has no place between two sidecars
            verify=False,  # it is plain HTTP, and loading certificates would take time
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self, to: Destination, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the other side's answer; httpx.HTTPError if there is none."""
        kept = {name: headers[name] for name in _PASSED_ON if name in headers}
        kept[FORWARDED_BY] = str(self.broker_id)
        async with self._http.stream(
            method, f"http://{to.address}{path}", content=body, headers=kept
        ) as answer:
            parts = bytearray()
            async for chunk in answer.aiter_bytes():
                parts += chunk
                if len(parts) > MAX_ANSWER_BYTES:
                    raise httpx.DecodingError("the answer is too large")
            back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
            return answer.status_code, back, bytes(parts)


class ForwardMiddleware:
    """Runs inside the guard, so that a request that the guard refuses is not passed on."""

    def __init__(self, app: ASGIApp, *, forwarder: Forwarder) -> None:
        self._app = app
        self._forwarder = forwarder
        self._told: tuple[Destination, str] | None = (
            None  # as the log has it, since the controller last answered
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(f"{PREFIX}/"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        me = self._forwarder.broker_id
        try:
            to = self._forwarder.route()
        except NoController as nobody:
            await _refuse(send, NoLinkController.error_code, f"sidecar {me} cannot answer this: {nobody}")
            return
        if to is None:
            await self._app(scope, receive, send)
            return
        by = headers.get(FORWARDED_BY)
        if by is not None:
            await _refuse(
                send,
                NoLinkController.error_code,
                f"sidecar {by if by.isdigit() else '?'} took sidecar {me} for the link controller, which is sidecar "
                f"{to.broker_id} now; try again",
            )
            return
        path = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            path += "?" + scope["query_string"].decode("latin-1")
        try:
            status, back, body = await self._forwarder.ask(
                to, scope["method"], path, headers, await _body(receive)
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reading = scope["method"] in ("GET", "HEAD")
            unsure = (
                ""
                if reading or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                else "; look at the status before trying again, it may have been done"
            )
            why = str(error) or {
                "ReadTimeout": "no answer in time",
                "ConnectTimeout": "no connection in time",
            }.get(type(error).__name__, type(error).__name__)
            if (to, why) != self._told:  # logged once, however many requests fail
                self._told = to, why
                log.warning("the link controller, sidecar %d at %s: %s", to.broker_id, to.address, why)
            await _refuse(
                send,
                ControllerAway.error_code,
                f"sidecar {to.broker_id}, the link controller, does not answer sidecar {me} at {to.address}: {why}{unsure}",
            )
            return
        self._told = None
        if status == 401:
            # This sidecar has accepted the caller's token.
            await _refuse(
                send,
                ControllerAway.error_code,
                f"sidecar {to.broker_id}, the link controller, refuses the token that sidecar {me} takes: all sidecars of "
                "a fleet need the same admin.token",
            )
            return
        await _send(send, status, back, body)


async def _body(receive: Receive) -> bytes:
    parts = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(parts)
        parts += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(parts)


async def _refuse(send: Send, error_code: int, message: str) -> None:
    body = json.dumps({"error_code": error_code, "message": " ".join(message.split())}).encode()
    await _send(send, 503, {"content-type": "application/json", "retry-after": str(RETRY_AFTER)}, body)


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
