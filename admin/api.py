"""The admin API: HTTP and JSON over a LinkService, made from the table of operations. Paths follow Confluent's REST v3
where it has the same operation.

The routes validate requests and call the service with a deadline. They decide nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import create_model

from admin.error_answers import BUG, REQUEST_TIMEOUT, answer_errors
from admin.limits import GuardMiddleware
from admin.metrics import CONTENT_TYPE, Metrics
from admin.models import CreateLinkRequest, ErrorBody, Health, Model, UpdateLinkRequest
from admin.operation import ALIVE, METRICS, PREFIX, READY, AdminOperation
from admin.operations import all_operations
from admin.paths import SegmentsMiddleware
from admin.service import InvalidRequest, ServiceError
from wire.client.properties import PropertyError, check_client_properties
from wire.client.secrets import SecretError, refuse_literal_secrets
from wire.errors import LinkerError

if TYPE_CHECKING:
    from admin.forward import Forwarder

log = logging.getLogger(__name__)

T = TypeVar("T")


class LinkService(Protocol):
    """The service behind the API. It also has an async method for each operation; a test compares the signatures."""

    def ready(self) -> str | None:
        """None while requests and brokers are served, else one line with the reason. Must not block."""


router = APIRouter(prefix=PREFIX, responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}})
probes = APIRouter()


async def _within(call: Awaitable[T]) -> T:
    """Every wait has a deadline; long work is a job (promote) and answers at once."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            return await call
    except (LinkerError, TimeoutError):
        raise
    except Exception as error:
        # Caught here: the framework would also close the connection, under the caller's next request.
        log.exception("admin request failed")
        raise ServiceError(BUG) from error


def _check_new_properties(request: CreateLinkRequest) -> None:
    check_client_properties(request.properties)
    refuse_literal_secrets(request.properties)


def _check_changed_properties(request: UpdateLinkRequest) -> None:
    refuse_literal_secrets({key: value for key, value in request.properties.items() if value is not None})


#: Checks of a body that need the wire package, which models do not import. They keep secrets in clear from the service.
_BODY_CHECKS: dict[Any, Callable[[Any], None]] = {
    CreateLinkRequest: _check_new_properties,
    UpdateLinkRequest: _check_changed_properties,
}

_PLANS = {one.path: one for one in all_operations() if one.planning}


def endpoint_of(operation: AdminOperation[..., Any]) -> Callable[..., Awaitable[Any]]:
    """The function behind a route. FastAPI reads its signature, which is made from the row."""
    plan = _PLANS.get(operation.path)
    check = _BODY_CHECKS.get(operation.body, lambda _body: None)

    async def endpoint(http: Request, response: Response, query: Any = None, **given: Any) -> Any:
        asked = {} if query is None else dict(query)
        dry_run = asked.get("dry_run", False)
        called = operation
        if plan is not None:
            del asked["dry_run"]
            called = plan if dry_run else operation
        try:
            check(given.get("request"))
        except (PropertyError, SecretError) as error:
            raise InvalidRequest(str(error)) from error
        answer = await _within(getattr(http.app.state.service, called.name)(**given, **asked))
        if dry_run:
            response.status_code = 200
        elif operation.location is not None:
            response.headers["location"] = PREFIX + operation.location.format(answer=answer, **given)
        return answer

    listed: list[tuple[str, Any]] = [("http", Request), ("response", Response)]
    listed += [
        (name, Annotated[operation.signature.parameters[name].annotation, Path()])
        for name in operation.in_path
    ]
    if operation.body is not None:
        listed.append(("request", operation.body))
    if (model := _query_model(operation)) is not None:
        listed.append(("query", Annotated[model, Query()]))
    endpoint.__name__ = operation.name
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in listed]
    )
    return endpoint


def _query_model(operation: AdminOperation[..., Any]) -> type[Model] | None:
    """Refuses unknown names: a misspelt dry_run must not become the real thing."""
    fields: dict[str, Any] = {one.name: (one.annotation, one.default) for one in operation.in_query}
    if operation.path in _PLANS:
        fields["dry_run"] = (bool, False)
    return create_model(f"{operation.name}_query", __base__=Model, **fields) if fields else None


def _operation_id(route: APIRoute) -> str:
    """The function's name, which generated clients use for the operation."""
    return route.name


def _add_route(operation: AdminOperation[..., Any]) -> None:
    plan = _PLANS.get(operation.path)
    answer = operation.answer if plan is None else operation.answer | plan.answer
    router.add_api_route(
        operation.route_path,
        endpoint_of(operation),
        methods=[operation.method],
        status_code=operation.status,
        response_model=answer,
    )


for _operation in all_operations():
    if not _operation.planning:
        _add_route(_operation)


@probes.get(METRICS.path, response_class=Response)
async def metrics(request: Request) -> Response:
    page: Metrics = request.app.state.metrics
    return Response(page.render(), media_type=CONTENT_TYPE)


@probes.get(ALIVE.path)
async def healthz() -> Health:
    return Health(status="ok")


@probes.get(READY.path)
async def readyz(request: Request, response: Response) -> Health:
    service: LinkService = request.app.state.service
    reason = service.ready()
    if reason is None:
        return Health(status="ready")
    response.status_code = 503
    return Health(status="not ready", reason=reason)


def create_app(
    service: LinkService,
    metrics_page: Metrics,
    *,
    version: str,
    token: str | None = None,
    token_file: FilePath | None = None,
    forwarder: Forwarder | None = None,
) -> FastAPI:
    """The application. `token`: the token that `Authorization: Bearer` has to carry; None: everybody on this machine may
    ask. `token_file`: the file of a token that the sidecar made itself, for an API that is bound to loopback. `forwarder`:
    passes on the requests that another sidecar has to answer."""
    app = FastAPI(
        title="Kafka Linker admin API",
        version=version,
        docs_url=None,  # the pages load scripts from other sites
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.state.metrics = metrics_page
    app.include_router(router)
    app.include_router(probes)
    answer_errors(app)
    app.add_middleware(SegmentsMiddleware)
    if forwarder is not None:
        from admin.forward import ForwardMiddleware  # imports an HTTP client

        app.add_middleware(ForwardMiddleware, forwarder=forwarder)
    app.add_middleware(
        GuardMiddleware, token=None if token is None else token.encode(), token_file=token_file
    )
    return app
