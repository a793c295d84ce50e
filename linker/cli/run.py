"""`linker run`, apart from the other commands: building them takes time, and clients wait while a sidecar starts."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[
        Path,
        typer.Option(
            "--config", "-c", envvar="LINKER_CONFIG", help="The sidecar's YAML file.", show_default=True
        ),
    ] = Path("linker.yaml"),
    check: Annotated[bool, typer.Option("--check", help="Only check the file.")] = False,
) -> None:
    """Start the sidecar; it runs until SIGTERM or Ctrl-C."""
    # First of all: kio, which the configuration loads too, loads it wherever it is installed, for tests of others, and
    # that is a third of the time that a restart takes.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    from linker.config import load_config
    from linker.doors import Doors

    settings = load_config(config)
    if check:
        typer.echo(f"{config} is fine")
        return
    # Before all that takes time: see there.
    doors = Doors((one.bind_host, one.port) for one in settings.sidecar.client_listeners())
    # What is loaded is no garbage: it is not looked through while it comes in, nor ever again (a pause of all that is
    # served, of tens of milliseconds).
    gc.disable()
    import linker.sidecar as process
    from linker.logs import configure_logging

    gc.freeze()
    gc.enable()

    configure_logging(settings.log.level, settings.log.format)
    process.run(settings, doors)


def only_run() -> typer.Typer:
    """The command line without its other commands; arguments begin after `run`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command("run")(run)
    return app
