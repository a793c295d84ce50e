"""Dataclasses as JSON objects and back, by the types of their fields.

Strict: a missing field or a value of another type is an error, never a default. So this is not pydantic, which fills in
defaults, and whose strict mode takes tuples and enums out of JSON text only.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

from wire.frames.types import parse_topic_id, topic_id_str

T = TypeVar("T")
Step = Callable[[Any], Any]

# Metadata of fields that stores of older versions lack: they are read as their defaults. The second kind is also written
# only when it is set.
ADDED_LATER: Final = types.MappingProxyType({"added_later": True})
WRITTEN_IF_SET: Final = types.MappingProxyType({"added_later": True, "written_if_set": True})


class Fields(Generic[T]):
    """The form of one dataclass. Fields that are `apart` stand elsewhere, in the path for example."""

    def __init__(self, kind: type[T], *apart: str) -> None:
        hints = get_type_hints(kind)
        self._kind = kind
        self._fields = [
            (
                one.name,
                *_form(hints[one.name]),
                bool(one.metadata.get("added_later")),
                one.default if one.metadata.get("written_if_set") else MISSING,
            )
            for one in fields(kind)  # type: ignore[arg-type]
            if one.name not in apart
        ]

    def read(self, value: object, **apart: object) -> T:
        """The dataclass; KeyError, TypeError or ValueError for a value that `write` cannot have made."""
        found = _object(value)
        for name, read, _, added_later, _ in self._fields:
            if added_later and name not in found:
                continue
            try:
                apart[name] = read(found[name])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
        return self._kind(**apart)

    def write(self, value: T) -> dict[str, Any]:
        """The JSON object, without the fields that are apart."""
        return {
            name: found if write is _same else write(found)
            for name, _, write, _, unset in self._fields
            if (found := getattr(value, name)) != unset
        }


def _form(hint: Any) -> tuple[Step, Step]:
    """How a value of this type is read and written."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is types.UnionType or type(None) in parts:
        if len(parts) > 2:  # any JSON value
            return _same, _same
        inner, outer = _form(parts[0])
        return (
            lambda value: None if value is None else inner(value),
            _same if outer is _same else lambda value: None if value is None else outer(value),
        )
    if origin is Mapping:
        inner, outer = _form(parts[1])
        return (
            lambda value: {key: inner(one) for key, one in _object(value).items()},
            lambda value: {key: outer(one) for key, one in value.items()},
        )
    if origin is tuple and parts[1:] == (...,):
        inner, outer = _form(parts[0])
        return (
            lambda value: tuple([inner(one) for one in _array(value)]),
            list if outer is _same else lambda value: [outer(one) for one in value],
        )
    if origin is tuple:
        return _row(tuple, parts)
    if issubclass(hint, tuple):  # a NamedTuple is a row, too
        return _row(hint._make, get_type_hints(hint).values())
    if is_dataclass(hint):
        form = Fields[Any](hint)  # type: ignore[arg-type]
        return form.read, form.write
    if issubclass(hint, Enum):
        return hint, attrgetter("value")
    if hint is bytes:
        return parse_topic_id, topic_id_str
    return (_float if hint is float else _exactly(hint)), _same


def _row(make: Step, hints: Iterable[Any]) -> tuple[Step, Step]:
    forms = [_form(hint) for hint in hints]
    return (
        lambda value: make([form[0](one) for form, one in zip(forms, _array(value), strict=True)]),
        list
        if all(form[1] is _same for form in forms)
        else lambda value: [form[1](one) for form, one in zip(forms, value, strict=True)],
    )


def _exactly(kind: type) -> Step:
    def read(value: object) -> object:
        if type(value) is not kind:  # a bool is no int
            raise TypeError(f"{kind.__name__} expected, not {value!r}")
        return value

    return read


_object, _array = _exactly(dict), _exactly(list)


def _float(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"float expected, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def _same(value: object) -> object:
    return value
