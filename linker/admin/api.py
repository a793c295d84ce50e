"""The admin API: HTTP and JSON over a LinkService; paths follow Confluent's REST v3 where it has the same.

No decision is taken here: requests are validated, handed to the service with a deadline, and every error
becomes `{error_code, message}`. Serving the app on a socket is server.py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.exceptions import HTTPException

from controller.fleet.shared import NotTheController
from controller.store.base import ControllerFenced, StoreError
from linker.admin.base import RETRY_AFTER, TopicName
from linker.admin.limits import GuardMiddleware
from linker.admin.models import (
    LINK_NAME_PATTERN,
    TOPIC_NAME_PATTERN,
    ChangeResult,
    ControllerDescription,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DemoteGroupsRequest,
    DoctorReport,
    ErrorBody,
    FailoverPlan,
    FailoverRequest,
    GroupDescription,
    GroupName,
    GroupSummary,
    Health,
    LagReport,
    LinkDescription,
    LinkSummary,
    MirrorDescription,
    MirrorSummary,
    Model,
    PromoteGroupsRequest,
    PromoteJob,
    PromotePlan,
    PromoteRequest,
    SidecarDescription,
    SidecarStatus,
    Status,
    UpdateLinkRequest,
)
from linker.admin.service import InvalidRequest, LinkService, NoLinkController, NotReady, ServiceError
from linker.admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    StartValidationRequest,
    ValidationRun,
)
from linker.metrics import CONTENT_TYPE, Metrics
from linker.properties import PropertyError, check_client_properties
from linker.secrets import SecretError, refuse_literal_secrets
from wire.errors import LinkerError

if TYPE_CHECKING:
    from linker.admin.forward import Forwarder

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 60.0
_RETRIED = (NotReady.error_code, NoLinkController.error_code)
BUG = "internal error; the sidecar's log has the details"

LinkPath = Annotated[str, Path(pattern=LINK_NAME_PATTERN)]
SidecarPath = Annotated[int, Path(ge=0, le=2**31 - 1)]
GroupPath = Annotated[GroupName, Path()]
JobPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
TopicPath = Annotated[str, Path(pattern=TOPIC_NAME_PATTERN)]

T = TypeVar("T")


class ChangeQuery(Model):
    """Query of a change. Unknown names are refused: a misspelt dry_run must not become the real thing."""

    dry_run: bool = False


class DeleteMirrorQuery(ChangeQuery):
    keep_data: bool = False


class DrainQuery(ChangeQuery):
    undo: bool = False


class LeaveQuery(ChangeQuery):
    dead: bool = False


class ResumeMirrorQuery(ChangeQuery):
    restart: bool = False


class LagQuery(Model):
    topic: list[TopicName] = Field(default=[])


Change = Annotated[ChangeQuery, Query()]


def _service(request: Request) -> LinkService:
    service: LinkService = request.app.state.service
    return service


Service = Annotated[LinkService, Depends(_service)]

router = APIRouter(prefix="/v1", responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}})
probes = APIRouter()


async def _within(call: Awaitable[T]) -> T:
    """Every wait has a deadline; long work is a job (promote) and answers at once."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            return await call
    except (LinkerError, TimeoutError):
        raise
    except Exception as error:
        # Left to the framework, a bug would also close the connection under the caller's next request.
        log.exception("admin request failed")
        raise ServiceError(BUG) from error


# --- links


@router.get("/links")
async def list_links(service: Service) -> list[LinkSummary]:
    return await _within(service.list_links())


