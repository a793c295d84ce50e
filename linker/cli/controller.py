"""`linker controller ...`"""

from __future__ import annotations

import typer

from linker.cli import fleet_tables
from linker.cli.options import (
    Asking,
    asking,
)

app = typer.Typer(help="The link controller: the one sidecar of a fleet that decides.", no_args_is_help=True)


@asking(app, "describe")
def describe(ask: Asking) -> None:
    """Show who it is, its epoch, the sidecars with their leases, what moves and why, and who is waited for."""
    ask.answer(lambda client: client.describe_controller(), fleet_tables.controller)
