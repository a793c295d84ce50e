"""Late import of the admin API, in a thread, while the process serves clients."""

from __future__ import annotations

import importlib


def load_admin(alone: bool) -> None:
    """Import the modules of the admin API. Unless the sidecar is `alone`, also those that pass requests on to others."""
    for name in ("admin.api", "admin.server", "linker.service"):
        importlib.import_module(name)
    if not alone:  # imports the HTTP client
        importlib.import_module("admin.forward")
