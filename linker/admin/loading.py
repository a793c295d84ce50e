"""Loading the admin API, for a process that serves others meanwhile: late, in a thread, and no more than it needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel

from linker.stand_ins import standing_in

_DEFER = "defer_build"


def load_admin(alone: bool) -> None:
    """The modules of the admin API; those that pass requests on to other sidecars unless it is `alone`."""
    with _built_when_used():
        importlib.import_module("fastapi")
    # Its command line, and processes to watch over: 1.5 MiB with all that they need. Its files of how to log, too.
    with standing_in("uvicorn.main", "logging.config"):
        importlib.import_module("uvicorn")
    # Servers and clients of its own for the metrics; ours are one more answer of the admin API.
    with standing_in("http.server", "socketserver", "urllib.request", "wsgiref.simple_server"):
        importlib.import_module("prometheus_client")
    for name in ("linker.admin.api", "linker.admin.server", "linker.metrics", "linker.service"):
        importlib.import_module(name)
    if not alone:  # the HTTP client comes with it
        importlib.import_module("linker.admin.forward")


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
