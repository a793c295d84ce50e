"""`linker run` for typer: its help, and its complaints about arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linker.cli.run import CONFIG_VARIABLE, DEFAULT_CONFIG, Arguments
from linker.cli.run import run as start


def run(
    config: Annotated[
        Path,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar=CONFIG_VARIABLE,
            help="The sidecar's YAML file.",
            show_default=True,
        ),
    ] = Path(DEFAULT_CONFIG),
    check: Annotated[bool, typer.Option("--check", help="Only check the file.")] = False,
) -> None:
    """Start the sidecar; it runs until SIGTERM or Ctrl-C."""
    start(Arguments(config, check))


def only_run() -> typer.Typer:
    """The command line without its other commands; arguments begin after `run`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command("run")(run)
    return app
