"""Late import of the admin API, in a thread, while the process serves clients, and without modules that it does not need."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel

_DEFER = "defer_build"


def load_admin(alone: bool) -> None:
    """The modules of the admin API; those that pass requests on to other sidecars unless it is `alone`."""
    with _built_when_used():
        importlib.import_module("fastapi")
    for name in (
        "uvicorn",
        "prometheus_client",
        "admin.api",
        "admin.server",
        "admin.metrics",
        "linker.service",
    ):
        importlib.import_module(name)
    if not alone:  # the HTTP client comes with it
        importlib.import_module("admin.forward")


@contextmanager
def _built_when_used() -> Iterator[None]:
    """Models that are declared meanwhile get their validators when they are used first.

    FastAPI declares one for everything that an OpenAPI document may hold: 1.3 MiB, and hardly a sidecar is ever asked for
    its own. Ours are used by every call, and gain nothing.
    """
    BaseModel.model_config[_DEFER] = True  # type: ignore[literal-required]
    try:
        yield
    finally:
        del BaseModel.model_config[_DEFER]  # type: ignore[misc]
