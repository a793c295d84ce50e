"""The admin API: HTTP and JSON over a LinkService. Paths follow Confluent's REST v3 where it has the same operation.

The routes validate requests and call the service with a deadline. They decide nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.routing import APIRoute

from admin.error_answers import BUG, REQUEST_TIMEOUT, answer_errors
from admin.limits import GuardMiddleware
from admin.metrics import CONTENT_TYPE, Metrics
from admin.models import (
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
    GroupSummary,
    Health,
    LagReport,
    LinkDescription,
    LinkSummary,
    MirrorDescription,
    MirrorSummary,
    PromoteGroupsRequest,
    PromoteJobStatus,
    PromotePlan,
    PromoteRequest,
    SidecarDescription,
    SidecarStatus,
    Status,
    UpdateLinkRequest,
)
from admin.parameters import (
    Change,
    DeleteLinkQuery,
    DeleteMirrorQuery,
    DrainQuery,
    GroupPath,
    JobPath,
    LagQuery,
    LeaveQuery,
    LinkPath,
    RepairMirrorQuery,
    ResumeMirrorQuery,
    SidecarPath,
    TopicPath,
)
from admin.paths import SegmentsMiddleware
from admin.service import InvalidRequest, LinkService, ServiceError
from admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    StartValidationRequest,
    ValidationRun,
)
from wire.client.properties import PropertyError, check_client_properties
from wire.client.secrets import SecretError, refuse_literal_secrets
from wire.errors import LinkerError

if TYPE_CHECKING:
    from admin.forward import Forwarder

log = logging.getLogger(__name__)

T = TypeVar("T")


async def _service(request: Request) -> LinkService:
    # Not a coroutine, it would be run by a thread, for each request.
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


@router.get("/links/{link:text}")
async def describe_link(link: LinkPath, service: Service) -> LinkDescription:
    return await _within(service.describe_link(link))


@router.patch("/links/{link:text}")
async def update_link(
    link: LinkPath, body: UpdateLinkRequest, query: Change, service: Service
) -> ChangeResult:
    try:
        refuse_literal_secrets({key: value for key, value in body.properties.items() if value is not None})
    except SecretError as error:
        raise InvalidRequest(str(error)) from error
    return await _within(service.update_link(link, body, dry_run=query.dry_run))


@router.delete("/links/{link:text}")
async def delete_link(
    link: LinkPath, query: Annotated[DeleteLinkQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(service.delete_link(link, force=query.force, dry_run=query.dry_run))


@router.get("/links/{link:text}/lag")
async def lag(link: LinkPath, query: Annotated[LagQuery, Query()], service: Service) -> LagReport:
    return await _within(service.lag(link, query.topic))


@router.get("/links/{link:text}/doctor")
async def doctor(link: LinkPath, service: Service) -> DoctorReport:
    return await _within(service.doctor(link))


# --- mirrors


@router.get("/links/{link:text}/mirrors")
async def list_mirrors(link: LinkPath, service: Service) -> list[MirrorSummary]:
    return await _within(service.list_mirrors(link))


@router.post("/links/{link:text}/mirrors", status_code=201)
async def create_mirrors(
    link: LinkPath, body: CreateMirrorsRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    result = await _within(service.create_mirrors(link, body, dry_run=query.dry_run))
    return _created(response, result, f"/v1/links/{link}/mirrors")


@router.post("/links/{link:text}/mirrors:promote", status_code=202)
async def promote(
    link: LinkPath, body: PromoteRequest, query: Change, service: Service, response: Response
) -> PromoteJobStatus | PromotePlan:
    if query.dry_run:
        response.status_code = 200
        return await _within(service.plan_promote(link, body))
    job = await _within(service.promote(link, body))
    response.headers["location"] = f"/v1/promotes/{job.id}"
    return job


@router.post("/links/{link:text}/mirrors:failover", status_code=202)
async def failover(
    link: LinkPath, body: FailoverRequest, query: Change, service: Service, response: Response
) -> PromoteJobStatus | FailoverPlan:
    if query.dry_run:
        response.status_code = 200
        return await _within(service.plan_failover(link, body))
    job = await _within(service.failover(link, body))
    response.headers["location"] = f"/v1/promotes/{job.id}"
    return job


@router.get("/links/{link:text}/mirrors/{topic:text}")
async def describe_mirror(link: LinkPath, topic: TopicPath, service: Service) -> MirrorDescription:
    return await _within(service.describe_mirror(link, topic))


@router.delete("/links/{link:text}/mirrors/{topic:text}")
async def delete_mirror(
    link: LinkPath, topic: TopicPath, query: Annotated[DeleteMirrorQuery, Query()], service: Service
) -> ChangeResult:
    call = service.delete_mirror(
        link, topic, keep_data=query.keep_data, force=query.force, dry_run=query.dry_run
    )
    return await _within(call)


@router.post("/links/{link:text}/mirrors/{topic:text}:pause")
async def pause_mirror(link: LinkPath, topic: TopicPath, query: Change, service: Service) -> ChangeResult:
    return await _within(service.pause_mirror(link, topic, dry_run=query.dry_run))


@router.post("/links/{link:text}/mirrors/{topic:text}:resume")
async def resume_mirror(
    link: LinkPath, topic: TopicPath, query: Annotated[ResumeMirrorQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(service.resume_mirror(link, topic, restart=query.restart, dry_run=query.dry_run))


@router.post("/links/{link:text}/mirrors/{topic:text}:repair")
async def repair_mirror(
    link: LinkPath, topic: TopicPath, query: Annotated[RepairMirrorQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(
        service.repair_mirror(
            link, topic, drop_target_records=query.drop_target_records, dry_run=query.dry_run
        )
    )


# --- groups


@router.get("/links/{link:text}/groups")
async def list_groups(link: LinkPath, service: Service) -> list[GroupSummary]:
    return await _within(service.list_groups(link))


@router.post("/links/{link:text}/groups:promote", status_code=202)
async def promote_groups(
    link: LinkPath, body: PromoteGroupsRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    if query.dry_run:
        response.status_code = 200
    return await _within(service.promote_groups(link, body, dry_run=query.dry_run))


@router.post("/links/{link:text}/groups:demote", status_code=202)
async def demote_groups(
    link: LinkPath, body: DemoteGroupsRequest, query: Change, service: Service, response: Response
) -> ChangeResult:
    if query.dry_run:
        response.status_code = 200
    return await _within(service.demote_groups(link, body, dry_run=query.dry_run))


# A group id may hold any character. A slash in it need not be percent-encoded.
@router.get("/links/{link:text}/groups/{group:rest}")
async def describe_group(link: LinkPath, group: GroupPath, service: Service) -> GroupDescription:
    return await _within(service.describe_group(link, group))


# --- validation


@router.get("/links/{link:text}/validation")
async def validation(link: LinkPath, service: Service) -> LinkValidationDescription:
    return await _within(service.validation(link))


@router.patch("/links/{link:text}/validation")
async def continue_validation(
    link: LinkPath, body: ContinuousValidationRequest, query: Change, service: Service
) -> ChangeResult:
    return await _within(service.continue_validation(link, body, dry_run=query.dry_run))


@router.post("/links/{link:text}/validation:run", status_code=202)
async def start_validation(
    link: LinkPath, body: StartValidationRequest, service: Service, response: Response
) -> ValidationRun:
    run = await _within(service.start_validation(link, body))
    response.headers["location"] = f"/v1/validations/{run.id}"
    return run


@router.get("/validations/{run:text}")
async def describe_validation(run: JobPath, service: Service) -> ValidationRun:
    return await _within(service.describe_validation(run))


@router.post("/validations/{run:text}:cancel")
async def cancel_validation(run: JobPath, service: Service) -> ValidationRun:
    return await _within(service.cancel_validation(run))


# --- promotes, sidecars, status


@router.get("/links/{link:text}/promotes")
async def list_promotes(link: LinkPath, service: Service) -> list[PromoteJobStatus]:
    return await _within(service.list_promotes(link))


@router.get("/promotes/{promote_id:text}")
async def describe_promote(promote_id: JobPath, service: Service) -> PromoteJobStatus:
    return await _within(service.describe_promote(promote_id))


@router.get("/sidecars")
async def list_sidecars(service: Service) -> list[SidecarStatus]:
    return await _within(service.list_sidecars())


@router.get("/sidecars/{sidecar_id:text}")
async def describe_sidecar(sidecar_id: SidecarPath, service: Service) -> SidecarDescription:
    return await _within(service.describe_sidecar(sidecar_id))


@router.post("/sidecars/{sidecar_id:text}:drain")
async def drain_sidecar(
    sidecar_id: SidecarPath, query: Annotated[DrainQuery, Query()], service: Service
) -> ChangeResult:
    return await _within(service.drain_sidecar(sidecar_id, undo=query.undo, dry_run=query.dry_run))


@router.post("/sidecars/{sidecar_id:text}:leave")
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


def operation_id(route: APIRoute) -> str:
    """The function's name: what generated clients call it."""
    return route.name


def create_app(
    service: LinkService,
    metrics_page: Metrics,
    *,
    version: str,
    token: str | None = None,
    token_file: Path | None = None,
    forwarder: Forwarder | None = None,
) -> FastAPI:
    """The application; `token` is what `Authorization: Bearer` has to carry, None where everybody on this machine may ask;
    `token_file`: the sidecar made it itself, is bound to loopback, and keeps it there. With a forwarder, requests that
    another sidecar has to answer go there."""
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
    answer_errors(app)
    app.add_middleware(SegmentsMiddleware)
    if forwarder is not None:
        from admin.forward import ForwardMiddleware  # with it comes an HTTP client

        app.add_middleware(ForwardMiddleware, forwarder=forwarder)
    app.add_middleware(
        GuardMiddleware, token=None if token is None else token.encode(), token_file=token_file
    )
    return app
