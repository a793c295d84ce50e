"""Late import of the admin API, in a thread, while the process serves clients, and without modules that it does not need."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel

_DEFER = "defer_build"


def load_admin(alone: bool) -> None:
    """Import the modules of the admin API. Unless the sidecar is `alone`, also those that pass requests on to others."""
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
    if not alone:  # imports the HTTP client
        importlib.import_module("admin.forward")


@contextmanager
def _built_when_used() -> Iterator[None]:
    """Models that are declared meanwhile get their validators when they are first used.

    FastAPI declares a model for everything that an OpenAPI document may hold. Their validators take 1.3 MiB, and hardly any
    sidecar is ever asked for its document. Our own models are used by every call, so they would gain nothing.
    """
    BaseModel.model_config[_DEFER] = True  # type: ignore[literal-required]
    try:
        yield
    finally:
        del BaseModel.model_config[_DEFER]  # type: ignore[misc]
