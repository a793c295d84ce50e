"""One operation of the admin API, made from its row in the table (operations.py), and the probes outside the table."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, get_type_hints, overload

from pydantic.fields import FieldInfo

P = ParamSpec("P")
T = TypeVar("T")

#: The link controller's sidecar answers everything under this prefix; other sidecars pass it on.
PREFIX = "/v1"


#: The error of `admin.service` for each name in a path, if nothing has that name.
NOT_FOUND = {
    "link": "LinkNotFound",
    "topic": "MirrorNotFound",
    "group": "GroupNotFound",
    "run": "ValidationNotFound",
    "promote_id": "PromoteNotFound",
    "sidecar_id": "SidecarNotFound",
}


class Right(StrEnum):
    """Whether a request has to carry the token."""

    TOKEN = "always"
    CONFIGURED_TOKEN = "if the token is configured; not if the sidecar made it itself"
    NONE = "never"


class Caller(Protocol):
    """Carries out the operation of a row."""

    def call(self, operation: AdminOperation[..., Any], arguments: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True)
class AdminOperation(Generic[P, T]):
    """One row of the table. As an attribute of a Caller it is the call itself."""

    declared: Callable[Concatenate[Any, P], T]
    method: str
    path: str  # below PREFIX; `{name}` is one segment, `{name:rest}` the rest of the path
    command: str | None = None  # the CLI's; None: there is none
    without_command: str = ""  # why there is no command
    status: int = 200
    location: str | None = None  # the Location of the new thing; `request` and `answer` may be named in it
    planning: bool = False  # answers dry_run=true at the path of another row
    right: Right = Right.TOKEN

    @cached_property
    def name(self) -> str:
        return self.declared.__name__

    @cached_property
    def sentence(self) -> str:
        return " ".join((self.declared.__doc__ or "").split())

    @cached_property
    def signature(self) -> inspect.Signature:
        """Without `self`; annotations are types."""
        types = get_type_hints(self.declared, include_extras=True)
        signature = inspect.signature(self.declared)
        listed = [
            one.replace(annotation=types[name])
            for name, one in signature.parameters.items()
            if name != "self"
        ]
        return signature.replace(parameters=listed, return_annotation=types["return"])

    @cached_property
    def in_path(self) -> list[str]:
        return re.findall(r"\{(\w+)", self.path)

    @property
    def route_path(self) -> str:
        """With the convertors of `admin.paths`."""
        return re.sub(r"\{(\w+)\}", r"{\1:text}", self.path)

    def filled_path(self, segments: Mapping[str, str]) -> str:
        """With these names, percent-encoded."""
        return PREFIX + re.sub(r"\{(\w+)[^}]*\}", lambda name: segments[name[1]], self.path)

    def query(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The query parameters, by their names in the URL."""
        if self.planning:
            return {"dry_run": True}
        return {_query_name(one): arguments[one.name] for one in self.in_query} or None

    @cached_property
    def body(self) -> Any:
        """The request's model; None: it has no body."""
        found = self.signature.parameters.get("request")
        return None if found is None else found.annotation

    @cached_property
    def in_query(self) -> list[inspect.Parameter]:
        return [
            one
            for name, one in self.signature.parameters.items()
            if name not in self.in_path and name != "request"
        ]

    @property
    def answer(self) -> Any:
        return self.signature.return_annotation

    @property
    def not_found(self) -> list[str]:
        """Names of the errors that say that a name in the path does not exist."""
        return [NOT_FOUND[name] for name in self.in_path]

    @overload
    def __get__(self, caller: None, kind: type) -> Self: ...

    @overload
    def __get__(self, caller: Caller, kind: type) -> Callable[P, T]: ...

    def __get__(self, caller: Caller | None, kind: type) -> Self | Callable[P, T]:
        if caller is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            answer: T = caller.call(self, bound.arguments)
            return answer

        return call


def operation(
    method: str, path: str, command: str | None = None, **more: Any
) -> Callable[[Callable[Concatenate[Any, P], T]], AdminOperation[P, T]]:
    def row(declared: Callable[Concatenate[Any, P], T]) -> AdminOperation[P, T]:
        return AdminOperation(declared, method, path, command, **more)

    return row


def _query_name(parameter: inspect.Parameter) -> str:
    told = getattr(parameter.annotation, "__metadata__", ())
    return next((one.alias for one in told if isinstance(one, FieldInfo) and one.alias), parameter.name)


@dataclass(frozen=True)
class Probe:
    """A path outside PREFIX. It belongs to one process, which answers it even when it is crowded."""

    path: str
    right: Right


METRICS = Probe("/metrics", Right.CONFIGURED_TOKEN)  # names and numbers, no secrets
ALIVE = Probe("/healthz", Right.NONE)
READY = Probe("/readyz", Right.NONE)
PROBES = (METRICS, ALIVE, READY)
