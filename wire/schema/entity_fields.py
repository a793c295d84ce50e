"""Form and default of each field of kio's entity dataclasses."""

from __future__ import annotations

import datetime
import types
import typing
from dataclasses import MISSING, fields
from typing import Any

from kio.schema.errors import ErrorCode

_NEUTRAL: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "uuid": None,
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
}


def unwrap_annotation(annotation: Any) -> tuple[Any, bool, bool]:
    """(inner type, is an array, is nullable) of a field's annotation."""
    nullable = False
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        nullable = True
        annotation = next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True, nullable
    return annotation, False, nullable


def field_default(field: Any) -> Any:
    """The schema's default, else a neutral value: null where that is allowed, 0, "", an empty array, ..."""
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    inner, array, nullable = unwrap_annotation(field.type)
    if nullable:
        return None
    if array:
        return ()
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type is None:
        return inner(**{nested.name: field_default(nested) for nested in fields(inner)})
    return _NEUTRAL.get(kafka_type, 0)
