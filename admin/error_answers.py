"""The answer to a failed request of the admin API: `{error_code, message}`, one line that says what to do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from admin.base import RETRY_AFTER
from admin.service import NoLinkController, NotReady, ServiceError
from fleet.shared_controller import NotTheController
from fleet.stores.base import ControllerFenced, StoreError
from wire.errors import LinkerError

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 60.0
BUG = "internal error; the sidecar's log has the details"
_RETRIED = (NotReady.error_code, NoLinkController.error_code)


def _error(status_code: int, error_code: int, message: str) -> JSONResponse:
    headers = {"retry-after": str(RETRY_AFTER)} if error_code in _RETRIED else None
    # JSON may name half of a character (a lone surrogate), which cannot be encoded in an answer.
    text = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse(
        {"error_code": error_code, "message": " ".join(text.split())}, status_code, headers=headers
    )


async def _on_service_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    return _error(error.status, error.error_code, str(error))


async def _on_linker_error(_request: Request, error: Exception) -> Response:
    """The request was valid, but a cluster behind the sidecar did not do its part."""
    log.warning("admin request failed: %s", error)
    return _error(502, 50201, str(error))


async def _on_no_controller(_request: Request, error: Exception) -> Response:
    """The change was not made. A retry may succeed once there is a link controller."""
    log.warning("admin request failed: %s", error)
    kind = NoLinkController
    text = str(error)
    if isinstance(error, ControllerFenced):
        text = f"another sidecar has become the link controller ({error}); try again"
    elif isinstance(error, StoreError):
        text = f"the state store did not take the change; look at the status before trying again: {error}"
    return _error(kind.status, kind.error_code, text)


async def _on_timeout(request: Request, _error_: Exception) -> Response:
    log.warning("admin request %s %s took too long", request.method, request.url.path)
    return _error(
        504, 50401, f"no answer within {REQUEST_TIMEOUT:.0f} s; look at the status before trying again"
    )


async def _on_http(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    text = {404: "no such path", 405: "this path does not take that method"}.get(
        error.status_code, error.detail
    )
    return _error(error.status_code, error.status_code * 100, str(text))


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("admin request %s %s failed", request.method, request.url.path, exc_info=error)
    return _error(500, 50001, BUG)


#: The answer to each kind of error that leaves a handler.
ERROR_ANSWERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    ServiceError: _on_service_error,
    LinkerError: _on_linker_error,
    TimeoutError: _on_timeout,
    HTTPException: _on_http,
    Exception: _on_bug,
    NotTheController: _on_no_controller,
    StoreError: _on_no_controller,
}
