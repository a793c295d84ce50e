"""`linker mirror reassign`: other brokers of the target for the replicas of mirrors."""

from __future__ import annotations

from typing import Annotated

import typer

from linker.cli import tables
from linker.cli.link import validated
from linker.cli.options import Asking, DryRun, LinkOption, chosen, usage


def _ids(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise usage(f"{option} {text}: give ids of brokers, separated by commas")
    return [int(part) for part in parts]


def reassign(
    ask: Asking,
    link: LinkOption,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Mirrors to move.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All mirrors of the link that are not over.")] = False,
    away_from: Annotated[
        str,
        typer.Option(
            "--away-from",
            metavar="BROKERS",
            help="Brokers of the target that are to hold no replica of them.",
        ),
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="BROKERS",
            help="Brokers that may take new replicas; default: all. Without --away-from, replicas leave all others.",
        ),
    ] = "",
    fewer_replicas: Annotated[
        bool,
        typer.Option(
            "--fewer-replicas", help="Where no other broker can take a replica, have one less from now on."
        ),
    ] = False,
    afresh: Annotated[
        bool,
        typer.Option(
            "--afresh",
            help="Drop all copies of these partitions at once, those on other brokers too, and begin from nothing.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Move replicas of mirrors to other brokers of the target, before the promote.

    New replicas are placed by rack and load. Replicas that are reassigned away copy on until the promote, which does not
    wait for them: --afresh frees their disks now. `linker mirror describe` shows how far the copies are.
    """
    from admin.models import ReassignRequest

    which = chosen(topics, all_)
    if not (away_from or to):
        raise usage("give --away-from, --to, or both")
    request = validated(
        ReassignRequest,
        **which,
        away_from=_ids("--away-from", away_from),
        to=_ids("--to", to),
        fewer_replicas=fewer_replicas,
        afresh=afresh,
    )
    ask.answer(lambda client: client.reassign_mirrors(link, request, dry_run=dry_run), tables.change)
