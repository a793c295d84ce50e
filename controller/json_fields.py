"""Fields of a stored JSON object, read strictly: TypeError or KeyError for a value of another type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from controller.state import JsonValue

T = TypeVar("T")


def fields_of(value: JsonValue) -> Mapping[str, Any]:
    """The value as a JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {type(value).__name__}")
    return cast("Mapping[str, Any]", value)


def typed(fields: Mapping[str, Any], name: str, kind: Callable[..., T]) -> T:
    """A field whose value has exactly this type; a bool is no int."""
    value = fields[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {type(value).__name__}")
    return cast("T", value)


def int_of(fields: Mapping[str, Any], name: str) -> int:
    return typed(fields, name, int)


def str_of(fields: Mapping[str, Any], name: str) -> str:
    return typed(fields, name, str)


def list_of(fields: Mapping[str, Any], name: str) -> list[Any]:
    return typed(fields, name, list)


def optional(fields: Mapping[str, Any], name: str, kind: Callable[..., T]) -> T | None:
    """A field that may be null."""
    return None if fields[name] is None else typed(fields, name, kind)
