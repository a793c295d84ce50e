"""The OpenAPI document of the admin API, made from the table of operations; pydantic makes the schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from admin.models import ErrorBody, Health
from admin.operation import ALIVE, METRICS, PREFIX, READY
from admin.routes import ROUTES, OperationRoute

_SUCCESS = "Successful Response"
_Mode = Literal["validation", "serialization"]
Json = dict[str, Any]


@cache
def written(version: str) -> bytes:
    """The document as it is sent. Making it takes a moment, so that is done once."""
    return json.dumps(document(version), ensure_ascii=False, separators=(",", ":")).encode()


def document(version: str) -> Json:
    """The document. `version`: the program's."""
    # All schemas at once, so that models that differ and have the same name get a name each.
    given, common = TypeAdapter.json_schemas(_wanted(), ref_template="#/components/schemas/{model}")
    schemas = {key: schema for (key, _mode), schema in given.items()}
    named: Json = common["$defs"]
    paths: dict[str, Json] = {}
    for route in ROUTES:
        path = PREFIX + re.sub(r":\w+}", "}", route.operation.path)
        paths.setdefault(path, {})[route.operation.method.lower()] = _operation(route, schemas, named)
    for path, answer in (
        (METRICS.path, None),
        (ALIVE.path, schemas["health"]),
        (READY.path, schemas["health"]),
    ):
        succeeded = {"description": _SUCCESS} | ({} if answer is None else _json(answer))
        paths[path] = {"get": _named(path.strip("/")) | {"responses": {"200": succeeded}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kafka Linker admin API", "version": version},
        "paths": paths,
        "components": {"schemas": _without_nulls(dict(sorted(named.items())))},
    }


def _without_nulls(value: Any) -> Any:
    """A field that may be left out has no default then, as most readers of such documents expect."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _wanted() -> Iterator[tuple[str, _Mode, TypeAdapter[Any]]]:
    """Key, mode and type of each schema: answers as they are written, everything else as it is read."""
    yield "error", "serialization", TypeAdapter(ErrorBody)
    yield "health", "serialization", TypeAdapter(Health)
    for route in ROUTES:
        name, row = route.operation.name, route.operation
        answer = row.answer if route.plan is None else row.answer | route.plan.answer
        yield f"{name} answer", "serialization", TypeAdapter(answer)
        if row.body is not None:
            yield f"{name} request", "validation", TypeAdapter(row.body)
        if route.query is not None:
            yield f"{name} query", "validation", TypeAdapter(route.query)
        for segment, adapter in route.segments.items():
            yield f"{name} {segment}", "validation", adapter


def _operation(route: OperationRoute, schemas: Json, named: Json) -> Json:
    name, row = route.operation.name, route.operation
    parameters = [
        {
            "name": segment,
            "in": "path",
            "required": True,
            "schema": _titled(schemas[f"{name} {segment}"], segment),
        }
        for segment in route.segments
    ]
    if route.query is not None:
        asked = named.pop(route.query.__name__)
        parameters += [
            {"name": key, "in": "query", "required": key in asked.get("required", ()), "schema": schema}
            for key, schema in asked["properties"].items()
        ]
    body = (
        {"requestBody": {"required": True, **_json(schemas[f"{name} request"])}}
        if row.body is not None
        else {}
    )
    answer = _titled(schemas[f"{name} answer"], f"response_{name}")
    return {
        **_named(name),
        **({"parameters": parameters} if parameters else {}),
        **body,
        "responses": {
            str(row.status): {"description": _SUCCESS, **_json(answer)},
            "4XX": {"description": "Client Error", **_json(schemas["error"])},
            "5XX": {"description": "Server Error", **_json(schemas["error"])},
        },
    }


def _named(name: str) -> Json:
    """`operationId` is the name that generated clients use."""
    return {"summary": _title(name), "operationId": name}


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _titled(schema: Json, name: str) -> Json:
    return schema if "$ref" in schema else schema | {"title": _title(name)}


def _json(schema: Json) -> Json:
    return {"content": {"application/json": {"schema": schema}}}
