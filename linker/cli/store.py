"""`linker store ...`: work on a state store while no sidecar runs, so without the admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from linker.cli.options import DryRun, Output
from linker.cli.output import Format, emit, note, pairs

if TYPE_CHECKING:
    from linker.stores.copy import CopyResult

app = typer.Typer(help="State stores, while no sidecar runs.", no_args_is_help=True)

_PLACE = "a sidecar's configuration file, sqlite:PATH, zookeeper:HOST:PORT/PATH or topic:HOST:PORT/NAME"


@app.command("copy")
def copy(
    source: Annotated[
        str, typer.Option("--from", metavar="STORE", help=f"The store that has the state: {_PLACE}.")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="STORE", help="The store to copy to, in the same forms; empty.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the state of a target whose own state was moved away.")
    ] = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Move the state from one store to another: links, mirrors, promotes, identities. Stop all sidecars first.

    Everything is read back and compared; only then the source, otherwise left as it is, is marked as moved, and no
    sidecar starts with it any more. Stores that need credentials are named by a configuration file.
    """
    import asyncio

    from linker.stores.copy import copy_store
    from linker.stores.location import Location

    result = asyncio.run(
        copy_store(Location.parse(source), Location.parse(target), dry_run=dry_run, force=force)
    )
    emit(result, output, lambda: _table(result))
    if not dry_run:
        note(
            f"{result.source} is marked as moved; name {result.target} in the configuration of every sidecar"
        )


@app.command("reopen")
def reopen(
    store: Annotated[str, typer.Argument(metavar="STORE", help=f"The store: {_PLACE}.", show_default=False)],
) -> None:
    """Take back the mark that `copy` left: sidecars start with this store again, with its state as it was then.

    Never let sidecars run with both stores.
    """
    import asyncio

    from linker.stores.copy import reopen_store
    from linker.stores.location import Location

    moved_to = asyncio.run(reopen_store(Location.parse(store)))
    typer.echo(f"{store} is open again; do not use {moved_to} any more")


def _table(result: CopyResult) -> str:
    would = "would copy" if result.dry_run else "copied"
    if result.already_there:
        would = "same state already there"
    text = pairs(
        [
            ("from", result.source),
            ("to", result.target),
            (would, f"{result.nodes} nodes"),
            ("links", result.links),
            ("replaced", f"{result.replaced} nodes" if result.replaced else None),
        ]
    )
    return text + ("\nnothing was changed (--dry-run)" if result.dry_run else "")
