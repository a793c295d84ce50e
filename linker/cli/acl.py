"""`linker acl ...`"""

from __future__ import annotations

from typing import Annotated

import typer

from linker.cli import acl_tables, tables
from linker.cli.link import Name
from linker.cli.options import Asking, DryRun, asking

app = typer.Typer(help="Rights, quotas and users of a link's clients at both clusters.", no_args_is_help=True)


@asking(app, "diff")
def diff(
    ask: Asking,
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
) -> None:
    """Compare ACLs, client quotas and SCRAM users of source and target; exit code 1 if something is missing or not known."""
    from admin.models import ApplyAccessRequest

    with ask.client() as client:
        if apply:
            result = client.apply_access(link, ApplyAccessRequest(quotas=quotas), dry_run=dry_run)
            ask.show(result, tables.change)
            return
        found = client.describe_access(link)
    ask.show(found, acl_tables.access)
    if acl_tables.incomplete(found):
        raise typer.Exit(1)
