"""`linker controller ...`"""

from __future__ import annotations

import typer

from linker.cli import fleet_tables
from linker.cli.options import DEFAULT_URL, AdminUrl, Output, TokenFile, connect
from linker.cli.output import Format, emit

app = typer.Typer(help="The link controller: the one sidecar of a fleet that decides.", no_args_is_help=True)


@app.command("describe")
def describe(
    output: Output = Format.TABLE, admin_url: AdminUrl = DEFAULT_URL, token_file: TokenFile = None
) -> None:
    """Show who it is, its epoch, the sidecars with their leases, what moves and why, and who is waited for."""
    with connect(admin_url, token_file) as client:
        found = client.describe_controller()
    emit(found, output, lambda: fleet_tables.controller(found))
