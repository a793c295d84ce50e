"""The admin API: HTTP and JSON over a LinkService, made from the table of operations. Paths follow Confluent's REST v3
where it has the same operation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.error_answers import ERROR_ANSWERS
from admin.limits import GuardMiddleware
from admin.metrics import CONTENT_TYPE, Metrics
from admin.models import Health
from admin.operation import ALIVE, METRICS, READY
from admin.paths import SegmentsMiddleware
from admin.routes import ROUTES

if TYPE_CHECKING:
    from admin.forward import Forwarder


class LinkService(Protocol):
    """The service behind the API. It also has an async method for each operation; a test compares the signatures."""

    def ready(self) -> str | None:
        """None while requests and brokers are served, else one line with the reason. Must not block."""


async def metrics(request: Request) -> Response:
    page: Metrics = request.app.state.metrics
    return Response(page.render(), media_type=CONTENT_TYPE)


async def healthz(_request: Request) -> Response:
    return _health(Health(status="ok"))


async def readyz(request: Request) -> Response:
    service: LinkService = request.app.state.service
    reason = service.ready()
    if reason is None:
        return _health(Health(status="ready"))
    return _health(Health(status="not ready", reason=reason), 503)


def _health(health: Health, status: int = 200) -> Response:
    return Response(health.model_dump_json(), status, media_type="application/json")


async def openapi(request: Request) -> Response:
    from admin.openapi import written  # hardly ever asked for

    return Response(written(request.app.state.version), media_type="application/json")


def _get(path: str, answer: Any) -> Route:
    route = Route(path, answer)
    route.methods = {"GET"}  # Starlette adds HEAD
    return route


def create_app(
    service: LinkService,
    metrics_page: Metrics,
    *,
    version: str,
    token: str | None = None,
    token_file: Path | None = None,
    forwarder: Forwarder | None = None,
) -> Starlette:
    """The application. `token`: the token that `Authorization: Bearer` has to carry; None: everybody on this machine may
    ask. `token_file`: the file of a token that the sidecar made itself, for an API that is bound to loopback. `forwarder`:
    passes on the requests that another sidecar has to answer."""
    probes = [_get(METRICS.path, metrics), _get(ALIVE.path, healthz), _get(READY.path, readyz)]
    app = Starlette(
        routes=[Route("/openapi.json", openapi), *ROUTES, *probes], exception_handlers=ERROR_ANSWERS
    )
    app.state.service = service
    app.state.metrics = metrics_page
    app.state.version = version
    app.add_middleware(SegmentsMiddleware)
    if forwarder is not None:
        from admin.forward import ForwardMiddleware  # imports an HTTP client

        app.add_middleware(ForwardMiddleware, forwarder=forwarder)
    app.add_middleware(
        GuardMiddleware, token=None if token is None else token.encode(), token_file=token_file
    )
    return app
