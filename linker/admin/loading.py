"""Loading the admin API, for a process that serves others meanwhile: late, in a thread, and no more than it needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pydantic import BaseModel

_DEFER = "defer_build"


def load_admin(alone: bool) -> None:
    """The modules of the admin API; those that pass requests on to other sidecars unless it is `alone`."""
    with _built_when_used():
        importlib.import_module("fastapi")
    # Its command line, and processes to watch over: 1.5 MiB with all that they need.
    with _empty("uvicorn.main"):
        importlib.import_module("uvicorn")
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


@contextmanager
def _empty(name: str) -> Iterator[None]:
    """An empty module is in the place of this one for whoever is loaded meanwhile. All that it is asked for is None.

    One that is loaded already stays.
    """
    if name in sys.modules:
        yield
        return
    module = ModuleType(name)
    module.__dict__["__getattr__"] = _nothing
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


def _nothing(name: str) -> None:
    if name.startswith("__"):  # a module's own, of which the import system asks for some
        raise AttributeError(name)
