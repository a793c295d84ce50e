"""The routes of the admin API, one for each operation: its row in the table says how a request is read and answered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar, get_origin

from pydantic import TypeAdapter, ValidationError, create_model
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import admin.paths  # noqa: F401  # registers the convertors of the paths
from admin.error_answers import BUG, REQUEST_TIMEOUT
from admin.models import CreateLinkRequest, Model, UpdateLinkRequest
from admin.operation import PREFIX, AdminOperation
from admin.operations import all_operations
from admin.service import InvalidRequest, ServiceError
from wire.client.properties import PropertyError, check_client_properties
from wire.client.secrets import SecretError, refuse_literal_secrets
from wire.errors import LinkerError

log = logging.getLogger(__name__)

T = TypeVar("T")


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


class OperationRoute(Route):
    """Validates requests and calls the service with a deadline. It decides nothing.

    Validators are built when the first request comes: a sidecar is never asked for most of the operations.
    """

    def __init__(self, operation: AdminOperation[..., Any]) -> None:
        super().__init__(
            PREFIX + operation.route_path, self._answer, methods=[operation.method], name=operation.name
        )
        self.methods = {operation.method}  # Starlette adds HEAD, which has no row
        self.operation = operation
        #: The operation that answers at the same path with dry_run.
        self.plan = _PLANS.get(operation.path)

    @cached_property
    def segments(self) -> dict[str, TypeAdapter[Any]]:
        """The names in the path."""
        parameters = self.operation.signature.parameters
        return {name: TypeAdapter(parameters[name].annotation) for name in self.operation.in_path}

    @cached_property
    def query(self) -> type[Model] | None:
        """Refuses unknown names: a misspelt dry_run must not become the real thing."""
        fields: dict[str, Any] = {one.name: (one.annotation, one.default) for one in self.operation.in_query}
        if self.plan is not None:
            fields["dry_run"] = (bool, False)
        return create_model(f"{self.operation.name}_query", __base__=Model, **fields) if fields else None

    @cached_property
    def writers(self) -> dict[str, TypeAdapter[Any]]:
        """Of the answers, by the name of the operation."""
        both = (self.operation,) if self.plan is None else (self.operation, self.plan)
        return {one.name: TypeAdapter(one.answer) for one in both}

    async def _answer(self, http: Request) -> Response:
        model = self.operation.body
        document = None if model is None else await _document(http)
        given = {
            name: _valid(one.validate_python, http.path_params[name], name)
            for name, one in self.segments.items()
        }
        asked = {} if self.query is None else _asked(self.query, http)
        if model is not None:
            given["request"] = _body(model, document)
        dry_run = asked.get("dry_run", False)
        called = self.operation
        if self.plan is not None:
            del asked["dry_run"]
            called = self.plan if dry_run else called
        answer = await _within(getattr(http.app.state.service, called.name)(**given, **asked))
        written = self.writers[called.name].dump_json(answer)
        status, headers = (200, None) if dry_run else (called.status, _location(called, given, answer))
        return Response(written, status, headers, "application/json")


def _location(
    operation: AdminOperation[..., Any], given: dict[str, Any], answer: Any
) -> dict[str, str] | None:
    if operation.location is None:
        return None
    return {"location": PREFIX + operation.location.format(answer=answer, **given)}


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


async def _document(http: Request) -> Any:
    """The body's JSON; None if there is no body."""
    body = await http.body()
    if not body:
        return None
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not JSON: it cannot be read") from error


def _body(model: type[Model], document: Any) -> Model:
    if document is None:
        raise InvalidRequest("a body is required")
    request: Model = _valid(model.model_validate, document)
    try:
        _BODY_CHECKS.get(model, lambda _request: None)(request)
    except (PropertyError, SecretError) as error:
        raise InvalidRequest(str(error)) from error
    return request


def _asked(model: type[Model], http: Request) -> dict[str, Any]:
    """The query's values, by the names of the arguments."""
    given: dict[str, Any] = dict(http.query_params)
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in given and get_origin(field.annotation) in (list, Sequence):
            given[key] = http.query_params.getlist(key)
    return dict(_valid(model.model_validate, given))


def _valid(validate: Callable[[Any], T], value: Any, name: str = "") -> T:
    """`name`: of what is no model."""
    try:
        return validate(value)
    except ValidationError as error:
        raise InvalidRequest(_complaint(error, name)) from error


def _complaint(error: ValidationError, name: str) -> str:
    """The first one, and where."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in (*([name] if name else []), *first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown field {where}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


ROUTES = [OperationRoute(one) for one in all_operations() if not one.planning]
