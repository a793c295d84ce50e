"""`linker sidecar ...`"""

from __future__ import annotations

from typing import Annotated

import typer

from linker.cli import tables
from linker.cli.options import DEFAULT_URL, AdminUrl, DryRun, Output, TokenFile, connect
from linker.cli.output import Format, emit

app = typer.Typer(help="Sidecars: the linker's brokers in the target cluster.", no_args_is_help=True)


@app.command("list")
def list_(
    output: Output = Format.TABLE, admin_url: AdminUrl = DEFAULT_URL, token_file: TokenFile = None
) -> None:
    """List sidecars."""
    with connect(admin_url, token_file) as client:
        found = client.list_sidecars()
    emit(found, output, lambda: tables.sidecars(found))


@app.command("leave")
def leave(
    sidecar_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, help="Broker id of the sidecar.", show_default=False)
    ],
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    admin_url: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Unregister a sidecar from the target cluster; refused while it leads a partition."""
    with connect(admin_url, token_file) as client:
        result = client.leave_sidecar(sidecar_id, dry_run=dry_run)
    emit(result, output, lambda: tables.change(result))