@router.post("/links", status_code=201)
async def create_link(
    body: CreateLinkRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    try:
        check_client_properties(body.properties)
        refuse_literal_secrets(body.properties)
    except (PropertyError, SecretError) as error:
        raise InvalidRequest(str(error)) from error
    result = await _within(service.create_link(body, dry_run=query.dry_run))
    return _created(response, result, f"/v1/links/{body.name}")


@router.get("/links/{link}")
async def describe_link(link: LinkPath, service: Service) -> LinkDescription:
    return await _within(service.describe_link(link))


@router.patch("/links/{link}")
async def update_link(
    link: LinkPath, body: UpdateLinkRequest, query: Change, service: Service
) -> ChangeResult:
    try:
        refuse_literal_secrets({key: value for key, value in body.properties.items() if value is not None})
    except SecretError as error:
        raise InvalidRequest(str(error)) from error
    return await _within(service.update_link(link, body, dry_run=query.dry_run))


@router.delete("/links/{link}")
async def delete_link(link: LinkPath, query: Change, service: Service) -> ChangeResult:
    return await _within(service.delete_link(link, dry_run=query.dry_run))


@router.get("/links/{link}/lag")
async def lag(link: LinkPath, query: Annotated[LagQuery, Query()], service: Service) -> LagReport:
    return await _within(service.lag(link, query.topic))


@router.get("/links/{link}/doctor")
async def doctor(link: LinkPath, service: Service) -> DoctorReport:
    return await _within(service.doctor(link))


# --- mirrors


@router.get("/links/{link}/mirrors")
async def list_mirrors(link: LinkPath, service: Service) -> list[MirrorSummary]:
    return await _within(service.list_mirrors(link))


@router.post("/links/{link}/mirrors", status_code=201)
async def create_mirrors(
    link: LinkPath, body: CreateMirrorsRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    result = await _within(service.create_mirrors(link, body, dry_run=query.dry_run))
    return _created(response, result, f"/v1/links/{link}/mirrors")


@router.post("/links/{link}/mirrors:promote", status_code=202)
async def promote(
    link: LinkPath, body: PromoteRequest, query: Change, service: Service, response: Response
) -> PromoteJob | PromotePlan:
    if query.dry_run:
        response.status_code = 200
        return await _within(service.plan_promote(link, body))
    job = await _within(service.promote(link, body))
    response.headers["location"] = f"/v1/promotes/{job.id}"
    return job


@router.post("/links/{link}/mirrors:failover", status_code=202)
async def failover(
    link: LinkPath, body: FailoverRequest, query: Change, service: Service, response: Response
) -> PromoteJob | FailoverPlan:
    if query.dry_run:
        response.status_code = 200
        return await _within(service.plan_failover(link, body))
    job = await _within(service.failover(link, body))
    response.headers["location"] = f"/v1/promotes/{job.id}"
    return job


@router.get("/links/{link}/mirrors/{topic}")
async def describe_mirror(link: LinkPath, topic: TopicPath, service: Service) -> MirrorDescription:
    return await _within(service.describe_mirror(link, topic))


@router.delete("/links/{link}/mirrors/{topic}")
async def delete_mirror(
    link: LinkPath, topic: TopicPath, query: Annotated[DeleteMirrorQuery, Query()], service: Service
) -> ChangeResult:
    call = service.delete_mirror(link, topic, keep_data=query.keep_data, dry_run=query.dry_run)
    return await _within(call)


@router.post("/links/{link}/mirrors/{topic}:pause")
async def pause_mirror(link: LinkPath, topic: TopicPath, query: Change, service: Service) -> ChangeResult:
    return await _within(service.pause_mirror(link, topic, dry_run=query.dry_run))


@router.post("/links/{link}/mirrors/{topic}:resume")
async def resume_mirror(
    link: LinkPath, topic: TopicPath, query: Annotated[ResumeMirrorQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(service.resume_mirror(link, topic, restart=query.restart, dry_run=query.dry_run))


# --- groups


@router.get("/links/{link}/groups")
async def list_groups(link: LinkPath, service: Service) -> list[GroupSummary]:
    return await _within(service.list_groups(link))


@router.post("/links/{link}/groups:promote", status_code=202)
async def promote_groups(
    link: LinkPath, body: PromoteGroupsRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    if query.dry_run:
        response.status_code = 200
    return await _within(service.promote_groups(link, body, dry_run=query.dry_run))


@router.post("/links/{link}/groups:demote", status_code=202)
async def demote_groups(
    link: LinkPath, body: DemoteGroupsRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    if query.dry_run:
        response.status_code = 200
    return await _within(service.demote_groups(link, body, dry_run=query.dry_run))


# Group ids may hold any character, slashes too.
@router.get("/links/{link}/groups/{group:path}")
async def describe_group(link: LinkPath, group: GroupPath, service: Service) -> GroupDescription:
    return await _within(service.describe_group(link, group))


# --- validation


@router.get("/links/{link}/validation")
async def validation(link: LinkPath, service: Service) -> LinkValidationDescription:
    return await _within(service.validation(link))


@router.patch("/links/{link}/validation")
async def continue_validation(
    link: LinkPath, body: ContinuousValidationRequest, query: Change, service: Service
) -> ChangeResult:
    return await _within(service.continue_validation(link, body, dry_run=query.dry_run))


@router.post("/links/{link}/validation:run", status_code=202)
async def start_validation(
    link: LinkPath, body: StartValidationRequest, service: Service, response: Response
) -> ValidationRun:
    run = await _within(service.start_validation(link, body))
    response.headers["location"] = f"/v1/validations/{run.id}"
    return run


@router.get("/validations/{run}")
async def describe_validation(run: JobPath, service: Service) -> ValidationRun:
    return await _within(service.describe_validation(run))


@router.post("/validations/{run}:cancel")
async def cancel_validation(run: JobPath, service: Service) -> ValidationRun:
    return await _within(service.cancel_validation(run))


# --- promotes, sidecars, status


@router.get("/links/{link}/promotes")
async def list_promotes(link: LinkPath, service: Service) -> list[PromoteJob]:
    return await _within(service.list_promotes(link))


@router.get("/promotes/{promote_id}")
async def describe_promote(promote_id: JobPath, service: Service) -> PromoteJob:
    return await _within(service.describe_promote(promote_id))


@router.get("/sidecars")
async def list_sidecars(service: Service) -> list[SidecarStatus]:
    return await _within(service.list_sidecars())


@router.get("/sidecars/{sidecar_id}")
async def describe_sidecar(sidecar_id: SidecarPath, service: Service) -> SidecarDescription:
    return await _within(service.describe_sidecar(sidecar_id))


@router.post("/sidecars/{sidecar_id}:drain")
async def drain_sidecar(
    sidecar_id: SidecarPath, query: Annotated[DrainQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(service.drain_sidecar(sidecar_id, undo=query.undo, dry_run=query.dry_run))


@router.post("/sidecars/{sidecar_id}:leave")
async def leave_sidecar(
    sidecar_id: SidecarPath, query: Annotated[LeaveQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(service.leave_sidecar(sidecar_id, dead=query.dead, dry_run=query.dry_run))


@router.get("/controller")
async def describe_controller(service: Service) -> ControllerDescription:
    return await _within(service.describe_controller())


@router.get("/status")
async def status(service: Service) -> Status:
    return await _within(service.status())


@probes.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    page: Metrics = request.app.state.metrics
    return Response(page.render(), media_type=CONTENT_TYPE)


@probes.get("/healthz")
async def healthz() -> Health:
    return Health(status="ok")


@probes.get("/readyz")
async def readyz(service: Service, response: Response) -> Health:
    reason = service.ready()
    if reason is None:
        return Health(status="ready")
    response.status_code = 503
    return Health(status="not ready", reason=reason)


def _created(response: Response, result: ChangeResult, location: str) -> ChangeResult:
    if result.dry_run:
        response.status_code = 200
    else:
        response.headers["location"] = location
    return result


# --- errors


def _error(status_code: int, error_code: int, message: str) -> JSONResponse:
    headers = {"retry-after": str(RETRY_AFTER)} if error_code in _RETRIED else None
    return JSONResponse(
        {"error_code": error_code, "message": " ".join(message.split())}, status_code, headers=headers
    )


async def _on_service_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    return _error(error.status, error.error_code, str(error))


async def _on_linker_error(_request: Request, error: Exception) -> Response:
    """A cluster did not do what the request needs: the request was fine, what stands behind us was not."""
    log.warning("admin request failed: %s", error)
    return _error(502, 50201, str(error))


async def _on_no_controller(_request: Request, error: Exception) -> Response:
    """The change was not taken, and may be by whoever is the link controller in a moment."""
    log.warning("admin request failed: %s", error)
    kind = NoLinkController
    text = str(error)
    if isinstance(error, ControllerFenced):
        text = f"another sidecar has become the link controller ({error}); try again"
    elif isinstance(error, StoreError):
        text = f"the state store did not take it, look at the status before trying again: {error}"
    return _error(kind.status, kind.error_code, text)


async def _on_timeout(request: Request, _error_: Exception) -> Response:
    log.warning("admin request %s %s took too long", request.method, request.url.path)
    return _error(
        504, 50401, f"no answer within {REQUEST_TIMEOUT:.0f} s; look at the status before trying again"
    )


async def _on_invalid(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    kind = first["type"]
    where = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return _error(400, 40001, f"the body is not JSON: {first.get('ctx', {}).get('error', message)}")
    if kind == "extra_forbidden":
        return _error(400, 40001, f"unknown field {where}")
    return _error(400, 40001, f"{where}: {message}" if where else message)


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


def operation_id(route: APIRoute) -> str:
    """The function's name: what generated clients call it."""
    return route.name


def create_app(
    service: LinkService,
    metrics_page: Metrics,
    *,
    version: str,
    token: str | None = None,
    forwarder: Forwarder | None = None,
) -> FastAPI:
    """The application; `token` is what `Authorization: Bearer` has to carry, None for a loopback listener. With a
    forwarder, requests that another sidecar has to answer go there."""
    app = FastAPI(
        title="Kafka Linker admin API",
        version=version,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    app.state.service = service
    app.state.metrics = metrics_page
    app.include_router(router)
    app.include_router(probes)
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(LinkerError, _on_linker_error)
    app.add_exception_handler(TimeoutError, _on_timeout)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
    app.add_exception_handler(NotTheController, _on_no_controller)
    app.add_exception_handler(StoreError, _on_no_controller)
    if forwarder is not None:
        from linker.admin.forward import ForwardMiddleware  # with it comes an HTTP client

        app.add_middleware(ForwardMiddleware, forwarder=forwarder)
    app.add_middleware(GuardMiddleware, token=None if token is None else token.encode())
    return app
