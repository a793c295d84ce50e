"""`linker run`, apart from the other commands: building them takes time, and clients wait while a sidecar starts.

Typer takes time too. The usual arguments of `run` are read without it; help and mistakes are left to typer.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CONFIG_VARIABLE = "LINKER_CONFIG"
DEFAULT_CONFIG = "linker.yaml"

# Installed, and therefore loaded by the libraries that name them, but of no use to a process that serves: memory and
# a part of the time that a restart takes. Each of them does without (an ImportError is foreseen there).
_UNUSED = (
    "hypothesis",  # kio: strategies for tests of others; a third of that time
    "rich",  # structlog: its tracebacks print local variables, we have plain ones
    "httpx._main",  # httpx: its command line, with click, rich and pygments
    "snappy",  # prometheus_client: to push metrics; ours are fetched
)


class Arguments(NamedTuple):
    """The arguments of `run`."""

    config: Path
    check: bool


def plain_arguments(given: Sequence[str], environment: Mapping[str, str]) -> Arguments | None:
    """The arguments in the forms that are read without typer, None if there is anything else."""
    config = environment.get(CONFIG_VARIABLE) or DEFAULT_CONFIG
    check = False
    rest = list(given)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--check" and not equals:
            check = True
        elif name == "--config" and equals:
            config = value
        elif name in ("--config", "-c") and not equals and rest:
            config = rest.pop(0)
        else:
            return None
    return Arguments(Path(config), check)


def run(arguments: Arguments) -> None:
    """Start the sidecar; returns when it has ended."""
    for name in _UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    from linker.config.file import load_config
    from linker.process.early_bind import EarlySockets

    settings = load_config(arguments.config)
    if arguments.check:
        sys.stdout.write(f"{arguments.config} is fine\n")
        return
    # Before all that takes time: see there.
    early_sockets = EarlySockets(
        (one.bind_host, one.port)
        for section in (settings.sidecar, *settings.sources.values())
        for one in section.client_listeners()
    )
    # Loaded modules are no garbage: they are not looked through while they come in, nor ever again (a pause of all that
    # is served, of tens of milliseconds).
    gc.disable()
    load_sidecar()
    import linker.sidecar as process
    from linker.process.logs import configure_logging

    gc.freeze()
    gc.enable()

    configure_logging(settings.log.level, settings.log.format)
    process.run(settings, early_sockets)


def load_sidecar() -> None:
    """All modules but those of the admin API."""
    importlib.import_module("linker.sidecar")
    importlib.import_module("linker.process.logs")
