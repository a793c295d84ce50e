"""`linker acl ...`"""

from __future__ import annotations

from typing import Annotated

import typer

from linker.cli import acl_tables, tables
from linker.cli.link import Name
from linker.cli.options import DEFAULT_URL, AdminUrl, DryRun, Output, TokenFile, connect
from linker.cli.output import Format, emit

app = typer.Typer(help="Rights, quotas and users of a link's clients at both clusters.", no_args_is_help=True)


@app.command("diff")
def diff(
    link: Name,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Give the target the ACLs and the quotas of the link's clients that it lacks. Those that it has stay as "
            "they are.",
        ),
    ] = False,
    quotas: Annotated[
        bool, typer.Option("--quotas/--no-quotas", help="With --apply: copy quotas, too.")
    ] = True,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    admin_url: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Compare ACLs, client quotas and SCRAM users of source and target; exit code 1 if something is missing or not known."""
    from admin.models import ApplyAccessRequest

    with connect(admin_url, token_file) as client:
        if apply:
            result = client.apply_access(link, ApplyAccessRequest(quotas=quotas), dry_run=dry_run)
            emit(result, output, lambda: tables.change(result))
            return
        found = client.describe_access(link)
    emit(found, output, lambda: acl_tables.access(found))
    if acl_tables.incomplete(found):
        raise typer.Exit(1)
