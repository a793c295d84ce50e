"""`linker sidecar ...`"""

from __future__ import annotations

from typing import Annotated

import typer

from linker.cli import fleet_tables, tables
from linker.cli.options import (
    Asking,
    DryRun,
    asking,
    usage,
)

app = typer.Typer(help="Sidecars: the linker's brokers in the target cluster.", no_args_is_help=True)

SidecarId = Annotated[
    int,
    typer.Argument(metavar="ID", min=0, max=2**31 - 1, help="Broker id of the sidecar.", show_default=False),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.0, help="Longest time to wait for the end of it."),
]


@asking(app, "list")
def list_(ask: Asking) -> None:
    """List the sidecars of the fleet: state, version, what they lead, leases, when they were last heard of."""
    ask.answer(lambda client: client.list_sidecars(), fleet_tables.sidecars)


@asking(app, "drain")
def drain(
    ask: Asking,
    sidecar_id: SidecarId,
    undo: Annotated[bool, typer.Option("--undo", help="Let it lead again, and return at once.")] = False,
    timeout: Timeout = 120.0,
    dry_run: DryRun = False,
) -> None:
    """Take all leadership from a sidecar, before it is stopped for an upgrade; wait until it leads nothing.

    It stays in the ISRs, and drained until its process is started anew or until --undo. Exit code 1 if partitions
    could not move within the time; it goes on draining then.
    """
    with ask.client() as client:
        if undo or dry_run:
            result = client.drain_sidecar(sidecar_id, undo=undo, dry_run=dry_run)
            ask.show(result, tables.change)
            return
        from linker.cli.departing import drained

        result = client.drain_sidecar(sidecar_id)
        last = drained(client, sidecar_id, timeout)
    ask.show(last, fleet_tables.departing)


@asking(app, "leave")
def leave(
    ask: Asking,
    sidecar_id: SidecarId,
    dead: Annotated[
        bool, typer.Option("--dead", help="It is gone for good: unregister its broker in its place.")
    ] = False,
    timeout: Timeout = 120.0,
    dry_run: DryRun = False,
) -> None:
    """Take a sidecar out of the fleet for good: drained, out of the replica lists, unregistered, stopped, forgotten.

    A sidecar without others is refused while it leads a partition. Exit code 1 if it has not left within the time; it
    goes on leaving then, until its process is started anew.
    """
    if timeout == 0.0 and not dry_run:
        raise usage("--timeout must be above 0: a sidecar leaves in several steps")
    with ask.client() as client:
        result = client.leave_sidecar(sidecar_id, dead=dead, dry_run=dry_run)
        if result.pending:
            from linker.cli.departing import left

            left(client, sidecar_id, timeout)
    ask.show(result, tables.change)
